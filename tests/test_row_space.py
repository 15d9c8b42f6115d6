"""Row spaces in place of gradients: the distance against NumPy, the layers it reads, and the search for a shift."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from slowness import slow_among, slow_but

from jaxleak import _tree, attacks, audit, models, objectives
from jaxleak._base import Batch
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._inversion.row_space import informative_layers, normalised_layers
from jaxleak.attacks._inversion.shift_search import ShiftSearch, shift
from jaxleak.threats import SERVER_WITHOUT_INDICES, Threat, view

CLASSES = 3


def _random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("centred", [False, True])
def test_the_distance_is_that_of_the_best_backward_signals(centred):
    rows, gradient = _random(5, 12), _random(12, 3, seed=1)
    p = rows.astype(np.float64)
    if centred:
        p = p - p.mean(axis=0)
    best, *_ = np.linalg.lstsq(p.T, gradient, rcond=None)
    wanted = ((gradient - p.T @ best) ** 2).sum() / (gradient**2).sum()
    found = objectives.row_space_distance(rows, gradient, ridge=1e-6, centred=centred)
    assert found == pytest.approx(wanted, rel=1e-3)
    # The distance does not depend on scales, and is zero for a gradient that these rows explain.
    again = objectives.row_space_distance(3 * rows, 7 * gradient, ridge=1e-6, centred=centred)
    assert again == pytest.approx(wanted, rel=1e-3)
    explained = (p.T @ _random(5, 3, seed=2)).astype(np.float32)
    assert objectives.row_space_distance(rows, explained, ridge=1e-6, centred=centred) == pytest.approx(0, abs=1e-4)


def test_the_relative_variation_does_not_see_the_scale():
    x = _random(2, 5, 6, 3)
    wanted = np.abs(np.diff(x, axis=1)).mean() + np.abs(np.diff(x, axis=2)).mean()
    wanted /= np.sqrt(np.mean([image.var() for image in x]))
    found = objectives.relative_total_variation(jnp.asarray(x))
    assert found == pytest.approx(wanted, rel=1e-4)
    assert objectives.relative_total_variation(0.3 * jnp.asarray(x)) == pytest.approx(wanted, rel=1e-4)


MODELS = {
    "resnet10": {"width": 8},
    "convnet": {"channels": (4, 8), "strides": (1, 2)},
    "densenet121": {},
    "mobilenet_v2": {},
    "vit_tiny": {},
    "mlp": {"widths": (16,)},
}


#: Models that take seconds to compile.
LARGE = ("densenet121", "mobilenet_v2", "resnet10", "vit_tiny")


@pytest.mark.parametrize("name", slow_among(MODELS, LARGE))
def test_gradients_of_kernels_lie_in_the_rows(name):
    """For every reported layer, the gradient is the transpose of the rows times another matrix."""
    model = models.build(name, (16, 16, 3), CLASSES, **MODELS[name])
    variables = reference.drawn(model)
    x, y = jnp.asarray(_random(1, 16, 16, 3)), jnp.array([1])

    @jax.jit
    def both(variables, x):
        loss = lambda p: -jax.nn.log_softmax(model.apply({**variables, "params": p}, x).logits)[0, y[0]]  # noqa: E731
        return jax.grad(loss)(variables["params"]), model.rows(variables, x)

    gradient, rows = both(variables, x)
    leaves = _tree.named_leaves(gradient)
    assert set(rows) <= leaves.keys()
    assert model.head_names[0] in rows
    fewer = [n for n, r in rows.items() if len(r) < r.shape[1]]
    assert fewer
    for layer in fewer:
        kernel = np.asarray(model.matrix(layer, leaves[layer]), np.float64)
        p = np.asarray(rows[layer], np.float64)
        best, *_ = np.linalg.lstsq(p.T, kernel, rcond=1e-5)
        assert np.linalg.norm(kernel - p.T @ best) < 1e-3 * np.linalg.norm(kernel), layer


def test_layers_are_the_first_informative_ones():
    model, plan = models.build("resnet10", (8, 8, 1), CLASSES, width=16), client_updates.RowSpaces(layers=2)
    assert informative_layers(model, plan, 1) == ("stage_0_block_0/conv_0/kernel", "stage_0_block_0/conv_1/kernel")
    assert informative_layers(model, plan, 4) == ("stage_1_block_0/conv_0/kernel", "stage_1_block_0/conv_1/kernel")
    with pytest.raises(ValueError, match=r"at most 0.5 output pixels per input of each; with batch_size = 9999"):
        informative_layers(model, plan, 9999)


class _PartlyNormalised(nn.Module):
    """A stem without normalisation, then a convolution and a dense layer, each normalised by batch statistics."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.Conv(16, (3, 3), strides=(4, 4), name="stem")(x))
        x = nn.Conv(6, (3, 3), use_bias=False, name="conv")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x)).reshape(len(x), -1)
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(7, name="dense")(x))
        return nn.Dense(CLASSES, name="head")(nn.relu(x))


def test_the_layers_that_statistics_normalise_are_found_in_networks_of_any_kind():
    own = models.classifier(_PartlyNormalised(), image_shape=(8, 8, 3), num_classes=CLASSES)
    layers = ("conv/kernel", "dense/kernel", "head/kernel")
    assert normalised_layers(own, layers, "train", 2) == {"conv/kernel", "dense/kernel"}
    assert normalised_layers(own, ("stem/kernel",), "train", 2) == set()
    assert normalised_layers(own, layers, "eval", 2) == set()
    built_in = models.convnet((6, 6, 8), CLASSES, channels=(8, 8), strides=(1, 2), batch_norm=True)
    layers = ("conv_0/kernel", "conv_1/kernel", "head/kernel")
    assert normalised_layers(built_in, layers, "train", 1) == set(layers[:2])
    assert (
        normalised_layers(models.convnet((6, 6, 8), CLASSES, channels=(8,), strides=(1,)), layers[:1], "train", 1)
        == set()
    )


class _BeginsAtZero(nn.Module):
    """A network with a nearly weightless branch without normalisation, and with a head that starts at zero."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.Conv(16, (3, 3), strides=(4, 4), name="stem")(x))
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(16, (3, 3), name="normal")(x)))
        x = x + 1e-4 * nn.relu(nn.Conv(16, (3, 3), name="free")(x))
        return nn.Dense(CLASSES, name="head", kernel_init=nn.initializers.zeros)(x.reshape(len(x), -1))


def test_a_layer_that_hardly_changes_the_logits_is_not_taken_for_a_normalised_one():
    model = models.classifier(_BeginsAtZero(), image_shape=(8, 8, 3), num_classes=CLASSES)
    layers = ("normal/kernel", "free/kernel", "head/kernel")
    assert normalised_layers(model, layers, "train", 2) == {"normal/kernel"}


def test_a_layer_with_exactly_half_as_many_output_pixels_as_inputs_is_informative():
    model = models.convnet((6, 6, 8), CLASSES, channels=(4,), strides=(1,))  # 36 pixels with 3 * 3 * 8 inputs each
    assert informative_layers(model, client_updates.RowSpaces(layers=1), 1) == ("conv_0/kernel",)
    with pytest.raises(ValueError, match="this model's best has 1"):
        informative_layers(model, client_updates.RowSpaces(layers=1), 2)


def test_an_image_is_shifted_and_its_border_drawn_out():
    x = jnp.arange(2 * 3 * 3, dtype=jnp.float32).reshape(2, 3, 3, 1)
    moved = shift(x, jnp.int32(1), jnp.array([1, -2]))
    np.testing.assert_array_equal(moved[0], x[0])
    np.testing.assert_array_equal(moved[1, :, :, 0], [[11, 11, 11], [11, 11, 11], [14, 14, 14]])


@pytest.mark.parametrize("tries", slow_but((1, 2, 3), (1,)))
def test_the_best_shift_is_kept(tries):
    """Iterations do not change the candidate here, and the objective depends only on the place of its one pixel."""
    shifts = client_updates.Shifts(reach=2, stride=1, tries=tries)
    plan, taken = ((0.5, shifts),), 2 * 25 * tries
    table = ShiftSearch(plan, taken + 10, batch_size=2)
    x = jnp.zeros((2, 5, 5, 1)).at[:, 2, 2].set(1)
    wanted = jnp.zeros_like(x).at[0, 3, 1].set(1).at[1, 0, 2].set(1)
    trying = table.init(x)
    seen = []
    for iteration in range(taken + 10):
        x, trying = table.shifted(jnp.int32(iteration), x, trying)
        seen.append(float(table.progress(jnp.int32(iteration))))
        x, trying = table.after(jnp.int32(iteration), x, jnp.abs(x - wanted).sum(), trying)
        if iteration == 4:
            np.testing.assert_array_equal(x, trying.home)  # nothing has been tried yet
    np.testing.assert_array_equal(x, wanted)
    assert seen == sorted(seen)
    assert seen[5 : taken + 5] == [0.5] * taken
    np.testing.assert_allclose(np.diff(seen)[[0, 1, -1]], 0.1, rtol=1e-5)


def test_of_shifts_that_are_as_good_none_is_kept():
    table = ShiftSearch(((0.5, client_updates.Shifts(reach=1, stride=1, tries=2)),), 2 * 9 + 2, batch_size=1)
    x = jnp.zeros((1, 5, 5, 1)).at[0, 2, 2].set(1)
    trying = table.init(x)
    for iteration in range(2 * 9 + 2):
        x, trying = table.shifted(jnp.int32(iteration), x, trying)
        x, trying = table.after(jnp.int32(iteration), x, jnp.float32(0.5), trying)
    np.testing.assert_array_equal(x, jnp.zeros((1, 5, 5, 1)).at[0, 2, 2].set(1))


def test_every_shift_is_descended_from_with_fresh_moments_and_an_old_count():
    plan = ((0.5, client_updates.Shifts(reach=2, stride=1, tries=2)),)
    table = ShiftSearch(plan, 2 * 25 * 2 + 10, batch_size=2)
    initial, old = ({"count": jnp.int32(n), "moments": jnp.full(3, n)} for n in (0, 7))
    for iteration, begins in ((4, False), (5, True), (6, False), (7, True), (105, False)):
        found = table.begun_anew(jnp.int32(iteration), old, initial)
        assert found["count"] == 7  # the schedule of the rate continues
        np.testing.assert_array_equal(found["moments"], 0 if begins else 7)


def test_a_far_search_takes_the_iterations_that_it_says():
    for far, least in ((False, 2250), (True, 4470)):
        plan = presets.row_space(least + 1, far=far).shifts
        for images in (1, 2):
            ShiftSearch(plan, images * least + 1, images)
            with pytest.raises(ValueError, match=f"iterations must be > {images * least}"):
                ShiftSearch(plan, images * least, images)


@pytest.fixture(scope="module")
def problem():
    return reference.client_problem(
        1, models.convnet((4, 4, 1), CLASSES, channels=(24, 16), strides=(1, 1), batch_norm=True)
    )


def _attack(problem, **changes):
    shifts = client_updates.Shifts(reach=1, stride=1, tries=2)
    settings = presets.row_space(60)._replace(shifts=((0.2, shifts),))
    return attacks.inversion(problem.model, problem.protocol.share, settings._replace(**changes), batch_size=1)


@pytest.mark.slow
def test_descent_explains_the_gradient_and_needs_no_labels(problem):
    state = jax.jit(problem.protocol.init)(jax.random.key(1))
    _, transcript = jax.jit(problem.protocol.round)(jax.random.key(2), state, problem.private)
    seen, attack = view(SERVER_WITHOUT_INDICES, transcript), _attack(problem)
    found, _, infos = audit.invert(attack, seen, problem.template, key=jax.random.key(3), iterations=60)
    assert found.score[0] < 0.8 * infos["distance"][0]
    # The backward pass above is left free: another label gives another gradient but the same distance.
    x = transcript.private.x
    truth = Batch(x, transcript.private.y, transcript.private.index)
    other = problem.protocol.share(seen.params, truth._replace(y=(truth.y + 1) % CLASSES))
    scores = [
        float(attack.reconstruct(_at(attack, problem, x), seen._replace(payload=payload)).score[0])
        for payload in (seen.payload, other)
    ]
    np.testing.assert_allclose(scores, 0, atol=0.02)


@pytest.mark.slow
def test_a_few_layers_of_the_payload_suffice(problem):
    """The rest may be encrypted, frozen or lost. If a rule infers labels, the head is also read."""
    transcript = reference.first_transcript(problem)
    settings = presets.row_space(60)._replace(labels="none")
    read = client_updates.leaves_read(problem.model, settings, batch_size=1)
    assert read == ("conv_1/kernel",)
    partial = view(Threat(index=False, payload=read), transcript)
    whole = view(SERVER_WITHOUT_INDICES, transcript)
    found = []
    for seen in (partial, whole):
        attack = _attack(problem, labels="none")
        found.append(audit.invert(attack, seen, problem.template, key=jax.random.key(0), iterations=20)[0])
    chex.assert_trees_all_equal(*found)
    assert found[0].y.tolist() == [-1]
    attacks.check_payload(partial.payload, whole.params, read)
    with pytest.raises(ValueError, match="lacks"):
        attacks.check_payload(partial.payload, whole.params)
    with pytest.raises(ValueError, match="parts of the payload, but the threat does not grant head/bias, head/kernel"):
        audit.invert(_attack(problem), partial, problem.template, key=jax.random.key(0), iterations=20)
    wrapped = whole._replace(payload={"params": whole.payload, "batch_stats": {}})
    with pytest.raises(ValueError, match=r"payload must be .* alone: give payload\['params'\]"):
        audit.invert(_attack(problem), wrapped, problem.template, key=jax.random.key(0), iterations=20)


def _at(attack, problem, x):
    """The state of the attack with this candidate."""
    state = attack.init(jax.random.key(0), problem.template)
    variables = {**state.variables, "x": x[:, 0]}
    return state._replace(variables=variables, best=variables)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 18}, "iterations must be > 18, since the shifts of 1 images take so many"),
        ({"group": 2}, "shifts are tried by one candidate"),
        (
            {"labels": "joint"},
            'labels=\'joint\' optimises labels, but RowSpaces reads none: choose "none", "given" or a rule',
        ),
        (
            {"labels": "none", "compare": client_updates.Gradients(objectives.cosine), "shifts": ()},
            "labels='none' is for comparisons that read no labels",
        ),
        ({"candidate": client_updates.generator_weights()}, "shifts move the candidate's pixels"),
        ({"smoothing": client_updates.smoothing(1, 30, finish=0.1)}, "smoothing takes a start and an end only"),
        ({"compare": client_updates.RowSpaces(ridge=0.0)}, "ridge must be > 0"),
        ({"compare": client_updates.RowSpaces(layers=0)}, "layers"),
        (
            {"shifts": ((1.5, client_updates.Shifts(1, 1)),)},
            r"shifts\[0\]\[0\] must be in",
        ),
        ({"shifts": ((-0.1, client_updates.Shifts(1, 1)),)}, r"shifts\[0\]\[0\] must be in"),
        ({"shifts": ((0.1, client_updates.Shifts(1, 1, 1)),)}, "tries must be > 1"),
        ({"shifts": ((0.1, client_updates.Shifts(4, 3)),)}, r"shifts\[0\].stride must divide the reach 4, got 3"),
        (
            {"shifts": ((0.5, client_updates.Shifts(1, 1)), (0.2, client_updates.Shifts(1, 1)))},
            "in the order of their shares",
        ),
    ],
)
def test_bad_settings(problem, changes, message):
    with pytest.raises(ValueError, match=message):
        _attack(problem, **changes)


def test_offsets_begin_without_a_shift_and_hold_every_other_one_once():
    offsets = client_updates.Shifts(reach=4, stride=2).offsets
    assert offsets[0].tolist() == [0, 0]
    along = (-4, -2, 0, 2, 4)
    assert sorted(map(tuple, offsets.tolist())) == [(i, j) for i in along for j in along]


def test_the_sharpness_stands_still_while_shifts_are_tried():
    search = ShiftSearch(((0.5, client_updates.Shifts(reach=1, stride=1, tries=2)),), 2 * 9 * 2 + 4, batch_size=2)
    progress = [float(search.progress(jnp.int32(i))) for i in range(40)]
    np.testing.assert_allclose(progress, [0, 0.25, *[0.5] * 36, 0.5, 0.75])
    plan = client_updates.smoothing(2.0, 32.0)
    betas = [float(search.sharpness(plan, None, jnp.int32(i), None)) for i in (0, 1, 20, 38)]
    np.testing.assert_allclose(betas, [4, 8, 8, 16], rtol=1e-5)  # for the next iteration
