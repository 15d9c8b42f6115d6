"""The parts of attacks on one client's update: `inversion` and its presets are made of them.

The parts define what is optimised (`pixels`, `generator_weights`, `generator_latents`), what is compared (`Gradients`,
`AnyLoss`, `RowSpaces`), and what is known about images (`variation_prior` and the other priors). They also define how
the attacker's copy of the model is smoothed, and which leaves of the update an attack reads.
"""

from jaxleak.attacks._inversion.any_loss import AnyLoss
from jaxleak.attacks._inversion.candidates import Candidate, generator_latents, generator_weights, pixels
from jaxleak.attacks._inversion.data_term import Compared, Comparison, DataTerm
from jaxleak.attacks._inversion.evolution import cma_es
from jaxleak.attacks._inversion.gradient_term import MATCHED_BELOW, Gradients
from jaxleak.attacks._inversion.priors import (
    Evidence,
    Prior,
    activation_prior,
    latent_prior,
    natural_tv,
    recommended_tv,
    size_prior,
    statistics_prior,
    variation_prior,
)
from jaxleak.attacks._inversion.public_generator import PublicGenerator, train_generator
from jaxleak.attacks._inversion.row_space import RowSpaces
from jaxleak.attacks._inversion.settings import leaves_read
from jaxleak.attacks._inversion.setup import Setup
from jaxleak.attacks._inversion.shift_search import Shifts
from jaxleak.attacks._inversion.smoothing import Smoothing, recommended_smoothing, smoothing
from jaxleak.attacks._inversion.spear import SPEAR_ITERATIONS

__all__ = [
    "MATCHED_BELOW",
    "SPEAR_ITERATIONS",
    "AnyLoss",
    "Candidate",
    "Compared",
    "Comparison",
    "DataTerm",
    "Evidence",
    "Gradients",
    "Prior",
    "PublicGenerator",
    "RowSpaces",
    "Setup",
    "Shifts",
    "Smoothing",
    "activation_prior",
    "cma_es",
    "generator_latents",
    "generator_weights",
    "latent_prior",
    "leaves_read",
    "natural_tv",
    "pixels",
    "recommended_smoothing",
    "recommended_tv",
    "size_prior",
    "smoothing",
    "statistics_prior",
    "train_generator",
    "variation_prior",
]
