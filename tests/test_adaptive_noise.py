"""Attackers who know the noise: the units of their distance, and their weights of tensors by measured noise."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, audit, data, defenses, metrics, models, objectives, protocols, threats
from jaxleak._base import Batch
from jaxleak.attacks import adaptive, client_updates, presets
from jaxleak.attacks.adaptive._client import KnownClient
from jaxleak.attacks.adaptive._likelihood import NATURAL_SHARE, proportional_likelihood, shadow_weights
from jaxleak.study import updates
from jaxleak.study.updates import _building


def test_a_neighbours_noise_doubles_the_variance():
    model = models.build("mlp", (4, 4, 1), 3)
    share = protocols.ClientShare(model)
    observed, simulated = {"w": jnp.array([1.0, -2.0, 0.5])}, {"w": jnp.array([0.9, -2.2, 0.7])}
    own, shared = (
        adaptive.informed(noise, model, share, presets.fedleak(5), batch_size=1).settings.gradients.distance(
            observed, simulated
        )
        for noise in (defenses.magnitude_noise(0.5), defenses.cancelling_noise(0.5, 2))
    )
    assert float(own) == pytest.approx(2 * float(shared))  # a client's own noise and that of one neighbour
    assert float(shared) > 0


def test_entries_of_zero_are_weighed_by_a_tenth_of_the_mean_square():
    """Zero entries get no proportional noise, but a candidate's deviation there must not cost infinitely much."""
    observed = {"w": np.array([2.0, 0.0, -1.0], np.float32), "b": np.array([1.0], np.float32)}
    simulated = {"w": np.array([1.5, 0.5, -1.0], np.float32), "b": np.array([0.0], np.float32)}
    a, b = (np.concatenate([tree["w"], tree["b"]]) for tree in (observed, simulated))
    expected = np.mean((a - b) ** 2 / (a**2 + 0.1 * np.mean(a**2))) / 0.5**2
    assert float(proportional_likelihood(0.5)(observed, simulated)) == pytest.approx(expected, rel=1e-5)
    nothing = {"w": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}
    assert float(proportional_likelihood(0.5)(nothing, simulated)) == pytest.approx(np.mean(b**2) / 0.5**2, rel=1e-5)


@pytest.mark.parametrize(
    ("defense", "round_", "likelihood"),
    [
        (defenses.gaussian_noise(0.2), 0, objectives.gaussian_likelihood(0.2)),
        (defenses.laplace_noise(0.3), 0, objectives.laplace_likelihood(0.3)),
        (defenses.clipped_gaussian(2.0, 0.5), 0, objectives.gaussian_likelihood(1.0)),  # noise on the clipped payload
        (defenses.dp_sgd(2.0, 0.5), 0, objectives.gaussian_likelihood(1.0 / 4)),  # noise on a sum over four examples
        (defenses.adaptive_dp_sgd(2.0, 0.5, decay=0.9), 3, objectives.gaussian_likelihood(0.9**3 / 4)),
    ],
)
def test_noise_is_compared_in_its_own_units(defense, round_, likelihood):
    model = models.build("mlp", (4, 4, 1), 3)
    known = adaptive.informed(
        defense, model, protocols.ClientShare(model), presets.fedleak_paper(5), batch_size=4, round=round_
    ).settings
    observed, simulated = {"w": jnp.array([1.0, -2.0, 0.5])}, {"w": jnp.array([0.9, -2.2, 0.7])}
    expected = float(likelihood(observed, simulated))
    assert float(known.gradients.distance(observed, simulated)) == pytest.approx(expected, rel=1e-6)
    far = {"w": 100 * simulated["w"]}
    assert float(known.gradients.distance(observed, far)) < 0.1 * float(
        likelihood(observed, far)
    )  # the noise may be larger
    assert known.gradients.selection is None  # entries are weighted by their noise, and none is left out
    natural = NATURAL_SHARE * client_updates.natural_tv(4, 4)
    assert (known.weight("tv"), known.weight("activation")) == (natural, 0.0)


def test_tables_have_no_prior_of_photographs():
    """Neighbouring columns of a table are not similar, so the total variation prior of images does not apply."""
    noise, settings = defenses.gaussian_noise(0.1), presets.fedleak(5)
    for shape, expected in (
        ((1, 4, 1), 0.1),
        ((4, 1, 1), 0.1),
        ((2, 2, 1), NATURAL_SHARE * client_updates.natural_tv(2, 2)),
    ):
        model = models.build("mlp", shape, 3)
        known = adaptive.informed(noise, model, protocols.ClientShare(model), settings, batch_size=1).settings
        assert known.weight("tv") == expected


def test_beside_a_likelihood_a_generator_is_the_only_prior():
    """Standard normal latents cost half their squares in nats. The prior of GGL also subtracts log(variance) / 2."""
    model, noise = models.build("mlp", (4, 4, 1), 3), defenses.gaussian_noise(0.1)
    candidate = client_updates.generator_latents(lambda z: z.reshape(len(z), 4, 4, 1), 16)
    settings = presets.fedleak(5)._replace(candidate=candidate).weighing(latent=0.1, tv=0.1)
    share = protocols.ClientShare(model)
    known = adaptive.informed(noise, model, share, settings, batch_size=2).settings
    assert {prior.name: weight for weight, prior in known.priors if weight} == {"latent": 2 * 16}
    codes = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    cost = 2 * 16 * (candidate.prior(jnp.asarray(5 * codes)) - candidate.prior(jnp.asarray(codes)))
    expected = (np.sum((5 * codes) ** 2) - np.sum(codes**2)) / 2 - 2 * 16 * np.log(25) / 2
    assert float(cost) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "strength", "read"),
    [
        ("gaussian", 0.1, True),
        ("laplace", 0.1, True),
        ("dp_sgd", 100.0, True),
        ("outpost", 0.5, True),
        ("soteria", 0.5, False),
        ("magnitude_noise", 0.3, False),
        pytest.param("guardian", 10.0, False, marks=pytest.mark.slow),
    ],
)
def test_a_prior_is_read_where_noise_has_a_likelihood(name, strength, read):
    """`reads_prior` tells whether the two priors give two different attackers."""
    model, defense = models.build("mlp", (4, 4, 1), 3), defenses.client_defense(name, strength)
    share, settings = protocols.ClientShare(model), presets.fedleak(5)
    weak, natural = (
        adaptive.informed(defense, model, share, settings, batch_size=1, prior=prior).settings.weight("tv")
        for prior in ("weak", "natural")
    )
    assert adaptive.reads_prior(defense) == (weak != natural) == read
    case = updates.Case(data="digits", model="mlp", defense=name, strength=strength, adaptive=True, prior="weak")
    if read:
        updates.check(case)
    else:
        with pytest.raises(ValueError, match=f"prior .* {name} does not have"):
            updates.check(case)
    with pytest.raises(ValueError, match="prior changes adaptive"):
        updates.check(replace(case, adaptive=False))


def test_the_prior_is_what_the_differences_of_neighbours_cost_in_nats():
    """The prior is a sum, not a mean, over pairs, images and channels: two images cost twice as much as one."""
    model = models.build("mlp", (4, 5, 2), 3)
    share, settings = protocols.ClientShare(model), presets.fedleak(5)
    defense = defenses.gaussian_noise(0.1)
    known = adaptive.informed(defense, model, share, settings, batch_size=3).settings
    ((weight, prior),) = [entry for entry in known.priors if entry[0]]
    x = np.random.default_rng(0).random((3, 4, 5, 2)).astype(np.float32)
    pairs = [((i, j), (i + 1, j)) for i in range(3) for j in range(5)]
    pairs += [((i, j), (i, j + 1)) for i in range(4) for j in range(4)]
    cost, scale = 0.0, 0.157 / np.sqrt(4 * 5) ** 0.3
    for image in x:
        for channel in range(2):
            for one, other in pairs:
                cost += abs(image[(*one, channel)] - image[(*other, channel)]) / scale
    # Given the first pixel, 19 of 20 are free, and there are 31 pairs.
    expected = NATURAL_SHARE * cost * 19 / len(pairs)
    assert float(weight * prior.value(SimpleNamespace(x=jnp.asarray(x)))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", [8, 32, 128])
def test_the_prior_is_likeliest_for_photographs(size):
    """exp(-w TV) w^(HW - 1) is largest at w = (HW - 1) / TV, with the mean TV of one channel of a photograph."""
    x = data.load(f"photographs:{size}", 60, 3).x
    variation = np.abs(np.diff(x, axis=1)).sum(axis=(1, 2)) + np.abs(np.diff(x, axis=2)).sum(axis=(1, 2))
    assert client_updates.natural_tv(size, size) == pytest.approx((size**2 - 1) / variation.mean(), rel=0.1)


def test_weights_that_the_caller_chose_hold_beside_a_likelihood():
    model = models.build("mlp", (4, 4, 1), 3)
    share, noise = protocols.ClientShare(model), defenses.gaussian_noise(0.1)

    def priors(settings, defense=noise, **weights):
        known = adaptive.informed(defense, model, share, settings, batch_size=1, weights=weights).settings
        return {prior.name: (weight, prior.kind) for weight, prior in known.priors if weight}

    natural = (NATURAL_SHARE * client_updates.natural_tv(4, 4), "sum")
    isotropic = presets.fedleak(5).weighing(client_updates.variation_prior("isotropic"))
    assert priors(isotropic, tv=7.0) == {"tv": (7.0, "isotropic")}
    assert priors(presets.dlg(5), tv=7.0) == {"tv": (7.0, "anisotropic")}
    assert priors(presets.dlg(5)) == {"tv": natural}
    assert priors(isotropic, tv=0.0) == {}
    assert priors(isotropic, activation=0.5) == {"tv": natural, "activation": (0.5, "mean")}
    assert priors(isotropic, defenses.quantize(8), tv=7.0) == {"tv": (7.0, "isotropic"), "activation": (1e-4, "mean")}
    with pytest.raises(ValueError, match="prior"):
        priors(isotropic, variation=1.0)


@pytest.mark.parametrize("defense", ["gaussian", "outpost"])
def test_a_case_hands_on_the_weights_that_it_names(monkeypatch, defense):
    built = []
    monkeypatch.setattr(_building.attacks, "inversion", lambda model, share, settings, **_: built.append(settings))
    case = updates.Case(data="digits", model="mlp", defense=defense, strength=0.5, adaptive=True)
    for changes in (
        {},
        {"prior": "weak"},
        {"tv": 7.0},
        {"tv": 7.0, "tv_kind": "isotropic"},
        {"activation_penalty": 0.5},
    ):
        _building.attack_on(replace(case, **changes), (8, 8, 1), 10, None)
    found = [{prior.name: (weight, prior.kind) for weight, prior in settings.priors if weight} for settings in built]
    natural = (NATURAL_SHARE * client_updates.natural_tv(8, 8), "sum")
    assert found == [
        {"tv": natural},
        {"tv": (0.1, "anisotropic")},
        {"tv": (7.0, "anisotropic")},
        {"tv": (7.0, "isotropic")},
        {"tv": natural, "activation": (0.5, "mean")},
    ]


def _psnr_of(model, deviation, settings_of):
    """PSNR of two small photographs reconstructed from a noisy update, for each of `settings_of`'s settings."""
    share, defense = protocols.ClientShare(model), defenses.gaussian_noise(deviation)
    x = data.load("photographs:8", 2, 0).x.mean(axis=-1, keepdims=True)
    private = Batch(jnp.asarray(x)[:, None], jnp.array([1, 2]), jnp.arange(2))
    client = protocols.client(share, num_samples=2, batch_size=2, defense=defense)
    _, transcript = jax.jit(client.round)(jax.random.key(1), client.init(jax.random.key(2)), private)
    granted = threats.SERVER_WITHOUT_INDICES._replace(labels=True)
    seen, truth = threats.view(granted, transcript), np.asarray(transcript.private.x[:, 0])
    settings = presets.fedleak(150, homotopy=False)._replace(labels="given")
    psnr = []
    for chosen in settings_of(lambda **of: adaptive.informed(defense, model, share, settings, batch_size=2, **of)):
        attack = attacks.inversion(model, share, chosen, batch_size=2)
        found, *_ = audit.invert(attack, seen, audit.template_of(private), key=jax.random.key(3))
        psnr.append(metrics.psnr(truth, np.asarray(found.x[:, 0])).mean())
    return psnr


@pytest.mark.slow
def test_who_knows_large_noise_is_not_misled_by_it():
    """With a weak prior the likeliest images are noise. With the natural prior they are closer to the private ones."""
    model = models.build("mlp", (8, 8, 1), 10, widths=(32,))
    natural, weak = _psnr_of(model, 0.1, lambda known: [known(prior=p).settings for p in ("natural", "weak")])
    assert natural > weak + 3


@pytest.mark.slow
def test_the_likelihood_of_little_noise_does_not_drown_the_prior():
    """A plain likelihood of little noise would lead the search to noisy images first, which the prior cannot repair."""
    model = models.build("convnet", (8, 8, 1), 10, channels=(8,), strides=(2,))

    def both(known):
        own = known(prior="natural").settings
        return own, own.comparing(distance=objectives.gaussian_likelihood(1e-3))

    own, plain = _psnr_of(model, 1e-3, both)
    assert own > plain + 3


def test_shadow_weights_are_the_share_of_the_signal_in_every_tensor():
    """The weights for a known payload and a defense that adds one to every entry."""
    model, drawn = models.build("mlp", (4, 4, 1), 3), []

    def share(variables, batch):
        drawn.append((batch.x.shape, batch.y.shape))
        inside = ((batch.x >= 0) & (batch.x <= 1)).all() & ((batch.y >= 0) & (batch.y < 3)).all()
        return {"a": jnp.where(inside, jnp.array([1.0, 2.0]), jnp.nan), "b": jnp.zeros(3), "c": jnp.full(2, 0.5)}

    share.batch_norm = "train"
    moving = SimpleNamespace(apply=lambda key, payload, **_: {name: leaf + 1 for name, leaf in payload.items()})
    weights = shadow_weights(KnownClient(moving, model, share, 5))
    assert weights == pytest.approx((2.5 / 3.5, 1.0, 0.25 / 1.25))  # a tensor without signal keeps its weight
    assert drawn == [((5, 1, 4, 4, 1), (5,))]
    given = reference.drawn(model, seed=3)
    seen = []
    share_of = lambda variables, batch: seen.append(variables) or {"a": jnp.ones(1)}  # noqa: E731
    share_of.batch_norm = "train"
    shadow_weights(KnownClient(moving, model, share_of, 5, variables=given))
    assert jax.tree.structure(seen[0]) == jax.tree.structure(given)


def test_shadow_clients_normalise_in_the_mode_of_the_client_and_have_its_loss():
    """Otherwise, a defense that depends on its client would be measured on a different client."""
    model, known = models.build("mlp", (4, 4, 1), 3), {}
    share = lambda variables, batch: {"a": jnp.ones(1)}  # noqa: E731
    share.batch_norm, share.loss = "eval", "the loss"
    watching = SimpleNamespace(apply=lambda key, payload, **extra: known.update(extra) or payload)
    shadow_weights(KnownClient(watching, model, share, 5, round=7))
    assert (known["mode"], known["loss"], known["round"]) == ("eval", "the loss", 7)
