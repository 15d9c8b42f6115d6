"""The options of the VFLRecon study, without anything heavy; tests hold their names to those of the engine."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments._vfl.case import Case, DefenseName, OptimizerName

DEMO_DATA = ("breast_cancer", "digits")
#: Tables and figures of the paper, and further ones.
TABLES = (
    "table3", "table4", "table5", "table6", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fu", "ablation",
    "encryption", "defender",
)  # fmt: skip
#: What the shadow run starts from.
STARTS: tuple[Literal["shared", "own_bottom", "independent"], ...] = ("shared", "own_bottom", "independent")
#: What a record may hold.
FIELDS = ("gradient", "outputs", "parameters", "inputs", "differences")


@dataclass(frozen=True)
class Args:
    """Options; a list of data sets (default: the demo's) is one case each, repeated for every seed."""

    preset: Literal["demo"] = "demo"
    """Configuration whose values stand where no option is given."""
    table: tuple[Literal[TABLES], ...] = ()  # type: ignore[valid-type]
    """Tables and figures of the paper; fu, ablation, encryption and defender are further ones."""
    budget: float = 60.0
    """Minutes that the cells of `--table` may take on two CPU cores."""
    only: str = ""
    """Run only the cells of `--table` whose id contains this text."""
    data: tuple[str, ...] = ()
    """breast_cancer, digits, adult, avazu, cifar10, credit_default, criteo, sensorless, npz:FILE."""
    shadow_init: tuple[Literal["shared", "own_bottom", "independent"], ...] = STARTS
    """How the shadow run starts; the paper does not say which it used. Tables compare the paper with the first."""
    share: float = 0.5
    """The adversary's share of the features."""
    batch_size: int = 16
    """Samples in a batch."""
    shadow_records: int = 1000
    """Complete records that the attacker owns, at most a third of what exists."""
    victim_records: int = 2000
    """Size of the real run."""
    parties: int = 2
    """Parties that share the features."""
    partition: Literal["auto", "random", "gaussian", "gibbs", "blocks"] = "auto"
    """How the features are divided; auto gives every party a strip of an image, or random columns of a table."""
    optimizer: OptimizerName = "adam"
    """Optimizer of the training."""
    scaling: Literal["minmax", "quantile"] = "minmax"
    """How columns are scaled to [0, 1]."""
    balanced: bool = False
    """As many samples of every class."""
    cipher: Literal["none", "plain", "ckks"] = "none"
    """The top's first layer runs without a cipher, by the algebra of the encrypted protocol without ciphertexts, or on
    real ones. Rows of tables that are printed for encryption run on real ones unless plain, which is quicker, is given.
    """
    defense: DefenseName = "none"
    """Attacked as if there were none, and by an adaptive attacker whose shadow run has it too."""
    strength: float = 0.0
    """Strength of the defense: a variance, an epsilon, a power or a threshold; 0 takes the defense's default."""
    task_epochs: int = 20
    """Epochs of training after which the task's accuracy is measured, where a defense is on."""
    network_epochs: int = 10
    """Passes of R over the steps of all shadow runs."""
    fields: tuple[Literal[FIELDS], ...] = ("gradient", "outputs", "inputs")  # type: ignore[valid-type]
    """What a record holds."""
    select: Literal["fixed", "validation"] = "fixed"
    """Take `--fields`, or choose them by validation on the attacker's own shadow records."""
    shadow_runs: int = 1
    """Shadow runs of the same records in other orders, all of which R learns from; few records need several."""
    features: bool = True
    """Also reconstruct features."""
    seeds: int = 1
    """How many seeds, from 0."""
    out: Path | None = None
    """Run folder; default runs/vflrecon/<tables or data>."""
    fresh: bool = False
    """Forget an earlier run's log, timing and finished cases."""

    def case(self, data: str) -> Case:
        """The case of one data set."""
        names = {field.name for field in dataclasses.fields(Case)} & {field.name for field in dataclasses.fields(self)}
        return Case(**{name: getattr(self, name) for name in names - {"data"}}, data=data)
