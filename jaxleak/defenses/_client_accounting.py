"""The epsilon that accounting gives for a client's defense, beside the papers' shorthand epsilon."""

from jaxleak import _validate
from jaxleak.defenses._accounting import epsilon_of_schedule
from jaxleak.defenses._client_defenses import CLIENT_DEFENSES, SHORTHAND_DELTA
from jaxleak.defenses.mechanisms import Clipped, GaussianNoise


def true_epsilon(kind: str, epsilon: float, *, batch_size: int, own_samples: int, rounds: int) -> float:
    """Epsilon >= 0 of a client's uploads by accounting at `SHORTHAND_DELTA`, if all uploads are visible.

    Batches are drawn without replacement. Every client takes part in every round, and neighbours differ in one example
    that is replaced. A clip of the whole update protects a replaced batch, so sampling does not amplify its privacy.
    Soteria after the noise is not counted: its choice of features looks at the batch, so that the combination has no
    guarantee. The result then holds for the noise alone.

    Args:
        kind: key in `CLIENT_DEFENSES` of a defense whose strength is an epsilon.
        epsilon: the shorthand epsilon, > 0.
        batch_size: batch size B, >= 1 and at most own_samples.
        own_samples: samples of one client.
        rounds: rounds >= 1 that the client takes part in, with one local step each.

    Raises:
        ValueError: on values out of range, an unknown kind, or a defense without epsilon.
        ImportError: if dp-accounting is missing.
    """
    _validate.one_of(tuple(CLIENT_DEFENSES), defense=kind)
    _validate.count(own_samples=own_samples, rounds=rounds)
    _validate.count_in_range(1, own_samples, batch_size=batch_size)
    if not CLIENT_DEFENSES[kind].private:
        raise ValueError(f"{kind} has no epsilon")
    mechanism = CLIENT_DEFENSES[kind].build(epsilon).mechanism
    assert mechanism is not None
    clip, noise = mechanism.simulation, mechanism.noise
    assert isinstance(clip, Clipped)
    assert isinstance(noise, GaussianNoise)
    sigmas = [noise.deviation / clip.norm * noise.decay**t for t in range(rounds)]
    if not clip.examples:
        # A replaced batch moves the clipped mean by up to twice the clip.
        halves = [sigma / 2 for sigma in sigmas]
        return epsilon_of_schedule(noise_multipliers=halves, sampling_rate=1.0, delta=SHORTHAND_DELTA)
    return epsilon_of_schedule(
        noise_multipliers=sigmas,
        sampling_rate=batch_size / own_samples,
        sampling="without_replacement",
        examples=own_samples,
        delta=SHORTHAND_DELTA,
    )
