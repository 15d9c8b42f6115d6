"""Hostile options and files of the commands: always a clear error, and nothing that has begun."""

import contextlib
import dataclasses
import importlib
import io
import json
import os
import tempfile
import typing
from pathlib import Path

import pytest
from fuzzing import FLOATS, INTEGERS, NAMES, clear, few, fuzz, little_memory, nothing_is_unpickled, report  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st
from tiny_studies import args_of

from experiments import audited, cafe_scale, reproduce, sweep, vflrecon
from experiments import defenses as defense_study
from experiments._fedleak import demo as fedleak_demo
from experiments._mistakes import study as mistakes_study
from experiments._vfl import study as vfl_study
from jaxleak._command.cafe_scale import run as cafe_run
from jaxleak._command.invert import run as invert_run
from jaxleak.attacks import party_records
from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study.parties import SplitSetup
from jaxleak.study.updates import Case, resolved

DEFENSE_STUDY = {
    "study": st.lists(NAMES | st.sampled_from(defense_study.STUDIES), max_size=2).map(tuple),
    "seeds": st.lists(INTEGERS, max_size=2).map(tuple),
    "budget": FLOATS,
    "only": st.lists(NAMES | st.sampled_from(defense_study.ONLY), max_size=2).map(tuple),
    "strengths": st.lists(
        st.text(max_size=8) | st.builds("{}={}".format, st.sampled_from(sorted(CLIENT_DEFENSES)), FLOATS), max_size=2
    ).map(tuple),
    "model": NAMES | st.just("resnet10"),
    "batch_norm": NAMES | st.just("eval"),
    "learning_rate": FLOATS,
    **dict.fromkeys(["width", "batch_size", "iterations", "rounds", "clients", "samples", "attacked_round"], INTEGERS),
}


@fuzz(40, 700)
@given(changes=few(DEFENSE_STUDY))
def test_options_of_the_defense_study(changes):
    def attempt():
        args = args_of(defense_study.Args, **changes)
        return defense_study._checked(args, args.study or (args.preset,))

    clear("defense study", attempt)


VERTICAL_STUDY = {
    "data": st.lists(NAMES | st.sampled_from(["digits", "npz:", "npz:/dev/null"]), max_size=2).map(tuple),
    "share": FLOATS,
    "partition": NAMES | st.sampled_from(["random", "gibbs", "gaussian", "blocks"]),
    "optimizer": NAMES,
    "scaling": NAMES | st.just("quantile"),
    "balanced": st.booleans(),
    "cipher": NAMES | st.just("plain"),
    "defense": NAMES | st.sampled_from(["noise", "marvell", "vfl_defender", "label_dp"]),
    "strength": FLOATS,
    "fields": st.lists(NAMES | st.sampled_from(party_records.FIELDS), max_size=3).map(tuple),
    "select": NAMES,
    "shadow_init": st.lists(NAMES | st.sampled_from(party_records.SHADOW_INITS), max_size=2).map(tuple),
    **dict.fromkeys(["shadow_records", "victim_records"], st.none() | INTEGERS),
    **dict.fromkeys(["batch_size", "parties", "shadow_runs", "seeds", "network_epochs"], INTEGERS),
}


def vertical_args(changes, **more):
    """The options of the vertical study with these changes; most belong to its set-up."""
    own = {field.name for field in dataclasses.fields(vflrecon.Args)}
    setup = SplitSetup(**{name: value for name, value in changes.items() if name not in own})
    changes = {name: value for name, value in changes.items() if name in own}
    return vflrecon.Args(**{"data": ("digits",), **changes}, setup=setup, **more)


@fuzz(12, 60)
@given(changes=few(VERTICAL_STUDY))
def test_options_of_the_vertical_study(changes):
    """The study runs until the data are loaded; nothing is trained."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(vfl_study, "_study", lambda *_: {})
        args = vertical_args(changes, out=Path(folder) / "out")
        clear("vertical study", lambda: vflrecon.main(args))


JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | NAMES | st.just("cafe_scale"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.sampled_from(["study", "options", "out", "num-samples"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@fuzz(60, 900)
@given(
    lines=st.lists(
        st.text(max_size=20)
        | JSON.map(json.dumps)
        | JSON.map(lambda options: json.dumps({"study": "invert", "options": options})),
        max_size=3,
    ),
    index=st.none() | INTEGERS,
    action=st.sampled_from(["run", "merge"]),
)
def test_sweeps(lines, index, action):
    started = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execv", lambda program, words: started.append(words))
        path = Path(folder) / "runs.jsonl"
        path.write_text("\n".join(lines), errors="surrogatepass")
        clear("sweeps", lambda: sweep.main(sweep.Args(path, action, index, Path(folder) / "out")))
    for words in started:
        assert all(isinstance(word, str) and "\0" not in word for word in words)


@fuzz(60, 1000)
@given(
    case=st.builds(
        Case,
        attack=NAMES
        | st.sampled_from(["fedleak", "dlg", "idlg", "inverting_gradients", "sapag", "gradinversion", "bayes"]),
        iterations=INTEGERS,
        labels=st.none() | NAMES,
        tv=st.none() | FLOATS,
        tv_kind=st.none() | NAMES | st.just("isotropic"),
        per_tensor=st.booleans(),
        far=st.booleans(),
        exact_curvature=st.booleans(),
        reselect=st.booleans(),
        activation_penalty=st.none() | FLOATS,
        matched_percent=st.none() | FLOATS,
        blend=st.none() | FLOATS,
        probe=NAMES | st.just("ascent"),
        probe_length=FLOATS,
        optimizer=st.none() | NAMES | st.sampled_from(["annealed", "descent"]),
        step_size=FLOATS,
        terms=st.none() | st.lists(NAMES | st.just("cosine"), max_size=3).map(tuple),
        homotopy=st.none() | st.tuples(FLOATS, FLOATS),
        finish=FLOATS,
        progress_below=st.none() | FLOATS,
        granted_statistics=st.booleans(),
        noise=st.none() | NAMES | st.just("laplace"),
        noise_scale=st.none() | FLOATS,
        batch_size=INTEGERS,
    )
)
def test_cases_of_the_command(case):
    clear("cases", lambda: resolved(case))


@fuzz(40, 300)
@given(
    given_sizes=st.fixed_dictionaries(
        {},
        optional={
            "num_samples": INTEGERS,
            "batch_size": INTEGERS,
            "parties": INTEGERS,
            "images": INTEGERS,
            "iterations": INTEGERS,
            "seed": INTEGERS,
            "data": NAMES,
        },
    )
)
def test_options_of_a_study(given_sizes):
    """The study runs its checks; a stub replaces the work itself."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cafe_run.exact, "run", lambda *_: {"psnr_mean": 30.0, "rounds_observed": 3.0})
        options = cafe_scale.Args(**{"data": "digits", **given_sizes}, out=Path(folder) / "out", preset="mnist")
        with contextlib.redirect_stdout(io.StringIO()):
            clear("studies", lambda: cafe_scale.main(options))


#: Values of an option by type. Commands also check names, since they can be called from Python.
VALUES = {
    int: INTEGERS,
    float: FLOATS,
    bool: st.booleans(),
    str: NAMES | st.sampled_from(["digits", "nosuch", "natural_patches:9", "random", "warm"]),
    Path: st.sampled_from([Path(), Path("nosuch"), Path("/dev/null"), Path("/")]),
}


def _values(kind, default):
    """A strategy for an option's type."""
    if kind in VALUES:
        return VALUES[kind] if default is None else st.just(default) | VALUES[kind]
    if dataclasses.is_dataclass(kind):
        return few(_options(kind)).map(lambda changes: kind(**changes))
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return st.sampled_from(inside)
    if origin is tuple and inside[-1] is not ...:
        return st.tuples(*(_values(one, None) for one in inside))
    if origin is tuple:
        return st.lists(_values(inside[0], None), max_size=3).map(tuple)
    return st.one_of(st.just(default) if one is type(None) else _values(one, default) for one in inside)


def _options(args):
    hints = typing.get_type_hints(args)
    return {
        field.name: _values(hints[field.name], None if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(args)
        if field.name not in ("out", "fresh", "where", "case", "setup", "warm")
    }


class BegunError(ValueError):
    """Raised when a command has passed its checks and opens its run folder."""


def _begin(*_, **__):
    raise BegunError("begun")


#: Modules in which commands open their run folders, if not in the command's own module (kept light for `--help`).
FOLDERS = {"cafe_scale": cafe_run, "invert": invert_run, "mistakes": mistakes_study, "vflrecon": vfl_study}
COMMANDS = {
    study: importlib.import_module(f"experiments.{study}")
    for study in (
        "agreement", "audited", "basin", "cafe_scale", "cafe_tables", "fedleak", "homotopy", "invert", "mistakes",
        "vflrecon",
    )
}  # fmt: skip


@fuzz(60, 1500)
@given(data=st.data(), study=st.sampled_from(sorted(COMMANDS)))
def test_options_of_every_command(data, study):
    """The command runs until it opens its run folder."""
    module = COMMANDS[study]
    changes = data.draw(few(_options(module.Args)))
    if study == "invert":
        changes["case"] = Case(**{"data": "digits", "model": "mlp", **data.draw(few(_options(Case)))})
    if study == "vflrecon":
        changes["setup"] = SplitSetup(**data.draw(few(_options(SplitSetup))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FOLDERS.get(study, module), "RunFolder", _begin)
        patch.setattr(fedleak_demo, "RunFolder", _begin)
        patch.setattr(audited, "_require_frameworks", lambda _: None)
        clear(f"options of {study}", lambda: module.main(module.Args(**changes)))


@fuzz(40, 400)
@given(changes=few(_options(reproduce.Args)))
def test_options_of_the_ledger(changes):
    """The command runs until it makes a study; no page is written."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(reproduce, "study_of", _begin)
        patch.setattr(reproduce, "module_at", _begin)
        clear("options of reproduce", lambda: reproduce.main(reproduce.Args(**changes)))
