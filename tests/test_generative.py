"""Inversion through a generator of public data: training, CMA-ES over latents, and separation from private images."""

import os
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import fedleak, invert
from experiments._fedleak.cells import cells
from experiments._fedleak.jobs import Replacements, Sizes
from jaxleak import attacks, audit, data, metrics, models, protocols
from jaxleak._base import Batch
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._inversion import public_generator
from jaxleak.study.updates import Case, resolved
from jaxleak.study.updates import _public_data as public_data
from jaxleak.threats import SERVER_WITHOUT_INDICES, view

SHAPE = (8, 8, 1)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits", 200, 0)


@pytest.fixture(scope="module")
def generator(digits):
    """A generator trained on all digits but the first four."""
    return client_updates.train_generator(
        jax.random.key(0), digits.x[4:], 12, epochs=10, batch_size=32, learning_rate=1e-2, kl=0.1, channels=4
    )


@pytest.fixture(scope="module")
def observed(digits):
    """The model, the protocol, the server's observation of one digit's gradient, and the digit."""
    model = models.mlp(SHAPE, 10, widths=(16,), activation="sigmoid")
    private = Batch(jnp.asarray(digits.x[:1])[:, None], jnp.asarray(digits.y[:1], jnp.int32), jnp.arange(1))
    protocol = protocols.client(protocols.ClientShare(model), num_samples=1, batch_size=1)
    state = jax.jit(protocol.init)(jax.random.key(0))
    _, transcript = jax.jit(protocol.round)(jax.random.key(1), state, private)
    return model, protocol, view(SERVER_WITHOUT_INDICES, transcript), transcript.private


def run(observed, chosen):
    model, protocol, seen, truth = observed
    engine = attacks.inversion(model, protocol.share, chosen, batch_size=1)
    found, _, infos = audit.invert(
        engine, seen, audit.template_of(truth), key=jax.random.key(2), iterations=chosen.iterations
    )
    return np.asarray(found.x[:, 0]), np.asarray(truth.x[:, 0]), infos


def test_a_generator_answers_in_the_size_of_large_images():
    shape = (public_generator.LARGEST, 100, 3)
    decoder = public_generator._Decoder(shape, channels=2, stages=public_generator._stages(shape))
    drawn, _ = jax.eval_shape(lambda key: decoder.init_with_output(key, jnp.zeros((2, 5))), jax.random.key(0))
    assert drawn.shape == (2, 224, 100, 3)


@pytest.mark.slow
def test_training_lowers_the_error_and_depends_on_the_key_alone(generator, digits):
    assert (generator.losses[-1] < generator.losses[0]).all()
    z = jax.random.normal(jax.random.key(1), (3, 12))
    x = generator(z)
    assert x.shape == (3, *SHAPE)
    for image in (x, generator.enhance(x)):
        assert (image >= 0).all()
        assert (image <= 1).all()
    again = client_updates.train_generator(
        jax.random.key(0), digits.x[4:], 12, epochs=10, batch_size=32, learning_rate=1e-2, kl=0.1, channels=4
    )
    np.testing.assert_array_equal(again(z), x)


@pytest.fixture(scope="module")
def strict():
    """A generator of noise with codes kept near the normal distribution, chosen because it trains fastest."""
    images = np.random.default_rng(1).random((16, *SHAPE)).astype(np.float32)
    options = {"epochs": 20, "batch_size": 8, "channels": 2}
    return client_updates.train_generator(jax.random.key(0), images, 2, kl=30.0, **options)


@pytest.mark.slow
def test_the_divergence_keeps_codes_near_the_normal_distribution(strict):
    np.testing.assert_allclose(strict.mean, 0, atol=0.05)
    np.testing.assert_allclose(strict.scale, 1, atol=0.02)


@pytest.mark.slow
def test_cma_es_over_latents_finds_an_image_without_gradients(observed, generator):
    estimate, truth, infos = run(observed, presets.ggl(60, generator=generator, population=12))
    assert infos["distance"][-1] < infos["distance"][0] / 2
    assert metrics.psnr(truth, estimate) > metrics.grey_psnr(truth) + 3


@pytest.mark.slow
def test_rog_enhances_what_it_found(observed, generator):
    chosen = presets.rog(150, generator=generator)
    estimate, truth, infos = run(observed, chosen)
    assert infos["distance"][-1] < infos["distance"][0] / 2
    assert metrics.psnr(truth, estimate) > metrics.grey_psnr(truth) + 3


def test_cma_es_finds_a_minimum_and_keeps_nan_out():
    target = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}

    def value(v):
        distance = sum(jnp.sum((v[name] - target[name]) ** 2) for name in target)
        return jnp.where(v["a"][0] < -0.5, jnp.nan, distance)

    optimizer = client_updates.cma_es(sigma=1.0)

    def step(carry, key):
        v, state = carry
        updates, state = optimizer.update(v, state, v, value_fn=value, key=key)
        return (jax.tree.map(jnp.add, v, updates), state), value(v)

    @jax.jit
    def run(key):
        start = jax.tree.map(jnp.zeros_like, target)
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.asarray(leaf).dtype), optimizer.init(start))
        return jax.lax.scan(step, (start, state), jax.random.split(key, 80))[1]

    assert run(jax.random.key(0))[-1] < 1e-4


def test_beyond_a_size_the_covariance_is_diagonal():
    for size, shape in ((513, (513,)), (512, (512, 512)), (5, (5, 5))):
        state = jax.eval_shape(client_updates.cma_es().init, jax.ShapeDtypeStruct((size,), jnp.float32))
        assert state.C.shape == shape


@pytest.mark.parametrize(("size", "population", "members"), [(10, None, 10), (30, None, 14), (10, 3, 3)])
def test_so_many_members_are_drawn_around_the_variables(size, population, members):
    """By default 4 + floor(3 ln n) members are drawn with deviation 0.5, and the update lowers the objective."""
    optimizer, seen = client_updates.cma_es(population=population), []

    def value(v):
        jax.debug.callback(lambda v: seen.append(np.asarray(v)), v)
        return jnp.sum(v**2)

    @jax.jit
    def update(start, key):
        return optimizer.update(start, optimizer.init(jnp.zeros(size)), start, value_fn=value, key=key)[0]

    start = np.full(size, 3.0, np.float32)
    updates = update(start, jax.random.key(0))
    jax.effects_barrier()
    drawn = np.stack(seen)
    assert drawn.shape == (members, size)
    assert drawn.mean() == pytest.approx(3, abs=3 * 0.5 / drawn.size**0.5)  # around the current variables
    assert drawn.std() == pytest.approx(0.5, rel=3 / drawn.size**0.5)
    assert np.sum((start + updates) ** 2) < np.sum(start**2)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder of 40 different colour images of 48 x 48 pixels, in two classes."""
    root = tmp_path_factory.mktemp("photographs")
    for number, image in enumerate(data.load("natural_patches:48", 40, 0).x):
        file = root / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray((255 * image).astype(np.uint8)).save(file)
    return root


def _alike(public, private):
    """The highest PSNR between two images of these sets."""
    return max(float(metrics.psnr(np.broadcast_to(image, public.shape), public).max()) for image in private)


class TestPublicImages:
    def test_held_out_digits_are_not_the_clients(self):
        case = Case(attack="rog", data="digits", pool=64, public_samples=2000)
        for seed in (0, 1):
            private = {image.tobytes() for image in data.load("digits", 64, seed).x}
            public = [image.tobytes() for image in public_data.public_images(case, seed, SHAPE)]
            assert len(public) > 1700
            assert not private & set(public)

    def test_another_file_with_the_same_images_does_not_let_them_in(self, tmp_path):
        digits = data.load("digits", 200, 3)
        np.savez(tmp_path / "copy.npz", x=digits.x, y=digits.y)
        case = Case(attack="ggl", data="digits", pool=64, public_data=f"npz:{tmp_path / 'copy.npz'}")
        private = {image.tobytes() for image in data.load("digits", 64, 3).x}
        public = public_data.public_images(case, 3, SHAPE)
        assert 120 < len(public) <= 136  # a few others resemble the clients' images
        assert not private & {image.tobytes() for image in public}

    @pytest.mark.parametrize(("private", "public"), [(16, 32), (32, 16), (24, 16)])
    def test_a_folder_read_at_another_size_holds_the_same_images(self, photographs, private, public):
        case = Case(
            attack="ggl", data=f"folder:{photographs}?size={private}", pool=8, public_samples=64,
            public_data=f"folder:{photographs}/../{photographs.name}?size={public}",
        )  # fmt: skip
        found = public_data.public_images(case, 1, (private, private, 3))
        assert len(found) == 32
        assert _alike(found, data.load(case.data, 8, 1).x) < 25

    def test_embedded_data_read_at_another_size_are_the_same_images(self):
        cases = [
            Case(attack="rog", data="digits", pool=64, public_data=public, public_samples=200)
            for public in ("held_out", "digits?size=16")
        ]
        held_out, resized = (public_data.public_images(case, 0, SHAPE) for case in cases)
        assert metrics.psnr(held_out, resized).min() > 15

    def test_resized_copies_in_another_file_are_dropped(self, photographs, tmp_path):
        """The copies are grey, in another order, and resized in another way than the folder's images."""
        x = data.load(f"folder:{photographs}?size=48", None, 7).x
        np.savez(tmp_path / "copy.npz", x=x.mean(axis=-1, keepdims=True), y=np.zeros(len(x), int))
        case = Case(
            attack="ggl", data=f"folder:{photographs}?size=32", pool=8, public_data=f"npz:{tmp_path / 'copy.npz'}"
        )
        private = data.load(case.data, 8, 1).x
        assert _alike(public_data._fitted(x, (32, 32, 3)), private) > 30
        found = public_data.public_images(case, 1, (32, 32, 3))
        assert len(found) == 32
        assert _alike(found, private.mean(axis=-1, keepdims=True)) < 25

    def test_resized_digits_in_another_file_are_dropped(self, tmp_path):
        digits = data.load("digits?size=16", 100, 3)
        np.savez(tmp_path / "copy.npz", x=digits.x, y=digits.y)
        case = Case(attack="ggl", data="digits", pool=64, public_data=f"npz:{tmp_path / 'copy.npz'}")
        assert 20 < len(public_data.public_images(case, 3, SHAPE)) <= 36  # the clients' 64 are among the copies

    def test_images_of_another_size_and_synthetic_ones(self):
        case = Case(attack="ggl", data="natural_patches", public_data="lfw_faces", public_samples=5)
        assert public_data.public_images(case, 0, (32, 32, 3)).shape == (5, 32, 32, 3)
        nobodys = Case(attack="ggl", public_data="synthetic", public_samples=6)
        assert public_data.public_images(nobodys, 0, (32, 32, 3)).shape == (6, 32, 32, 3)

    def test_overlapping_crops_and_captured_payloads(self):
        for other in ("held_out", "photographs:40", "natural_patches?size=16"):
            with pytest.raises(ValueError, match="crops of the same photographs, which overlap"):
                public_data.public_images(Case(attack="ggl", public_data=other), 0, (32, 32, 3))
        with pytest.raises(ValueError, match="must be images"):
            public_data.public_images(Case(attack="ggl", data="digits", public_data="breast_cancer"), 0, SHAPE)
        assert len(public_data.public_images(Case(attack="rog", data="digits", pool=1795), 0, SHAPE)) == 2
        with pytest.raises(ValueError, match="digits leaves 1 public images beside 1796 samples"):
            public_data.public_images(Case(attack="rog", data="digits", pool=1796), 0, SHAPE)
        with pytest.raises(ValueError, match="needs --public-data"):
            public_data.generator_for(Case(attack="ggl"), 0, (32, 32, 3), captured=True)
        with pytest.raises(ValueError, match="take a smaller pool"):
            public_data.public_images(Case(attack="rog", data="digits", pool=1797), 0, SHAPE)

    def test_the_grant_is_named(self):
        model = models.build("mlp", (8, 8, 1), 10)
        assert "public images (digits, held out)" in resolved(Case(attack="ggl", data="digits")).granted(model)
        assert "public images" not in resolved(Case(attack="ggl", public_data="synthetic")).granted(model)
        assert "public images" not in resolved(Case()).granted(model)
        steps = "the number of local steps and their learning rate"
        assert steps in resolved(Case(local_epochs=2)).granted(model)
        assert steps not in resolved(Case()).granted(model)


@pytest.mark.slow
def test_invert_runs_a_generative_attack(tmp_path):
    case = Case(
        attack="rog", iterations=3, data="digits", model="mlp", pool=8, public_samples=32, latent_size=4,
        generator_epochs=1,
    )  # fmt: skip
    scores = invert.main(invert.Args(case, out=tmp_path / "run"))
    assert np.isfinite(scores["psnr"])


def test_printed_cells_run_where_public_data_are_named():
    sizes = Sizes(specs={"ImageNet": "digits"}, substitute="digits", public_data="held_out")
    jobs = {plan.id: plan.jobs[0].case for table in ("table4", "table8") for plan in cells(table, sizes)}
    assert jobs["table4/ggl/b16/imagenet"].attack == "ggl"
    assert jobs["table4/rogs/b16/imagenet"].attack == "rog"
    assert jobs["table8/rogs/b32/resnet10"].public_data == "held_out"
    replaced = Replacements(public_data="held_out", substitute="digits")
    pools = fedleak.sizes_of(fedleak.Args(sizes=replaced, pool=10**6)).pools
    assert pools["digits"] == 1797 // 2


class TestBadInput:
    @pytest.mark.parametrize(
        ("images", "options", "message"),
        [
            (np.zeros((4, 8, 8)), {}, "images must be \\(N, H, W, C\\)"),
            (np.zeros((1, 8, 8, 1)), {}, "N >= 2"),
            (np.full((4, 8, 8, 1), 2.0), {}, "images must be in \\[0, 1\\]"),
            (np.full((4, 8, 8, 1), np.nan), {}, "images must be in \\[0, 1\\]"),
            (np.zeros((4, 3, 8, 1)), {}, "height must be in \\[4, 224\\]"),
            (np.zeros((4, 8, 225, 1)), {}, "width must be in \\[4, 224\\]"),
            (np.zeros((4, 8, 8, 1)), {"latent_size": 0}, "latent_size must be > 0"),
            (np.zeros((4, 8, 8, 1)), {"kl": -1.0}, "kl must be >= 0"),
        ],
    )
    def test_training(self, images, options, message):
        with pytest.raises(ValueError, match=message):
            client_updates.train_generator(jax.random.key(0), images, **{"latent_size": 2, **options})

    @pytest.mark.slow
    def test_training_that_diverges(self):
        images = np.random.default_rng(0).random((4, 4, 4, 1))
        with pytest.raises(FloatingPointError, match="not finite from epoch"):
            client_updates.train_generator(
                jax.random.key(0), images, 2, epochs=4, batch_size=2, learning_rate=1e38, kl=1.0, channels=2
            )

    def test_settings(self, strict):
        model = models.mlp(SHAPE, 10, widths=(16,), activation="sigmoid")
        share, chosen = protocols.ClientShare(model), presets.ggl(5, generator=strict)
        for changes, message in (
            ({"candidate": client_updates.pixels()}, "this candidate has none"),
            ({"priors": ((-1.0, client_updates.latent_prior()),)}, "latent must be >= 0"),
            ({"regularization": presets.fedleak_paper().regularization}, "this optimizer asks for none"),
        ):
            with pytest.raises(ValueError, match=message):
                attacks.inversion(model, share, chosen._replace(**changes), batch_size=1)
        with pytest.raises(ValueError, match="search must be one of cma_es, adam"):
            presets.ggl(5, generator=strict, search="grid")
        with pytest.raises(ValueError, match="population must be in \\[2, 1000000\\], got"):
            client_updates.cma_es(population=1)
        with pytest.raises(ValueError, match="sigma must be > 0"):
            client_updates.cma_es(sigma=0.0)
        with pytest.raises(ValueError, match="latent_size must be > 0"):
            resolved(Case(attack="rog", latent_size=0))

    def test_without_the_libraries(self, monkeypatch, strict):
        monkeypatch.setitem(sys.modules, "evosax", None)
        with pytest.raises(ImportError, match="pip install evosax"):
            presets.ggl(5, generator=strict)
        assert not presets.ggl(5, generator=strict, search="adam").gradient_free
        monkeypatch.setitem(sys.modules, "lpips", None)
        with pytest.raises(ImportError, match="pip install lpips torchvision"):
            metrics.lpips(np.zeros((1, 32, 32, 3)), np.zeros((1, 32, 32, 3)))


class TestLpips:
    def test_shapes(self):
        with pytest.raises(ValueError, match="at least 32x32"):
            metrics.lpips(np.zeros((1, 8, 8, 3)), np.zeros((1, 8, 8, 3)))

    def test_identical_images(self):
        pytest.importorskip("lpips")
        images = np.random.default_rng(0).random((2, 64, 64, 3))
        try:
            scores = metrics.lpips(images, images)
        except FileNotFoundError as error:
            pytest.skip(str(error))
        np.testing.assert_allclose(scores, 0, atol=1e-6)

    def test_a_weights_file_that_would_run_code_is_refused(self, monkeypatch, tmp_path):
        torch = pytest.importorskip("lpips") and pytest.importorskip("torch")
        monkeypatch.setattr(torch.hub, "get_dir", lambda: tmp_path)
        file = tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth"
        file.parent.mkdir()
        torch.save({"features.0.weight": os.getcwd}, file)
        with pytest.raises(pickle.UnpicklingError, match="weights_only"):
            metrics.lpips(np.zeros((1, 32, 32, 3)), np.zeros((1, 32, 32, 3)))
