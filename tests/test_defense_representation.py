"""Soteria, OUTPOST and Guardian against slow NumPy references on a network small enough to differentiate by hand."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.optimize

from jaxleak import protocols
from jaxleak._base import Batch
from jaxleak.defenses import chain, composed, dp_sgd, feature_dropout, guardian, outpost, quantize, soteria, stateless
from jaxleak.defenses._guardian import sensitivities
from jaxleak.defenses._outpost import risk
from jaxleak.defenses._soteria import leakage_ratios
from jaxleak.models import BatchNorm, classifier, from_function
from jaxleak.objectives import cross_entropy, squared_error

KEY = jax.random.key(0)
FEATURES, CLASSES = 10, 3


class _Small(nn.Module):
    @nn.compact
    def __call__(self, x):
        features = nn.relu(nn.Dense(FEATURES, name="hidden")(x.reshape(len(x), -1)))
        return nn.Dense(CLASSES, name="head")(features)


class _Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        features = nn.sigmoid(BatchNorm()(nn.Dense(FEATURES, name="hidden")(x.reshape(len(x), -1)), train))
        return nn.Dense(CLASSES, name="head")(features)


MODEL = classifier(_Small(), image_shape=(2, 3, 1), num_classes=CLASSES)
VARIABLES = MODEL.init(KEY)
# Feature 4 is never active; every other feature is active on some examples.
VARIABLES["params"]["head"]["bias"] = jnp.linspace(-0.5, 0.5, CLASSES)
VARIABLES["params"]["hidden"]["bias"] = jnp.linspace(0.5, 1.5, FEATURES).at[4].set(-100.0)
X = jax.random.uniform(jax.random.key(1), (5, 2, 3, 1))
Y = jnp.array([0, 2, 1, 0, 2])
BATCH = {"model": MODEL, "variables": VARIABLES, "x": X, "y": Y}


def _numpy(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def _slow_gradient(x, kept=1.0):
    """The gradient of the mean cross-entropy by hand in float64; `kept` scales every feature of every example."""
    p = _numpy(VARIABLES["params"])
    x = x.reshape(len(x), -1)
    r = np.maximum(x @ p["hidden"]["kernel"] + p["hidden"]["bias"], 0) * kept
    logits = r @ p["head"]["kernel"] + p["head"]["bias"]
    soft = np.exp(logits - logits.max(axis=1, keepdims=True))
    delta = (soft / soft.sum(axis=1, keepdims=True) - np.eye(CLASSES)[np.asarray(Y)]) / len(x)
    back = (delta @ p["head"]["kernel"].T) * (r > 0) * kept
    return {
        "head": {"bias": delta.sum(axis=0), "kernel": r.T @ delta},
        "hidden": {"bias": back.sum(axis=0), "kernel": x.T @ back},
    }


PAYLOAD = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), _slow_gradient(np.asarray(X, np.float64)))


def _share(defense, **given):
    """The defended payload, compiled because many small single operations are slower."""
    return jax.jit(lambda payload: defense.apply(KEY, payload, **BATCH, **given))(PAYLOAD)


def _slow_ratios():
    p = _numpy(VARIABLES["params"]["hidden"])
    ratios = np.zeros(FEATURES)
    for x in np.asarray(X, np.float64).reshape(len(X), -1):
        r = x @ p["kernel"] + p["bias"]
        for i in range(FEATURES):
            if r[i] > 0:
                ratios[i] += np.linalg.norm(p["kernel"][:, i]) / r[i]
    return np.where(ratios > 0, ratios, np.inf)


def test_soteria_ranks_features_by_what_they_tell():
    ratios = jax.jit(functools.partial(leakage_ratios, MODEL))(VARIABLES, X)
    np.testing.assert_allclose(ratios, _slow_ratios(), rtol=1e-5)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_soteria_masks_the_rows_of_the_most_telling_features(ratio):
    shared = _share(soteria(ratio))
    hidden = np.argsort(_slow_ratios())[: round(ratio * FEATURES)]
    expected = np.asarray(PAYLOAD["head"]["kernel"]).copy()
    expected[hidden] = 0
    np.testing.assert_array_equal(shared["head"]["kernel"], expected)
    assert (expected != np.asarray(PAYLOAD["head"]["kernel"])).any()
    for layer, name in (("head", "bias"), ("hidden", "kernel"), ("hidden", "bias")):
        np.testing.assert_array_equal(shared[layer][name], PAYLOAD[layer][name])


def test_soteria_does_not_spend_its_ratio_on_features_that_never_fire():
    one = _share(soteria(0.1))["head"]["kernel"]
    silent = (np.asarray(PAYLOAD["head"]["kernel"]) == 0).all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(silent), [4])
    assert ((np.asarray(one) == 0).all(axis=1)).sum() == 2
    assert (_share(soteria(1.0))["head"]["kernel"] == 0).all()


def _slow_outpost(key, ratio, noise_scale, fisher_percent):
    noise_key, _ = jax.random.split(key)
    fisher = reference.flat(PAYLOAD).astype(np.float64) ** 2
    threshold = np.sort(fisher)[::-1][int(np.ceil(fisher.size * fisher_percent / 100)) - 1]
    leaves, weights = jax.tree.leaves(PAYLOAD), jax.tree.leaves(VARIABLES["params"])
    new = []
    for i, (g, w) in enumerate(zip(leaves, weights, strict=True)):
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        pruned = np.argsort(np.abs(g.ravel()))[: round(ratio * g.size)]
        kept = g.ravel().copy()
        kept[pruned] = 0
        noise = (
            noise_scale
            * min(1, np.var(w, ddof=1))
            * np.asarray(jax.random.normal(jax.random.fold_in(noise_key, i), g.shape))
        )
        new.append(kept.reshape(g.shape) + noise * (g**2 >= threshold))
    return np.concatenate([leaf.ravel() for leaf in new])


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_outpost_prunes_and_perturbs_what_fisher_points_at(ratio):
    defense = outpost(ratio, noise_scale=0.8, fisher_percent=40, decay=0)
    shared = reference.flat(_share(defense))
    np.testing.assert_allclose(shared, _slow_outpost(KEY, ratio, 0.8, 40), rtol=1e-5, atol=1e-7)
    assert (shared != reference.flat(PAYLOAD)).sum() > 0.3 * shared.size


def test_outpost_gives_no_noise_to_entries_that_are_zero():
    sparse = jax.tree.map(lambda leaf: jnp.zeros_like(leaf).at[..., 0].set(1.0), PAYLOAD)
    shared = outpost(0.0, noise_scale=0.8, fisher_percent=90, decay=0).apply(KEY, sparse, **BATCH)
    np.testing.assert_array_equal(reference.flat(shared) != 0, reference.flat(sparse) != 0)


def test_the_risk_of_a_layer_is_at_most_one():
    assert risk(jnp.array([-9.0, 9.0])) == 1
    assert risk(jnp.array([3.0])) == risk(jnp.full(5, 2.0)) == 0
    assert risk(jnp.array([0.1, 0.3])) == pytest.approx(0.02)
    np.testing.assert_allclose(risk(jnp.array([0.1, 0.2, 0.6])), np.var([0.1, 0.2, 0.6], ddof=1), rtol=1e-5)


def test_outpost_may_prune_everything():
    assert not reference.flat(_share(outpost(1.0, noise_scale=0.0, decay=0))).any()


def test_outpost_acts_less_and_less_often():
    defense = outpost(0.5, decay=0.5)

    def entry(k, t):
        return defense.apply(k, PAYLOAD, **BATCH, round=t)["hidden"]["kernel"][0, 0]

    # Whenever the defense acts, the entry changes, since it is pruned or gets noise.
    rounds = jnp.array([0, 2, 8])
    draws = jax.jit(jax.vmap(jax.vmap(entry, (0, None)), (None, 0)))(jax.random.split(KEY, 2000), rounds)
    acts = (np.asarray(draws) != np.asarray(PAYLOAD["hidden"]["kernel"])[0, 0]).mean(axis=1)
    np.testing.assert_allclose(acts, [1, 1 / 2, 1 / 5], atol=0.05)


def _slow_sensitivities():
    x = np.asarray(X, np.float64)
    total, step = 0, 1e-6
    for j in range(x.size):
        shift = np.zeros(x.size)
        shift[j] = step
        shift = shift.reshape(x.shape)
        total = (
            total
            + ((reference.flat(_slow_gradient(x + shift)) - reference.flat(_slow_gradient(x - shift))) / (2 * step))
            ** 2
        )
    return total


def test_guardian_estimates_how_entries_depend_on_the_data():
    estimate = jax.jit(lambda k: sensitivities(k, MODEL, VARIABLES, X, Y, probes=4000))(KEY)
    exact = _slow_sensitivities()
    # The square of a sum of signs has a relative deviation of at most sqrt(2); six standard errors.
    np.testing.assert_allclose(reference.flat(estimate), exact, rtol=6 * np.sqrt(2 / 4000), atol=1e-9)
    soft, hard = jax.jit(lambda *labels: [sensitivities(KEY, MODEL, VARIABLES, X, y, probes=2) for y in labels])(
        jax.nn.one_hot(Y, CLASSES), Y
    )
    np.testing.assert_allclose(reference.flat(soft), reference.flat(hard), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("beta", [0.5, 1e3])
def test_guardian_minimises_its_objective(beta):
    shared = _share(guardian(beta, probes=3))
    g = reference.flat(PAYLOAD).astype(np.float64)
    probe_key = jax.random.split(KEY)[0]
    s = jax.jit(lambda x: sensitivities(probe_key, MODEL, VARIABLES, x, Y, probes=3))(X)
    s = reference.flat(s).astype(np.float64)
    s /= s.mean()
    u = (reference.flat(shared) - g) ** 2 / np.mean(g**2)
    for i in np.argsort(s)[[0, 20, 60, -20, -1]]:
        best = scipy.optimize.minimize_scalar(
            lambda v, i=i: v - beta * s[i] * np.log1p(v), bounds=(0, beta * s[i] + 1), method="bounded"
        )
        np.testing.assert_allclose(u[i], best.x, rtol=2e-3, atol=2e-3)
    assert (u > 0).any()
    # Only cost-effective entries get noise.
    assert ((u > 1e-9) == (beta * s > 1)).mean() > 0.97


@pytest.mark.slow
def test_guardian_takes_the_loss_of_the_client():
    def half(logits, y):
        return 0.5 * jnp.sum((logits - jax.nn.one_hot(y, CLASSES)) ** 2)

    other = _share(guardian(10.0, loss=half))
    assert not np.allclose(reference.flat(other), reference.flat(_share(guardian(10.0))))


@pytest.mark.parametrize("defense", [soteria(0.0), outpost(0.0, noise_scale=0.0, decay=0), guardian(0.0)])
def test_strength_zero_is_the_identity(defense):
    np.testing.assert_array_equal(reference.flat(_share(defense)), reference.flat(PAYLOAD))


def test_representation_defenses_chain():
    both = _share(chain(soteria(0.5), outpost(0.5, decay=0)))
    alone = _share(outpost(0.5, decay=0))
    assert not np.allclose(reference.flat(both), reference.flat(alone))
    with pytest.raises(ValueError, match=r"one place, got \['payload', 'representation'\]"):
        chain(soteria(0.5), quantize(8))
    with pytest.raises(ValueError, match="per_example must be a defense at per_example_gradient, got one at payload"):
        composed(quantize(8), soteria(0.5))


def test_members_of_a_composition_draw_with_keys_of_their_own():
    """The second defense subtracts its own noise; with a shared key, this would cancel the noise of the first."""

    def noise(key, payload, **_):
        return jax.tree.map(lambda leaf: 0 * leaf + jax.random.normal(key, leaf.shape[1:]), payload)

    def less(key, payload, **_):
        return jax.tree.map(lambda leaf: leaf - jax.random.normal(key, leaf.shape), payload)

    left = _share(composed(stateless("per_example_gradient", noise), stateless("representation", less)))
    assert np.abs(reference.flat(left)).max() > 0.1


@pytest.mark.parametrize(
    ("build", "options", "match"),
    [
        (soteria, {"ratio": -0.1}, "ratio must be in"),
        (soteria, {"ratio": 1.1}, "ratio must be in"),
        (outpost, {"ratio": -0.1}, "ratio must be in"),
        (outpost, {"noise_scale": -1}, "noise_scale must be >= 0"),
        (outpost, {"fisher_percent": 0}, "percent must be > 0"),
        (outpost, {"decay": -1}, "decay must be >= 0"),
        (guardian, {"beta": -1}, "beta must be >= 0"),
        (guardian, {"beta": 1, "probes": 0}, "probes must be > 0"),
    ],
)
def test_values_out_of_range_are_refused(build, options, match):
    with pytest.raises(ValueError, match=match):
        build(**options)


@functools.cache
def _normalised():
    """The network with batch normalisation, its weights, and a function for its gradient in either mode."""
    model = classifier(_Normalised(), image_shape=(2, 3, 1), num_classes=CLASSES)
    variables = model.init(KEY)

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(mode):
        def loss(params):
            return cross_entropy(model.apply({**variables, "params": params}, X, mode=mode).logits, Y)

        return jax.grad(loss)(variables["params"])

    return model, variables, {mode: gradient(mode) for mode in ("train", "eval")}


@pytest.mark.parametrize("defense", [soteria(0.5), guardian(100.0, probes=1), feature_dropout(0.3)])
def test_batch_normalisation_is_the_clients(defense):
    model, variables, gradients = _normalised()
    known = {"model": model, "variables": variables, "x": X, "y": Y}

    @jax.jit
    def shared(key):
        return {
            mode: [defense.apply(key, gradient, **known, **given) for given in ({"mode": mode}, {})]
            for mode, gradient in gradients.items()
        }

    found = {mode: [reference.flat(sent) for sent in both] for mode, both in shared(KEY).items()}
    assert not np.allclose(*found["eval"], atol=1e-6)
    np.testing.assert_array_equal(*found["train"])


@pytest.mark.parametrize(
    ("defense", "given", "match"),
    [
        (soteria(0.5), {}, "soteria needs the keywords model, variables and x"),
        (soteria(0.5), {**BATCH, "model": None}, "soteria needs the keywords model, variables and x"),
        (soteria(0.5), {**BATCH, "variables": None}, "soteria needs the keywords model, variables and x"),
        (soteria(0.5), {**BATCH, "x": None}, "soteria needs the keywords model, variables and x"),
        (soteria(0.5), {**BATCH, "x": X[0]}, r"x must be \(B, 2, 3, 1\)"),
        (soteria(0.5), {**BATCH, "x": X.reshape(5, 3, 2, 1)}, r"x must be \(B, 2, 3, 1\)"),
        (outpost(0.5), {}, "outpost needs the keyword variables"),
        (outpost(0.5), BATCH, "outpost needs the keyword round"),
        (guardian(1.0), {}, "guardian needs the keywords"),
        (guardian(1.0), {**BATCH, "y": None}, "guardian needs the keyword y"),
    ],
)
def test_what_the_defender_must_know_is_asked_for(defense, given, match):
    with pytest.raises(ValueError, match=match):
        defense.apply(KEY, PAYLOAD, **given)


class TestFeatureDropout:
    def test_equals_the_slow_reference(self):
        kept = np.asarray(jax.random.bernoulli(KEY, 0.6, (len(X), FEATURES))) / 0.6
        dropped = _share(feature_dropout(0.4))
        np.testing.assert_allclose(
            reference.flat(dropped), reference.flat(_slow_gradient(np.asarray(X), kept)), atol=1e-6
        )
        assert not np.allclose(reference.flat(dropped), reference.flat(PAYLOAD), atol=1e-3)

    def test_the_share_that_is_dropped(self):
        keys = jax.random.split(KEY, 200)
        one = {**BATCH, "x": X[:1], "y": Y[:1]}
        kernel = lambda key: feature_dropout(0.3).apply(key, PAYLOAD, **one)["head"]["kernel"]  # noqa: E731
        rows, features = jax.jit(lambda: (jax.vmap(kernel)(keys), MODEL.apply(VARIABLES, X[:1]).features[0]))()
        gone = (np.asarray(rows) == 0).all(axis=2)[:, np.asarray(features) > 0]
        assert abs(gone.mean() - 0.3) < 4 * np.sqrt(0.21 / gone.size)

    def test_rate_zero_is_the_identity(self):
        chex.assert_trees_all_equal(_share(feature_dropout(0.0)), PAYLOAD)

    @pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
    def test_a_rate_out_of_range_is_refused(self, rate):
        with pytest.raises(ValueError, match=r"rate must be in \[0, 1\)"):
            feature_dropout(rate)

    @pytest.mark.parametrize(
        "last",
        [lambda z, x: 5 * z, lambda z, x: 3 * jnp.tanh(z / 3), lambda z, x: z + x.reshape(len(x), -1)[:, :CLASSES]],
        ids=["scaled", "bounded", "skip"],
    )
    def test_outputs_that_are_more_than_the_heads_are_refused(self, last):
        def apply(variables, x):
            params = variables["params"]
            hidden = jax.nn.relu(x.reshape(len(x), -1) @ params["body"])
            return last(hidden @ params["head"]["kernel"] + params["head"]["bias"], x)

        params = {"body": jnp.ones((6, 4)), "head": {"kernel": jnp.ones((4, CLASSES)), "bias": jnp.zeros(CLASSES)}}
        model, variables = from_function(apply, {"params": params}, image_shape=(2, 3, 1), num_classes=CLASSES)
        given = {**BATCH, "model": model, "variables": variables}
        with pytest.raises(ValueError, match="feature_dropout needs a model whose outputs are those of its last"):
            jax.jit(lambda: feature_dropout(0.5).apply(KEY, params, **given))()

    def test_labels_are_needed(self):
        with pytest.raises(ValueError, match="keyword y"):
            feature_dropout(0.5).apply(KEY, PAYLOAD, model=MODEL, variables=VARIABLES, x=X)


@functools.cache
def _twins():
    """A network with one logit, and the same network with two classes and the columns (0, w)."""

    def hidden(p, x):
        return jnp.maximum(x.reshape(len(x), -1) @ p["first"], 0)

    first, w, b = (reference.normal(*shape, seed=3 + i) for i, shape in enumerate(((16, 6), (6, 1), (1,))))
    return [
        from_function(
            lambda v, x: hidden(v["params"], x) @ v["params"]["w"] + v["params"]["b"],
            {"params": {"first": first, "w": kernel, "b": bias}},
            image_shape=(4, 4, 1),
        )
        for kernel, bias in ((w, b), (np.hstack([0 * w, w]), np.hstack([0 * b, b])))
    ]


@pytest.mark.parametrize("defense", [soteria(0.5), feature_dropout(0.3)])
def test_a_network_of_one_logit_is_defended_as_its_twin_of_two(defense):
    x, y = np.random.default_rng(0).random((2, 4, 4, 1)).astype(np.float32), jnp.array([1, 0])

    @functools.partial(jax.jit, static_argnums=0)
    def sent(model, variables):
        gradient = jax.grad(lambda p: cross_entropy(model.apply({"params": p}, x).logits, y))(variables["params"])
        return defense.apply(KEY, gradient, model=model, variables=variables, x=x, y=y)

    one, two = (sent(*twin) for twin in _twins())
    assert (one["w"].shape, one["b"].shape) == ((6, 1), (1,))
    for name in one:
        np.testing.assert_allclose(one[name], two[name][..., 1:] if name != "first" else two[name], atol=1e-6)


@pytest.mark.parametrize(
    "defense", [feature_dropout(1e-7), composed(dp_sgd(1e6, 0.0), soteria(0.0))], ids=["feature_dropout", "composed"]
)
def test_the_gradient_taken_anew_is_that_of_the_clients_loss(defense):
    batch = Batch(X[:, None], Y, jnp.arange(len(Y)))
    share = protocols.ClientShare(MODEL, loss=squared_error)
    protocol = protocols.client(share, num_samples=len(Y), batch_size=len(Y), defense=defense)
    _, sent = protocol.round(KEY, protocol.init(KEY), batch)
    chex.assert_trees_all_close(sent.payload, share(sent.params, batch), atol=1e-6)


def test_guardian_measures_the_gradient_of_the_loss_that_it_is_told():
    known = {"model": MODEL, "variables": VARIABLES, "x": X, "y": Y}
    own = guardian(0.5, loss=squared_error).apply(KEY, VARIABLES["params"], **known)
    chex.assert_trees_all_equal(guardian(0.5).apply(KEY, VARIABLES["params"], **known, loss=squared_error), own)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(guardian(0.5).apply(KEY, VARIABLES["params"], **known), own)


def test_a_loss_that_is_a_sum_is_refused_where_examples_are_averaged():
    def summed(logits, y):
        return len(logits) * squared_error(logits, y)

    share = protocols.ClientShare(MODEL, loss=summed)
    with pytest.raises(ValueError, match="loss must be a mean over the batch behind a defense of single examples"):
        protocols.client(share, num_samples=2, batch_size=2, defense=dp_sgd(1.0, 0.0))
    with pytest.raises(ValueError, match="loss must be a mean over the batch"):
        composed(dp_sgd(1e6, 0.0), soteria(0.0)).apply(
            KEY, VARIABLES["params"], model=MODEL, variables=VARIABLES, x=X, y=Y, loss=summed
        )
    protocols.client(share, num_samples=2, batch_size=2, defense=soteria(0.5))  # soteria accepts any loss


def test_a_loss_with_class_weights_is_refused_where_examples_are_averaged():
    def weighted(logits, y):
        weights = jnp.linspace(1.0, 9.0, CLASSES)[y]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)[:, 0]
        return (weights * losses).sum() / weights.sum()  # as in PyTorch: no mean of the examples' losses

    share = protocols.ClientShare(MODEL, loss=weighted)
    with pytest.raises(ValueError, match="two examples of different classes have a loss of"):
        protocols.client(share, num_samples=2, batch_size=2, defense=dp_sgd(1.0, 0.0))
