"""The options of one gradient inversion."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from jaxleak._own_files import is_own

#: Public data: samples of the victim's own data set that no client ever holds. No other public data help more.
HELD_OUT = "held_out"
#: Public data: random shapes and coloured noise. They are nobody's data, so they give the attacker no knowledge.
SYNTHETIC = "synthetic"


@dataclass(frozen=True)
class Case:
    """What is attacked, and with what. Hashable: equal cases share one compilation, whatever the seed."""

    attack: str = "fedleak"
    """Name of the attack: a preset of jaxleak.attacks.presets, patch_embedding, spear, or FILE.py:NAME of your own."""
    iterations: int = 400
    """Steps of the attack (its iterations)."""
    model: str = "convnet"
    """Name of the network (one of jaxleak.models.CLASSIFIERS), or FILE.py:NAME of your own."""
    activation: str | None = None
    """Activation function (in place of the model's own), for example sigmoid."""
    width: int | None = None
    """Width of first stage: channels of a ResNet's (64 in full)."""
    init: str | None = None
    """Rule of initialisation: how weights are drawn, for example wide_uniform."""
    mean: tuple[float, ...] | None = None
    """Mean per channel: what is subtracted from the input before the network reads it; for weights trained that way."""
    std: tuple[float, ...] | None = None
    """Deviation per channel (standard deviation), by which the input is divided after the mean was subtracted."""
    weights: Path | None = None
    """File of weights (safetensors, npz or .pt), or a folder that Orbax has written; without it, built-in networks and
    Linen classes draw new ones for every seed, and other networks of your own have those that their file makes."""
    data: str = "natural_patches"
    """Data set: one that docs/data.md lists."""
    pool: int = 256
    """Images to draw from: size of the data that the client's batch is drawn from."""
    skip: int = 0
    """Images left out: samples at the start of the data, such as those that a federation trained on."""
    partition: str = "iid"
    """Client's samples: iid, label_skew:CLASSES, quantity_skew:SAMPLES, dirichlet:ALPHA, or
    feature_skew:GROUP (0 the smoothest fifth of the images, 4 the busiest)."""
    federation: int = 100
    """Clients in all: a skewed partition divides the pool among them."""
    batch_size: int = 1
    """Images per local step."""
    local_steps: int = 1
    """Steps per upload: how many of gradient descent a client takes before it uploads."""
    local_epochs: int = 1
    """Epochs per upload: how often a client goes through its samples, in --local-steps steps each time."""
    reshuffle: bool = False
    """New orders: in every epoch after the first, the client's steps take its samples in a new order, which the
    attacker does not know."""
    epoch_copies: float | None = None
    """Copy per epoch: attack with a copy of the images for every epoch, whatever their orders; the number is
    the weight of the difference between the copies' mean images, 0.3 in our runs. None repeats the first epoch's
    order."""
    clients: int = 1
    """Clients per sum: how many stand behind one secure aggregation."""
    learning_rate: float = 1e-4
    """Size of a step: learning rate of the client's local steps."""
    momentum: float = 0.0
    """Client's momentum: that of its local steps, in [0, 1)."""
    estimate: bool = False
    """Averaged steps: attack with the averaged-gradient estimate instead of the unrolled local steps."""
    loss: str = "cross_entropy"
    """Loss of the client: cross_entropy, smoothed_cross_entropy, binary_cross_entropy, focal_loss or squared_error."""
    batch_norm: str = "train"
    """Mode of batch norm: train or eval, as the client normalises."""
    labels: str | None = None
    """Label strategy: given, joint, or a rule; None keeps the preset's."""
    restarts: int = 1
    """Independent starts; the one nearest to the update, by the attack's distance without its priors, is the answer.
    Two or more also give the agreement of the two best."""
    microbatch: int | None = None
    """Restarts at once: how many are computed together; None takes all of them, and fewer need less memory."""
    homotopy: tuple[float, float] | None = None
    """Smoothed kinks: their sharpness at the start and at the end; None keeps the preset's."""
    finish: float = 0.0
    """Exact share: part of the iterations, at the end of a --homotopy, that run with exact kinks."""
    progress_below: float | None = None
    """When to sharpen: gradient distance below which the sharpness of a --homotopy rises; above, it stays."""
    exact_kinks: bool = False
    """No smoothing: all kinks are exact."""
    tv: float | None = None
    """Weight of variation (total variation, a mean over differences, or in fedleak_paper their sum)."""
    tv_kind: Literal["anisotropic", "isotropic", "sum", "relative"] | None = None
    """Form of variation (total variation) that --tv weighs; None keeps the preset's."""
    activation_penalty: float | None = None
    """Penalty's weight: of the mean absolute activation, or in fedleak_paper of the sum."""
    matched_percent: float | None = None
    """Entries compared: percentage of the gradient's, largest first (FedLeak's R); 100 compares all."""
    per_tensor: bool = False
    """Share per tensor: --matched-percent is then taken of every tensor, not of all entries together."""
    blend: float | None = None
    """Second gradient: its weight in FedLeak's gradient regularization (lambda')."""
    white_point: float | None = None
    """Quantile made white: that of the answer's pixels which is scaled to 1 where batch normalisation hides the images'
    scale; 0 scales nothing, None keeps the preset's."""
    probe: str = "ascent"
    """Probe direction: where --blend takes the second gradient, by ascent, descent, or step, where the optimizer
    would go."""
    probe_length: float = 0.01
    """Probe distance: how far away --blend takes the second gradient, as the L2 norm over the whole batch (the
    paper's k); not read with --probe step."""
    exact_curvature: bool = False
    """Exact Hessian: with --blend, the exact Hessian-vector product instead of a second gradient."""
    reselect: bool = False
    """New entries: with --blend, choose anew those that the second gradient compares; FedLeak's Algorithm 1
    keeps those of the first."""
    generator: bool = False
    """Untrained generator: its weights are optimised instead of pixels."""
    optimizer: str | None = None
    """Kind of optimizer: adam, with cosine decay; annealed, which is Adam whose decay begins anew every
    1,000 iterations (FedLeak's Table 11); or descent, which is gradient descent with cosine decay. None keeps the
    preset's."""
    step_size: float = 0.05
    """Optimizer's step: the step size of --optimizer. Adam moves a pixel by about this much per iteration; descent
    multiplies the gradient by it."""
    terms: tuple[str, ...] | None = None
    """Terms of distance: among relative_l1, mean_l1, l1, cosine, squared_l2; None keeps the preset's."""
    granted_statistics: bool = False
    """Grant statistics: give gradinversion those of batch normalisation on the client's batch, and match them."""
    far: bool = False
    """Larger shifts: let row_space try up to 12 pixels, which takes 4,470 iterations per image instead of 2,250."""
    noise: str | None = None
    """Noise for bayes: what that attack assumes on the gradient, gaussian or laplace; None keeps the preset's."""
    noise_scale: float | None = None
    """Noise scale (bayes): what that attack assumes; None keeps the preset's."""
    public_data: str = HELD_OUT
    """Public images: what ggl and rog are granted and train their generator on, held_out (samples of the same data that
    no client holds), synthetic (random shapes and noise, nobody's data), or another data specification."""
    public_samples: int = 2048
    """Public count: images that ggl and rog train on, at most."""
    latent_size: int = 64
    """Size of the code: numbers per image that ggl and rog search for."""
    generator_epochs: int = 40
    """Training passes: over the public images, when ggl and rog train their generator."""
    defense: str | None = None
    """Client's defense: its name, as the end of this help lists them, or FILE.py:NAME of your own."""
    strength: float = 0.0
    """Defense's strength: in its own unit."""
    adaptive: bool = False
    """Informed attacker: knows the defense and its strength."""
    prior: Literal["natural", "weak"] | None = None
    """Attacker's prior: what one who knows the noise takes, that of photographs (natural) or next to none (weak); None
    is natural for images."""
    attacked_round: int = 0
    """Attacked round: its number. Another round draws other images of the client's, and a defense
    adds other noise; a few defenses also change their strength over the rounds. One that remembers earlier uploads is
    attacked in round 0 only. The round does not change the model, which --weights names."""

    @property
    def taken(self) -> int:
        """Index of the first sample of the data that no client holds; no client holds any later sample either."""
        return self.skip + self.pool

    @property
    def own_model(self) -> bool:
        """Whether the model is the user's own, FILE.py:NAME, and not a built-in one."""
        return is_own(self.model)

    @property
    def own_attack(self) -> bool:
        """Whether the attack is the user's own, FILE.py:NAME, and not a built-in one."""
        return is_own(self.attack)

    @property
    def own_defense(self) -> bool:
        """Whether the client's defense is the user's own, FILE.py:NAME, and not a built-in one."""
        return self.defense is not None and is_own(self.defense)

    @property
    def total_steps(self) -> int:
        """Number of steps of gradient descent that a client takes in all of its epochs."""
        return self.local_steps * self.local_epochs

    @property
    def images(self) -> int:
        """Number of images from which one payload is computed."""
        return self.batch_size * self.local_steps * self.clients


#: Options that change how another option works, each with the name of that other option.
_PART_OF = {
    "probe": "blend", "probe_length": "blend", "exact_curvature": "blend", "reselect": "blend",
    "per_tensor": "matched_percent",
    "mean": "std", "std": "mean",
    "finish": "homotopy", "progress_below": "homotopy",
    "step_size": "optimizer",
    "prior": "adaptive",
}  # fmt: skip

#: Options that only built-in networks have.
OPTIONS_OF_BUILT_IN = ("activation", "width", "init")

#: Options of the generator that some attacks train on public data.
OF_GENERATORS = ("public_data", "public_samples", "latent_size", "generator_epochs")

#: Options of the iterative engine. They change any preset; attacks of a closed form do not read them.
ITERATIVE = (
    "labels", "restarts", "microbatch", "estimate", "epoch_copies", "homotopy", "exact_kinks", "tv", "tv_kind",
    "activation_penalty", "matched_percent", "blend", "white_point", "generator", "optimizer", "terms",
)  # fmt: skip


def given_options(case: Case) -> set[str]:
    """The fields of a case that differ from their defaults."""
    return {field.name for field in fields(case) if getattr(case, field.name) != field.default}


def check_combinations(case: Case, readers: Mapping[str, tuple[str, ...]], closed_form: bool) -> None:
    """Raise `ValueError` if nothing in the case would read an option, or if another option would override it.

    Args:
        case: the case whose options are checked.
        readers: options that only some attacks read, each with the names of these attacks.
        closed_form: whether the case's attack has no iterations.
    """
    given = given_options(case)
    for option, other in _PART_OF.items():
        if option in given and other not in given:
            raise ValueError(f"{option} changes {other}, so {other} must be given too")
    if case.probe == "step" and "probe_length" in given:
        raise ValueError("the probe step goes as far as the optimizer would, so probe_length would not be read")
    if case.epoch_copies is not None:
        if case.local_epochs == 1 or case.local_steps == 1:
            raise ValueError(
                "epoch_copies are for epochs in different orders: needs local_epochs > 1 and local_steps > 1, got "
                f"{case.local_epochs} and {case.local_steps}"
            )
        if case.estimate or case.adaptive:
            raise ValueError("epoch_copies take the client's own steps, which estimate and adaptive replace by others")
    of_likelihood = [option for option in ("noise", "noise_scale") if option in given]
    if case.terms is not None and of_likelihood:
        raise ValueError(
            f"terms replace the likelihood of noise, so {' and '.join(of_likelihood)} would not be read; "
            "give one or the other"
        )
    if case.exact_kinks and case.homotopy is not None:
        raise ValueError("exact_kinks attacks without smoothing, which homotopy asks for; give one of them")
    for option, names in readers.items():
        if option in given and case.attack not in names:
            raise ValueError(f"{option} is read by {' and '.join(names)} only, got attack {case.attack}")
    if case.generator and case.attack in readers["public_data"]:
        raise ValueError(f"generator puts untrained weights in place of the trained generator of {case.attack}")
    unread = [option for option in ITERATIVE if option in given]
    if closed_form and unread:
        raise ValueError(f"{case.attack} has a closed form and does not read {', '.join(unread)}")


def check_of_client(case: Case) -> None:
    """Raise `ValueError` on options of the client or its federation that change nothing in this case.

    Only options that a user gave are refused. A study may set such options for all of its cases, even if only some
    cases read them.
    """
    given, one_step = given_options(case), case.total_steps == case.clients == 1
    # learning_rate is not refused: stored runs of one step have the learning rate of related runs of several epochs.
    for option in ("momentum", "estimate"):
        if one_step and option in given:
            raise ValueError(
                f"{option} changes nothing where one client uploads the gradient of one step; give local_steps, "
                "local_epochs or clients > 1 as well, or leave it out"
            )
    if case.partition == "iid" and "federation" in given:
        raise ValueError(
            "federation divides the pool of a skewed partition, and iid is none; give one, or leave it out"
        )
