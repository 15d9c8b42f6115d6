"""The options of one vertical run; nothing heavy is imported with them."""

from dataclasses import dataclass, replace
from typing import Literal

DefenseName = Literal[
    "none",
    "noise",
    "noise_gradient",
    "noise_cut",
    "noise_embedding",
    "dp_sgd",
    "label_dp",
    "marvell",
    "vfl_defender",
    "vfl_defender_paper",
    "vfl_defender_batch",
]
OptimizerName = Literal["adam", "sgd", "adadelta"]


@dataclass(frozen=True)
class Case:
    """One cell of a table: everything but the seed."""

    data: str
    share: float = 0.5  # of the features, held by the adversary
    batch_size: int = 16
    shadow_records: int = 1000  # at most a third of what exists
    victim_records: int = 2000  # at most what is left
    parties: int = 2
    partition: Literal["auto", "random", "gaussian", "gibbs", "blocks"] = (
        "auto"  # auto: blocks of an image, else random
    )
    optimizer: OptimizerName = "adam"
    scaling: Literal["minmax", "quantile"] = "minmax"
    categories: Literal["hashed", "one_hot"] = "hashed"
    balanced: bool = False  # as many samples of every class
    free_top: bool = False  # the top model has no parameters: it adds up
    cipher: Literal["none", "plain", "ckks"] = "none"  # of the top's first layer, between passive parties and the last
    defense: DefenseName = "none"
    strength: float = 0.0  # see `_vfl_defenses`
    shadow_epochs: int = (
        0  # 0: one and a half times the steps that the attacker sees of the real run, at least 3 epochs
    )
    victim_epochs: int = 1  # attacked
    task_epochs: int = 20  # of training where the task's accuracy is measured
    network_epochs: int = 10
    fields: tuple[str, ...] = ("gradient", "outputs", "inputs")
    # "validation" chooses the fields on the attacker's own records instead (`attacks.party_records.select_fields`).
    select: Literal["fixed", "validation"] = "fixed"
    shadow_runs: int = 1  # >= 1, of the same records in other orders; only a shared start is the same in all of them

    def undefended(self) -> "Case":
        """The same case without a defense."""
        return replace(self, defense="none", strength=0.0)

    def attacker_only(self) -> "Case":
        """The same attacker's records and features, and defaults for all that its own features do not depend on."""
        kept = ("data", "share", "shadow_records", "victim_records", "parties", "partition", "scaling", "categories")
        return Case(balanced=self.balanced, **{name: getattr(self, name) for name in kept})
