"""Programs in the documentation run and have the results that the pages state."""

import importlib.util
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import Batch, Observation, attacks, audit, data, defenses, metrics, models, protocols
from jaxleak._command.invert.run import keep_arrays
from jaxleak.attacks import adaptive
from jaxleak.attacks.client_updates import Gradients
from jaxleak.defenses.mechanisms import Mechanism, Replayed
from jaxleak.study import RunFolder, updates
from jaxleak.study.updates import _inversions

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("_offline", ROOT / "docs" / "_offline.py")
offline = importlib.util.module_from_spec(spec)
spec.loader.exec_module(offline)


def programs(page):
    """The Python programs of a page, in order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def run(page, number=0, of=1):
    """Run program `number` of a page that has `of` programs; returns the names that it defines."""
    found = programs(page)
    assert len(found) == of
    # Classes look up their own module.
    module = types.ModuleType(f"program_{number}")
    exec(compile(found[number], page, "exec"), module.__dict__)
    return vars(module)


def test_a_model_of_ones_own_is_attacked_with_its_own_gradient():
    pytest.importorskip("torch")
    names = run("docs/your_model.md", 0, 5)
    assert names["verdict"].verdict == "leaks"
    assert names["verdict"].metrics["psnr"] > 40


@pytest.mark.parametrize("number", [1, 2, 3, 4], ids=["nnx", "linen", "equinox", "function"])
def test_models_of_other_frameworks_are_taken_in_as_they_are(number, capsys):
    names = run("docs/your_model.md", number, 5)
    model, variables = names["model"], names["variables"]
    x = reference.uniform(2, *model.image_shape)
    out = model.apply(variables, x, mode="eval")
    assert model.num_classes == 10
    head = model.head_of(variables["params"])
    bias = 0 if head.bias is None else head.bias
    np.testing.assert_allclose(out.logits, out.features @ head.kernel + bias, atol=1e-5)
    assert model.notes == ()
    assert ("(head)" in capsys.readouterr().out) == (number == 4)


def test_networks_of_ones_own_parties_are_attacked_by_cafe():
    names = run("docs/cafe.md")
    assert names["answer"].answered.all()
    np.testing.assert_array_equal(names["answer"].y, names["digits"].y)
    assert metrics.psnr(names["digits"].x, names["found"]).min() > 40


def test_a_split_training_loop_of_ones_own_is_recorded_and_attacked():
    pytest.importorskip("torch")
    names = run("docs/your_split_training.md", of=2)
    scores = names["scores"]
    assert scores["labels"] > 0.95
    assert 0.7 < scores["labels without gradients"] < 0.85  # the weaker baseline, for plain accuracy, is below 0.6
    assert scores["features"] > scores["features without gradients"] + 0.1
    assert names["answered"].all()
    # Repeat the scores with half of the samples in no recorded step.
    program, by_rows = programs("docs/your_split_training.md")
    names["labels"][::2] = -1
    exec(program[program.index("answered = ") :], names)
    assert names["answered"].sum() == 240
    assert names["scores"]["labels"] > 0.95
    assert names["scores"].keys() == scores.keys()
    assert all(names["scores"][name] != score for name, score in scores.items() if "without" in name)
    # Answers by row of a record are put back in the order of samples.
    exec(by_rows, names)
    share = names["y"][names["victim"]].mean()
    assert share / 2 < names["by_sample"].mean() < 2 * share
    assert names["metrics"].balanced_label_accuracy(names["truth"], names["by_sample"]) > 0.6
    # Features of the fifth epoch from a shadow run of the first epoch: `gains` cannot show that they are worse.
    last = jax.tree.map(lambda leaf: leaf[4 * 30 :], names["train"](names["victim"], epochs=5, seed=1))
    late = names["regression"].predict(last, names["telco"][names["victim"]])
    assert names["regression"].gains
    assert names["metrics"].feature_r2(names["bank"][names["victim"]], late) < scores["features without gradients"]


@pytest.mark.slow
def test_a_table_of_ones_own_is_audited_in_any_unit():
    _, label_holder, _ = programs("docs/your_table.md")
    names = run("docs/your_table.md", of=3)
    scores = names["scores"]
    assert names["table"].min() < 0
    assert names["table"].max() > 1
    assert scores["labels"] > 0.95
    assert scores["features"] > 0.4
    assert scores["features by regression"] > scores["features"]
    assert names["answer"].answered.all()
    exec(label_holder, names)
    assert names["received"] > 0.8 > names["alone"]


@pytest.mark.slow
def test_a_row_of_a_table_is_audited_in_the_units_of_its_columns():
    pytest.importorskip("torch")
    names = run("docs/audit_table.md")
    assert names["verdict"].headline == "leaks images and labels"
    np.testing.assert_allclose(names["found"], names["table"][names["rows"]], rtol=1e-2, atol=1e-3)
    assert names["verdict"].metrics["psnr"] > names["means"] + 20
    assert names["model"].image_shape == (1, 1, 30)


def test_archives_of_ones_own_are_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXLEAK_DATA_DIR", "")  # the page sets it, and pytest restores it
    names = run("docs/data.md")
    assert names["images"].x.shape == (20, 28, 28, 1)
    assert names["images"].x.max() <= 1
    assert names["adult"].numeric.shape == (100, 2)
    assert names["adult"].categorical.shape == (100, 1)


@pytest.mark.slow
def test_the_readmes_program_shows_that_the_update_leaks():
    names = run("README.md")
    verdict = names["verdict"]
    assert verdict.verdict == "leaks"
    assert verdict.best.y.tolist() == names["secret"].y.tolist()
    assert verdict.metrics["psnr"] > 30


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://unpkg.com/iframe-worker/shim"></script>',
        "<script async src=https://example.org/a.js></script>",
        '<img alt="a picture" src="//example.org/a.png">',
        '<link rel="stylesheet" href="https://fonts.example.org/css">',
    ],
)
def test_what_a_page_loads_from_another_host_is_found(tag):
    assert len(offline.loaded_from_elsewhere(f"<html>{tag}</html>")) == 1


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="../javascripts/iframe-worker.js"></script>',
        '<a href="https://example.org">a link, which waits for its reader</a>',
        '<link rel="canonical" href="https://example.org/page.html">',
    ],
)
def test_links_and_what_stands_beside_the_page_are_no_load(tag):
    assert offline.loaded_from_elsewhere(f"<html>{tag}</html>") == []


def test_the_search_of_the_site_needs_no_other_host():
    """The plugin `offline` would load this script from another host if the settings did not name a copy."""
    settings = (ROOT / "mkdocs.yml").read_text()
    (named,) = re.findall(r"polyfills: \[(.*?iframe-worker.*?)\]", settings)
    script = (ROOT / "docs" / named).read_text()
    assert "Permission is hereby granted" in script
    assert "window.IFrameWorker" in script


def test_an_attack_and_a_defense_of_ones_own_are_taken_as_they_are_printed(tmp_path):
    program, _ = programs("docs/your_attack.md")
    file = tmp_path / program.splitlines()[0].removeprefix("# ")
    file.write_text(program)
    case = updates.Case(
        attack=f"{file}:every_tensor_alike", iterations=3, data="digits", model="mlp",
        defense=f"{file}:uniform_noise", strength=0.01, adaptive=True,
    )  # fmt: skip
    updates.check(case)
    model, share, _ = updates.client_of(case, (8, 8, 1), 10)
    updates.resolved(case).build(model, share)
    noise = updates.kind_of_defense(case.defense).build(case.strength)
    sent = noise.apply(jax.random.key(0), np.zeros(100_000, np.float32))
    assert np.std(sent) == pytest.approx(0.01, rel=0.02)


def test_a_rotation_hides_nothing_from_a_distance_of_angles_and_all_from_who_replays_it():
    def mirrored(key, leaf):
        """A rotation that turns some outputs of each layer around."""
        return leaf * jax.random.rademacher(key, leaf.shape[-1:]) if leaf.ndim > 1 else leaf

    image = data.load("digits", n=1)
    model = models.mlp(image.x.shape[1:], 10, widths=(64, 32), activation="sigmoid")
    share, variables = protocols.ClientShare(model), model.init(jax.random.key(0))
    secret = Batch(jnp.asarray(image.x)[:, None], jnp.asarray(image.y, jnp.int32), jnp.arange(1))
    defense = defenses.per_leaf("payload", mirrored, mechanism=Mechanism(Replayed(random=True)))
    sent = defense.apply(jax.random.key(1), share(variables, secret))
    seen = Observation(jnp.zeros((), jnp.int32), variables, sent)
    settings = run("docs/your_attack.md", 0, 2)["every_tensor_alike"](300)
    known = adaptive.informed(defense, model, share, settings, batch_size=1)
    own = settings._replace(compare=Gradients(run("docs/your_attack.md", 1, 2)["angles"])).weighing(tv=0.0)
    psnr = []
    for simulated, chosen in ((known.share, known.settings), (share, own)):
        attack = attacks.inversion(model, simulated, chosen, batch_size=1)
        found, _, _ = audit.invert(attack, seen, audit.template_of(secret), key=jax.random.key(2))
        psnr.append(float(metrics.psnr(image.x, found.x[:, 0])[0]))
    assert psnr[0] < metrics.grey_psnr(image.x)[0] + 3
    assert psnr[1] > psnr[0] + 15


def test_a_table_goes_on_where_it_was_and_takes_one_more_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(programs("docs/your_attack.md")[0])
    program, ran = programs("docs/scale.md")[0], []
    for before, after in {
        '"convnet", "photographs", (1, 4), (0, 1, 2)': '"mlp", "digits", (1,), SEEDS',
        '"dlg": 300, "inverting_gradients": 4800, "fedleak": 1000, ': '"fedleak": 2, ',
        '("gaussian", 0.01), ("sparsification", 10.0), ("mine.py:uniform_noise", 0.01)': '("gaussian", 0.0),',
    }.items():
        assert before in program
        program = program.replace(before, after)

    def attack(case, seed, **_):
        if (case.attack, seed, kill) == ("mine.py:every_tensor_alike", 1, True):
            raise KeyboardInterrupt
        ran.append((case.attack, seed))
        images = np.full((1, 8, 8, 1), 0.5)
        return updates.Outcome(images, images / 2, {"psnr": 12.0, "ssim": 0.5}, np.ones(case.iterations))

    monkeypatch.setattr(_inversions, "attack", attack)
    kill = True
    with pytest.raises(KeyboardInterrupt):
        exec(program, {"SEEDS": (0, 1)})
    assert len(ran) == 3  # both seeds of `fedleak`, and one of the user's attack; noise of strength 0 is refused
    kill = False
    exec(program, {"SEEDS": (0, 1)})
    exec(program, {"SEEDS": (0, 1, 2)})
    assert len(ran) == len(set(ran)) == 2 * 3
    rows = Path("runs/table/table.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 3
    assert rows[0].startswith("attack,iterations,defense,strength,adaptive,batch_size,seed,psnr,psnr_grey,ssim,")
    assert rows[2] == "fedleak,2,,0.0,False,1,1,12.0,,0.5,,,"
    assert "not run: fedleak, gaussian, batch size 1: strength of gaussian must be given" in capsys.readouterr().out


def test_a_metric_of_ones_own_is_applied_to_what_a_run_left(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder("runs/mine", "invert", {}, fresh=False)
    images, labels = np.full((2, 8, 8, 1), 0.5), np.array([3, 4])
    found = updates.Outcome(images, images / 2, {}, np.zeros(0), None, labels, labels, np.ones(2, bool))
    keep_arrays(folder, 7, found)
    run("docs/scores.md")
    assert capsys.readouterr().out == f"seed_7 [0.25 0.25] {metrics.psnr(images, images / 2)} [3 4]\n"
    page = (ROOT / "docs/scores.md").read_text()
    second = audit.Agreement(np.ones(2), images, np.zeros(2, bool))
    assert [name for name in found._replace(second=second).arrays() if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_many_clients_are_attacked_in_one_program(capsys):
    names = run("docs/scale.md", 1, 2)
    assert not names["frozen"].any()
    printed = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 3
    assert min(printed) > 25
