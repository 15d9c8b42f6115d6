"""The options of the VFLRecon study, without heavy imports; tests compare their names with those of the engine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from jaxleak.study.parties import SplitCase, SplitSetup

DEMO_DATA = ("breast_cancer", "digits")
#: Tables and figures of the paper, and further tables: fu, ablation, encryption and defender.
TABLES = (
    "table3", "table4", "table5", "table6", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fu", "ablation",
    "encryption", "defender",
)  # fmt: skip
#: Starts of the shadow run, in relation to the initial weights of the attacked run.
STARTS: tuple[Literal["shared", "own_bottom", "independent"], ...] = ("shared", "own_bottom", "independent")


@dataclass(frozen=True)
class Args:
    """Options; a list of data sets (default: the demo's) is one case each, repeated for every seed."""

    preset: Literal["demo"] = "demo"
    """Preset for options that are not given."""
    table: tuple[Literal[TABLES], ...] = ()  # type: ignore[valid-type]
    """Tables and figures to run: those of the paper, and further ones: fu, ablation, encryption and defender."""
    budget: float = 60.0
    """Minutes for the cells of --table (on two CPU cores)."""
    only: str = ""
    """Run only cells whose id contains this text; with --table."""
    data: tuple[str, ...] = ()
    """Data sets: breast_cancer, digits, adult, avazu, cifar10, credit_default, criteo, sensorless, npz:FILE and
    csv:FILE?label=COLUMN."""
    shadow_init: tuple[Literal["shared", "own_bottom", "independent"], ...] = STARTS
    """How the shadow run starts; the paper does not say which it used. Tables compare the paper with the first."""
    setup: tyro.conf.OmitArgPrefixes[SplitSetup] = field(default_factory=SplitSetup)
    features: bool = True
    """The reconstruction of features."""
    seeds: tuple[int, ...] = (0,)
    """Random seeds."""
    out: Path | None = None
    """Folder of the run; default runs/vflrecon/<tables or data>."""
    fresh: bool = False
    """Forget finished runs: an earlier run's log, timing and cases."""

    def case(self, data: str) -> SplitCase:
        """The case of one data set."""
        return SplitCase(data, **vars(self.setup))
