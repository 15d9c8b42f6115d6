"""Studies of a user's attack or defense, FILE.py:NAME: what they run, and what they refuse."""

import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxleak import _own_files
from jaxleak._command.invert import report
from jaxleak._command.invert.run import _folder_name
from jaxleak._own_files import sources_of
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study import RunFolder
from jaxleak.study.updates import (
    Case,
    Federation,
    TradeOffPoint,
    _client,
    _own_attack,
    _own_defense,
    about_defenses,
    cell_of_point,
    check,
    observe,
    parse_strengths,
    resolved,
    run_trade_off,
    swept_points,
    utility_of,
    victim,
)
from jaxleak.study.updates._own_defense import nobody_knew
from jaxleak.study.updates._sources import sources_of_attack, sources_of_client, sources_of_update

MINE = """
import jax
import optax
from jaxleak import Attack, defenses
from jaxleak.attacks import presets
from jaxleak.defenses.mechanisms import GaussianNoise, Mechanism, Replayed
from numbers_of_mine import FACTOR

SETTINGS = presets.sapag(5)


def mine(iterations, kernel=1.0):
    return presets.inverting_gradients(iterations).weighing(tv=FACTOR)


def others(iterations):
    return presets.inverting_gradients(7)


def needy(iterations, kernel):
    return SETTINGS


def failing(iterations):
    raise RuntimeError("no luck")


def solver(iterations):
    return Attack(init=None, step=None, reconstruct=None)


def halved(strength):
    return defenses.per_leaf("payload", lambda key, leaf: strength * leaf)


def noisy(strength):
    return defenses.gaussian_noise(strength)


def louder(strength):
    return defenses.gaussian_noise(strength)._replace(mechanism=Mechanism(noise=GaussianNoise(2 * strength)))


def of_examples(strength):
    return defenses.dp_sgd(1.0, strength)


def of_clients(strength):
    return defenses.per_leaf("client_payloads", lambda key, leaf: 0 * leaf)


def hiding(strength):
    return defenses.per_leaf("server_view", lambda key, leaf: 0 * leaf)


def remembering(strength):
    return defenses.Defense("payload", optax.trace(strength))


def picky(strength):
    return defenses.gaussian_noise(strength) if strength < 1 else None


def deaf(strength):
    return defenses.per_leaf("payload", lambda key, leaf: leaf / 2 if strength < 1 else leaf)


def shuffled(strength):
    return defenses.per_leaf(
        "payload",
        lambda key, leaf: jax.random.permutation(key, leaf.ravel()).reshape(leaf.shape),
        mechanism=Mechanism(Replayed(random=True)),
    )


listed = defenses.ClientDefense(noisy, (0.1, 0.2), "deviation")
"""
NUMBERS = "FACTOR = 0.01\n"
TINY = {"data": "digits", "pool": 8, "model": "mlp", "iterations": 5}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "numbers_of_mine.py").write_text(NUMBERS)
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture(autouse=True)
def imported_anew():
    """Let imports resolve to the modules in each test's own folder, as in a new process."""
    path = list(sys.path)
    yield
    in_another_process()
    sys.modules.pop("mine", None)
    sys.path[:] = path


def test_files_of_ones_own_run_what_they_make(file):
    case = Case(strength=0.1, **TINY)
    own = replace(case, attack=f"{file}:mine", defense=f"{file}:noisy")
    same = replace(case, attack="inverting_gradients", tv=0.01, defense="gaussian")
    seen = [observe(c, 0, victim(c, 0))[0].payload for c in (own, same)]
    jax.tree.map(np.testing.assert_array_equal, *seen)
    found, made = resolved(own).settings, resolved(same).settings
    assert found.weight("tv") == made.weight("tv") == 0.01
    assert found._replace(priors=(), optimizer=None, candidate=None, compare=None) == made._replace(
        priors=(), optimizer=None, candidate=None, compare=None
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attack": "others"}, "must make settings of as many iterations as it is given, and made 7 of 5"),
        ({"attack": "needy"}, "needy must need one argument, and needs iterations, kernel"),
        ({"attack": "failing"}, r"failing makes no settings: RuntimeError: no luck \(line 25\)"),
        ({"attack": "solver"}, r"solver makes an Attack, which `audit\.invert` runs in a program"),
        ({"attack": "SETTINGS"}, r"def SETTINGS\(iterations\).* got Settings"),
        ({"attack": "halved"}, "and it returns Defense"),
        (
            {"attack": "absent"},
            r"mine\.py has no 'absent'; it has mine, others, needy",
        ),
        ({"attack": "mine", "noise": "laplace"}, "noise is read by bayes only"),
        ({"defense": "mine", "strength": 2.0}, r"mine must return a jaxleak\.defenses\.Defense .* got Settings"),
        (
            {"defense": "SETTINGS", "strength": 2.0},
            r"SETTINGS must be a function that makes a .*Defense.* got Settings",
        ),
        (
            {"defense": "needy", "strength": 2.0},
            "needy must need one argument, and needs iterations, kernel",
        ),
        ({"defense": "failing", "strength": 2.0}, "failing makes no defense of strength 2: RuntimeError: no luck"),
        ({"defense": "picky", "strength": 2.0}, "must return .*Defense for a strength, got NoneType for 2"),
        (
            {"defense": "louder", "strength": 0.1, "adaptive": True},
            r"louder of strength 0\.1: mechanism declares noise .* deviation of 0\.2, and .* noise of 0\.1",
        ),
        ({"defense": "halved"}, "strength of .*halved must be given"),
        ({"defense": "halved", "strength": 0.5, "adaptive": True}, "halved declares no mechanism by which it could be"),
    ],
)
def test_what_is_no_attack_or_no_defense_is_refused_by_name(file, options, message):
    named = {name: f"{file}:{value}" if name in ("attack", "defense") else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        check(Case(**TINY | named))


@pytest.mark.parametrize("option", ["attack", "defense"])
def test_a_file_that_is_not_there_is_named(tmp_path, option):
    with pytest.raises(FileNotFoundError, match=rf"{option}: no such file: .*absent\.py"):
        check(Case(**{option: f"{tmp_path}/absent.py:mine"}, strength=0.1 if option == "defense" else 0.0))


def in_another_process():
    for cached in (_own_files.read_once, _own_attack._made, _own_defense._loaded, resolved, _client._compiled_client):
        cached.cache_clear()
    sys.modules.pop("numbers_of_mine", None)


@pytest.mark.parametrize("changed", ["mine.py", "numbers_of_mine.py"])
@pytest.mark.parametrize("what", ["attack", "defense"])
def test_results_of_code_that_has_changed_since_are_refused(file, tmp_path, what, changed):
    case = Case(**{what: f"{file}:mine"}, **TINY)
    sources = sources_of_client if what == "defense" else sources_of_attack
    folder = RunFolder(tmp_path / "run", "invert", {}, fresh=False)
    folder.sources.bind(sources(case))
    folder.sources.begin()
    with (tmp_path / changed).open("a") as of:
        of.write("# another line\n")
    in_another_process()
    again = RunFolder(tmp_path / "run", "invert", {}, fresh=False)
    with pytest.raises(ConfigMismatchError, match=rf"contents of the {what} .*mine \(its file .*{changed}\)"):
        again.sources.check(sources(case))
    assert sources_of_update(case, 0).keys() >= sources(case).keys()


def test_an_edit_counts_from_the_next_process_on(file):
    case = Case(attack=f"{file}:mine", defense=f"{file}:halved", strength=0.5, **TINY)

    def found():
        payload = observe(case, 0, victim(case, 0))[0].payload
        code = {name: load().tobytes() for name, load in sources_of_update(case, 0).items() if "its file" in name}
        return np.abs(payload["dense_0"]["kernel"]).sum(), resolved(case).settings.weight("tv"), code

    before = found()
    assert before[1] == 0.01
    file.write_text(MINE.replace("FACTOR)", "0.5)").replace("strength * leaf", "4 * leaf"))
    assert found() == before
    in_another_process()
    sent, weight, code = found()
    assert (sent, weight) == (pytest.approx(8 * before[0]), 0.5)
    changed = {name for name in code if code[name] != before[2][name]}
    assert changed == {f"the {what} (its file {file})" for what in (f"attack {file}:mine", f"defense {file}:halved")}


def test_files_that_a_file_imports_from_its_folder_are_its_sources(tmp_path):
    (tmp_path / "a.py").write_text("import numpy, b\nfrom package.inner import c\nfrom . import relative\n")
    (tmp_path / "b.py").write_text("def late():\n    import d\n    import a\n")
    (tmp_path / "d.py").touch()
    (tmp_path / "unread.py").touch()
    (tmp_path / "top.py").touch()
    (tmp_path / "package").mkdir()
    for name in ("__init__", "inner", "other"):
        (tmp_path / "package" / f"{name}.py").write_text("import top\n")
    found = [str(path.relative_to(tmp_path)) for path in sources_of(f"{tmp_path}/a.py:x")]
    assert found == ["a.py", "b.py", "d.py", "package/__init__.py", "package/inner.py", "package/other.py", "top.py"]


def test_a_trade_off_says_who_attacked_a_defense_of_ones_own(file):
    base = Case(**TINY)
    known = swept_points(base, [f"{file}:listed"], {})
    assert [(point.id, point.curve) for point in known] == [
        ("mine-listed/0.1/steps1", "mine-listed"), ("mine-listed/0.2/steps1", "mine-listed"),
    ]  # fmt: skip
    unknown = swept_points(base, [f"{file}:halved"], parse_strengths([f"{file}:halved=0.5"]))
    attacked = [[job.case for job in cell_of_point(p, Federation()).jobs[1:]] for p in (*known[:1], *unknown)]
    assert [[(case.adaptive, case.prior) for case in cases] for cases in attacked] == [
        [(False, None), (True, None), (True, "weak")], [(False, None)],
    ]  # fmt: skip
    told = about_defenses([p.case for p in (*known, *unknown, TradeOffPoint(base, "none", 0.0))])
    mine = f"{file}:"
    assert told == [
        f"The attacker who knows {mine}listed believes its mechanism, which was compared with what the defense does.",
        f"{mine}listed states no encoding, so that its bits per entry are those of 32-bit numbers.",
        f"{mine}halved declares no mechanism, so no attacker knew it: what leaks through it may be more.",
        f"{mine}halved states no encoding, so that its bits per entry are those of 32-bit numbers.",
    ]
    (stateful,) = swept_points(base, [f"{file}:remembering"], {f"{file}:remembering": (0.5,)})
    assert about_defenses([stateful.case])[-1].startswith(
        f"{mine}remembering keeps a state: clients who train remember"
    )
    assert about_defenses([known[0].case], adaptive=False)[0].startswith(f"No attacker knew {mine}listed: what leaks")
    (elsewhere,) = swept_points(base, [f"{file}:of_examples"], {f"{file}:of_examples": (0.5,)})
    assert "not all of which could be compared: the defense " in about_defenses([elsewhere.case])[0]


def test_a_defense_that_blinds_the_attacker_who_knows_it_is_told_apart(file):
    shuffled, noisy = (Case(defense=f"{file}:{name}", strength=0.5, **TINY) for name in ("shuffled", "listed"))
    assert nobody_knew(shuffled)
    assert not nobody_knew(noisy)
    assert not nobody_knew(Case(defense=f"{file}:halved", strength=0.5, **TINY))  # declares nothing, as is said of it
    told = about_defenses([shuffled])[0]
    assert told.startswith(
        f"The attacker who knows {file}:shuffled runs it on candidates of its own and learns next to"
    )
    assert report.of_informed(replace(shuffled, adaptive=True)).endswith(told)
    assert report.of_informed(replace(noisy, adaptive=True)).endswith("compared with what the defense does.")
    assert report.of_informed(noisy) == ""


def test_a_trade_off_asks_of_a_defense_that_does_not_read_its_strength(file):
    deaf, hears = f"{file}:deaf", f"{file}:halved"
    # A strength that does not change an upload shows nothing: a clip may be too wide for these numbers.
    points = swept_points(Case(**TINY), [deaf, hears], {deaf: (0.1, 0.5, 1.0, 2.0), hears: (0.1, 0.5, 1.0)})
    asked = [text for text in about_defenses([p.case for p in points]) if text.endswith("use the strength?")]
    assert asked == [
        f"{deaf} changes an upload of random numbers in the same way at the strengths 0.1 and 0.5. "
        "Does its function use the strength?"
    ]


def test_a_defense_with_a_state_has_no_round_by_itself(file):
    case = Case(defense=f"{file}:remembering", strength=0.5, **TINY)
    check(case)
    with pytest.raises(
        ValueError, match=r"remembering keeps a state from one upload to the next, .*: attacked_round must be 0"
    ):
        check(replace(case, attacked_round=3))


def test_training_has_every_defense_of_ones_own_but_what_hides_from_the_server(file):
    for name, kept in (("halved", True), ("of_clients", True), ("hiding", False)):
        trained = utility_of(Case(defense=f"{file}:{name}", strength=0.5, **TINY)).case
        assert (trained.defense is not None) == kept, name
    assert utility_of(Case(defense="cancelling_noise", strength=0.1, **TINY)).case.defense is None


def test_what_an_attacker_who_knows_noise_compares_by_is_said(file):
    own = Case(attack=f"{file}:mine", defense="gaussian", strength=0.1, **TINY)
    assert resolved(own).knows_noise == ""
    assert "in the place of the distance and the variation of" in resolved(replace(own, adaptive=True)).knows_noise
    assert resolved(replace(own, adaptive=True, defense="sparsification", strength=10.0)).knows_noise == ""
    assert resolved(own).labels_from == "inferred by the rule calibrated"
    assert resolved(replace(own, labels="given")).labels_from == "granted"


def test_modules_of_one_name_from_two_folders_are_refused(file, tmp_path):
    check(Case(attack=f"{file}:mine", **TINY))
    other = tmp_path / "other"
    other.mkdir()
    (other / "numbers_of_mine.py").write_text("FACTOR = 9.0\n")
    (other / "yours.py").write_text(MINE)
    with pytest.raises(
        ValueError, match=r"yours\.py imports .*other.numbers_of_mine\.py, and another module of that name"
    ):
        check(Case(attack=f"{other / 'yours.py'}:mine", **TINY))
    (other / "mine.py").write_text("import jaxleak.defenses as d\nhalved = d.gaussian_noise\n")
    two = [Case(defense=f"{path}:halved", strength=s, **TINY) for path, s in ((file, 0.1), (other / "mine.py", 0.2))]
    with pytest.raises(ValueError, match=r"would have one name in tables; rename one of the files"):
        run_trade_off([TradeOffPoint(c, "a", c.strength) for c in two], None, None, None, seeds=(0,), budget=None)


def test_modules_that_clash_behind_other_imports_are_refused(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}_file.py").write_text(f"from {folder}_helper import halved\n")
        (tmp_path / folder / f"{folder}_helper.py").write_text("from numbers_of_mine import halved\n")
        (tmp_path / folder / "numbers_of_mine.py").write_text(
            "import jaxleak.defenses as d\nhalved = d.laplace_noise\n"
        )
    check(Case(defense=f"{tmp_path}/one/one_file.py:halved", strength=0.1, **TINY))
    with pytest.raises(ValueError, match=r"two_file\.py imports .*two.numbers_of_mine\.py, and another module of that"):
        check(Case(defense=f"{tmp_path}/two/two_file.py:halved", strength=0.1, **TINY))


def test_a_file_that_would_hide_an_installed_package_is_refused(tmp_path):
    (tmp_path / "flax.py").write_text(MINE)
    with pytest.raises(ValueError, match=r"flax\.py has the name of an installed package, .*; rename it"):
        check(Case(attack=f"{tmp_path}/flax.py:mine", **TINY))


@pytest.mark.parametrize(
    "source", [b"\xef\xbb\xbfimport numbers_of_mine\n", b"# coding: latin-1\nimport numbers_of_mine  # \xe9\n"]
)
def test_sources_are_found_in_any_encoding(tmp_path, source):
    (tmp_path / "numbers_of_mine.py").write_text("def broken(:\n")
    (tmp_path / "a.py").write_bytes(source)
    assert [path.name for path in sources_of(f"{tmp_path}/a.py:x")] == ["a.py", "numbers_of_mine.py"]


def test_a_folder_is_named_by_what_a_run_is(file):
    case = Case(attack=f"{file}:mine", defense=f"{file}:halved", strength=0.5, **TINY)
    assert _folder_name(case) == "mine-mine-mlp-b1-mine-halved"
    assert _folder_name(replace(case, defense="gaussian", adaptive=True)) == "mine-mine-mlp-b1-gaussian-known"
    assert _folder_name(Case(**TINY)) == "fedleak-mlp-b1"


def test_a_file_that_ends_the_process_and_one_without_its_ending_are_told(tmp_path):
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ValueError, match=r"ends\.py cannot be imported: SystemExit: 3 \(line 2\)"):
        check(Case(attack=f"{tmp_path}/ends.py:a", **TINY))
    with pytest.raises(FileNotFoundError, match=r"attack: no such file: .*ends; is it .*ends\.py\?"):
        check(Case(attack=f"{tmp_path}/ends:a", **TINY))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["halved=0.5,0"], r"strengths of .*:halved must be finite numbers other than 0, got 0"),
        (["halved=nan"], "must be finite numbers other than 0, got nan"),
        (["halved=0.5,much"], r"strengths must be NAME=NUMBER,NUMBER"),
        (["halved"], r"strengths must be NAME=NUMBER,NUMBER"),
        (["picky=0.5,2"], "picky must return a jaxleak.defenses.Defense for a strength, got NoneType for 2"),
    ],
)
def test_strengths_of_ones_own_are_read_and_tried(file, texts, message):
    with pytest.raises(ValueError, match=message):
        parse_strengths([f"{file}:{text}" for text in texts])


def test_a_defense_without_strengths_is_refused(file):
    with pytest.raises(ValueError, match=r"strengths of .*:halved must be given, as --strengths .*:halved=NUMBER"):
        swept_points(Case(**TINY), [f"{file}:halved"], {})


def test_two_points_of_one_id_are_refused(file):
    point = TradeOffPoint(Case(**TINY), "none", 0.0)
    with pytest.raises(ValueError, match="points must have ids of their own, got none/steps1 twice"):
        run_trade_off([point, point], None, None, None, seeds=(0,), budget=None)
