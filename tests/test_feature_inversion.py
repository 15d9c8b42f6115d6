from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import models
from jaxleak.attacks._cafe import slice_inverter
from jaxleak.attacks._cafe.decoder import _correlate_colours, _pink, decode, ridge_decoder, synthetic_slices
from jaxleak.attacks._cafe.feature_inversion import _kick
from jaxleak.attacks._cafe.slice_inverter import SliceInverter
from jaxleak.attacks.aggregated import FeatureInversionOptions, invert_features, invert_slices

B, SHAPE = 4, (8, 8, 1)


@pytest.fixture(scope="module")
def model():
    return models.cafe_vertical(SHAPE, parties=1, num_classes=2, channels=(16, 32), width=4, hidden=4)


@pytest.fixture(scope="module")
def extractor(model):
    params = jax.jit(model.init)(jax.random.key(0))["extractor"]
    return jax.tree.map(lambda leaf: leaf[0], params)


@pytest.fixture(scope="module")
def features(model, extractor):
    return jax.jit(lambda x: model.party_features(extractor, x, None))


@pytest.fixture(scope="module")
def truth():
    return jnp.asarray(synthetic_slices(5, B, SHAPE))


@pytest.fixture(scope="module")
def decoder(model, extractor):
    slices = jnp.asarray(synthetic_slices(0, 1000, SHAPE))
    return jax.jit(partial(ridge_decoder, model.party_features))(extractor, slices)


@pytest.fixture(scope="module")
def invert(model, extractor):
    @partial(jax.jit, static_argnames="options")
    def run(h, start, options, seed=0):
        keys = jax.vmap(lambda n: jax.random.fold_in(jax.random.key(seed), n))(jnp.arange(len(h)))
        return invert_features(model.party_features, extractor, h, start, keys=keys, options=options)

    return run


#: Options that the tests share, since the solver compiles one program per options.
QUICK = FeatureInversionOptions(max_restarts=1)
ONE_STEP = FeatureInversionOptions(max_steps=1, max_restarts=0)


@pytest.fixture(scope="module")
def from_ridge(invert, features, decoder, truth):
    h = features(truth)
    return invert(h, decode(decoder, h, SHAPE), QUICK)


@pytest.mark.slow
def test_a_ridge_start_beats_grey_and_is_in_range(features, decoder, truth):
    guess = decode(decoder, features(truth), SHAPE)
    assert guess.shape == truth.shape
    assert guess.min() >= 0
    assert guess.max() <= 1
    assert (
        reference.psnr_by_hand(guess, truth).mean()
        > reference.psnr_by_hand(jnp.full_like(truth, 0.5), truth).mean() + 3
    )


def test_synthetic_images_are_as_often_dark_as_bright():
    """A decoder fitted to images of one brightness would predict that brightness everywhere."""
    images = synthetic_slices(0, 4000, (8, 8, 1))
    for kind in (images[:2000], images[2000:]):
        assert kind.mean() == pytest.approx(0.5, abs=0.025)
        assert (kind <= 0.02).mean() == pytest.approx((kind >= 0.98).mean(), abs=0.01)


@pytest.mark.parametrize(("options", "ridge"), [({"ridge": 0.1}, 0.1), ({"batch_size": 20}, 0.02), ({}, 0.02)])
def test_ridge_is_ridge(model, extractor, features, options, ridge):
    slices = jnp.asarray(synthetic_slices(1, 100, SHAPE))
    weights, mean_h, mean_x = jax.jit(partial(ridge_decoder, model.party_features, **options))(extractor, slices)
    h, x = np.asarray(features(slices), np.float64), np.asarray(slices, np.float64).reshape(100, -1)
    centred = h - h.mean(axis=0)
    gram = centred.T @ centred
    slow = np.linalg.solve(
        gram + ridge * np.trace(gram) / len(gram) * np.eye(len(gram)), centred.T @ (x - x.mean(axis=0))
    )
    np.testing.assert_allclose(weights, slow, atol=1e-3 * np.abs(slow).max())
    np.testing.assert_allclose(mean_h, h.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(mean_x, x.mean(axis=0), atol=1e-5)


@pytest.mark.slow
def test_slices_come_back_from_ridge_and_from_grey(invert, features, truth, from_ridge):
    from_grey = invert(features(truth), jnp.full_like(truth, 0.5), QUICK)
    for result, share in ((from_ridge, 0.7), (from_grey, 0.5)):
        certified = np.asarray(result.residual) < 1e-5
        assert certified.mean() >= share
        assert reference.psnr_by_hand(result.x, truth)[certified].min() > 60


@pytest.mark.parametrize(("start", "wanted", "found"), [(0.0, (-0.5, 0.6), (0.0, 0.2)), (1.0, (1.5, 0.2), (1.0, 0.6))])
def test_a_pixel_that_is_held_at_its_bound_leaves_the_best_values_to_the_others(start, wanted, found):
    """Clipping a step of all pixels would leave the second one at its wanted value, which is not the best any more."""
    mixed = jnp.array([[1.0, 0.0], [0.8, 0.6]])

    def features(_, x, temperature):
        del temperature
        return x @ mixed

    h, begun = (jnp.array([row]) for row in (wanted, (start, 0.5)))
    result = invert_features(
        features, None, h @ mixed, begun, keys=jax.random.split(jax.random.key(0), 1), options=ONE_STEP
    )
    np.testing.assert_allclose(result.x[0], found, atol=1e-5)


def test_residuals_are_truthful_and_pixels_in_range(features, truth, invert, from_ridge):
    # Both properties must hold even for a start far outside the box and for a target that no image has.
    odd = invert(-features(truth), 5 * truth - 2, QUICK)
    for result, h in ((from_ridge, features(truth)), (odd, -features(truth))):
        assert result.x.min() >= 0
        assert result.x.max() <= 1
        again = np.linalg.norm(features(result.x) - h, axis=1) / np.linalg.norm(h, axis=1)
        np.testing.assert_allclose(result.residual, again, rtol=1e-2, atol=1e-6)
    assert odd.residual.min() > 0.5


@pytest.mark.slow
def test_no_step_raises_the_residual(invert, features, decoder, truth):
    h = features(truth)
    for start in (decode(decoder, h, SHAPE), truth):
        x, before = start, np.linalg.norm(features(start) - h, axis=1) / np.linalg.norm(h, axis=1)
        for _ in range(4):
            result = invert(h, x, ONE_STEP)
            assert (result.residual <= before * (1 + 1e-6) + 1e-6).all()
            x, before = result.x, np.asarray(result.residual)
    assert (result.steps <= 1).all()  # a start at the truth needs no step


def test_slices_do_not_depend_on_their_batch_mates(invert, features, decoder, truth, from_ridge):
    # The first slice keeps its place and its key, but its neighbours change.
    h = features(truth)
    others = h.at[1:].set(h[1:][::-1])
    result = invert(others, decode(decoder, others, SHAPE), QUICK)
    np.testing.assert_array_equal(result.x[0], from_ridge.x[0])
    np.testing.assert_array_equal(result.residual[0], from_ridge.residual[0])


def test_options_out_of_range_are_refused(model, extractor, truth):
    h, keys = jnp.zeros((B, model.feature_size)), jax.random.split(jax.random.key(0), B)
    for options, match in (
        ({"tolerance": 0}, "tolerance must be > 0, got 0"),
        ({"max_steps": 0}, "max_steps must be > 0, got 0"),
        ({"max_cg": 0}, "max_cg must be > 0, got 0"),
        ({"batch_size": -1}, "batch_size must be > 0, got -1"),
        ({"batch_size": 0}, "batch_size must be > 0, got 0"),
        ({"patience": 0}, "patience must be > 0, got 0"),
        ({"settled": -1.0}, "settled must be >= 0, got -1"),
        ({"max_restarts": -1}, "max_restarts must be >= 0, got -1"),
        ({"kick": -0.1}, "kick must be >= 0, got -0.1"),
        ({"bounds": (1.0, 1.0)}, r"bounds must be \(lowest, highest\) with lowest < highest, got \(1\.0, 1\.0\)"),
    ):
        with pytest.raises(ValueError, match=match):
            invert_features(
                model.party_features, extractor, h, truth, keys=keys, options=FeatureInversionOptions(**options)
            )
    with pytest.raises(ValueError, match="h and start must have the same length, got 3 and 4"):
        invert_features(model.party_features, extractor, h[:3], truth, keys=keys)


@pytest.mark.parametrize("shape", [(8, 8, 1), (7, 5, 3), (6,), (4, 3)])
def test_synthetic_slices_are_images_in_range(shape):
    slices = synthetic_slices(0, 10, shape)
    assert slices.shape == (10, *shape)
    assert slices.dtype == np.float32
    assert np.isfinite(slices).all()
    assert slices.min() >= 0
    assert slices.max() <= 1
    assert slices.reshape(10, -1).std(axis=1).min() > 1e-3
    np.testing.assert_array_equal(slices, synthetic_slices(0, 10, shape))
    assert (slices != synthetic_slices(1, 10, shape)).any()


def test_synthetic_images_are_smooth_and_their_colours_are_correlated():
    images = synthetic_slices(0, 200, (8, 8, 3)).astype(np.float64)
    noise = np.random.default_rng(0).random(images.shape)
    step = [np.abs(np.diff(x, axis=1)).mean() / x.std() for x in (images, noise)]
    assert step[0] < 0.6 * step[1]
    centred = images - images.mean(axis=(1, 2), keepdims=True)
    assert np.corrcoef(centred[..., 0].ravel(), centred[..., 1].ravel())[0, 1] > 0.5


def test_few_synthetic_slices_are_possible_and_none_is_refused():
    assert synthetic_slices(0, 1, SHAPE).shape == (1, *SHAPE)
    with pytest.raises(ValueError, match="count must be > 0, got 0"):
        synthetic_slices(0, 0, SHAPE)


@pytest.mark.parametrize(("backend", "asked", "together"), [("cpu", None, 1), ("gpu", None, 64), ("gpu", 3, 3)])
def test_so_many_slices_advance_together(monkeypatch, backend, asked, together):
    sizes = []
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax.lax, "map", lambda one, inputs, batch_size: sizes.append(batch_size))
    options = FeatureInversionOptions(batch_size=asked)
    invert_features(None, None, jnp.zeros((B, 3)), jnp.zeros((B, 2)), keys=None, options=options)
    assert sizes == [together]


def test_kicks_halve_with_every_second_restart_and_move_neighbours_together():
    shape = (16, 16, 2)
    kicks = np.asarray(jax.vmap(lambda restarts: _kick(jax.random.key(0), shape, restarts, 0.03))(jnp.arange(5)))
    np.testing.assert_allclose([kick.std() for kick in kicks], [0.03, 0.03, 0.015, 0.015, 0.0075], rtol=1e-4)
    for axis in (0, 1):
        assert np.abs(np.diff(kicks[0], axis=axis)).mean() < 0.5 * kicks[0].std()
    assert np.abs(kicks[0][..., 0] - kicks[0][..., 1]).mean() > 0.5 * kicks[0].std()  # colours move independently
    small = (4, 4, 1)  # not larger than the drawn noise, which then is the kick itself
    noise = np.asarray(jax.random.normal(jax.random.key(0), small))
    np.testing.assert_allclose(
        _kick(jax.random.key(0), small, jnp.int32(0), 0.03), 0.03 * noise / noise.std(), atol=1e-6
    )
    table = np.asarray(_kick(jax.random.key(0), (400,), jnp.int32(0), 0.03))
    assert np.abs(np.diff(table)).mean() > table.std()  # columns of a table are independent


def test_a_linear_network_is_inverted_in_few_steps_within_the_bounds():
    """Conjugate gradients end after as many products as unknowns, and pixels at a bound stay there."""
    scale = np.array([1.0, 0.7, 0.5, 0.4], np.float32)
    h = scale * [[0.2, 0.9, 0.5, 0.4], [0.0, 1.0, 0.3, 0.6], [1.5, -0.5, 0.3, 0.6]]  # no image has the last features
    options = FeatureInversionOptions(max_restarts=0)
    keys = jax.random.split(jax.random.key(0), 3)
    start = jnp.full((3, 4), 0.5)
    found = invert_features(lambda scale, x, _: scale * x, scale, jnp.asarray(h), start, keys=keys, options=options)
    np.testing.assert_allclose(found.x, (h / scale).clip(0, 1), atol=1e-4)
    assert (found.residual[:2] < options.tolerance).all()
    assert (found.steps[:2] <= 3).all()
    assert (found.restarts[:2] == 0).all()
    outside = np.hypot(0.5, 0.7 * 0.5) / np.linalg.norm(h[2])
    assert found.residual[2] == pytest.approx(outside, rel=1e-4)
    # Without restarts, the last step is tried six times.
    assert (found.steps[2], found.restarts[2]) == (found.steps[2].clip(6, 9), 0)


@pytest.mark.parametrize(("bounds", "within"), [((-1.0, 2.0), (-1, 2)), ((-np.inf, np.inf), (-9, 9)), (None, (0, 1))])
def test_what_an_extractor_read_is_found_in_the_bounds_that_were_given(bounds, within):
    scale = np.array([1.0, 0.7, 0.5, 0.4], np.float32)
    x = np.array([[1.7, -0.9, 0.3, 0.6], [-3.0, 4.0, 0.3, 0.6]], np.float32)
    options = FeatureInversionOptions(max_restarts=0, bounds=bounds)
    found = invert_features(
        lambda scale, x, _: scale * x, scale, jnp.asarray(scale * x), jnp.full((2, 4), 0.5),
        keys=jax.random.split(jax.random.key(0), 2), options=options,
    )  # fmt: skip
    np.testing.assert_allclose(found.x, x.clip(*within), atol=1e-4)


def test_first_guesses_have_the_contrast_of_the_bounds(monkeypatch):
    identity = models.all_dense((3,), num_classes=2, width=2)._replace(
        features_are_data=False, party_features=lambda params, x, temperature: x
    )
    monkeypatch.setattr(slice_inverter, "DECODER_SLICES", 500)
    h, mean = np.array([[[-1.5, 0.5, 2.5]]], np.float32), {}
    for bounds, found in (((-2.0, 3.0), h), (None, h.clip(0, 1)), ((-np.inf, np.inf), h)):
        inverter = SliceInverter(identity, {"extractor": {}}, options=FeatureInversionOptions(bounds=bounds))
        np.testing.assert_allclose(inverter(h, np.arange(1)).x, found, atol=1e-3)
        mean[bounds] = inverter._decoders[0][2]  # mean of the slices to which the decoder was fitted
    np.testing.assert_allclose(mean[-2.0, 3.0], -2 + 5 * mean[None], atol=1e-5)
    np.testing.assert_array_equal(mean[-np.inf, np.inf], mean[None])


class TestSlices:
    """Step III for models whose features are the data: nothing is solved, and only the chunks are processed."""

    MODEL = models.all_dense((3,), parties=2, num_classes=2, width=2)

    def inverted(self, chunk, bounds=(0.0, 1.0)):
        h = np.random.default_rng(0).uniform(-0.5, 1.5, size=(5, 2, 3)).astype(np.float32)
        options = FeatureInversionOptions(bounds=bounds)
        return h, invert_slices(self.MODEL, {"extractor": {}}, h, np.arange(5), options=options, chunk=chunk)

    def test_a_table_in_any_unit_is_answered_as_it_is(self):
        h, found = self.inverted(64, bounds=None)
        np.testing.assert_array_equal(found.x, h)
        assert not found.residual.any()

    @pytest.mark.parametrize("chunk", [1, 2, 5, 64])
    def test_features_are_copied_into_range_and_say_how_far_they_were_outside(self, chunk):
        h, found = self.inverted(chunk)
        np.testing.assert_array_equal(found.x, h.clip(0, 1))
        outside = np.linalg.norm(h.clip(0, 1) - h, axis=-1) / np.linalg.norm(h, axis=-1)
        assert (outside > 0.1).sum() > 5
        np.testing.assert_allclose(found.residual, outside, rtol=1e-5)
        assert not found.steps.any()
        assert not found.restarts.any()

    @pytest.mark.parametrize(("chunk", "sizes"), [(2, [2, 2, 2]), (5, [5]), (8, [5])])
    def test_every_chunk_has_the_same_size_and_no_sample_is_inverted_more_often_than_that_asks(
        self, monkeypatch, chunk, sizes
    ):
        seen, call = [], SliceInverter.__call__
        monkeypatch.setattr(
            SliceInverter, "__call__", lambda self, h, index: seen.append(len(index)) or call(self, h, index)
        )
        self.inverted(chunk)
        assert seen == sizes

    def test_no_sample_is_no_work(self):
        found = invert_slices(self.MODEL, {"extractor": {}}, np.zeros((0, 2, 3)), np.arange(0))
        assert [field.shape for field in found] == [(0, 2, 3), (0, 2), (0, 2), (0, 2)]


@pytest.mark.parametrize("exponent", [0.8, 1.8])
def test_noise_of_synthetic_images_falls_with_the_frequency(exponent):
    """The power falls as 1/f^2a with the frequency f, so each octave has 4^-a of the power of the octave below."""
    rng = np.random.default_rng(0)
    images = _pink(rng, 300, (32, 32, 1), exponent)[..., 0]
    assert images.shape == (300, 32, 32)
    # Differences of pixels at distances d and 2 d grow as the distance to the power a - 1, roughly.
    near, far = (np.mean((images[:, :, d:] - images[:, :, :-d]) ** 2) for d in (2, 4))
    down, below = (np.mean((images[:, d:] - images[:, :-d]) ** 2) for d in (2, 4))
    assert near == pytest.approx(down, rel=0.1)
    assert far == pytest.approx(below, rel=0.1)
    assert (far / near > 2) == (exponent > 1.5)


def test_colours_vary_mostly_together():
    rng = np.random.default_rng(0)
    grey = rng.standard_normal((200, 8, 8, 1))
    np.testing.assert_array_equal(_correlate_colours(rng, grey), grey)
    found = _correlate_colours(rng, rng.standard_normal((200, 8, 8, 3))).reshape(-1, 3)
    sums, contrasts = found.sum(axis=1), found - found.mean(axis=1, keepdims=True)
    assert sums.std() == pytest.approx(np.sqrt(3), rel=0.05)  # luminance over sqrt(3) per channel
    assert 0.05 < contrasts.std() < 0.25
