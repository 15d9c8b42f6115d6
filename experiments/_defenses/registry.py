"""Defenses of horizontal training by name, each with the one number that the papers sweep."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax

from jaxleak import _validate, defenses, objectives
from jaxleak._base import PyTree
from jaxleak.defenses import Defense
from jaxleak.defenses._base import stateless
from jaxleak.defenses._representation import needs_batch, needs_labels
from jaxleak.models import Classifier
from jaxleak.models._classifier import BatchNormMode

#: What FedLeak prints for DP-SGD (section 6.4), and its Soteria in the combination (Figure 5).
CLIP, DELTA, COMBINED_RATIO = 1.0, 1e-5, 0.5
#: The factor of sigma per round in adaptive DP; FedLeak says only that sigma decays.
DECAY = 0.99

#: Clients whose noise the attacked client takes over: one in the ring of `cancelling_noise`, whatever its size.
NEIGHBOURS = 1

#: What an attacker does who knows the defense; see `experiments._defenses.adaptive`.
Adaptation = Literal[
    "transform",
    "support",
    "withheld",
    "outpost",
    "gaussian",
    "laplace",
    "magnitude",
    "cancelling",
    "private",
    "private+support",
    "update",
    "shadow",
    "dropout",
]

RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)
BITS = (32.0, 16.0, 8.0, 4.0, 1.0)
EPSILONS = (1e5, 1e4, 1e3, 1e2, 10.0, 5.0, 1.0, 0.1)


class Entry(NamedTuple):
    """One defense of the study."""

    build: Callable[[float], Defense]
    strengths: tuple[float, ...]  # weakest first; what the papers print, where they do
    unit: str  # what the number is
    adaptation: Adaptation
    one_step: bool = False  # acts inside the step: on single examples' gradients, or on the forward pass
    private: bool = False  # the number is the papers' shorthand epsilon
    memory: bool = False  # a client's upload depends on its uploads before
    reading: str = ""  # where the algorithm is not, or not only, the published one


def epsilon_defense(epsilon: float) -> Defense:
    """DP-SGD with the noise that FedLeak calls epsilon; `true_epsilon` says what it is worth."""
    return defenses.dp_sgd(CLIP, sigma_of(epsilon))


def sigma_at(name: str, epsilon: float, round_: int) -> float:
    """`sigma_of` in that round of the defense of this name."""
    return sigma_of(epsilon) * (DECAY**round_ if name.startswith("adaptive") else 1.0)


def sigma_of(epsilon: float) -> float:
    """The shorthand's noise multiplier, sqrt(2 log(1 / delta)) / epsilon.

    Raises:
        ValueError: if epsilon is not > 0.
    """
    return defenses.noise_multiplier_shorthand(epsilon, DELTA)


def composed(per_example: Defense, representation: Defense) -> Defense:
    """A per-example defense, then one of the representation: `defenses.chain` takes members of one place only.

    It acts at "representation", where model and batch are at hand, and takes the examples' gradients anew; the payload
    it is given is not used. So it is right for one local step without batch normalisation, and for the mean
    cross-entropy, only.

    Raises:
        ValueError: if the members act elsewhere.
    """
    _validate.one_of(("per_example_gradient",), first_place=per_example.place)
    _validate.one_of(("representation",), second_place=representation.place)

    def update(
        key: jax.Array,
        payload: PyTree,
        *,
        model: Classifier | None = None,
        variables: PyTree = None,
        x: jax.Array | None = None,
        y: jax.Array | None = None,
        round: jax.Array | int | None = None,
        mode: BatchNormMode = "train",
        **extra: object,
    ) -> PyTree:
        del payload, extra
        name = "a defense of examples and representation"
        (model, x), y = needs_batch(name, model, variables, x), needs_labels(name, y)

        def gradient(image: jax.Array, label: jax.Array) -> PyTree:
            def loss(weights: PyTree) -> jax.Array:
                out = model.apply({**variables, "params": weights}, image[None], mode=mode)
                return objectives.cross_entropy(out.logits, label[None])

            return jax.grad(loss)(variables["params"])

        first, second = jax.random.split(key)
        noisy = per_example.apply(first, jax.vmap(gradient)(x, y), round=round)
        mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), noisy)
        return representation.apply(second, mean, model=model, variables=variables, x=x, y=y, round=round, mode=mode)

    return stateless("representation", update)


def _combined(private: Defense) -> Defense:
    return composed(private, defenses.soteria(COMBINED_RATIO))


def _bits(bits: float, *, stochastic: bool = False) -> Defense:
    if not float(bits).is_integer():
        raise ValueError(f"bits must be an integer, got {bits}")
    return defenses.quantize(int(bits), stochastic=stochastic)


def _sent_too(encoding: defenses.PayloadEncoding) -> defenses.PayloadEncoding:
    # Ciphertexts are on the wire as well.
    return encoding


#: Every defense of one client's upload, by name. Strengths are listed from weak to strong.
REGISTRY: dict[str, Entry] = {
    "soteria": Entry(
        defenses.soteria, RATIOS, "ratio of hidden features", "support",
        reading="as in the authors' code, but features that are zero on the whole batch are hidden last",
    ),
    "outpost": Entry(
        lambda ratio: defenses.outpost(ratio, decay=0.0), RATIOS, "ratio of pruned entries", "outpost",
        reading="decay 0, as the authors' starts anew in every upload, so that each is perturbed; Fisher information "
        "from the shared gradient",
    ),
    "quantization": Entry(_bits, BITS, "bits", "transform"),
    "stochastic_quantization": Entry(lambda bits: _bits(bits, stochastic=True), BITS, "bits", "transform"),
    "guardian": Entry(
        defenses.guardian, (0.1, 1.0, 10.0, 100.0, 1000.0), "beta", "shadow",
        reading="rebuilt from what is said about it; not the authors' algorithm, whose formulas we do not have",
    ),
    "dp_sgd": Entry(epsilon_defense, EPSILONS, "epsilon (shorthand)", "private", one_step=True, private=True),
    "adaptive_dp": Entry(
        lambda epsilon: defenses.adaptive_dp_sgd(CLIP, sigma_of(epsilon), decay=DECAY),
        EPSILONS[:4], "epsilon (shorthand) of round 0", "private", one_step=True, private=True,
        reading=f"the paper says only that the noise decays; here by the factor {DECAY} per round",
    ),
    "dp_soteria": Entry(
        lambda epsilon: _combined(epsilon_defense(epsilon)),
        EPSILONS[:4], "epsilon (shorthand), Soteria 0.5", "private+support", one_step=True, private=True,
    ),
    "adaptive_dp_soteria": Entry(
        lambda epsilon: _combined(defenses.adaptive_dp_sgd(CLIP, sigma_of(epsilon), decay=DECAY)),
        EPSILONS[:4], "epsilon (shorthand) of round 0, Soteria 0.5", "private+support", one_step=True, private=True,
        reading=f"as adaptive_dp: a decay of {DECAY} per round",
    ),
    "dp_update": Entry(
        lambda epsilon: defenses.clipped_gaussian(CLIP, sigma_of(epsilon)),
        EPSILONS, "epsilon (shorthand) of the whole update", "update", private=True,
    ),
    "gaussian": Entry(
        defenses.gaussian_payload_noise, (1e-4, 1e-3, 1e-2, 1e-1), "standard deviation", "gaussian"
    ),
    "laplace": Entry(defenses.laplace_noise, (1e-4, 1e-3, 1e-2, 1e-1), "scale", "laplace"),
    "magnitude_noise": Entry(defenses.magnitude_noise, (0.1, 0.3, 1.0, 3.0), "relative deviation", "magnitude"),
    "cancelling_noise": Entry(
        lambda scale: defenses.cancelling_noise(scale, 1 + NEIGHBOURS),
        (0.1, 0.3, 1.0, 3.0), "relative deviation, cancels over the clients", "cancelling",
    ),
    "sparsification": Entry(defenses.sparsify, (50.0, 20.0, 10.0, 5.0, 1.0), "percent sent", "support"),
    "error_feedback": Entry(
        lambda percent: defenses.sparsify(percent, error_feedback=True),
        (50.0, 20.0, 10.0, 5.0, 1.0), "percent sent, the rest added to the next round's", "support", memory=True,
    ),
    "feature_dropout": Entry(defenses.feature_dropout, (0.1, 0.3, 0.5), "rate", "dropout", one_step=True),
    "withhold_top": Entry(defenses.withhold_top, (20.0, 50.0, 80.0), "percent dropped", "withheld"),
    "encrypt_top": Entry(
        lambda percent: defenses.withhold_top(percent, encrypted=True),
        (20.0, 40.0, 60.0, 80.0), "percent encrypted, largest first", "withheld",
    ),
    "encrypt_bottom": Entry(
        lambda percent: defenses.sparsify(100.0 - percent)._replace(place="server_view", encode=_sent_too),
        (20.0, 40.0, 60.0, 80.0), "percent encrypted, smallest first", "support",
    ),
}  # fmt: skip


def build(name: str, strength: float, *, local_steps: int = 1, mixes_examples: bool = False) -> Defense:
    """The defense of this name and strength.

    Args:
        name: a key of `REGISTRY`.
        strength: its number, in the range that the defense itself allows; it need not be a listed one.
        local_steps: E >= 1 of the client it is for.
        mixes_examples: the client's model has batch normalisation in training mode.

    Raises:
        ValueError: on an unknown name, a strength out of range, or a place that such a client does not have.
    """
    _validate.one_of(tuple(REGISTRY), defense=name)
    entry = REGISTRY[name]
    if entry.one_step and local_steps > 1:
        raise ValueError(f"{name} acts inside a local step: needs local_steps = 1, got {local_steps}")
    if entry.one_step and mixes_examples:
        raise ValueError(f"{name} treats every example by itself, and batch normalisation mixes them: take eval")
    if entry.private and mixes_examples:
        raise ValueError(f"{name} has no epsilon where running statistics of batch normalisation go out: take eval")
    return entry.build(strength)


def true_epsilon(name: str, epsilon: float, *, batch_size: int, own_samples: int, rounds: int) -> float:
    """Epsilon of a client's uploads by accounting, delta 1e-5: batches without replacement, all uploads visible.

    Every client takes part in every round, and neighbours differ in one example that is replaced. The whole update's
    clip protects a replaced batch, so sampling does not amplify it. Soteria after the noise is not counted: its choice
    of features looks at the batch, so that the combination has no guarantee, and the number holds for the noise alone.

    Args:
        name: of a defense whose strength is an epsilon.
        epsilon: the shorthand one, > 0.
        batch_size: B <= own_samples.
        own_samples: of one client.
        rounds: that it takes part in, with one local step each.

    Raises:
        ValueError: on values out of range, or a defense without epsilon.
        ImportError: if dp-accounting is missing.
    """
    entry = REGISTRY[name]
    if not entry.private:
        raise ValueError(f"{name} has no epsilon")
    sigmas = [sigma_at(name, epsilon, t) for t in range(rounds)]
    if name == "dp_update":
        # A replaced batch moves the clipped mean by up to twice the clip.
        return defenses.epsilon_of(noise_multiplier=sigmas[0] / 2, sampling_rate=1.0, steps=rounds, delta=DELTA)
    sampling: dict = {"sampling": "without_replacement", "examples": own_samples, "delta": DELTA}
    rate = batch_size / own_samples
    if len(set(sigmas)) > 1:
        return defenses.epsilon_of_schedule(noise_multipliers=sigmas, sampling_rate=rate, **sampling)
    return defenses.epsilon_of(noise_multiplier=sigmas[0], sampling_rate=rate, steps=rounds, **sampling)
