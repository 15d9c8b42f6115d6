"""The check of conservation laws: updates that keep them, the threshold, and the mistake that explains a violation."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, models, protocols
from jaxleak.audit._checks import laws, symmetry
from jaxleak.audit._checks.finding import DEFENSE_OTHER
from jaxleak.audit._checks.precision import FULL, Precision

KEY = jax.random.key(0)


def _tree(seed=0, **shapes):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}


def test_the_laws_of_a_network_of_relus_are_kept_by_its_gradients_and_not_by_others():
    """The symmetry: scaling the inputs of a hidden unit up and its outputs down does not change the network."""
    model = models.mlp((4, 4, 1), 5, widths=(6,))
    variables, share = jax.jit(model.init)(KEY), protocols.ClientShare(model)
    found = laws.find_laws(share, variables, 2, jax.random.key(1))
    assert found.combinations.shape == (len(found.directions), len(found.tolerances))
    assert len(found.tolerances) == 2  # as a whole, and per unit
    np.testing.assert_allclose(np.linalg.norm(found.combinations, axis=0), 1, rtol=1e-9)
    gradients = [laws._simulated(share, variables, 2, jax.random.key(seed), False) for seed in (5, 6)]
    assert max(laws.against(found, variables, gradient).worst for gradient in gradients) <= 1
    w, g = variables["params"], gradients[0]
    first = (w["dense_0"]["kernel"] * g["dense_0"]["kernel"]).sum(axis=0) + w["dense_0"]["bias"] * g["dense_0"]["bias"]
    np.testing.assert_allclose(first, (w["head"]["kernel"] * g["head"]["kernel"]).sum(axis=1), atol=1e-5)
    off = {**w, "dense_0": {**w["dense_0"], "kernel": w["dense_0"]["kernel"].at[:, 0].multiply(1.05)}}
    assert laws.against(found, {**variables, "params": off}, g).worst > 10
    assert min(found.tolerances) >= 3e-6
    assert max(found.tolerances) < 1e-3
    assert set(found.sizes) == {f"{layer}/{leaf}" for layer in w for leaf in w[layer]}
    for least, largest in found.sizes.values():
        assert 0 < least < largest < 1


@pytest.mark.parametrize("of", ["dark", "bright"])
def test_units_that_only_some_images_turn_off_make_no_law(of):
    """Units that are on for every image of medium brightness: a shift of their biases is one of the head's bias."""
    model, rng = models.mlp((16, 16, 1), 2, widths=(6,)), np.random.default_rng(0)
    kernel, shade = rng.uniform(0.5, 1, (256, 6)) / 256, rng.uniform(0, 0.2, (2, 16, 16, 1))
    params = jax.jit(model.init)(KEY)["params"]
    on_above_a_quarter = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(-0.25 * kernel.sum(axis=0))}
    if of == "bright":  # on below three quarters
        on_above_a_quarter = {"kernel": -on_above_a_quarter["kernel"], "bias": jnp.asarray(0.75 * kernel.sum(axis=0))}
        shade = 1 - shade
    variables, share = {"params": params | {"dense_0": on_above_a_quarter}}, protocols.ClientShare(model)
    x = jnp.asarray(np.concatenate([shade, rng.uniform(0.3, 0.7, (2, 16, 16, 1))]), jnp.float32)
    gradient = share(variables, Batch(x[:, None], jnp.array([0, 1, 1, 0], jnp.int32), jnp.arange(4)))
    assert laws.against(laws.find_laws(share, variables, 4, jax.random.key(1)), variables, gradient).worst <= 1


def test_simulated_images_are_of_four_kinds():
    x = np.asarray(laws._images(KEY, 400, (8, 12, 2)))
    coarse_key, fine_key, kind_key = jax.random.split(KEY, 3)
    coarse = jax.image.resize(jax.random.uniform(coarse_key, (400, 2, 3, 2)), x.shape, "linear")
    noise = np.asarray(jax.random.uniform(fine_key, x.shape))
    medium = 0.7 * np.asarray(coarse) + 0.3 * noise
    dark = 0.8 * np.clip(3 * np.asarray(coarse) - 2, 0, 1) + 0.2 * noise
    kind = np.asarray(jax.random.randint(kind_key, (400,), 0, 4))
    for number, images in enumerate((medium, dark, 1 - dark, noise)):
        assert 60 < np.sum(kind == number) < 140
        np.testing.assert_allclose(x[kind == number], images[kind == number], atol=1e-6)
    assert laws._images(KEY, 1, (2, 3, 1)).shape == (1, 2, 3, 1)  # too small for any pattern


def test_other_weights_are_the_same_ones_mixed_and_scaled():
    variables = {"params": _tree(a=(5, 3), b=(4,)), "batch_stats": {"mean": jnp.ones(2)}}
    other = laws._other_weights(variables, KEY)
    np.testing.assert_array_equal(other["batch_stats"]["mean"], 1)
    for name, leaf in variables["params"].items():
        mixed = np.asarray(other["params"][name])
        ratio = np.sort(mixed.ravel()) / np.sort(np.asarray(leaf).ravel())
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
        assert 0.7 <= ratio[0] <= 1.4
        assert not np.allclose(mixed / ratio[0], leaf)


@pytest.mark.parametrize(
    ("count", "worst", "status"),
    [
        (0, 0.0, "not applicable"),
        (2, 1.0, "passed"),
        (2, 1.01, "suspicious"),
        (2, 30.0, "suspicious"),
        (2, 30.1, "failed"),
    ],
)
def test_a_law_is_broken_from_some_multiple_of_its_tolerance_on(monkeypatch, count, worst, status):
    monkeypatch.setattr(symmetry, "find_laws", lambda *_: SimpleNamespace(diverged=False))
    monkeypatch.setattr(symmetry, "against", lambda *_: laws.Broken(count, worst, np.zeros(count)))
    monkeypatch.setattr(symmetry, "_cause", lambda *_: ("a cause", ("--option",)))
    share = SimpleNamespace(model=SimpleNamespace(has_running_statistics=False, image_shape=(6, 6, 1)), local_steps=1)
    (finding,) = symmetry.check_symmetries(share, None, None, 1, KEY)
    assert (finding.name, finding.status) == (symmetry.SYMMETRIES, status)
    assert (finding.cause, finding.option) == (("a cause", "--option") if worst > 1 else ("", ""))


@pytest.mark.parametrize("steps", [1, 3])
def test_steps_are_named_where_they_may_be_why_no_law_is_left(monkeypatch, steps):
    monkeypatch.setattr(symmetry, "find_laws", lambda *_: SimpleNamespace(diverged=False))
    monkeypatch.setattr(symmetry, "against", lambda *_: laws.Broken(0, 0.0, np.zeros(0)))
    share = SimpleNamespace(
        model=SimpleNamespace(has_running_statistics=False, image_shape=(6, 6, 1)), local_steps=steps
    )
    (finding,) = symmetry.check_symmetries(share, None, None, 1, KEY)
    assert ("Several steps leave fewer such directions than one." in finding.evidence) == (steps > 1)


@pytest.mark.parametrize(
    ("mode", "nothing", "share", "status"),
    [
        ("train", ["a", "b"], 0.9e-4, "passed"),
        ("train", ["a", "b"], 1.1e-4, "failed"),
        ("train", [], 1.0, "not applicable"),
        ("eval", ["a", "b"], 0.9e-5, "failed"),
        ("eval", ["a", "b"], 1.1e-5, "passed"),
        ("eval", ["a", "b"], 0.0, "passed"),  # the leaf was not recorded
        ("eval", [], 1.0, "not applicable"),
    ],
)
def test_leaves_that_vanish_tell_the_mode(monkeypatch, mode, nothing, share, status):
    sizes = {name: (0.0, 0.0) if name in nothing and mode == "train" else (1.1e-4, 1.0) for name in "abc"}
    known = laws.Laws(SimpleNamespace(batch_norm=mode), (), np.zeros((0, 0)), np.zeros(0), sizes)
    monkeypatch.setattr(symmetry, "shares_of_norm", lambda _: {"a": 0.0, "b": share, "c": 0.9})
    finding = symmetry._mode(known, None, nothing)
    assert finding.status == status
    other = "eval" if mode == "train" else "train"
    assert finding.option == (f"--batch-norm {other}" if status == "failed" else "")
    assert not nothing or not share or finding.evidence.startswith("b has ")


def test_leaves_that_vanish_by_running_statistics_too_do_not_tell_the_mode(monkeypatch):
    sizes = {"a": (0.9e-4, 1.0), "b": (0.5, 1.0)}
    known = laws.Laws(SimpleNamespace(batch_norm="eval"), (), np.zeros((0, 0)), np.zeros(0), sizes)
    monkeypatch.setattr(symmetry, "shares_of_norm", lambda _: {"a": 1e-7, "b": 1.0})
    assert symmetry._mode(known, None, ["a"]).status == "not applicable"


@pytest.mark.parametrize("decay", [1e-5, 5e-4, 1.23e-3, 1.23456e-3, 0.5])
def test_the_decay_is_the_roundest_that_mends_all_laws(decay):
    (variables, _, gradient), found = _small(), _laws_of_small()
    payload = jax.tree.map(lambda g, w: g + decay * w, gradient, variables["params"])
    assert symmetry._weight_decay(found, variables, payload) == pytest.approx(decay, rel=1e-3, abs=1e-7)
    if decay == 1.23e-3:
        assert symmetry._weight_decay(found, variables, payload) == decay
    one = found._replace(combinations=found.combinations[:, :1], tolerances=found.tolerances[:1])
    assert (symmetry._weight_decay(one, variables, payload) is None) == (decay in (1.23e-3, 1.23456e-3))
    negative = jax.tree.map(lambda g, w: g - decay * w, gradient, variables["params"])
    assert symmetry._weight_decay(found, variables, negative) is None
    rng = np.random.default_rng(0)
    noisy = jax.tree.map(lambda g: np.float32(g + 0.1 * rng.standard_normal(g.shape)), payload)
    assert symmetry._weight_decay(found, variables, noisy) is None


def test_other_layouts_exchange_equal_axes_or_count_channels_first():
    params = _tree(conv=(2, 2, 1, 5), small=(1, 1, 2, 3), head=(20, 3))
    payload = _tree(1, conv=(2, 2, 1, 5), small=(1, 1, 2, 3), head=(20, 3))
    found = list(symmetry.other_layouts(params, payload))
    assert [name for name, _, _ in found] == ["conv", "head", "head"]
    np.testing.assert_array_equal(found[0][2]["conv"], np.swapaxes(payload["conv"], 0, 1))
    assert "axes 0 and 1" in found[0][1]
    head, (last, first) = np.asarray(payload["head"]), (np.asarray(tree["head"]) for _, _, tree in found[1:])
    for row, column, channel in np.ndindex(2, 2, 5):
        there, here = channel * 4 + row * 2 + column, (row * 2 + column) * 5 + channel
        np.testing.assert_array_equal(last[here], head[there])
        np.testing.assert_array_equal(first[there], head[here])
    for _, _, tree in found[1:]:
        np.testing.assert_array_equal(tree["conv"], payload["conv"])
    wide = list(symmetry.other_layouts({**params, "head": jnp.zeros((3, 45))}, {"head": jnp.zeros((3, 45))}))
    assert [layout.split(" counts")[0] for _, layout, _ in wide] == ["axis 1", "axis 1"]
    assert not list(symmetry.other_layouts({**params, "head": jnp.zeros((5, 7))}, {"head": jnp.zeros((5, 7))}))


@pytest.mark.parametrize(("batch_norm", "other"), [("train", "eval"), ("eval", "train")])
@pytest.mark.parametrize("mends", ["mode", "frozen", "layout", "decay", "nothing"])
def test_the_first_mistake_that_mends_all_laws_is_the_cause(monkeypatch, batch_norm, other, mends):
    worst = {"mode": 1.01, "layout": 1.01}  # a small excess does not excuse a law
    worst |= {mends: 1.0} if mends in worst else {}
    model = models.convnet((4, 4, 1), 3, channels=(2,), strides=(2,), batch_norm=True)
    own = laws.Laws(protocols.ClientShare(model, batch_norm=batch_norm), (), *[None] * 3)
    asked = []

    def find_laws(share, *_):
        asked.append(share.batch_norm)
        return own._replace(combinations=np.zeros((3, 1)))

    def against(known, variables, payload):
        return laws.Broken(1, worst["mode" if payload == "sent" else "layout"], None)

    monkeypatch.setattr(symmetry, "find_laws", find_laws)
    monkeypatch.setattr(symmetry, "against", against)
    monkeypatch.setattr(symmetry, "other_layouts", lambda *_: iter([("head/kernel", "transposed", "changed")]))
    monkeypatch.setattr(symmetry, "_weight_decay", lambda *_: 2e-3 if mends == "decay" else None)
    monkeypatch.setattr(symmetry, "_not_trained", lambda *_: ["conv_0", "head.bias"] if mends == "frozen" else [])
    variables = {"params": {}, "batch_stats": {"mean": 1}}
    cause, options = symmetry._cause(own, variables, "sent", 2, KEY)
    assert asked == [other]
    expected = {
        "mode": (f'the client normalised in mode "{other}"', (f"--batch-norm {other}",)),
        "frozen": (
            "the client did not train the layers conv_0, head.bias, in which the update is zero throughout",
            ("--frozen conv_0 head.bias",),
        ),
        "layout": ("the update's head/kernel is stored in another layout: transposed", ("--update",)),
        "decay": (
            "the client's optimiser adds weight decay of 0.002 to the gradient of the mean loss",
            ("--update minus 0.002 times the weights (B times as much for a summed loss)", DEFENSE_OTHER),
        ),
    }
    assert (cause, options) == expected.get(mends, (cause, ("--weights",)))
    assert mends != "nothing" or cause.startswith("weights of another round")
    if batch_norm == "train":  # without running statistics, no other mode exists
        asked.clear()
        symmetry._cause(own, {"params": {}}, "sent", 2, KEY)
        assert not asked


@functools.cache
def _small():
    """A small network of ReLUs, its client, and the gradient of two samples."""
    model = models.mlp((4, 4, 1), 5, widths=(6, 6))
    variables, share = jax.jit(model.init)(KEY), protocols.ClientShare(model)
    return variables, share, laws._simulated(share, variables, 2, jax.random.key(5), False)


@functools.cache
def _laws_of_small():
    variables, share, _ = _small()
    return laws.find_laws(share, variables, 2, jax.random.key(1))


def _found(variables, share, payload):
    return symmetry.check_symmetries(share, variables, payload, 2, jax.random.key(1))[-1]


def test_layers_that_only_the_optimizer_left_out_are_named_unless_the_weights_are_wrong_too():
    variables, share, gradient = _small()
    zero = jax.tree.map(jnp.zeros_like, gradient["dense_0"])
    found = _found(variables, share, {**gradient, "dense_0": zero})
    assert (found.status, found.option) == ("failed", "--frozen dense_0")
    assert found.cause.startswith("the client did not train the layers dense_0, ")
    other = jax.jit(share.model.init)(jax.random.key(9))
    found = _found(other, share, {**gradient, "dense_0": zero})
    assert (found.status, found.option) == ("failed", "--weights")


@pytest.mark.parametrize(
    ("steps", "precision", "options"),
    [
        (1, FULL, ("--update minus 0.002 times the weights (B times as much for a summed loss)",)),
        (1, Precision(scale=10.0, of_weights=True), ("--update plus 0.0002 times the weights before the step",)),
        (2, FULL, ()),
    ],
)
def test_a_decay_is_taken_off_by_the_server_who_knows_the_weights(steps, precision, options):
    share = protocols.ClientShare(models.mlp((4, 4, 1), 5, widths=(6,)), local_steps=steps)
    assert symmetry._without_decay(share, 2e-3, precision) == (*options, DEFENSE_OTHER)


def test_the_number_that_is_named_takes_the_decay_off():
    variables, share, gradient = _small()
    found = _found(variables, share, jax.tree.map(lambda g, w: g + 1.23e-3 * w, gradient, variables["params"]))
    summed = "(B times as much for a summed loss)"
    assert (found.status, found.option) == (
        "failed",
        f"--update minus 0.00123 times the weights {summed}, or {DEFENSE_OTHER}",
    )


def test_a_normalisation_of_one_hot_codes_is_checked_on_such_codes():
    """A normalisation's epsilon matters for small embeddings: unlike for images, their scale is no symmetry."""
    tokens, width = 200, 8
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "embedding": 0.08 * jax.random.normal(keys[0], (tokens, width)),
        "scale": jnp.ones(width),
        "hidden": {"kernel": jax.random.normal(keys[1], (width, 8)) / 3, "bias": jnp.zeros(8)},
        "out": {"kernel": jax.random.normal(keys[2], (8, 4)) / 3, "bias": jnp.zeros(4)},
    }

    def network(variables, x):
        p = variables["params"]
        z = x[..., 0] @ p["embedding"]
        z = z / jnp.sqrt(z.var(axis=-1, keepdims=True) + 1e-5) * p["scale"]
        h = jax.nn.relu(z @ p["hidden"]["kernel"] + p["hidden"]["bias"]).mean(axis=1)
        return h @ p["out"]["kernel"] + p["out"]["bias"]

    model, variables = models.from_function(network, {"params": params}, image_shape=(3, tokens, 1), num_classes=4)
    share = protocols.ClientShare(model)
    x = jax.nn.one_hot(jnp.array([[1, 5, 1]]), tokens)[..., None]
    sent = share(variables, Batch(x[:, None], jnp.array([2]), jnp.arange(1)))
    assert symmetry.seems_one_hot(sent, model.image_shape)
    laws_of_images = laws.find_laws(share, variables, 1, KEY)
    assert laws.against(laws_of_images, variables, sent).worst > 1
    (found,) = symmetry.check_symmetries(share, variables, sent, 1, KEY)
    assert found.status == "passed"
    other = jax.tree.map(
        lambda w: w * (1 + 0.02 * jnp.sin(jnp.arange(w.size, dtype=w.dtype)).reshape(w.shape)), variables
    )
    (found,) = symmetry.check_symmetries(share, other, sent, 1, KEY)
    assert found.status == "failed"
