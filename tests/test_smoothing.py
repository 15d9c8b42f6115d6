"""The smoothing homotopy: its schedule, when it is left out, and a network that is only recovered with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import attacks, audit, data, metrics, models, protocols
from jaxleak._base import Batch, Observation
from jaxleak.attacks import client_updates, presets
from jaxleak.attacks._inversion.smoothing import next_sharpness


def sharpnesses(plan, distances):
    beta, out = jnp.float32(plan.start), []
    for t, distance in enumerate(distances):
        out.append(float(beta))
        beta = next_sharpness(plan, beta, jnp.asarray(t), len(distances), jnp.float32(distance))
    return out


def test_sharpness_rises_geometrically_then_holds_then_is_exact():
    betas = sharpnesses(client_updates.smoothing(1.0, 16.0, hold=0.3, finish=0.2), [0.0] * 10)
    np.testing.assert_allclose(betas[:5], [1, 2, 4, 8, 16], rtol=1e-5)
    np.testing.assert_allclose(betas[5:8], 16, rtol=1e-5)
    assert min(betas[8:]) >= 1e6
    np.testing.assert_allclose(sharpnesses(client_updates.smoothing(1.0, 16.0), [0.0] * 5), [1, 2, 4, 8, 16], rtol=1e-5)
    last = next_sharpness(client_updates.smoothing(1.0, 16.0), jnp.float32(16), jnp.asarray(7), 5, jnp.float32(1.0))
    assert last == 16  # and it stays so after the planned iterations


def test_some_iterations_must_be_left_for_sharpening():
    client_updates.smoothing(1.0, 16.0, hold=0.5, finish=0.4)
    with pytest.raises(ValueError, match=r"hold \+ finish must be < 1, got 0.5 \+ 0.5"):
        client_updates.smoothing(1.0, 16.0, hold=0.5, finish=0.5)
    with pytest.raises(ValueError, match="end must be finite"):
        client_updates.smoothing(1.0, float("inf"))


def test_smoothing_is_left_out_where_there_is_nothing_to_smooth():
    """Losses at different sharpness are not comparable, so a schedule would make the last iterate the best one."""
    batch = Batch(jnp.zeros((2, 1, 4, 4, 1)), jnp.zeros(2, jnp.int32), jnp.arange(2))
    start = client_updates.recommended_smoothing(batch_norm=False, batch_size=2).start
    for activation, sharpness in (("sigmoid", np.inf), ("relu", start)):
        network = models.mlp((4, 4, 1), 3, widths=(3,), activation=activation)
        attack = attacks.inversion(network, protocols.ClientShare(network), presets.fedleak(9), batch_size=2)
        assert attack.init(jax.random.key(0), audit.template_of(batch)).sharpness == sharpness


def test_sharpness_waits_for_progress():
    """The sharpness rises by the schedule's factor only after iterations with a distance below the threshold."""
    waiting = client_updates.smoothing(1.0, 16.0, progress_below=0.5)
    assert set(sharpnesses(waiting, [0.9] * 5)) == {1.0}
    betas = sharpnesses(waiting, [0.9, 0.4, 0.3, 0.5, 0.1])
    np.testing.assert_allclose(betas, [1, 1, 2, 4, 4], rtol=1e-5)
    np.testing.assert_allclose(sharpnesses(waiting, [0.1] * 5), [1, 2, 4, 8, 16], rtol=1e-5)


@pytest.mark.slow
def test_a_deep_network_of_relus_and_batch_norm_gives_in_to_the_homotopy_only():
    """Exact kinks end little above a grey image (7.5 dB). Shallow networks of this kind do better without homotopy."""
    network = models.convnet((8, 8, 1), 10, channels=(6,) * 5, strides=(1, 2, 1, 1, 1), batch_norm=True)
    share, variables, digits = protocols.ClientShare(network), reference.drawn(network), data.load("digits", 4)
    scores = {}
    for homotopy in (True, False):
        plan = presets.fedleak(1000, homotopy=homotopy)
        attack = attacks.inversion(network, share, plan, batch_size=2)
        scores[homotopy] = []
        for chosen in (slice(0, 2), slice(2, 4)):
            batch = Batch(
                jnp.asarray(digits.x[chosen])[:, None], jnp.asarray(digits.y[chosen], jnp.int32), jnp.arange(2)
            )
            seen = Observation(jnp.zeros((), jnp.int32), variables, jax.jit(share)(variables, batch))
            found, _, _ = audit.invert(
                attack, seen, audit.template_of(batch), key=jax.random.key(1), iterations=plan.iterations
            )
            estimate = np.clip(found.x[:, 0], 0, 1)
            estimate = estimate[metrics.match_one_to_one(digits.x[chosen], estimate)]
            scores[homotopy].append(metrics.psnr(digits.x[chosen], estimate).mean())
    assert np.mean(scores[True]) > 14
    assert np.mean(scores[False]) < 12


def test_recommended_schedules_are_those_that_have_won():
    recommended = client_updates.recommended_smoothing
    for size in (1, 2):
        assert recommended(batch_norm=True, batch_size=size) == client_updates.smoothing(1.0, 30.0)
    assert recommended(batch_norm=False, batch_size=2) == client_updates.smoothing(4.0, 100.0)
    assert recommended(batch_norm=False, batch_size=1) is None
    assert client_updates.smoothing() == (1.0, 30.0, 0.0, 0.0, None)


def test_a_schedule_out_of_range_is_refused():
    for options, match in (
        ({"start": 0.0}, "start must be > 0"),
        ({"start": 2.0, "end": 1.9}, "end must be in"),
        ({"hold": -0.1}, "hold must be in"),
        ({"finish": 1.1}, "finish must be in"),
        ({"progress_below": 0.0}, "progress_below must be > 0"),
    ):
        with pytest.raises(ValueError, match=match):
            client_updates.smoothing(**options)
    assert client_updates.smoothing(2.0, 2.0).end == 2.0
