"""The options of one run of vertical training and of the attacks on it; this module imports nothing heavy."""

from dataclasses import dataclass, replace
from typing import Literal

from jaxleak import _validate

OptimizerName = Literal["adam", "sgd", "adadelta"]
FieldName = Literal["gradient", "outputs", "parameters", "inputs", "differences"]

#: Default numbers of records of the two runs, if the data have as many.
SHADOW_RECORDS, VICTIM_RECORDS = 1000, 2000


@dataclass(frozen=True, kw_only=True)
class SplitSetup:
    """What is trained and attacked: all options of a vertical run except its data. Instances are hashable."""

    share: float = 0.5
    """The adversary's share of the features (in (0, 1))."""
    batch_size: int = 16
    """Samples in a batch."""
    shadow_records: int | None = None
    """Complete records that the attacker owns: at most a third of the data; None takes 1000, or a third if it is less.
    """
    victim_records: int | None = None
    """Records of the real run: at most what the shadow records leave; None takes 2000, or all that are left
    if they are fewer."""
    parties: int = 2
    """Parties that share the features."""
    columns: tuple[str, ...] = ()
    """Columns of each party by name, as in `age,income job`: the attacker's first. The last party, who has the labels,
    holds those that nobody is given. Columns without names have numbers from 0, numeric ones first."""
    partition: Literal["auto", "random", "gaussian", "gibbs", "blocks"] = "auto"
    """How the features are divided; auto gives every party a strip of an image, or random columns of a table."""
    optimizer: OptimizerName = "adam"
    """Optimizer of the training."""
    scaling: Literal["minmax", "quantile"] = "minmax"
    """How columns are scaled to [0, 1]."""
    balanced: bool = False
    """Draw equally many samples of every class."""
    categories: Literal["hashed", "one_hot"] = "hashed"
    """How categorical columns become numbers: hashed into one column each, in which few categories are hardly apart and
    count little in errors of features; or one_hot, a column for each of the 20 most frequent categories."""
    missing: Literal["left_out", "zero"] = "left_out"
    """How missing numbers are scored: left_out of all errors of features, or as the zero that stands for them in
    training. The paper, which has a table with many of them, does not say; its tables are scored here with zero."""
    victim_epochs: int = 1
    """Epochs of the real run that the attacker sees."""
    cipher: Literal["none", "plain", "ckks"] = "none"
    """Cipher of the top model's first layer: none, plain (the encrypted protocol's algebra without ciphertexts), or
    ckks (real ciphertexts). Rows that a table prints for encryption use ckks unless the quicker plain is given.
    """
    defense: str = "none"
    """Defense of the real run, one in each run: none, noise, noise_gradient, noise_cut, noise_embedding, dp_sgd,
    label_dp, marvell, vfl_defender, vfl_defender_paper, vfl_defender_batch, or FILE.py:NAME, a function of yours that
    makes one from its strength. One attacker ignores it, and another one applies it to the shadow run too. To compare
    several defenses with each other and with none, loop over runs, each with an --out of its own."""
    strength: float = 0.0
    """Strength of the defense: a variance, an epsilon, a power or a threshold; 0 takes the defense's default."""
    task_epochs: int = 20
    """Epochs before the task's accuracy is measured (where a defense is on)."""
    network_epochs: int = 10
    """Epochs of the reconstruction network R: its training on the steps of all shadow runs."""
    fields: tuple[FieldName, ...] = ("gradient", "outputs", "inputs")
    """What a record of a step holds."""
    scales: Literal["item", "entry"] = "item"
    """What is standardised in a record: every item as a whole, or every entry by itself (the paper prints neither)."""
    select: Literal["fixed", "validation"] = "fixed"
    """How the fields are chosen: fixed takes --fields, validation chooses on the attacker's own shadow records."""
    shadow_runs: int = 1
    """Shadow runs with the records in other orders: R learns from all of them; few records need several."""

    def check_strength(self) -> None:
        """Raise `ValueError` if the strength is < 0, or if a strength is given without a defense."""
        _validate.non_negative(strength=self.strength)
        if self.strength and self.defense == "none":
            raise ValueError(
                f"strength is of a defense, and defense names none: strength must be 0, got {self.strength}"
            )


@dataclass(frozen=True)
class SplitCase(SplitSetup):
    """A vertical run and the attacks on it, without the seed. Equal cases share compiled programs."""

    data: str
    """Data set, as docs/data.md lists them."""
    free_top: bool = False
    """Whether the top model has no parameters and only adds up what the parties send."""
    top_output: Literal["logits", "probabilities"] = "logits"
    """What the top model's output is, at which defenses act: the paper does not say."""
    shadow_epochs: int = 0
    """Epochs of the shadow run; 0 takes one and a half times as many steps as the attacker sees of the real run, and at
    least 3 epochs."""

    def undefended(self) -> "SplitCase":
        """The same case without a defense."""
        return replace(self, defense="none", strength=0.0)

    def attacker_only(self) -> "SplitCase":
        """Make a case with the same records, attacker's features, batches and training of R, and defaults otherwise."""
        kept = (
            "share",
            "batch_size",
            "shadow_records",
            "victim_records",
            "parties",
            "columns",
            "partition",
            "scaling",
            "categories",
            "victim_epochs",
            "shadow_epochs",
            "shadow_runs",
            "network_epochs",
            "scales",
        )
        return SplitCase(self.data, balanced=self.balanced, **{name: getattr(self, name) for name in kept})
