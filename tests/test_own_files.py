"""Studies of an attack and of a defense of one's own, FILE.py:NAME: what they run, and what they refuse."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from jaxleak._own_files import sources_of
from jaxleak.checkpoint import ConfigMismatchError
from jaxleak.study import RunFolder
from jaxleak.study.updates import (
    Case,
    Federation,
    TradeOffPoint,
    about_defenses,
    cell_of_point,
    check,
    observe,
    parse_strengths,
    resolved,
    run_trade_off,
    swept_points,
    victim,
)
from jaxleak.study.updates._sources import sources_of_client, sources_of_update

MINE = """
import jax
from jaxleak import Attack, defenses
from jaxleak.attacks import presets
from jaxleak.defenses.mechanisms import GaussianNoise, Mechanism
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
    return defenses.gaussian_payload_noise(strength)


def louder(strength):
    return defenses.gaussian_payload_noise(strength)._replace(mechanism=Mechanism(noise=GaussianNoise(2 * strength)))


def picky(strength):
    return defenses.gaussian_payload_noise(strength) if strength < 1 else None


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
def imported_anew(monkeypatch):
    """The module beside the file is that of each test's own folder, as in a process of its own."""
    import sys

    before = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(before[0]):
        if name in ("mine", "numbers_of_mine"):
            del sys.modules[name]
    sys.path[:] = before[1]


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
        ({"attack": "needy"}, "a function of the number of iterations .* and it needs iterations, kernel"),
        ({"attack": "failing"}, r"failing makes no settings: RuntimeError: no luck \(line 24\)"),
        ({"attack": "solver"}, r"solver makes an Attack, which `audit\.invert` runs in a program"),
        ({"attack": "SETTINGS"}, r"def SETTINGS\(iterations\).* got Settings"),
        ({"attack": "halved"}, "and it returns Defense"),
        (
            {"attack": "absent"},
            r"mine\.py has no 'absent'; it has Attack, GaussianNoise, Mechanism, FACTOR, SETTINGS, mine",
        ),
        ({"attack": "mine", "noise": "laplace"}, "noise is read by bayes only"),
        ({"defense": "mine", "strength": 2.0}, r"mine must return a jaxleak\.defenses\.Defense .* got Settings"),
        (
            {"defense": "SETTINGS", "strength": 2.0},
            r"SETTINGS must be a function that makes a .*Defense.* got Settings",
        ),
        (
            {"defense": "needy", "strength": 2.0},
            "must need one argument, the defense's strength, and needs iterations, k",
        ),
        ({"defense": "failing", "strength": 2.0}, "failing makes no defense of strength 2: RuntimeError: no luck"),
        ({"defense": "picky", "strength": 2.0}, "must return .*Defense for a strength, got NoneType for 2"),
        (
            {"defense": "louder", "strength": 0.1, "adaptive": True},
            r"louder of strength 0\.1: mechanism declares noise .* deviation of 0\.2, and .* noise of 0\.0998",
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


@pytest.mark.parametrize("changed", ["mine.py", "numbers_of_mine.py"])
@pytest.mark.parametrize("what", ["attack", "defense"])
def test_results_of_code_that_has_changed_since_are_refused(file, tmp_path, what, changed):
    case = Case(**{what: f"{file}:mine"}, **TINY)
    sources = sources_of_client(case) if what == "defense" else sources_of_update(case, 0)
    folder = RunFolder(tmp_path / "run", "invert", {}, fresh=False)
    folder.sources.bind(sources)
    folder.sources.begin()
    with (tmp_path / changed).open("a") as of:
        of.write("# another line\n")
    again = RunFolder(tmp_path / "run", "invert", {}, fresh=False)
    with pytest.raises(ConfigMismatchError, match=rf"contents of the {what} .*mine \(its file .*{changed}\)"):
        again.sources.check(sources)


def test_an_edited_file_is_read_again(file):
    case = Case(attack=f"{file}:mine", defense=f"{file}:halved", strength=0.5, **TINY)

    def sent():
        return np.abs(observe(case, 0, victim(case, 0))[0].payload["dense_0"]["kernel"]).sum()

    before = sent()
    assert resolved(case) is resolved(case)
    assert resolved(case).settings.weight("tv") == 0.01
    file.write_text(MINE.replace("FACTOR)", "0.5)").replace("strength * leaf", "4 * leaf"))
    assert resolved(case).settings.weight("tv") == 0.5
    assert sent() == pytest.approx(8 * before)


def test_files_that_a_file_imports_from_its_folder_are_its_sources(tmp_path):
    (tmp_path / "a.py").write_text("import numpy, b\nfrom package.inner import c\nfrom . import relative\n")
    (tmp_path / "b.py").write_text("def late():\n    import d\n    import a\n")
    (tmp_path / "d.py").touch()
    (tmp_path / "unread.py").touch()
    (tmp_path / "package").mkdir()
    for name in ("__init__", "inner", "other"):
        (tmp_path / "package" / f"{name}.py").touch()
    found = [str(path.relative_to(tmp_path)) for path in sources_of(f"{tmp_path}/a.py:x")]
    assert found == ["a.py", "b.py", "d.py", "package/__init__.py", "package/inner.py", "package/other.py"]


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
    assert [text.partition(f"{file}:")[::2] for text in told] == [
        ("Who knows ", "listed believes its mechanism, which was compared with what the defense does."),
        ("Nobody who knows ", "halved attacked, as it declares no mechanism: its leak may be too small."),
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
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
