"""Parameters that no output depends on: an update that changes them is of another loss, and no other update is."""

import jax
import jax.numpy as jnp
import numpy as np
import reference

from jaxleak import audit, models, protocols
from jaxleak.audit._checks.finding import DEFENSE_OTHER, LOSS_OTHER
from jaxleak.audit._checks.unread import _LEAVE_OUT, UNREAD, check_unread

SHAPE, CLASSES, WIDTH = (4, 4, 1), 5, 6
X, Y = reference.uniform(2, *SHAPE, seed=1), jnp.array([1, 3])
#: A bias below which the units of the first layer are dead for every image in [0, 1].
DEAD = -100.0


def logits(params, x):
    """Without an auxiliary head's output; tanh leaves no symmetry that the second loss could break."""
    dead = jax.nn.relu(features(params, x) @ params["dead"]["kernel"] + params["dead"]["bias"])
    return features(params, x) @ params["head"]["kernel"] + params["head"]["bias"] + dead @ params["rest"]["kernel"]


def features(params, x):
    return jnp.tanh(x.reshape(len(x), -1) @ params["front"]["kernel"])


def network():
    def drawn(seed, *shape):
        return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)

    params = {
        "aux": {"kernel": drawn(0, WIDTH, CLASSES), "bias": drawn(1, CLASSES)},
        "dead": {"kernel": drawn(2, WIDTH, 3), "bias": jnp.full(3, DEAD)},
        "front": {"kernel": drawn(3, 16, WIDTH)},
        "head": {"kernel": drawn(4, WIDTH, CLASSES), "bias": drawn(5, CLASSES)},
        "rest": {"kernel": drawn(6, 3, CLASSES)},
    }
    return models.from_function(
        lambda variables, x: logits(variables["params"], x),
        {"params": params},
        image_shape=SHAPE,
        num_classes=CLASSES,
    )


MODEL, VARIABLES = network()
SHARE = protocols.ClientShare(MODEL)


def entropy(outputs):
    return -jax.nn.log_softmax(outputs)[jnp.arange(2), Y].mean()


def sent(weight):
    """The gradient of a client that adds an auxiliary head's loss with this weight."""

    def loss(params):
        auxiliary = features(params, X) @ params["aux"]["kernel"] + params["aux"]["bias"]
        return entropy(logits(params, X)) + weight * entropy(auxiliary)

    return jax.grad(loss)(VARIABLES["params"])


def named(findings):
    return [finding for finding in findings if finding.name == UNREAD]


def test_the_loss_of_an_auxiliary_head_is_found():
    findings = audit.check_update(SHARE, VARIABLES, sent(0.4), batch_size=2)
    (found,) = [finding for finding in findings if finding.status == "failed"]
    assert (found.name, found.status, found.options) == (UNREAD, "failed", (LOSS_OTHER, DEFENSE_OTHER, _LEAVE_OUT))
    assert "aux.bias and 1 more have a gradient" in found.evidence


def test_a_client_without_a_second_loss_is_not_accused():
    assert not sent(0.0)["aux"]["kernel"].any()
    assert not named(audit.check_update(SHARE, VARIABLES, sent(0.0), batch_size=2))


def test_units_that_are_dead_for_every_simulated_image_are_not_taken_for_unread():
    gradient = sent(0.0)
    assert not gradient["dead"]["bias"].any()
    live = {**gradient, "dead": jax.tree.map(jnp.ones_like, gradient["dead"])}
    assert not check_unread(SHARE, live, 2)


def test_where_the_loss_is_not_known_the_finding_warns():
    (found,) = check_unread(SHARE, sent(0.4), 2, loss_known=False)
    assert found.status == "suspicious"
    assert "is not attacked" in found.cause
    verdict = audit.update(MODEL, VARIABLES, sent(0.4), batch_size=2, loss="other", minutes=1e-6)
    (found,) = named(verdict.findings)
    assert found.options == (DEFENSE_OTHER, _LEAVE_OUT)


def test_a_client_that_defends_its_update_may_change_every_parameter():
    assert not named(audit.check_update(SHARE, VARIABLES, sent(0.4), batch_size=2, defended=True))
