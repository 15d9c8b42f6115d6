"""Hostile configurations and files: always a clear error or a valid result, and nothing is ever unpickled.

`JAXLEAK_FUZZ=2000 pytest tests/test_fuzz.py -s` tries that many of each kind and says how many it tried.
"""

import collections
import contextlib
import io
import json
import math
import os
import pickle
import struct
import tempfile
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments import cafe_scale, invert, sweep, vflrecon
from experiments import defenses as defense_study
from experiments._defense_registry import REGISTRY
from experiments._defense_registry import build as registered
from experiments._inversion_case import Case
from experiments._inversion_problem import settings as settings_of
from jaxleak import attacks, audit, data, defenses, models, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks import presets

EXAMPLES = int(os.environ.get("JAXLEAK_FUZZ", "0"))
TRIED: collections.Counter[str] = collections.Counter()

#: What a user can mend. A TypeError or KeyError, or XLA's own, is a bug.
CLEAR = (ValueError, OSError, FloatingPointError)
UNCLEAR = ("XLA", "jaxlib", "Traceback", "<class", "object at 0x", "NoneType", "unpack")

SHAPE, CLASSES, B = (4, 4, 1), 3, 2
MODEL = models.mlp(SHAPE, CLASSES, widths=(5,), activation="sigmoid")
VARIABLES = jax.tree.map(np.asarray, jax.jit(MODEL.init)(jax.random.key(0)))
SHARE = protocols.ClientShare(MODEL)
SPLIT = models.logistic((7,), parties=2, num_classes=3)
TEMPLATE = audit.template_of(Batch(jnp.zeros((B, 1, *SHAPE)), jnp.zeros(B, jnp.int32), jnp.zeros(B, jnp.int32)))

FLOATS = st.floats() | st.sampled_from([0.0, -1.0, 1e-3, 1.0, 3.5e38, math.nan, math.inf])
INTEGERS = st.integers(-3, 60) | st.sampled_from([10**6, 2**31, 2**63, 10**30])
NAMES = st.text(max_size=8) | st.sampled_from(["iid", "auto", "direct", "given", "joint", "calibrated", "digits", ""])


def fuzz(examples):
    """As many examples as asked for by JAXLEAK_FUZZ, of a fixed seed otherwise."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def few(options):
    """Changes of up to three options: with more, all but the first bad one would go unseen."""
    names = st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: options[name] for name in chosen}))


@pytest.fixture(autouse=True)
def nothing_is_unpickled(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    print(f"\nfuzz: {sum(TRIED.values())} examples tried, {dict(TRIED)}")


def clear(what, attempt, mentions=()):
    """The result of an attempt, or None after an error that says in its own words what is wrong."""
    TRIED[what] += 1
    try:
        return attempt()
    except CLEAR as error:
        message = str(error)
        assert message.strip(), "an error without a message"
        assert not any(word in message for word in UNCLEAR), message
        assert all(word in message for word in mentions), message
        return None


@fuzz(60)
@given(
    sizes=st.fixed_dictionaries({"num_samples": INTEGERS, "batch_size": INTEGERS}),
    options=st.fixed_dictionaries(
        {},
        optional={
            "workers": INTEGERS,
            "output_rounds": st.none() | INTEGERS,
            "feature_rounds": st.none() | INTEGERS,
            "solver": NAMES,
        },
    ),
)
def test_plans(sizes, options):
    plan = clear("plans", lambda: attacks.plan_cafe_exact(SPLIT, **sizes, **options))
    if plan is not None:
        assert 0 < plan.batch_size < plan.num_samples
        assert plan.output_rounds > 0
        assert plan.feature_rounds * min(plan.batch_size, SPLIT.width) >= plan.num_samples


CHANGES = {
    "labels": NAMES | st.sampled_from(sorted(attacks.LABEL_RULES)),
    "tv": FLOATS,
    "activation": FLOATS,
    "l2": FLOATS,
    "batch_norm": FLOATS,
    "consistency": FLOATS,
    "group": st.integers(-2, 3),
    "iterations": INTEGERS,
}


@fuzz(12)
@given(
    changes=st.fixed_dictionaries({}, optional=CHANGES),
    payload=st.sampled_from(["whole", "nan", "missing", "shape", "empty", "none"]),
    batch_size=st.integers(-1, 3),
)
def test_settings_and_payloads(changes, payload, batch_size):
    """The first step on a payload that may be damaged, as far as shapes go: no program is compiled."""
    shown = {
        "whole": VARIABLES["params"],
        "nan": jax.tree.map(lambda leaf: leaf * np.nan, VARIABLES["params"]),
        "missing": {MODEL.head: VARIABLES["params"][MODEL.head]},
        "shape": jax.tree.map(lambda leaf: leaf[..., None], VARIABLES["params"]),
        "empty": {},
        "none": None,
    }[payload]

    def attempt():
        attack = attacks.inversion(
            MODEL, SHARE, presets.fedleak(10, homotopy=False)._replace(**changes), batch_size=batch_size
        )
        template = jax.tree.map(lambda leaf: leaf, TEMPLATE)
        state = jax.eval_shape(lambda key: attack.init(key, template), jax.random.key(0))
        seen = Observation(jnp.zeros((), jnp.int32), VARIABLES, shown)
        return jax.eval_shape(attack.step, jax.random.key(0), state, seen)

    if clear("settings", attempt) is not None:
        assert payload in ("whole", "nan")


OPTIMIZERS = {"adam": optax.adam(0.1), "lbfgs": optax.lbfgs(), "huge": optax.sgd(1e30), "nan": optax.sgd(math.nan)}


def _two_steps(preset, optimizer, changes, restarts, damaged):
    """Really run: what is computed may be bad, and then the attack freezes or says so; it never fails half-way."""
    shown = jax.tree.map(lambda leaf: leaf * (np.inf if damaged else 1), VARIABLES["params"])

    def attempt():
        settings = presets.preset(preset, 2)._replace(optimizer=OPTIMIZERS[optimizer], **changes)
        attack = attacks.inversion(MODEL, SHARE, settings, batch_size=B)
        seen = Observation(jnp.zeros((), jnp.int32), VARIABLES, shown)
        return audit.invert(attack, seen, TEMPLATE, key=jax.random.key(0), iterations=2, restarts=restarts)

    done = clear("steps", attempt)
    if done is not None:
        assert not damaged
        found, _, infos = done
        assert found.x.shape == (B, 1, *SHAPE)
        assert not np.isnan(found.x).any()
        assert len(infos["loss"]) == 2
        assert np.isfinite(infos["loss"][~np.asarray(infos["frozen"])]).all()


STEPS = {
    "preset": st.sampled_from(sorted(presets.PRESETS.keys() - {*presets.GENERATIVE, "fedleak_upstream"})),
    "optimizer": st.sampled_from(sorted(OPTIMIZERS)),
    "changes": few({k: CHANGES[k] for k in sorted(CHANGES.keys() - {"iterations", "labels"})}),
    "restarts": st.sampled_from([1, 1, 2]),
    "damaged": st.sampled_from([False, False, False, True]),
}


@settings(fuzz(1), max_examples=1)
@given(**STEPS)
def test_two_steps(preset, optimizer, changes, restarts, damaged):
    _two_steps(preset, optimizer, changes, restarts, damaged)


@pytest.mark.slow
@settings(fuzz(40), max_examples=min(EXAMPLES, 200) or 40)
@given(**STEPS)
def test_many_two_steps(preset, optimizer, changes, restarts, damaged):
    _two_steps(preset, optimizer, changes, restarts, damaged)


#: Every constructor of a defense, of two numbers.
DEFENSES = {
    "adaptive_dp_sgd": lambda a, b: defenses.adaptive_dp_sgd(a, b),
    "cancelling_noise": lambda a, b: defenses.cancelling_noise(a, b),
    "clipped_gaussian": defenses.clipped_gaussian,
    "dp_sgd": lambda a, b: defenses.dp_sgd(a, b),
    "expected_batch": lambda a, b: defenses.dp_sgd(1.0, a, expected_batch=b),
    "fake_gradients": lambda a, b: defenses.fake_gradients(b, a),
    "feature_dropout": lambda a, b: defenses.feature_dropout(a),
    "gaussian_noise": lambda a, b: defenses.gaussian_noise(a),
    "gaussian_payload_noise": lambda a, b: defenses.gaussian_payload_noise(a),
    "guardian": lambda a, b: defenses.guardian(a, probes=b),
    "laplace_noise": lambda a, b: defenses.laplace_noise(a),
    "magnitude_noise": lambda a, b: defenses.magnitude_noise(a),
    "marvell": lambda a, b: defenses.marvell(num_classes=b, power=a),
    "outpost": lambda a, b: defenses.outpost(a, decay=b),
    "quantize": lambda a, b: defenses.quantize(b),
    "soteria": lambda a, b: defenses.soteria(a),
    "sparsify": lambda a, b: defenses.sparsify(a),
    "vfl_defender": defenses.vfl_defender,
    "withhold_top": lambda a, b: defenses.withhold_top(a),
    **{name: lambda a, b, name=name: registered(name, a) for name in REGISTRY},
}


def test_every_defense_is_among_them():
    made = {name for name in defenses.__all__ if name[0].islower()}
    computed = {"bits_on_the_wire", "chain", "label_dp_scale"}
    assert {n for n in made if not n.startswith(("epsilon", "noise_multiplier"))} - computed <= DEFENSES.keys()


@fuzz(80)
@given(
    names=st.lists(st.sampled_from(sorted(DEFENSES)), min_size=1, max_size=2),
    first=FLOATS | st.sampled_from([0.5, 10.0, 50.0]),
    second=FLOATS | INTEGERS | st.sampled_from([1, 2, 8]),
    place=st.none() | NAMES | st.sampled_from([*defenses.HORIZONTAL_PLACES, *defenses.SPLIT_PLACES]),
)
def test_defenses(names, first, second, place):
    """Built, chained, moved to another place, and shown one round of a client, as far as shapes go."""

    def attempt():
        members = [DEFENSES[name](first, second) for name in names]
        defense = members[0] if len(members) == 1 else defenses.chain(*members)
        if place is not None:
            defense = defense._replace(place=place)
        protocol = protocols.client(SHARE, num_samples=B, batch_size=B, defense=defense)
        private = Batch(jnp.zeros((B, 1, *SHAPE)), jnp.zeros(B, jnp.int32), jnp.arange(B))
        state = jax.eval_shape(protocol.init, jax.random.key(0))
        return jax.eval_shape(protocol.round, jax.random.key(0), state, private)[1]

    seen = clear("defenses", attempt)
    if seen is not None:
        for leaf, weight in zip(jax.tree.leaves(seen.payload), jax.tree.leaves(VARIABLES["params"]), strict=True):
            assert leaf.shape == weight.shape


DEFENSE_STUDY = {
    "study": st.lists(NAMES | st.sampled_from(defense_study.STUDIES), max_size=2).map(tuple),
    "seeds": st.lists(INTEGERS, max_size=2).map(tuple),
    "budget": FLOATS,
    "only": st.lists(NAMES | st.sampled_from(defense_study.ONLY), max_size=2).map(tuple),
    "strengths": st.lists(
        st.text(max_size=8) | st.builds("{}={}".format, st.sampled_from(sorted(REGISTRY)), FLOATS), max_size=2
    ).map(tuple),
    "model": NAMES | st.just("resnet10"),
    "batch_norm": NAMES | st.just("eval"),
    "learning_rate": FLOATS,
    **dict.fromkeys(["width", "batch_size", "iterations", "rounds", "clients", "samples", "attacked_round"], INTEGERS),
}


@fuzz(40)
@given(changes=few(DEFENSE_STUDY))
def test_options_of_the_defense_study(changes):
    def attempt():
        args = defense_study.Args(**changes)
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
    "fields": st.lists(NAMES | st.sampled_from(attacks.FIELDS), max_size=3).map(tuple),
    "select": NAMES,
    "shadow_init": st.lists(NAMES | st.sampled_from(attacks.SHADOW_INITS), max_size=2).map(tuple),
    **dict.fromkeys(["batch_size", "shadow_records", "victim_records", "parties"], INTEGERS),
    **dict.fromkeys(["shadow_runs", "seeds", "network_epochs"], INTEGERS),
}


@fuzz(12)
@given(changes=few(VERTICAL_STUDY))
def test_options_of_the_vertical_study(changes):
    """As far as the data: nothing is trained."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(vflrecon, "_study", lambda *_: {})
        args = vflrecon.Args(**{"data": ("digits",), **changes}, out=Path(folder) / "out")
        clear("vertical study", lambda: vflrecon.main(args))


JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | NAMES | st.just("cafe_scale"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.sampled_from(["study", "options", "out", "num-samples"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@fuzz(60)
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
        patch.setattr(sweep.os, "execv", lambda program, words: started.append(words))
        path = Path(folder) / "runs.jsonl"
        path.write_text("\n".join(lines), errors="surrogatepass")
        clear("sweeps", lambda: sweep.main(sweep.Args(path, action, index, Path(folder) / "out")))
    for words in started:
        assert all(isinstance(word, str) and "\0" not in word for word in words)


@fuzz(60)
@given(
    case=st.builds(
        Case,
        attack=NAMES
        | st.sampled_from(["fedleak", "dlg", "idlg", "inverting_gradients", "sapag", "gradinversion", "bayes"]),
        iterations=INTEGERS,
        labels=st.none() | NAMES,
        tv=st.none() | FLOATS,
        activation_penalty=st.none() | FLOATS,
        matched_percent=st.none() | FLOATS,
        blend=st.none() | FLOATS,
        probe=NAMES | st.just("ascent"),
        optimizer=st.none() | NAMES | st.just("annealed"),
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
    clear("cases", lambda: settings_of(case))


@fuzz(25)
@given(
    name=NAMES | st.sampled_from(["mlp", "lenet", "convnet"]),
    shape=st.lists(st.integers(-1, 9), max_size=4).map(tuple),
    classes=st.integers(-1, 5) | st.sampled_from([10**6, 10**12]),
    options=st.fixed_dictionaries({}, optional={"activation": NAMES | st.just("sigmoid"), "init": NAMES}),
)
def test_models(name, shape, classes, options):
    model = clear("models", lambda: models.build(name, shape, classes, **options))
    if model is not None:
        assert model.image_shape == shape
        assert model.num_classes == classes >= 2


@fuzz(60)
@given(
    kind=st.sampled_from(["", "npz:", "idx:", "folder:", "natural_patches:", "digits", "digits:", "mnist"]),
    rest=st.text(max_size=12) | st.sampled_from([".", "/dev/null", "~", ",", "/,/", "a,b,c", ".?size=0", "-1", "1e9"]),
    n=st.none() | INTEGERS | FLOATS,
    seed=INTEGERS,
)
def test_data_specifications(kind, rest, n, seed):
    found = clear("data", lambda: data.load(kind + rest, n, seed))
    if found is not None:
        assert found.x.dtype == np.float32
        assert found.y.shape == (len(found.x),)
        assert n is None or len(found.x) == n


@fuzz(40)
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
    """Everything before the work begins; the work itself is replaced."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cafe_scale, "_exact", lambda *_: {"done": 1.0})
        options = cafe_scale.Args(**{"data": "digits", **given_sizes}, out=Path(folder) / "out", preset="mnist")
        with contextlib.redirect_stdout(io.StringIO()):
            clear("studies", lambda: cafe_scale.main(options))


class Bait:
    """Would make a file if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


ARRAYS = st.sampled_from(
    [
        np.zeros((16, 5), np.float32),
        np.zeros((16, 5), np.float64),
        np.full((16, 5), 1e300),
        np.full((16, 5), np.nan, np.float32),
        np.zeros((16, 5), np.int32),
        np.zeros((16, 5), np.complex64),
        np.zeros((16, 5), "U3"),
        np.zeros((16, 5), np.longdouble),
        np.zeros((16, 5), [("a", "f4")]),
        np.zeros((5, 16), np.float32),
        np.zeros((), np.float32),
        np.zeros((0, 5), np.float32),
        np.array(["2020-01-01"], "M8[D]"),
    ]
)
#: Overwritten with null bytes, which end a name: `zipfile` reads it as empty but refuses to write it.
NAMELESS = "nameless"
DAMAGE = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6)


def _damaged(content, damage, cut):
    content = bytearray(content)
    for position, value in damage:
        content[position % len(content)] = value
    return bytes(content[: max(0, len(content) - cut)])


def _huge_member(shape):
    """An npy file whose header promises more than any memory holds."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.fixture(scope="module")
def names():
    return [invert._name(path) for path, _ in jax.tree_util.tree_leaves_with_path(VARIABLES["params"])]


@fuzz(80)
@given(
    replaced=st.dictionaries(st.integers(0, 4), ARRAYS | st.sampled_from(["bait", "huge", "raw", None]), max_size=2),
    extra=st.none() | st.sampled_from(["more", "../../etc/passwd", NAMELESS]),
    damage=DAMAGE,
    cut=st.sampled_from([0, 0, 0, 1, 30, 500]),
)
def test_payload_files(names, replaced, extra, damage, cut):
    arrays = dict(zip(names, map(np.asarray, jax.tree.leaves(VARIABLES["params"])), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path, bait = Path(folder) / "payload.npz", Path(folder) / "unpickled"
        with zipfile.ZipFile(path, "w") as archive:
            for i, (name, array) in enumerate(arrays.items()):
                content, new = io.BytesIO(), replaced.get(i, array)
                if isinstance(new, np.ndarray):
                    np.save(content, new, allow_pickle=False)
                elif new == "bait":
                    np.save(content, np.array([Bait(str(bait))], object), allow_pickle=True)
                elif new == "huge":
                    content.write(_huge_member((10**9, 10**6)))
                elif new == "raw":
                    content.write(b"no array")
                if new is not None:
                    archive.writestr(name + ".npy", content.getvalue())
            if extra is not None:
                archive.writestr(extra + ".npy", b"")
        content = path.read_bytes().replace(NAMELESS.encode(), bytes(len(NAMELESS)))
        path.write_bytes(_damaged(content, damage, cut))

        def attempt():
            payload = invert.load_payload(path, VARIABLES["params"])
            attacks.check_payload(payload, VARIABLES)
            return payload

        payload = clear("payloads", attempt)
        assert not bait.exists()
    if payload is not None:
        for leaf, weight in zip(jax.tree.leaves(payload), jax.tree.leaves(VARIABLES["params"]), strict=True):
            assert leaf.shape == weight.shape
            assert np.isfinite(leaf).all()


LEAVES = ARRAYS | st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.just(object())


@fuzz(60)
@given(tree=st.recursive(LEAVES, lambda t: st.lists(t, max_size=3) | st.dictionaries(NAMES, t, max_size=3)))
def test_payload_trees(tree):
    clear("trees", lambda: attacks.check_payload(tree, VARIABLES))
    first = next(iter(VARIABLES["params"]))
    clear("trees", lambda: attacks.check_payload({**VARIABLES["params"], first: tree}, VARIABLES))


@fuzz(80)
@given(
    header=st.none() | st.binary(max_size=40) | st.dictionaries(NAMES, st.integers() | st.text(max_size=4), max_size=3),
    replaced=st.dictionaries(st.integers(0, 4), ARRAYS.filter(lambda a: a.dtype.kind in "fi" and a.itemsize < 16)),
    damage=DAMAGE,
    cut=st.sampled_from([0, 0, 0, 1, 30, 500]),
)
def test_weight_files(header, replaced, damage, cut):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        models.save_weights(path, VARIABLES)
        if replaced:
            stored = safetensors.numpy.load_file(path)
            stored.update({name: replaced[i] for i, name in enumerate(stored) if i in replaced})
            safetensors.numpy.save_file(stored, path)
        if header is not None:
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            path.write_bytes(struct.pack("<Q", len(text)) + text + path.read_bytes())
        path.write_bytes(_damaged(path.read_bytes(), damage, cut))
        like = jax.eval_shape(MODEL.init, jax.random.key(0))
        loaded = clear("weights", lambda: models.load_weights(path, like), mentions=(str(path),))
    if loaded is not None:
        assert jax.tree.map(lambda leaf: leaf.shape, loaded) == jax.tree.map(lambda leaf: leaf.shape, like)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(loaded))
