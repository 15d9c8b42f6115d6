"""FedLeak's tables: every printed cell has a run or a reason, a budget is kept, and finished runs stay finished."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tiny_studies import args_of, write_images

from experiments import _paper, fedleak
from experiments._fedleak import demo
from experiments._fedleak import report as fedleak_report
from experiments._fedleak.cells import NOT_MEASURED, cells, lacking, names
from experiments._fedleak.jobs import Job, Sizes
from experiments._fedleak.runs import UpdateJobs
from jaxleak import data, metrics
from jaxleak.study import RunFolder
from jaxleak.study.cells import Cell, over_rounds
from jaxleak.study.runner import Result, runner_in
from jaxleak.study.sources import unavailable
from jaxleak.study.updates import (
    Case,
    Federation,
    Inversion,
    Inversions,
    Training,
    Utilities,
    _cost,
    _size,
    check,
    draw_distances,
    resolved,
    seconds_of_update,
    trained,
    utility_of,
    victim,
)
from jaxleak.study.updates._partitions import client_samples

NO_LPIPS = "LPIPS needs pretrained weights"
EVERYTHING = Sizes(
    specs=dict.fromkeys(("MNIST", "CIFAR-10", "CIFAR-100"), "digits"),
    substitute="digits",
    lacking={"table10-lpips": NO_LPIPS},
)


def _without_lpips(*_):
    raise FileNotFoundError(NO_LPIPS)


@pytest.fixture(autouse=True)
def no_lpips(monkeypatch):
    """LPIPS is unavailable, whether or not its package is installed."""
    monkeypatch.setattr(metrics, "lpips", _without_lpips)


def _all(sizes):
    return [cell for name in names() for cell in cells(name, sizes)]


def test_every_printed_cell_has_a_run_or_a_reason():
    planned = _all(EVERYTHING)
    printed = [cell["id"] for table in _paper.tables("fedleak").values() for cell in table["cell"]]
    assert Counter(cell.id for cell in planned if cell.paper is not None) == Counter(printed)
    assert all(bool(cell.jobs) != bool(cell.reason) for cell in planned)
    without = {cell.id for cell in planned if cell.reason}
    methods = {cell["id"]: cell["method"] for table in _paper.tables("fedleak").values() for cell in table["cell"]}
    by_hand = {name for name, method in methods.items() if method in ("GGL", "ROGS")}
    never = {c["id"] for name in (*NOT_MEASURED, "table10-lpips") for c in _paper.tables("fedleak")[name]["cell"]}
    pretrained = {name for name in methods if name.startswith("table7") and name.endswith("pretrained")}
    assert without == by_hand | never | pretrained


def test_cells_ask_for_what_is_printed():
    by_id = {cell.id: cell for cell in _all(EVERYTHING)}

    def case(name):
        return by_id[name].jobs[0].case

    first = case("table3/fedleak/b64/mnist")
    assert (first.model, first.batch_size, first.iterations, first.data) == ("resnet10", 64, 10_000, "digits")
    assert case("table3/idlg/b16/mnist").attack == "idlg"
    assert case("table5/fedleak/label-skew/3").partition == "label_skew:3"
    assert case("table5/fedleak/feature-skew/80-100").partition == "feature_skew:4"
    assert case("table6/fedleak/alpha0.1").partition == "dirichlet:0.1"
    assert case("table8/fedleak/b32/vit").model == "vit_tiny"
    assert case("table9/fedleak/steps12").images == 192
    assert case("table11-psnr/bayes/multiple-start/mnist").restarts == 4
    assert case("table11-gd/gi/cosine-annealing/cifar10").optimizer == "annealed"
    assert case("table14-psnr-without/b32").labels == "joint"
    assert case("table15/R15").matched_percent == 15
    assert case("table16/lambda0.9").blend == 0.9
    assert case("table17/alpha0").tv == 0
    assert case("table17/alpha1e-4").tv == pytest.approx(10 * case("table17/alpha1e-5").tv)
    (printed,) = (p for p in _all(replace(EVERYTHING, fedleak="fedleak_paper")) if p.id == "table17/alpha1e-4")
    assert printed.jobs[0].case.tv == 1e-4  # TV as a sum, as in the paper
    assert "mean TV" not in printed.note
    assert case("table18/beta0.01").activation_penalty == 0.01
    assert case("table19/without-cos").terms == ("relative_l1",)
    assert by_id["text-overdetermination/b1"].read([Result({"parameters": 4902090.0}, {})]) == pytest.approx(
        6252, abs=1
    )
    assert by_id["text-capacity-gain/depth/b32"].read(
        [Result({"psnr_best_match": psnr}, {}) for psnr in (10.0, 12.5)]
    ) == pytest.approx(2.5)


def test_figures_without_numbers_have_their_runs():
    (convergence,) = (cell for cell in cells("fig6", EVERYTHING) if cell.paper is None)
    case = convergence.jobs[0].case
    assert (case.model, case.batch_size, case.data) == ("resnet10", 64, "digits")
    curve = np.array([10.0, 5.0, 0.1, 0.0])
    assert convergence.read([Result({}, {"curve": curve})]) == 2
    parabolas = {cell.id: cell.jobs[0].case for cell in cells("fig10", EVERYTHING)}
    assert len(parabolas) == 6
    assert parabolas["fig10/step0.9/toward-the-next-point"].probe == "step"
    assert parabolas["fig10/step1/plain"].blend is None


def test_every_case_has_settings_that_the_threat_grants():
    cases = {job.case for cell in _all(EVERYTHING) for job in cell.jobs if job.kind == "invert"}
    assert len(cases) > 80
    assert all(resolved(case).settings.labels != "given" for case in cases)
    for case in cases:
        check(case)


def test_tables_without_data_end_with_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    with pytest.raises(FileNotFoundError, match=r"no cell could run: no data: .*JAXLEAK_DATA_DIR"):
        fedleak.main(args_of(fedleak.Args, table=("table15",), out=tmp_path))
    assert "not run (no data" in capsys.readouterr().out
    assert (tmp_path / "results.json").exists()


def test_missing_data_are_a_reason():
    reasons = {cell.reason for cell in cells("table5", Sizes())}
    assert len(reasons) == 1
    assert "no data: Lung-Colon Cancer" in reasons.pop()
    assert "imagenet_nowhere" in unavailable("imagenet_nowhere")


def test_reductions_are_named_in_the_note():
    sizes = Sizes(model="convnet", batch_size=2, iterations=7, specs=EVERYTHING.specs)
    note = next(cells("table15", sizes)).note
    for part in ("convnet for resnet10", "B 2 for B 32", "7 iterations for 10000", "random weights for pretrained"):
        assert part in note


def test_the_gpu_preset_runs_fedleak_as_printed():
    printed, ours = fedleak.sizes_of(args_of(fedleak.Args, preset="gpu")), fedleak.sizes_of(fedleak.Args())
    assert (printed.fedleak, printed.labels) == ("fedleak_paper", "fedleak")
    assert (ours.fedleak, ours.labels) == ("fedleak", "calibrated")
    assert fedleak.sizes_of(args_of(fedleak.Args, preset="gpu", fedleak="fedleak", labels="joint")).labels == "joint"
    assert "the printed preset" in next(cells("table15", replace(EVERYTHING, fedleak="fedleak_paper"))).note
    assert "our preset (relative L1" in next(cells("table15", EVERYTHING)).note


def test_a_cell_over_several_rounds_is_their_mean():
    rounds = [None, Training(rounds=2000), Training(rounds=4000)]
    same = [next(cells("table15", replace(EVERYTHING, attack_round=training))) for training in rounds]
    mean = over_rounds(same)
    assert [job.training for job in mean.jobs] == rounds
    assert mean.read([Result({"psnr_best_match": psnr}, {}) for psnr in (10.0, 11.0, 18.0)]) == 13.0
    assert "first round; " in mean.note
    assert mean.note.endswith("round 2000; round 4000; mean over 3 rounds")
    assert over_rounds(same[:1]) is same[0]
    labels = [next(cells("table14", replace(EVERYTHING, attack_round=training))) for training in rounds]
    assert over_rounds(labels).jobs == labels[0].jobs  # always with random weights


TINY = {"model": "mlp", "batch_size": 2, "iterations": 2, "only": "lambda0.1", "table": ("table16",)}


@pytest.fixture
def digits(monkeypatch):
    monkeypatch.setattr(fedleak, "DATASETS", {"MNIST": "digits", "CIFAR-10": "digits"})


@pytest.mark.slow
def test_lpips_is_read_off_the_images(tmp_path, monkeypatch):
    assert lacking() == {"table10-lpips": f"lacks what it is computed by: {NO_LPIPS}"}
    monkeypatch.setattr(metrics, "lpips", lambda truth, estimate: np.abs(truth - estimate).mean(axis=(1, 2, 3)))
    assert not lacking()
    args = {"model": "mlp", "batch_size": 2, "iterations": 2, "table": ("table10",), "substitute": "digits"}
    fedleak.main(args_of(fedleak.Args, **args, only="lpips/fedleak", out=tmp_path))
    (row,) = (c for c in json.loads((tmp_path / "results.json").read_text())["cells"] if c["ours"] is not None)
    assert row["id"] == "table10-lpips/fedleak"
    (images,) = (np.load(file) for file in (tmp_path / "cells").glob("*.npz"))
    assert row["ours"] == pytest.approx(np.abs(images["truth"] - images["estimate"]).mean())


@pytest.mark.slow
def test_a_run_leaves_its_results_and_is_not_run_again(tmp_path, capsys, monkeypatch, digits):
    args = args_of(fedleak.Args, **TINY, seeds=(0, 1), out=tmp_path)
    found = fedleak.main(args)
    assert (found["cells_run"], found["cells_listed"]) == (1, 4)
    stored = json.loads((tmp_path / "results.json").read_text())
    row = next(cell for cell in stored["cells"] if cell["ours"] is not None)
    assert row["id"] == "table16/lambda0.1"
    assert row["paper"] == 18.85
    assert {"spread", "psnr_grey", "cosine_distance", "label_accuracy", "note"} <= row.keys()
    assert len(list((tmp_path / "figures").glob("*.png"))) == 2
    assert "not run (not asked for)" in capsys.readouterr().out
    monkeypatch.setattr(UpdateJobs, "run", lambda *_: pytest.fail("a finished run was run again"))
    fedleak.main(args)
    again = json.loads((tmp_path / "results.json").read_text())
    assert again["cells"] == stored["cells"]


def test_what_stands_beside_a_mean_over_rounds_is_of_the_same_rounds():
    job = Job(Case(), Training(rounds=2))
    rounds = (job, replace(job, training=Training(rounds=4)), replace(job, kind="labels"))
    scores = [
        [Result({"psnr": value}, {}) for value in of_seed] for of_seed in ((10.0, 20.0, 99.0), (30.0, 40.0, 99.0))
    ]
    assert fedleak._beside(Cell("a/b", None, "dB", rounds), scores) == {"psnr": 25.0}
    assert fedleak._beside(Cell("a/b", None, "dB", rounds[::2]), [of_seed[::2] for of_seed in scores]) == {"psnr": 20.0}


@pytest.mark.slow
def test_the_demo_shows_fedleak_beside_its_baselines(tmp_path, monkeypatch, capsys):
    small = {name: replace(case, data="digits", model="mlp") for name, case in demo.ATTACKS.items()}
    monkeypatch.setattr(demo, "ATTACKS", {name: small[name] for name in ("FedLeak", "iDLG")})
    found = fedleak.main(args_of(fedleak.Args, preset="demo", seeds=(0,), iterations=2, out=tmp_path))
    wanted = "psnr_fedleak psnr_best_baseline psnr_grey ssim_fedleak cosine_distance label_accuracy seconds"
    assert set(wanted.split()) <= found.keys()
    assert found["psnr_best_baseline"] == found["psnr_idlg"]
    assert json.loads((tmp_path / "results.json").read_text())["metrics"] == pytest.approx(found)
    report = (tmp_path / "report.md").read_text()
    for figure in ("contact_sheet", "distance"):
        assert (tmp_path / "figures" / f"{figure}.png").exists()
        assert f"](figures/{figure}.png)" in report.replace(f"![{figure}.png]", "")  # with its own caption
    assert report.splitlines()[2].startswith("**FedLeak (our settings) reconstructs 4 images")
    assert "python -m experiments.fedleak --iterations 2" in report
    assert "iDLG" in capsys.readouterr().out


def test_a_budget_too_small_runs_nothing_and_says_so(tmp_path, capsys, digits):
    args = args_of(fedleak.Args, **TINY | {"only": ""}, budget=0.001, out=tmp_path)
    with pytest.raises(ValueError, match=r"nothing was run: beyond the budget: .*raise --budget"):
        fedleak.main(args)
    assert "beyond the budget" in capsys.readouterr().out
    assert json.loads((tmp_path / "results.json").read_text())["status"] == "nothing was run"


def test_cost_grows_with_the_work():
    case = Case(data="digits", model="mlp", iterations=1000)
    dearer = [{"iterations": 2000}, {"restarts": 4}, {"blend": 0.7}, {"attack": "idlg"}]
    for change in dearer:
        assert seconds_of_update(Case(**vars(case) | change)) > seconds_of_update(case)
    assert seconds_of_update(case, Training()) > seconds_of_update(case)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # 1,000 iterations of eight forward passes of a second per image, and 30 s for a compilation.
        ({}, 30 + 1000 * 8),
        ({"batch_size": 3}, 30 + 1000 * 24),
        ({"restarts": 2}, 30 + 2000 * 8),
        ({"blend": 0.7}, 30 + 2000 * 8),
        ({"attack": "dlg"}, 30 + 5000 * 8),
        ({"attack": "dlg", "optimizer": "adam"}, 30 + 1000 * 8),
        ({"attack": "gradinversion"}, 30 + 4000 * 8),
        ({"attack": "ggl"}, 30 + 50_000 * 3 + 6e4 / 4e10 * 64 * 200 * 5),
        ({"attack": "rog"}, 30 + 1000 * 8 + 6e4 / 4e10 * 64 * 200 * 5),
    ],
)
def test_seconds_of_an_attack_by_hand(monkeypatch, change, expected):
    monkeypatch.setattr(_cost, "forward_seconds", lambda case: 1.0)
    of_generators = {"public_samples": 200, "generator_epochs": 5} if change.get("attack") in ("ggl", "rog") else {}
    case = replace(Case(data="digits", model="mlp", iterations=1000, batch_size=1), **change, **of_generators)
    assert seconds_of_update(case) == pytest.approx(expected, rel=1e-9)
    training = Training(rounds=5, clients=9, clients_per_round=4, local_steps=3, batch_size=2)
    assert seconds_of_update(case, training) == pytest.approx(expected + 4 * 5 * 4 * 3 * 2)
    monkeypatch.setattr(_cost, "forward_seconds", lambda case: 0.0)
    nothing = seconds_of_update(replace(Case(data="digits", model="mlp"), iterations=1000, restarts=3))
    assert nothing == pytest.approx(30 + 3000 * 2e-3)


def test_a_forward_pass_is_counted_in_operations_and_entries():
    """Three dense layers of 256, 128 and 10 units on 64 pixels need two operations per weight, and little else."""
    case = Case(data="digits", model="mlp")
    weights = 64 * 256 + 256 * 128 + 128 * 10
    assert _cost.parameter_count(case) == weights + 256 + 128 + 10
    operations = _cost.forward_seconds(case) * 4e10
    assert 2 * weights <= operations < 2.1 * weights


@pytest.mark.parametrize(
    ("change", "copies", "option"),
    [
        ({}, 3, "--microbatch (now 1)"),
        ({"batch_size": 4}, 3 * 4, "--batch-size (now 4)"),
        ({"restarts": 3}, 3 * 3, "--microbatch (now 3)"),
        ({"restarts": 3, "microbatch": 2}, 3 * 2, "--microbatch (now 2)"),
        ({"local_steps": 5, "batch_size": 2}, 3 * 10, "--local-steps (now 5)"),
        ({"attack": "patch_embedding"}, 1, "--microbatch (now 1)"),
    ],
)
def test_the_least_memory_of_an_inversion_by_hand(monkeypatch, change, copies, option):
    asked = []
    monkeypatch.setattr(_size, "_bytes_of", lambda *_: (1000, 10))
    monkeypatch.setattr(_size.audit, "require_bytes", lambda need, device, hint: asked.append((need, hint)))
    _size.require_memory_of_update(replace(Case(model="mlp", batch_size=1), **change), (8, 8, 1))
    assert asked[0] == (3000, "take a smaller --model than mlp")
    assert asked[1] == (3000 + copies * 10, f"{option} lowers it")
    _size.require_memory_of_update(Case(model="convnet", width=7), (8, 8, 1))
    assert asked[2][1] == "--width (now 7) lowers it"


def test_bytes_of_a_model_are_those_of_its_numbers():
    parameters, activations = _size._bytes_of(Case(model="mlp"), (8, 8, 1), 10)
    assert parameters == 4 * (64 * 256 + 256 * 128 + 128 * 10 + 256 + 128 + 10)
    assert activations == 4 * (256 + 128)


def test_warm_weights_see_none_of_the_clients_samples_and_are_kept(tmp_path, monkeypatch):
    case = Case(data="digits", model="mlp", pool=400, batch_size=2)
    training = Training(rounds=30, clients=10, clients_per_round=4, learning_rate=0.3)
    used, partition = [], data.partition_clients

    def keep(kind, seed, x, y, clients):
        used.append(np.asarray(x))
        return partition(kind, seed, x, y, clients)

    monkeypatch.setattr(data, "partition_clients", keep)
    variables, reached = trained(case, training, 0, tmp_path)
    pool = {image.tobytes() for image in data.load(case.data, case.taken, 0).x}
    assert pool == {image.tobytes() for image in np.asarray(victim(case, 0).private.x[:, 0])}
    assert len(pool) == 400  # all are different
    (samples,) = used
    assert len(samples) == 1118  # 1,797 digits without the pool of 400, and without a fifth of the rest for the test
    assert not pool & {image.tobytes() for image in samples}
    assert reached["test_accuracy"] > 0.5
    again, reached_again = trained(case, training, 0, tmp_path)
    assert reached == reached_again
    np.testing.assert_array_equal(variables["params"]["head"]["bias"], again["params"]["head"]["bias"])
    with pytest.raises(ValueError, match="none left"):
        trained(Case(data="digits", model="mlp", pool=1797), training, 0, tmp_path)
    with pytest.raises(ValueError, match="crops of the same photographs, which overlap, so weights"):
        trained(Case(model="mlp", pool=8), training, 0, tmp_path)


@pytest.mark.slow
def test_weights_are_trained_anew_where_other_samples_have_the_name(tmp_path):
    """The training samples of old weights may now belong to the victim."""
    case = Case(data=f"npz:{tmp_path / 'd.npz'}", model="mlp", pool=8, attacked_round=1)
    of_seed, utilities = (
        [],
        Utilities(Federation(rounds=1, clients=2, samples=16, test_samples=8), tmp_path / "defended"),
    )
    for seed in (0, 1, 0):
        write_images(tmp_path / "d.npz", seed)
        outside, _ = trained(case, Training(rounds=1, clients=2, clients_per_round=2), 0, tmp_path / "weights")
        defended = utilities.variables(utility_of(case), 0)
        of_seed.append([np.asarray(of["params"]["head"]["kernel"]) for of in (outside, defended)])
    for first, other, again in zip(*of_seed, strict=True):
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).max() > 1e-4
    assert all(len(list((tmp_path / name).glob("*.safetensors"))) == 2 for name in ("weights", "defended"))


@pytest.mark.parametrize("partition", ["label_skew:2", "quantity_skew:20", "dirichlet:0.5", "feature_skew:4"])
def test_the_attacked_client_is_one_of_its_partition(partition):
    case = Case(data="digits", model="mlp", pool=400, partition=partition, federation=10, batch_size=8)
    private = victim(case, 0).private
    assert 8 <= len(private.y) < 400
    if partition == "label_skew:2":
        assert len(np.unique(private.y)) == 2


def test_samples_of_a_client_are_those_of_the_partition_by_name():
    digits = data.load("digits", 100, 0)

    def held(partition, clients=7, needed=1, seed=3):
        return client_samples(partition, digits, clients, needed, seed).tolist()

    assert held("iid") == list(range(100))
    assert [len(held(name, 2)) for name in ("quantity_skew:20", "quantity_skew")] == [20, 50]
    assert [len(np.unique(digits.y[held(name)])) for name in ("label_skew", "label_skew:3")] == [2, 3]
    parts = data.dirichlet(3, digits.y, 7, alpha=0.5)
    assert held("dirichlet") == held("dirichlet:0.5") in [part.tolist() for part in parts]
    assert held("dirichlet:50") not in [part.tolist() for part in parts]
    of_x = data.feature_skew(3, digits.x, 7)
    groups = {0: of_x[:2], 1: of_x[2:3], 2: of_x[3:5], 3: of_x[5:6], 4: of_x[6:]}  # client k is in group floor(5 k / 7)
    for group, its in groups.items():
        found = [held(f"feature_skew:{group}", seed=3)]
        assert all(part in [own.tolist() for own in its] for part in found)
    assert held("feature_skew") in [own.tolist() for own in groups[0]]
    assert len(held("quantity_skew:20", needed=20, clients=2)) == 20
    with pytest.raises(ValueError, match="no client of quantity_skew:20 has 21 samples; the largest has 20"):
        held("quantity_skew:20", needed=21, clients=2)


def test_costs_are_split_at_a_compilation(monkeypatch, tmp_path):
    jobs = Inversions(RunFolder(tmp_path, "inversions", {}, fresh=False), fresh=False)
    for needed, split in ((100.0, (70.0, 30.0)), (30.0, (0.0, 30.0)), (20.0, (0.0, 20.0))):
        monkeypatch.setattr("jaxleak.study.updates._inversions.seconds_of_update", lambda *_, s=needed: s)
        assert jobs.cost(Inversion(Case())) == split


@pytest.mark.parametrize("relative", [False, True])
def test_curves_are_drawn_as_they_are_or_in_units_of_their_start(relative, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "jaxleak.study.updates._inversions.plots.curves", lambda _, lines, **words: drawn.append((lines, words))
    )
    results = {"a": Result({}, {"curve": np.array([4.0, 2.0, 0.0])}), "closed": Result({}, {"curve": np.zeros(0)})}
    draw_distances(None, results, relative=relative)
    ((lines, words),) = drawn
    assert list(lines) == ["a"]
    np.testing.assert_array_equal(lines["a"][0], [0, 1, 2])
    np.testing.assert_allclose(lines["a"][1], [1.0, 0.5, 1e-12] if relative else [4.0, 2.0, 1e-12])
    assert words["ylabel"].startswith("distance over that at the start" if relative else "its own distance")


def test_partitions_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="smaller federation or batch"):
        victim(Case(data="digits", model="mlp", pool=400, partition="label_skew:1", federation=100, batch_size=64), 0)
    with pytest.raises(ValueError, match="partition must be one of iid"):
        victim(Case(data="digits", model="mlp", pool=400, partition="shuffle"), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": ("table99",)}, "table must be one of table3"),
        ({"table": ("table3",), "budget": 0.0}, "budget must be > 0"),
        ({"seeds": ()}, "seeds must hold at least one seed"),
        ({"table": ("table15",), "only": "nosuchcell"}, "--only nosuchcell is in no cell's id"),
        ({"public_data": "nosuch"}, "--public-data cannot be loaded: .*nosuch"),
        ({"substitute": "digits"}, "the demonstration does not read --substitute"),
        ({"table": ("table7",), "attack_round": (0, 5), "weights": "warm"}, "does not go with --weights"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        fedleak.main(args_of(fedleak.Args, out=tmp_path, **options))


def test_a_trend_is_judged_by_its_best_cell_and_its_order():
    rows = [
        {"id": f"table15/R{r}", "paper": p, "ours": o, "values": [o, o + 1]}
        for r, p, o in ((15, 1.0, 1.0), (50, 3.0, 2.0), (100, 2.0, 3.0))
    ]
    verdict = fedleak_report.trend(rows)
    assert "best in the paper R50, here R100 (+1.00 dB, per seed +1.00, +1.00)" in verdict
    assert "tau of the two orders +0.33" in verdict


def _runner(folder, fresh=False):
    return runner_in(folder, UpdateJobs(folder, fresh=fresh), fresh=fresh)


def test_results_survive_in_the_folder(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, "fedleak", {}, fresh=False)
    job = Job(Case(data="digits", model="mlp"), kind="parameters")
    first = _runner(folder)(job, 0)
    with monkeypatch.context() as patched:
        patched.setattr(UpdateJobs, "run", lambda *_: pytest.fail("a finished run was run again"))
        assert _runner(folder)(job, 0).scores == first.scores


@pytest.mark.slow
def test_fresh_forgets_checkpoints_too(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxleak.study.updates._inversions.CHECKPOINTED", -1.0)
    folder = RunFolder(tmp_path, "fedleak", {}, fresh=False)
    job = Job(Case(data="digits", model="mlp", attack="inverting_gradients", iterations=3, pool=8))
    for _ in range(2):
        assert _runner(folder, fresh=True)(job, 0).arrays["curve"].shape == (3,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"defense": "soteria", "strength": 2.0}, "ratio must be in"),
        ({"defense": "dp_sgd", "strength": 10.0, "local_steps": 2}, "needs one local step in all, got 2"),
        ({"defense": "gaussian"}, "strength of gaussian must be given"),
        ({"strength": 0.5}, "defense names none"),
        ({"adaptive": True}, "defense names none"),
    ],
)
def test_defenses_are_checked_before_data_are_loaded(changes, message):
    with pytest.raises(ValueError, match=message):
        check(Case(data="no such data", model="mlp", **changes))
