"""Checks of a client's loss before attacks and label rules rely on it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from small_updates import sent_by

from jaxleak import attacks, defenses, models, objectives, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks import adaptive, presets
from jaxleak.attacks._inversion.labels import label_source
from jaxleak.attacks._inversion.loss_probe import check_soft_labels
from jaxleak.attacks._inversion.setup import Setup

B, SHAPE, CLASSES = 2, (4, 4, 1), 3


@pytest.fixture(scope="module")
def model():
    return reference.sigmoid_mlp()


def settings(**changes):
    return presets.fedleak(300, homotopy=False).weighing(tv=0.0, activation=0.0)._replace(**changes)


def one_hot_inside(logits, y):
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(y, CLASSES)).mean()


def integers_only(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def several_labels(logits, y):
    return optax.sigmoid_binary_cross_entropy(logits, y).mean()


def smoothed(logits, y):
    soft = objectives.soft_labels(y, logits.shape[-1])
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(soft, 0.1)).mean()


def least_of_labels(logits, y):
    """A loss that accepts labels of both shapes but interprets (B, C) differently."""
    return objectives.cross_entropy(logits, jnp.argmin(y, axis=-1) if y.ndim == 2 else y)


class TestLosses:
    """Clients call their loss with integers, attacks call it with (B, C), and both must have the same meaning."""

    @pytest.mark.parametrize(
        ("loss", "found", "size", "labels"),
        [
            (one_hot_inside, "this one has another gradient", 1, "calibrated"),  # for one image it broadcasts
            (one_hot_inside, "this one raises", B, "calibrated"),
            (integers_only, "this one raises", 1, "calibrated"),
            (integers_only, "this one raises", B, "calibrated"),
            (least_of_labels, "this one has another gradient", 1, "calibrated"),
            # The label rule does not matter, since the loss is checked first.
            *((least_of_labels, "this one has another gradient", B, rule) for rule in ("given", "joint", "calibrated")),
        ],
    )
    def test_one_that_takes_no_soft_labels_is_refused(self, loss, found, size, labels, model):
        share = protocols.ClientShare(model, loss=loss)
        with pytest.raises(ValueError, match=rf"loss must take labels \(B,\).*objectives.cross_entropy.*{found}"):
            attacks.inversion(model, share, settings(labels=labels), batch_size=size)

    def test_one_behind_a_defense_is_looked_at_too(self, model):
        known = adaptive.informed(
            defenses.clipped_gaussian(1.0, 0.1),
            model,
            protocols.ClientShare(model, loss=one_hot_inside),
            settings(),
            batch_size=1,
        )
        with pytest.raises(ValueError, match="this one has another gradient"):
            attacks.inversion(model, known.share, known.settings, batch_size=1)

    @pytest.mark.parametrize("classes", [2, 3])
    @pytest.mark.parametrize("loss", [smoothed, objectives.double_softmax_cross_entropy, several_labels])
    @pytest.mark.parametrize("size", [1, 3])
    def test_others_are_not(self, loss, classes, size):
        check_soft_labels(loss, classes, size)
        with pytest.raises(ValueError, match="loss must take labels"):
            check_soft_labels(one_hot_inside, classes, size)

    def test_one_need_take_no_other_batch_than_the_clients(self):
        weights = jnp.array([1.0, 2.0, 0.5, 1.0])

        def weighted(logits, y):
            return -jnp.mean(weights * jnp.sum(objectives.soft_labels(y, 3) * jax.nn.log_softmax(logits), axis=-1))

        def standardised(logits, y):  # has no gradient for a single image
            return objectives.cross_entropy((logits - logits.mean(axis=0)) / logits.std(axis=0), y)

        check_soft_labels(weighted, 3, 4)
        for size in (1, 4):
            check_soft_labels(standardised, 3, size)
        with pytest.raises(ValueError, match="this one raises"):
            check_soft_labels(weighted, 3, 8)

    def test_they_are_looked_at_inside_of_a_compiled_function_too(self):
        def built(x):
            check_soft_labels(smoothed, CLASSES, B)
            return x

        jax.jit(built)(0.0)

    def test_row_spaces_read_no_loss(self, model):
        share = protocols.ClientShare(model, loss=integers_only)
        attacks.inversion(model, share, presets.row_space()._replace(labels="none"), batch_size=1)

    def test_several_labels_per_image_are_attacked_as_given(self, model):
        variables, truth, _ = sent_by(model, images=B)
        y = jnp.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
        share = protocols.ClientShare(model, loss=several_labels)
        attack = attacks.inversion(model, share, settings(labels="given"), batch_size=B)
        state = jax.jit(attack.init)(jax.random.key(0), truth)
        there = state._replace(best={**state.variables, "x": truth.x[:, 0]})
        payload = jax.jit(share)(variables, truth._replace(y=y))
        seen = Observation(jnp.zeros((), jnp.int32), variables, payload, labels=y)
        assert jax.jit(attack.reconstruct)(there, seen).gradient_matched.all()


class TestRulesUnderOtherLosses:
    """Label rules assume (softmax - label) / B, the gradient of a mean cross-entropy, or a known multiple of it."""

    Y = jnp.array([1, 3, 3, 7], jnp.int32)
    MODEL = models.mlp(SHAPE, 10, widths=(12,), activation="relu")

    def inferred(self, loss, rule="calibrated", **client):
        model, variables = self.MODEL, self.MODEL.init(jax.random.key(0))
        x = jnp.asarray(np.random.default_rng(0).random((4, 1, *SHAPE)), jnp.float32)
        share = protocols.ClientShare(model, loss=loss, **client)
        source = label_source(rule, Setup(model, share, 4))
        payload = jax.jit(share)(variables, Batch(x, self.Y, jnp.arange(4)))
        seen = Observation(jnp.zeros((), jnp.int32), variables, payload)
        labels = jax.jit(source.fixed)(seen, jax.random.key_data(jax.random.key(0)))
        return np.sort(np.argmax(np.asarray(labels), axis=-1))

    def test_a_sum_over_the_batch_is_divided_by_it(self):
        def summed(logits, y):
            return len(logits) * objectives.cross_entropy(logits, y)

        np.testing.assert_array_equal(self.inferred(summed, "bias_rule"), self.Y)
        np.testing.assert_array_equal(self.inferred(summed, local_steps=2), self.Y)

    @pytest.mark.parametrize("loss", [smoothed, lambda logits, y: 3 * objectives.cross_entropy(logits, y)])
    def test_what_is_nearly_a_multiple_is_served(self, loss):
        np.testing.assert_array_equal(self.inferred(loss), self.Y)

    @pytest.mark.parametrize(("classes", "size"), [(2, 1), (10, 4)])
    def test_others_are_refused_by_the_rule_s_name(self, classes, size):
        def squares(logits, y):
            return jnp.mean((logits - objectives.soft_labels(y, classes)) ** 2)

        def focal(logits, y):
            p = jax.nn.softmax(logits)
            return -jnp.mean(jnp.sum(objectives.soft_labels(y, classes) * (1 - p) ** 2 * jnp.log(p), axis=-1))

        def weighted(logits, y):
            weights = objectives.soft_labels(y, classes) * jnp.linspace(0.5, 1.5, classes)
            return -jnp.mean(jnp.sum(weights * jax.nn.log_softmax(logits), axis=-1))

        model = models.mlp(SHAPE, classes, widths=())
        losses = [squares, weighted, several_labels, objectives.double_softmax_cross_entropy]
        for loss in losses + [focal] * (classes == 2):  # for more classes its gradient is nearly a multiple
            share = protocols.ClientShare(model, loss=loss)
            with pytest.raises(ValueError, match=r'labels=\'calibrated\' cannot be inferred under this loss.*"given"'):
                attacks.inversion(model, share, settings(), batch_size=size)
        for labels in ("given", "joint", "random"):
            attacks.inversion(model, share, settings(labels=labels), batch_size=size)
