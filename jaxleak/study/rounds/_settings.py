"""Options of one run of CAFE's papers: sizes, method, defense, iterations, and the papers' own names and limits."""

from dataclasses import dataclass
from typing import Any, Literal

import optax

from jaxleak import defenses
from jaxleak.attacks import aggregated

#: Readings of the paper's fake gradients, by name; none of them gives the paper's training curve.
FAKE: dict[str, dict[str, Any]] = {
    "fake-capped": {"reading": "clamped", "scale": "gradient"},
    "fake-printed": {"reading": "printed", "scale": "absolute"},
    "fake-relative": {"reading": "clamped", "scale": "tensor"},
    "fake-repaired": {"reading": "clamped", "scale": "absolute"},
    "fake-paired-tensor": {"reading": "paired", "scale": "tensor"},
    "fake-paired": {"reading": "paired", "scale": "gradient"},
}
_CLAMPED = "sorted absolute values, of which no entry has more than its own size"
#: What each reading of fake gradients adds to the paper, which prints noise N(0, 1.1) without a unit.
FAKE_SAID = {
    "fake-capped": f"fake gradients in units of the whole gradient's root mean square: {_CLAMPED}",
    "fake-printed": "fake gradients in units of 1, by Algorithm 5 as printed",
    "fake-relative": f"fake gradients in units of every tensor's root mean square: {_CLAMPED}",
    "fake-repaired": f"fake gradients in units of 1: {_CLAMPED}",
    "fake-paired-tensor": "fake gradients in units of every tensor's root mean square, paired by rank (Section 3.4)",
    "fake-paired": "fake gradients in units of the whole gradient's root mean square, paired by rank (Section 3.4)",
}
#: Largest number of iterations of a step by data set (Table 5). Steps I and II take this number by default.
CAPS = {"linnaeus5": 20_000}
CAP = 8_000
#: Values of F1 and F2 below which the paper goes on to the next step.
THRESHOLDS = (1e-9, 5e-9)


#: Readings of the three steps by name. The paper prints learning rates, but does not name the optimisers.
STEPS = {
    "adam": "SGD in Step I, and Adam with a state per sample in Steps II and III",
    "authors": "SGD in Step I, and in Steps II and III the Adam of the authors' code, which corrects its bias twice",
    "stopped": "as adam, with H of the time in Step II at which its own running loss F2 was smallest",
}


@dataclass(frozen=True)
class Setting:
    """One configuration to run. The defaults come from NeurIPS 2021, Table 2."""

    kind: Literal["exact", "descent", "single", "training"]
    dataset: str = "mnist"
    num_samples: int = 800
    batch_size: int = 40
    parties: int = 4
    workers: int = 0  # number of workers of horizontal rounds, with one party; 0 for vertical rounds
    method: str = "cafe"
    overrides: tuple[tuple[str, float], ...] = ()  # hyper-parameters and values that replace Table 9's
    iterations: int = 0
    images: int = 32
    model_learning_rate: float = 0.0
    model_optimizer: str = "sgd"
    switch: bool = False  # whether the single loop goes on to its next step by thresholds
    defense: str = "none"
    adaptive: bool = False  # whether the exact engine's attacker knows the defense
    network: Literal["cafe", "cafe-relu", "cafe-small"] = "cafe"
    # Reading of the parts of the descent that the paper does not print, see `STEPS`.
    steps: Literal["adam", "authors", "stopped"] = "adam"
    data_optimizer: Literal["adam", "normalized"] = "adam"  # where a method reads no H
    steps_at: int = 0  # iterations of Steps I and II each; 0 for the cap of the data set
    seed: int = 0

    @property
    def updates(self) -> float:
        """How many updates every sample gets on average: iterations times the share of samples in a batch."""
        return self.iterations * self.batch_size / self.num_samples


def cap(dataset: str) -> int:
    """Largest number of iterations of a step for this data set."""
    return CAPS.get(dataset, CAP)


def steps_of(setting: Setting) -> int:
    """Iterations of Step I, and of Step II."""
    return setting.steps_at or cap(setting.dataset)


def table9_row(setting: Setting) -> str:
    """Name of the row of Table 9 that has the setting's hyper-parameters."""
    # CIFAR-100, a data set of the ICLR submission, has no row and takes the row of CIFAR-10.
    return setting.dataset if setting.dataset in aggregated.TABLE9 else "cifar10"


def step_options(setting: Setting) -> dict[str, Any]:
    """Options of `attacks.cafe` that the setting's reading of the steps asks for."""
    if setting.steps != "authors":
        return {}
    adam = aggregated.twice_corrected_adam
    return {"optimizers": aggregated.CafeOptimizers(optax.sgd, adam, adam)}


def optimizer_of(setting: Setting) -> optax.GradientTransformation | None:
    """The optimizer that trains the model during the attack, or None if the model is frozen."""
    if not setting.model_learning_rate:
        return None
    return {"sgd": optax.sgd, "adam": optax.adam}[setting.model_optimizer](setting.model_learning_rate)


def defense_named(name: str, *, batch_size: int) -> defenses.Defense | None:
    """The defense of a setting, None for "none".

    Args:
        name: "none", "dp-EPSILON" with an epsilon > 0 at delta = 1e-5, or a name of `FAKE`. The paper (supplement G.3)
            takes DP from Abadi et al. (2016), who add noise of deviation sigma C to a batch's sum of gradients. On the
            mean, which is what the parties send here, this is sigma C / K. But here the mean is clipped as a whole and
            not every sample, and sigma is that of a single release: the epsilon names a level of noise, and guarantees
            nothing.
        batch_size: K > 0, samples in a batch.

    Raises:
        KeyError: on another name.
        ValueError: if the epsilon is no number > 0.
    """
    if name == "none":
        return None
    if name.startswith("dp-"):
        epsilon = float(name.removeprefix("dp-"))
        return defenses.clipped_gaussian(3.0, defenses.classical_noise_multiplier(epsilon, 1e-5) / batch_size)
    # With millions of entries, sorted noise hardly varies between draws, so a pool of one replaces the paper's 1000.
    return defenses.fake_gradients(pool_size=1, **FAKE[name])
