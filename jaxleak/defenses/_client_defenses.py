"""Every defense of one client's upload by name, each with one number for its strength, which papers sweep."""

from collections.abc import Callable
from typing import NamedTuple

from jaxleak import _validate
from jaxleak.defenses._accounting import noise_multiplier_shorthand
from jaxleak.defenses._adam_step import adam_step
from jaxleak.defenses._base import Defense, PayloadEncoding
from jaxleak.defenses._composed import composed
from jaxleak.defenses._compression import quantize, sparsify, withhold_top
from jaxleak.defenses._dp_sgd import adaptive_dp_sgd, dp_sgd
from jaxleak.defenses._feature_dropout import feature_dropout
from jaxleak.defenses._gaussian import clipped_gaussian
from jaxleak.defenses._guardian import guardian
from jaxleak.defenses._noise import cancelling_noise, gaussian_noise, laplace_noise, magnitude_noise
from jaxleak.defenses._outpost import outpost
from jaxleak.defenses._soteria import soteria

#: The delta for which the papers state their shorthand epsilon (FedLeak, section 6.4).
SHORTHAND_DELTA = 1e-5
#: The clip that FedLeak prints for DP-SGD there, and its Soteria in the combination (Figure 5).
_CLIP, _COMBINED_RATIO = 1.0, 0.5
#: The factor of the noise per round in adaptive DP; FedLeak says only that it decays.
_DECAY = 0.99

_RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)
_BITS = (32.0, 16.0, 8.0, 4.0, 1.0)
_RATES = (1e-2, 1e-3, 1e-4)
#: The weight decay that AdamW has in PyTorch unless it is told another.
_WEIGHT_DECAY = 0.01
_EPSILONS = (1e5, 1e4, 1e3, 1e2, 10.0, 5.0, 1.0, 0.1)


class ClientDefense(NamedTuple):
    """A defense of one client's upload as a function of one number, its strength.

    Attributes:
        build: makes the defense of a strength; raises `ValueError` on one out of range.
        strengths: the values of a sweep, weakest first; the papers' values if they print them.
        unit: meaning and unit of the number.
        clipping: makes the defense from a clip C > 0 and a noise multiplier >= 0; None if it has none. With `clipping`,
            the number is the papers' shorthand epsilon at `SHORTHAND_DELTA`, and C is 1.
        memory: whether a client's upload depends on its earlier uploads. The field is a description only: a defense
            with state has such a memory in any case.
        neighbours: other clients whose uploads the defense needs.
        of_rate: whether the number is the client's learning rate.
        interpretation: how the algorithm differs from the published one, or adds to it.
    """

    build: Callable[[float], Defense]
    strengths: tuple[float, ...]
    unit: str
    clipping: Callable[[float, float], Defense] | None = None
    memory: bool = False
    neighbours: int = 0
    of_rate: bool = False
    interpretation: str = ""

    @property
    def private(self) -> bool:
        """Whether the number is an epsilon."""
        return self.clipping is not None


def _private(
    clipping: Callable[[float, float], Defense], strengths: tuple[float, ...], what: str = "", interpretation: str = ""
) -> ClientDefense:
    def build(epsilon: float) -> Defense:
        return clipping(_CLIP, noise_multiplier_shorthand(epsilon, SHORTHAND_DELTA))

    return ClientDefense(build, strengths, f"epsilon (shorthand){what}", clipping, interpretation=interpretation)


def _decaying(clip: float, noise_multiplier: float) -> Defense:
    return adaptive_dp_sgd(clip, noise_multiplier, decay=_DECAY)


def _bits(bits: float, *, stochastic: bool = False) -> Defense:
    if not float(bits).is_integer():
        raise ValueError(f"bits must be an integer, got {bits}")
    return quantize(int(bits), stochastic=stochastic)


def _sent_too(encoding: PayloadEncoding) -> PayloadEncoding:
    # Ciphertexts are on the wire as well.
    return encoding


def _encrypting_the_smallest(percent: float) -> Defense:
    _validate.in_range(0, 100, percent=percent)
    if percent == 100:
        return withhold_top(100, encrypted=True)
    return sparsify(100 - percent)._replace(place="server_view", encode=_sent_too)


#: Every defense of one client's upload, by name. Strengths are listed from weak to strong.
CLIENT_DEFENSES: dict[str, ClientDefense] = {
    "soteria": ClientDefense(
        soteria, _RATIOS, "ratio of hidden features",
        interpretation="as in the authors' code, but features that are zero on the whole batch are hidden last",
    ),
    "outpost": ClientDefense(
        lambda ratio: outpost(ratio, decay=0.0), _RATIOS, "ratio of pruned entries",
        interpretation="decay 0, as the authors' starts anew in every upload, so that each is perturbed; Fisher "
        "information from the shared gradient",
    ),
    "quantization": ClientDefense(
        _bits, _BITS, "bits",
        interpretation="one bit is sent with the mean size of its tensor; the cited work sends the sign alone",
    ),
    "stochastic_quantization": ClientDefense(lambda bits: _bits(bits, stochastic=True), _BITS, "bits"),
    "guardian": ClientDefense(
        guardian, (0.1, 1.0, 10.0, 100.0, 1000.0), "beta",
        interpretation="rebuilt from what is said about it; not the authors' algorithm, whose formulas we do not have",
    ),
    "dp_sgd": _private(dp_sgd, _EPSILONS),
    "adaptive_dp": _private(
        _decaying, _EPSILONS[:4], " of round 0",
        interpretation=f"the noise decays by the factor {_DECAY} per round, and the clip stays; the cited work adapts "
        "the clip as well",
    ),
    "dp_soteria": _private(
        lambda clip, noise_multiplier: composed(dp_sgd(clip, noise_multiplier), soteria(_COMBINED_RATIO)),
        _EPSILONS[:4], ", Soteria 0.5",
    ),
    "adaptive_dp_soteria": _private(
        lambda clip, noise_multiplier: composed(_decaying(clip, noise_multiplier), soteria(_COMBINED_RATIO)),
        _EPSILONS[:4], " of round 0, Soteria 0.5",
        interpretation=f"as adaptive_dp: a decay of {_DECAY} per round",
    ),
    "dp_update": _private(clipped_gaussian, _EPSILONS, " of the whole update"),
    "gaussian": ClientDefense(gaussian_noise, (1e-4, 1e-3, 1e-2, 1e-1), "standard deviation"),
    "laplace": ClientDefense(laplace_noise, (1e-4, 1e-3, 1e-2, 1e-1), "scale"),
    "magnitude_noise": ClientDefense(magnitude_noise, (0.1, 0.3, 1.0, 3.0), "relative deviation"),
    "cancelling_noise": ClientDefense(
        # In a ring of any size, a client receives the noise of one neighbour only.
        lambda scale: cancelling_noise(scale, 2),
        (0.1, 0.3, 1.0, 3.0), "relative deviation, cancels over the clients", neighbours=1,
    ),
    "sparsification": ClientDefense(sparsify, (50.0, 20.0, 10.0, 5.0, 1.0), "percent sent"),
    "error_feedback": ClientDefense(
        lambda percent: sparsify(percent, error_feedback=True),
        (50.0, 20.0, 10.0, 5.0, 1.0), "percent sent, the rest added to the next round's", memory=True,
    ),
    "feature_dropout": ClientDefense(feature_dropout, (0.1, 0.3, 0.5), "rate"),
    "withhold_top": ClientDefense(withhold_top, (20.0, 50.0, 80.0), "percent dropped"),
    "encrypt_top": ClientDefense(
        lambda percent: withhold_top(percent, encrypted=True),
        (20.0, 40.0, 60.0, 80.0), "percent encrypted, largest first",
    ),
    "encrypt_bottom": ClientDefense(
        _encrypting_the_smallest,
        (20.0, 40.0, 60.0, 80.0), "percent encrypted, smallest first",
    ),
    # These are not meant as defenses: the client simply uploads one step of another optimizer.
    "adam_step": ClientDefense(adam_step, _RATES, "learning rate of Adam", of_rate=True),
    "adamw_step": ClientDefense(
        lambda rate: adam_step(rate, weight_decay=_WEIGHT_DECAY), _RATES,
        f"learning rate of AdamW, weight decay {_WEIGHT_DECAY}", of_rate=True,
    ),
}  # fmt: skip


def client_defense(
    kind: str | ClientDefense,
    strength: float | None = None,
    *,
    clip: float | None = None,
    noise_multiplier: float | None = None,
    local_steps: int = 1,
    mixes_examples: bool = False,
    claims_epsilon: bool = True,
) -> Defense:
    """The defense of this kind and strength, for a client that computes as stated.

    Args:
        kind: a key of `CLIENT_DEFENSES`, which lists units and some strengths, or a `ClientDefense` of your own.
        strength: the defense's number, in the range that the defense itself allows; it need not be a listed one.
        clip: C > 0 of a kind that clips, in units of the gradient of the mean loss; None is 1.
        noise_multiplier: standard deviation of the noise divided by C, >= 0; it replaces the strength of a kind that
            clips, and 0 only clips.
        local_steps: E >= 1, the client's local steps.
        mixes_examples: whether the client's model has batch normalisation in training mode.
        claims_epsilon: whether an epsilon of differential privacy will be stated for it.

    Raises:
        ValueError: on an unknown kind, a strength that is missing, out of range or stated twice, a clip of a kind that
            does not clip, or a place that such a client does not have.
    """
    name = kind if isinstance(kind, str) else "the defense"
    if isinstance(kind, str):
        _validate.one_of(tuple(CLIENT_DEFENSES), defense=kind)
        kind = CLIENT_DEFENSES[kind]
    defense = _built(name, kind, strength, clip, noise_multiplier)
    if defense.in_step and local_steps > 1:
        raise ValueError(f"{name} acts inside a local step: needs one local step in all, got {local_steps}")
    if defense.in_step and mixes_examples and not kind.of_rate:  # an optimizer only sees the mean gradient
        raise ValueError(
            f"{name} treats every example by itself, and batch normalisation mixes them: take batch_norm eval"
        )
    if claims_epsilon and kind.private and mixes_examples:
        raise ValueError(
            f"{name} has no epsilon here, since the client also sends its running statistics of batch normalisation, "
            "which are not noisy; with batch_norm eval it has one"
        )
    return defense


def _built(
    kind: str, known: ClientDefense, strength: float | None, clip: float | None, noise_multiplier: float | None
) -> Defense:
    if known.clipping is None:
        for name, value in (("clip", clip), ("noise_multiplier", noise_multiplier)):
            if value is not None:
                kinds = ", ".join(other for other in CLIENT_DEFENSES if CLIENT_DEFENSES[other].private)
                raise ValueError(f"{name} is of a defense that clips ({kinds}), got {value:g} with {kind}")
    if strength is not None and noise_multiplier is not None:
        raise ValueError(
            f"strength and noise_multiplier both say how much noise there is: give one of them, got {strength:g} and "
            f"{noise_multiplier:g}"
        )
    if strength is None and noise_multiplier is None:
        other = ", or noise_multiplier (--noise-multiplier)" if known.private else ""
        raise ValueError(f"strength of {kind} must be given: its {known.unit} (--strength){other}")
    if known.clipping is None or (clip is None and noise_multiplier is None):
        assert strength is not None
        return known.build(strength)
    noise = noise_multiplier_shorthand(strength, SHORTHAND_DELTA) if strength is not None else noise_multiplier
    assert noise is not None
    return known.clipping(_CLIP if clip is None else clip, noise)
