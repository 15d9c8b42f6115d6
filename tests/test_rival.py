"""Other images with the same update: found if the network leaves pixels unread, and not found if it reads them all."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import Batch, Observation, audit, metrics, models, protocols
from jaxleak._tree import named_leaves, norm
from jaxleak.attacks.client_updates import MATCHED_BELOW
from jaxleak.audit._checks.labels import Labels
from jaxleak.audit._received import Received
from jaxleak.audit._rival import rival_from
from jaxleak.audit._verdict import stages
from jaxleak.audit._verdict.judgement import told
from jaxleak.audit._verdict.questions import blended
from jaxleak.audit._verdict.verdict import Answer, decide

SHAPE, COUNT = (8, 8, 1), 2


class Averaging(nn.Module):
    """A network that reads only the means of squares of 4 x 4 pixels."""

    @nn.compact
    def __call__(self, x):
        x = nn.avg_pool(x, (4, 4), (4, 4)).reshape(len(x), -1)
        return nn.Dense(4)(nn.sigmoid(nn.Dense(16)(x)))


def attacked(net):
    """The share of a network's client, the observation, and the true images and labels as the best possible answer."""
    model = models.classifier(net, image_shape=SHAPE)
    share = protocols.ClientShare(model)
    variables = reference.drawn(model)
    x = reference.uniform(COUNT, *SHAPE, seed=1)
    y = jnp.arange(COUNT)
    payload = jax.jit(share)(variables, Batch(x[:, None], y, jnp.arange(COUNT)))
    return share, Observation(jnp.zeros((), jnp.int32), variables, payload), np.asarray(x), np.asarray(y)


@pytest.fixture(scope="module")
def averaged():
    return attacked(Averaging())


@pytest.fixture(scope="module")
def rival(averaged):
    return audit.rival(*averaged, key=jax.random.key(0))


def test_a_rival_has_the_update_and_is_another_image(averaged, rival):
    share, seen, x, y = averaged
    own = jax.tree.leaves(share(seen.params, Batch(rival.x[:, None], y, jnp.arange(COUNT))))
    sent = jax.tree.leaves(seen.payload)
    squares = [float(np.sum((np.asarray(a) - np.asarray(b)) ** 2)) for a, b in zip(own, sent, strict=True)]
    misfit = np.sqrt(sum(squares) / sum(float(np.sum(np.asarray(b) ** 2)) for b in sent))
    assert misfit == pytest.approx(rival.misfit, abs=1e-4)
    assert misfit < 1e-2
    np.testing.assert_allclose(metrics.ssim(rival.x, x), rival.similarity)
    # The answer is the truth, so no leaf has a misfit.
    assert rival.answer_parts.keys() == rival.part_norms.keys() == named_leaves(seen.payload).keys()
    assert max(rival.answer_parts.values()) < 1e-3
    assert np.hypot.reduce(list(rival.part_norms.values())) == pytest.approx(float(norm(seen.payload)), rel=1e-5)
    # The network reads only the means of the squares: the rival agrees in these but not in the pixels.
    means = [images.reshape(COUNT, 2, 4, 2, 4).mean(axis=(2, 4)) for images in (rival.x, x)]
    np.testing.assert_allclose(*means, atol=0.02)
    assert rival.x.min() >= 0
    assert rival.x.max() <= 1


def test_a_rival_of_half_an_answer_explains_more_than_the_answer(averaged):
    share, seen, x, y = averaged
    blurred = np.repeat(np.repeat(x.reshape(COUNT, 2, 4, 2, 4, 1).mean(axis=(2, 4)), 4, axis=1), 4, axis=2)
    found = audit.rival(share, seen, blurred, y, key=jax.random.key(0))
    assert found.explains
    assert found.undetermined.all()


def test_no_rival_is_found_where_every_pixel_is_read():
    net = attacked(nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(64), nn.tanh, nn.Dense(4)]))
    found = audit.rival(*net, key=jax.random.key(0))
    assert not (found.explains and (found.similarity < 0.8).any())
    assert not found.undetermined.any()


def test_zeros_of_an_update_count_for_nothing_where_they_are_skipped(averaged):
    share, seen, x, y = averaged
    thinned = seen._replace(
        payload=jax.tree.map(
            lambda leaf: jnp.where(jnp.arange(leaf.size).reshape(leaf.shape) % 2, leaf, 0.0), seen.payload
        )
    )
    as_sent, skipped = (
        audit.rival(share, thinned, x, y, key=jax.random.key(0), iterations=1, skip_zeros=skip)
        for skip in (False, True)
    )
    assert skipped.answer_misfit < 1e-5 < 0.1 < as_sent.answer_misfit


def test_leaves_that_were_not_sent_are_not_compared(averaged):
    share, seen, x, y = averaged
    head = dict.fromkeys(seen.payload)
    part = seen._replace(payload=head | {name: seen.payload[name] for name in list(seen.payload)[:1]})
    assert audit.rival(share, part, x, y, key=jax.random.key(0), iterations=1).answer_misfit < 1e-5


def test_images_and_labels_must_go_together(averaged):
    share, seen, x, y = averaged
    with pytest.raises(
        ValueError, match=r"x must have shape \(N, H, W, C\) and y \(N,\), got \(2, 8, 8, 1\) and \(1,\)"
    ):
        audit.rival(share, seen, x, y[:1], key=jax.random.key(0))
    with pytest.raises(ValueError, match="iterations must be"):
        audit.rival(share, seen, x, y, key=jax.random.key(0), iterations=0)
    with pytest.raises(ValueError, match=r"start must have the shape of x, \(2, 8, 8, 1\), got \(1, 8, 8, 1\)"):
        audit.rival(share, seen, x, y, key=jax.random.key(0), start=x[:1])


def test_brighter_images_than_are_stated_explain_the_update_once_their_values_may_be(averaged):
    share, _, x, y = averaged
    payload = jax.jit(share)(averaged[1].params, Batch(1.5 * x[:, None], y, jnp.arange(COUNT)))
    seen = averaged[1]._replace(payload=payload)
    within, beyond = (
        audit.rival(share, seen, 1.5 * x, y, key=jax.random.key(0), bounds=bounds) for bounds in ((0, 1), (-1, 2))
    )
    assert within.x.max() == 1
    assert beyond.x.max() > 1
    assert beyond.answer_misfit < 0.1 * within.answer_misfit
    with pytest.raises(ValueError, match=r"bounds must be the lowest and the highest .*, got \(1, 0\)"):
        audit.rival(share, seen, x, y, key=jax.random.key(0), bounds=(1, 0))


def test_a_rival_may_start_at_given_images(averaged):
    share, seen, x, y = averaged
    begun = audit.rival(share, seen, x, y, key=jax.random.key(0), start=2 * blended(x), iterations=1)
    np.testing.assert_allclose(begun.x, np.clip(2 * (0.6 * x + 0.4 * x[::-1]), 0, 1), atol=0.021)  # one step
    np.testing.assert_allclose(begun.start_similarity, metrics.ssim(np.clip(2 * blended(x), 0, 1), x), rtol=1e-5)


def test_a_second_search_asks_nothing_of_the_answer_again(averaged, rival):
    share, seen, x, y = averaged
    start = 2 * blended(x)
    again = rival_from(start, rival, Received(share), seen, x, y, iterations=20)
    whole = audit.rival(share, seen, x, y, key=jax.random.key(0), start=start, iterations=20)
    for name in ("x", "misfit", "similarity", "start_similarity"):
        np.testing.assert_allclose(getattr(again, name), getattr(whole, name), rtol=1e-4, atol=1e-5)
    for name in ("answer_misfit", "answer_parts", "part_norms", "unread"):
        assert getattr(again, name) is getattr(rival, name)


def test_images_with_a_rival_have_no_certificate():
    x = np.broadcast_to(np.linspace(0, 1, 64).reshape(1, *SHAPE), (2, *SHAPE))
    answer = Answer(
        "fedleak_400", x, np.arange(2), 0.001, MATCHED_BELOW / 2, agreement=np.ones(2),
        undetermined=np.array([True, False]),
    )  # fmt: skip
    np.testing.assert_array_equal(answer.shown, [False, True])
    assert "For 1 of 2 images another one explains the update as well" in told(answer)
    _, reasons = decide([], Labels.none(4), answer, [], [])
    assert "no other image was found with this update" in reasons[0]


@pytest.mark.slow
def test_an_audit_of_a_network_that_reads_little_certifies_no_image(monkeypatch):
    """Two starts agree on a smooth image, and earlier versions certified it."""
    monkeypatch.setattr(stages, "_LATER", (10**9,))  # one search is enough
    share, seen, x, y = attacked(Averaging())
    found = audit.update(share.model, seen.params, seen.payload, batch_size=COUNT, truth=(x, y), minutes=0.5)
    assert found.best.agree.any()
    assert found.best.matched
    assert found.leaked == ("labels",)
    # Eight means of pixels cannot determine 64 pixels, so no search for a rival is needed.
    assert not found.best.determined
    assert found.best.undetermined is None
