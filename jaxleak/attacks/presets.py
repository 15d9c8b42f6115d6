"""Published gradient inversions as settings of one engine, each with its paper's hyper-parameters.

A preset is a function from the number of iterations to `Settings`. Change any field of the result with `_replace`.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax

from jaxleak import _validate
from jaxleak.attacks._inversion.any_loss import AnyLoss
from jaxleak.attacks._inversion.candidates import generator_latents, generator_weights, pixels
from jaxleak.attacks._inversion.evolution import cma_es
from jaxleak.attacks._inversion.gradient_term import Gradients
from jaxleak.attacks._inversion.median_filter import median_5x5
from jaxleak.attacks._inversion.priors import (
    activation_prior,
    latent_prior,
    size_prior,
    statistics_prior,
    variation_prior,
)
from jaxleak.attacks._inversion.public_generator import PublicGenerator
from jaxleak.attacks._inversion.row_space import RowSpaces
from jaxleak.attacks._inversion.settings import Settings
from jaxleak.attacks._inversion.shift_search import FAR, NEAR
from jaxleak.attacks._inversion.smoothing import smoothing
from jaxleak.objectives import (
    cosine,
    gaussian_kernel,
    gaussian_likelihood,
    gradient_regularization,
    l1,
    laplace_likelihood,
    layer_norms,
    mean_l1,
    relative_l1,
    squared_l2,
    top_share,
    weighted,
)

__all__ = [
    "FILTERED_FROM",
    "GENERATIVE",
    "GGL_POPULATION",
    "KEEPING_SIGNS",
    "LINE_SEARCHES",
    "PRESETS",
    "any_loss",
    "bayes",
    "cosine_decay_adam",
    "dlg",
    "fedleak",
    "fedleak_paper",
    "fedleak_upstream",
    "ggl",
    "gradinversion",
    "idlg",
    "inverting_gradients",
    "preset",
    "rog",
    "row_space",
    "sapag",
    "signed",
    "step_decay_adam",
]


def _check_length(iterations: float) -> None:
    """Refuse a length of schedules that is no number of iterations; `attacks.inversion` refuses 2.0 for 2."""
    _validate.positive(iterations=iterations)
    _validate.count(iterations=iterations if iterations % 1 else int(iterations))  # type: ignore[arg-type]


def signed(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Feed the optimizer the signs of the gradients only (Geiping et al. 2020)."""
    return optax.chain(optax.scale_by_sign(), optimizer)


def cosine_decay_adam(learning_rate: float, iterations: int) -> optax.GradientTransformation:
    """Adam whose learning rate > 0 falls to zero along half a cosine.

    Raises:
        ValueError: if iterations is not a whole number > 0.
    """
    _check_length(iterations)
    return optax.adam(optax.cosine_decay_schedule(learning_rate, iterations))


def step_decay_adam(learning_rate: float, iterations: int) -> optax.GradientTransformation:
    """Adam whose learning rate > 0 falls tenfold after 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020).

    Raises:
        ValueError: if iterations is not a whole number > 0.
    """
    _check_length(iterations)
    boundaries = {round(iterations * part / 8): 0.1 for part in (3, 5, 7)}
    return optax.adam(optax.piecewise_constant_schedule(learning_rate, boundaries))


def dlg(iterations: int = 300) -> Settings:
    """Deep leakage from gradients (Zhu et al. 2019): squared L2, L-BFGS, labels optimised jointly, free pixels.

    Args:
        iterations: steps of L-BFGS, each with a line search. The authors' code makes 300 calls of PyTorch's L-BFGS with
            up to 20 steps each, so compare with it at 6,000.
    """
    return Settings(pixels("normal", box=None), Gradients(squared_l2), optax.lbfgs(), iterations, labels="joint")


def idlg(iterations: int = 300, labels: str = "single_label") -> Settings:
    """iDLG (Zhao et al. 2020): DLG with the label read off the last layer; for batches name another rule."""
    return dlg(iterations)._replace(labels=labels)


def inverting_gradients(iterations: int = 4800, *, tv: float = 0.1) -> Settings:
    """Inverting Gradients (Geiping et al. 2020): cosine distance and total variation, signed Adam with step decay.

    The authors optimise pixels that are normalised by the data's mean and standard deviation (about 0.22 on CIFAR-10).
    Here pixels are in [0, 1]. In the authors' units, the step of 0.1 used here is four to five times as long, the prior
    is weaker by the same factor, and the initial pixels are spread more widely.

    Args:
        iterations: 4,800 in the paper's CIFAR-10 runs.
        tv: weight >= 0 of the total variation. The paper uses 1e-6 to 1e-1, on images that are normalised differently.
    """
    optimizer = signed(step_decay_adam(0.1, iterations))
    return Settings(pixels("normal"), Gradients(cosine), optimizer, iterations, priors=((tv, variation_prior()),))


def sapag(iterations: int = 4000) -> Settings:
    """SAPAG (Wang et al. 2020): the adaptive Gaussian-kernel distance, AdamW, labels optimised jointly.

    Raises:
        ValueError: if iterations is not a whole number > 0.
    """
    _check_length(iterations)
    optimizer = optax.adamw(optax.cosine_decay_schedule(0.05, iterations))
    return Settings(pixels("normal", box=None), Gradients(gaussian_kernel), optimizer, iterations, labels="joint")


def gradinversion(iterations: int = 20_000, *, granted_statistics: bool = False, group: int = 4) -> Settings:
    """GradInversion (Yin et al. 2021): L2 norms of layers, TV, l2, normalisation statistics, and a group of candidates.

    This preset leaves out the registration of the candidates, the noise on the updates and the warm-up of 50 steps. The
    paper does not say how its total variation is normalised. Here it is a mean over differences. The printed weight
    1e-4 then counts little compared with the norm of all differences, which the authors' code for another paper uses.
    Candidates start as normal noise that is clipped to [0, 1], so half of all pixels start black. The answer is the
    candidate whose gradient is nearest to the observed one.

    On small networks the printed weights draw all candidates to the mean of their starts before the gradient is
    matched. That mean of noise scores 1 to 3 dB more than a single start, although it shows nothing of the images.
    `group=1` turns the group off.

    Args:
        iterations: 20,000 in the paper.
        granted_statistics: match the batch's normalisation statistics, which the threat must then grant. FedLeak's
            threat model denies them. Its section 2.4 says that attacks which assume such information are compared all
            the same, and its table does not say which of them got it.
        group: number of candidates that group consistency holds together, > 0; the paper does not print it.
    """
    return Settings(
        pixels("normal"),
        Gradients(weighted([(1e-3, layer_norms)])),
        cosine_decay_adam(0.1, iterations),
        iterations,
        labels="yin",
        priors=(
            (1e-4, variation_prior()),
            (1e-6, size_prior()),
            (0.1 if granted_statistics else 0.0, statistics_prior()),
        ),
        group=group,
        consistency=0.01 if group > 1 else 0.0,
    )


def bayes(iterations: int = 1000, *, noise: str = "gaussian", noise_scale: float = 1e-2, tv: float = 0.1) -> Settings:
    """The Bayes attack (Balunovic et al. 2022): the likelihood of known noise on the gradient, and an image prior.

    Args:
        iterations: steps of Adam, > 0.
        noise: "gaussian" or "laplace", as the defense adds it.
        noise_scale: standard deviation of gaussian noise, or the scale of Laplace's, > 0.
        tv: weight >= 0 of the total variation, a mean over differences. The likelihood is in nats, and beside it 0.1 is
            almost no prior. The prior of photographs in `adaptive.informed` is a sum over differences instead, with the
            weight `client_updates.natural_tv`.

    Raises:
        ValueError: on another noise, or a scale that is not > 0.
    """
    _validate.one_of(("gaussian", "laplace"), noise=noise)
    _validate.positive(noise_scale=noise_scale)
    likelihood = gaussian_likelihood(noise_scale) if noise == "gaussian" else laplace_likelihood(noise_scale)
    optimizer = cosine_decay_adam(0.05, iterations)
    return Settings(pixels("uniform"), Gradients(likelihood), optimizer, iterations, priors=((tv, variation_prior()),))


def fedleak(iterations: int = 1000, *, homotopy: bool = True) -> Settings:
    """FedLeak as we recommend running it: relative L1 + cosine, TV, activation penalty, and the smoothing homotopy.

    The scale of the L1 term matters more than anything that the paper ablates. Partial matching and the blend of
    gradients cost time and gained nothing where we measured them, so both are off (`experiments.fedleak --table table15
    table16`). Batch normalisation can hide the scale of the images. In that case the answer is rescaled so that the
    99.9 % quantile of its pixels becomes white.

    Args:
        iterations: steps of Adam at 0.05 with cosine decay; a homotopy needs thousands on networks with normalisation.
        homotopy: smooth the attacker's copy of the model where that helps, see `recommended_smoothing`.
    """
    return Settings(
        pixels("uniform"),
        Gradients(weighted([(1.0, relative_l1), (1.0, cosine)])),
        cosine_decay_adam(0.05, iterations),
        iterations,
        priors=(("auto", variation_prior()), (1e-4, activation_prior())),
        smoothing="auto" if homotopy else None,
        white_point=0.999,
    )


def any_loss(iterations: int = 1000, *, homotopy: bool = True) -> Settings:
    """`fedleak` for an attacker who knows neither the loss nor the labels (ours): see `client_updates.AnyLoss`.

    The attack is for one gradient of one client. Its answer has no labels. Its steps are twice as long as those of
    `fedleak`, which did better on four images behind a ConvNet.

    Args:
        iterations: steps of Adam at 0.1 with cosine decay; otherwise as in `fedleak`.
        homotopy: as in `fedleak`.
    """
    known = fedleak(iterations, homotopy=homotopy)
    optimizer = cosine_decay_adam(0.1, iterations)
    return known._replace(compare=AnyLoss(known.gradients.distance), labels="none", optimizer=optimizer)


def row_space(iterations: int = 4250, *, far: bool = False) -> Settings:
    """Compare row spaces of a few layers instead of gradients (ours): for deep networks, whose gradients are chaotic.

    Args:
        iterations: steps of Adam at 0.03; the rate falls to zero over the last 30 %. Per image, 2,250 of them try
            shifts.
        far: try shifts by up to 12 pixels instead of 6, which takes 4,470 iterations per image; for several images.

    Raises:
        ValueError: if iterations is not a whole number > 0.
    """
    _check_length(iterations)
    held = round(0.7 * iterations)
    rate = optax.join_schedules(
        [optax.constant_schedule(0.03), optax.cosine_decay_schedule(0.03, max(1, iterations - held))], [held]
    )
    return Settings(
        pixels("nearly_grey"),
        RowSpaces(),
        optax.adam(rate, b2=0.99),  # begins anew with every shift, and then a first step is no longer than the others
        iterations,
        priors=((0.1, variation_prior("relative")),),
        smoothing=smoothing(1.0, 60.0),
        shifts=FAR if far else NEAR,
        white_point=0.999,
    )


def fedleak_paper(iterations: int = 10_000) -> Settings:
    """FedLeak as printed (section 5.1): R = 50 %, lambda' = 0.7, alpha = 1e-5, beta = 1e-4, Adam at 1e-4.

    L1, TV and activation penalty are sums, as the paper writes them, and also sum over the batch. The weights of the
    last two therefore act more strongly on more images and larger models. Where the paper is silent, we chose: TV is
    anisotropic, the penalty takes the output of every non-linearity, Lambda is global and chosen by the simulated
    gradient, the probe ascends with k = 0.01 and keeps Lambda.

    One choice differs from the print. Algorithm 1 returns the last iterate and also optimises the labels. Here the
    answer is the best iterate, and the inferred labels stay fixed.
    """
    return Settings(
        pixels("uniform"),
        Gradients(weighted([(1.0, l1), (1.0, cosine)]), top_share(50)),
        optax.adam(1e-4),
        iterations,
        labels="fedleak",
        priors=((1e-5, variation_prior("sum")), (1e-4, activation_prior("sum"))),
        regularization=gradient_regularization(0.7),
    )


#: Height and width in pixels from which the median filter of `fedleak_upstream` helps. At 32 it cost 4 dB in trials.
FILTERED_FROM = 64


def fedleak_upstream(iterations: int = 10_000, *, median_filter: bool | None = None) -> Settings:
    """FedLeak as a public copy of its code runs it: the weights of an untrained generator, signed AdamW at 0.01.

    The settings select the upper half of each tensor, compare by mean L1 + cosine, and blend 0.7 p + 0.3 q, where q is
    the gradient at the point that a step would reach. The published copy's spectral norms and its second mask inside
    the cosine are left out. Distances here are over all entries instead of tensor by tensor, and the sign is taken of
    the blend instead of each gradient. The threat must grant the labels.

    Args:
        iterations: steps of AdamW with cosine decay, > 0.
        median_filter: filter the answer with a 5x5 median, as the published copy does; None filters images of at least
            `FILTERED_FROM` pixels in height and width.

    Raises:
        ValueError: if iterations is not a whole number > 0.
    """
    _check_length(iterations)
    optimizer = signed(optax.adamw(optax.cosine_decay_schedule(1e-2, iterations)))
    return Settings(
        generator_weights(),
        Gradients(weighted([(2.0, mean_l1), (1.0, cosine)]), top_share(50, per_tensor=True)),
        optimizer,
        iterations,
        labels="given",
        priors=((1e-5, variation_prior()),),
        regularization=gradient_regularization(0.3, probe="step"),
        enhance={None: _filtered_where_large, True: median_5x5, False: None}[median_filter],
    )


def _filtered_where_large(x: jax.Array) -> jax.Array:
    return median_5x5(x) if min(x.shape[1:3]) >= FILTERED_FROM else x


#: Candidates per generation in GGL's published code.
GGL_POPULATION = 50


def ggl(
    iterations: int = 500, *, generator: PublicGenerator, search: str = "cma_es", population: int = GGL_POPULATION
) -> Settings:
    """GGL (Li et al. 2022): squared L2 over a generator's latents, searched without gradients, and a latent prior.

    GRANT: public data. The generator was trained on images like the victim's, but on none of the victim's own. State
    which images beside every result. If the attacker estimates the transform of a defense, put the estimate into the
    `share` that `inversion` gets.

    The numbers are those of the authors' code (500 generations of 50, KL weight 0.1, Adam at 0.1). Two things differ.
    Their code divides the distance by the number of tensors, so the prior weighs less here. Their search by CMA-ES
    passes the latents through tanh and has no prior. The authors infer labels with iDLG's rule, which is for one image;
    batches need another rule.

    Args:
        iterations: generations of CMA-ES, or steps of Adam (2,500 in the authors' code).
        generator: from `train_generator`, with kl > 0.
        search: "cma_es", which needs the package evosax, or "adam".
        population: candidates per generation of CMA-ES, > 1.

    Raises:
        ValueError: on an unknown search or a population out of range.
        ImportError: for "cma_es" without evosax.
    """
    _validate.one_of(("cma_es", "adam"), search=search)
    optimizer = cma_es(population=population) if search == "cma_es" else optax.adam(0.1)
    candidate = generator_latents(generator, generator.latent_size)
    return Settings(candidate, Gradients(squared_l2), optimizer, iterations, priors=((0.1, latent_prior()),))


def rog(iterations: int = 1000, *, generator: PublicGenerator) -> Settings:
    """ROG (Yue et al. 2023): squared L2 over the codes of an auto-encoder, with Adam; then a learned enhancement.

    GRANT: public data, for both networks; see `ggl`. The authors' released search optimises images that are a quarter
    as wide and high, without a learned code, for 100 steps. Optimising codes is another option of their paper. They
    enhance the answer with three pretrained networks, one of which knows the label. Here one small network learns the
    enhancement from the public images.

    Args:
        iterations: steps of Adam at 0.05 with cosine decay, > 0.
        generator: from `train_generator`, with kl = 0: a plain auto-encoder.
    """
    candidate = generator_latents(generator, generator.latent_size, bound=5.0)
    optimizer = cosine_decay_adam(0.05, iterations)
    return Settings(candidate, Gradients(squared_l2), optimizer, iterations, enhance=generator.enhance)


#: Presets that take a generator, and therefore public data, each with the `kl` for `train_generator`. GGL's `kl` > 0
#: keeps its codes easy to search; ROG's `kl` of 0 makes a plain auto-encoder, whose codes keep more detail.
GENERATIVE = {"ggl": 0.1, "rog": 0.0}
#: Presets whose optimizer, L-BFGS, evaluates the gradient several times per iteration.
LINE_SEARCHES = ("dlg", "idlg")
#: Presets that still descend by the signs of gradients when another optimizer replaces their own.
KEEPING_SIGNS = ("inverting_gradients",)

#: Every preset by name.
PRESETS: dict[str, Callable[..., Settings]] = {
    "dlg": dlg,
    "idlg": idlg,
    "inverting_gradients": inverting_gradients,
    "sapag": sapag,
    "gradinversion": gradinversion,
    "bayes": bayes,
    "fedleak": fedleak,
    "any_loss": any_loss,
    "row_space": row_space,
    "fedleak_paper": fedleak_paper,
    "fedleak_upstream": fedleak_upstream,
    "ggl": ggl,
    "rog": rog,
}


def preset(name: str, iterations: int | None = None, **options: Any) -> Settings:
    """Make the preset of this name; presets in `GENERATIVE` need the option `generator`.

    Args:
        name: one of `PRESETS`.
        iterations: number of iterations > 0; None takes the preset's own.
        options: further arguments of the preset's function.

    Raises:
        ValueError: on an unknown name; the message lists the known ones.
    """
    _validate.one_of(PRESETS, preset=name)
    if iterations is not None:
        _check_length(iterations)
        options["iterations"] = iterations
    return PRESETS[name](**options)
