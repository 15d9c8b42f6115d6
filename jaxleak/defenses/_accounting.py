"""Privacy (epsilon, delta) of noise: true accounting, and two formulas that papers use instead of it.

True accounting is done by the `dp-accounting` package, which is imported when it is first needed.
"""

import math
from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

from jaxleak import _validate
from jaxleak._magnitudes import share_count

PrivacySampling = Literal["poisson", "without_replacement"]
PRIVACY_SAMPLINGS: tuple[PrivacySampling, ...] = ("poisson", "without_replacement")


def epsilon_of(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    sampling: PrivacySampling = "poisson",
    examples: int | None = None,
) -> float:
    """Epsilon >= 0 of `steps` steps of DP-SGD, by Renyi accounting (an upper bound).

    The sampling determines which data sets count as neighbours. "poisson": one example more or less, and every example
    enters a batch on its own with probability `sampling_rate`. "without_replacement": one example replaced, and batches
    of a fixed size are drawn anew in every step; the sum of clipped gradients then moves by twice the clip.

    Protocols that run through a shuffled set ("epoch") are neither. Their batches are disjoint within one epoch, so an
    example takes part once: `sampling_rate=1` with `steps` the number of epochs is valid there (neighbour: one
    example's gradient blanked out), and Poisson's smaller epsilon is not.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients, in units of the clip, > 0.
        sampling_rate: share of the examples in one step, in (0, 1].
        steps: number of noisy steps >= 1.
        delta: in (0, 1).
        sampling: "poisson" or "without_replacement".
        examples: size of the training set, needed for "without_replacement"; then the batch is
            `round(sampling_rate * examples)`.

    Raises:
        ValueError: on values out of range.
        ImportError: if `dp-accounting` is not installed.
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _check_plan(sampling_rate, steps, delta, sampling, examples)
    package = _package()
    event = _event(package, noise_multiplier, sampling_rate, steps, sampling, examples)
    return float(_accountant(package, sampling).compose(event).get_epsilon(delta))


def noise_multiplier_of(
    *,
    epsilon: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    sampling: PrivacySampling = "poisson",
    examples: int | None = None,
) -> float:
    """Smallest noise multiplier, up to 1e-6, whose `epsilon_of` is at most `epsilon`.

    Args:
        epsilon: > 0.
        sampling_rate: see `epsilon_of`.
        steps: see `epsilon_of`.
        delta: see `epsilon_of`.
        sampling: see `epsilon_of`.
        examples: see `epsilon_of`.

    Raises:
        ValueError: on values out of range.
        ImportError: if `dp-accounting` is not installed.
    """
    _validate.positive(epsilon=epsilon)
    _check_plan(sampling_rate, steps, delta, sampling, examples)
    package = _package()
    return float(
        package.calibrate_dp_mechanism(
            lambda: _accountant(package, sampling),
            lambda noise: _event(package, noise, sampling_rate, steps, sampling, examples),
            epsilon,
            delta,
            tol=1e-6,
        )
    )


def epsilon_of_schedule(
    *,
    noise_multipliers: Sequence[float],
    sampling_rate: float,
    delta: float,
    sampling: PrivacySampling = "poisson",
    examples: int | None = None,
) -> float:
    """Epsilon of DP-SGD whose noise changes from step to step, such as `adaptive_dp_sgd`; see `epsilon_of`.

    Args:
        noise_multipliers: one per step, > 0, fixed before training: a schedule that looks at the data is not covered.
        sampling_rate: see `epsilon_of`.
        delta: see `epsilon_of`.
        sampling: see `epsilon_of`.
        examples: see `epsilon_of`.

    Raises:
        ValueError: on values out of range, or an empty schedule.
        ImportError: if `dp-accounting` is not installed.
    """
    steps = Counter(float(noise) for noise in noise_multipliers)
    _validate.count(**{"the number of noise_multipliers": steps.total()})
    for noise in steps:
        _validate.positive(noise_multipliers=noise)
    _check_plan(sampling_rate, steps.total(), delta, sampling, examples)
    package = _package()
    accountant = _accountant(package, sampling)
    for noise, count in steps.items():
        accountant.compose(_event(package, noise, sampling_rate, count, sampling, examples))
    return float(accountant.get_epsilon(delta))


def classical_noise_multiplier(epsilon: float, delta: float) -> float:
    """sqrt(2 log(1.25 / delta)) / epsilon, the classical Gaussian mechanism (Dwork and Roth 2014, Theorem A.1).

    The formula is for one release. The theorem needs epsilon < 1. For larger epsilon the same formula is used, as in
    the papers, but without the guarantee.

    Raises:
        ValueError: if epsilon <= 0 or delta is not in (0, 1).
    """
    return _one_release(1.25, epsilon, delta)


def noise_multiplier_shorthand(epsilon: float, delta: float) -> float:
    """sqrt(2 log(1 / delta)) / epsilon, FedLeak's (2025, section 6.4) noise multiplier of DP-SGD for an epsilon.

    The formula counts neither steps nor sampling, and is smaller than the classical formula: it names a noise level and
    guarantees nothing. `epsilon_of` gives the epsilon of a training run with this noise.

    Raises:
        ValueError: if epsilon <= 0 or delta is not in (0, 1).
    """
    return _one_release(1.0, epsilon, delta)


def check_delta(delta: float) -> None:
    """Raise `ValueError` unless 0 < delta < 1."""
    _validate.positive(delta=delta)
    if delta >= 1:
        raise ValueError(f"delta must be < 1, got {delta}")


def _one_release(factor: float, epsilon: float, delta: float) -> float:
    _validate.positive(epsilon=epsilon)
    check_delta(delta)
    return math.sqrt(2 * math.log(factor / delta)) / epsilon


def _check_plan(sampling_rate: float, steps: int, delta: float, sampling: str, examples: int | None) -> None:
    _validate.positive(sampling_rate=sampling_rate)
    _validate.count(steps=steps)
    if sampling_rate > 1:
        raise ValueError(f"sampling_rate must be <= 1, got {sampling_rate}")
    check_delta(delta)
    _validate.one_of(PRIVACY_SAMPLINGS, sampling=sampling)
    if sampling == "without_replacement":
        if examples is None:
            raise ValueError('sampling="without_replacement" needs examples, the size of the training set')
        _validate.count(examples=examples)


def _package() -> ModuleType:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError("epsilon needs dp-accounting: pip install dp-accounting") from error
    return dp_accounting


def _accountant(package: Any, sampling: PrivacySampling) -> Any:
    relations = package.NeighboringRelation
    relation = relations.ADD_OR_REMOVE_ONE if sampling == "poisson" else relations.REPLACE_ONE
    return package.rdp.RdpAccountant(neighboring_relation=relation)


def _event(
    package: Any, noise_multiplier: float, rate: float, steps: int, sampling: PrivacySampling, examples: int | None
) -> Any:
    if noise_multiplier == 0:  # the search for a multiplier begins there, where not every formula is finite
        return package.NonPrivateDpEvent()
    if sampling == "poisson":
        step = package.PoissonSampledDpEvent(rate, package.GaussianDpEvent(noise_multiplier))
    else:
        assert examples is not None
        # Events measure noise in sensitivities, and replacing a gradient of norm 1 moves the sum by up to 2.
        batch = share_count(examples, 100 * rate)  # rounded up, so that the bound stays one
        step = package.SampledWithoutReplacementDpEvent(examples, batch, package.GaussianDpEvent(noise_multiplier / 2))
    return package.SelfComposedDpEvent(step, int(steps))
