"""Published gradient inversions as settings of one engine, each with its paper's hyper-parameters.

A preset is a function from the number of iterations to `Settings`; what it does not fix is changed with `_replace`.
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


def signed(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Feed the optimizer the signs of the gradients only (Geiping et al. 2020)."""
    return optax.chain(optax.scale_by_sign(), optimizer)


def cosine_decay_adam(learning_rate: float, iterations: int) -> optax.GradientTransformation:
    """Adam whose learning rate > 0 falls to zero along half a cosine."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, iterations))


def step_decay_adam(learning_rate: float, iterations: int) -> optax.GradientTransformation:
    """Adam whose learning rate > 0 falls tenfold after 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020)."""
    boundaries = {round(iterations * part / 8): 0.1 for part in (3, 5, 7)}
    return optax.adam(optax.piecewise_constant_schedule(learning_rate, boundaries))


def dlg(iterations: int = 300) -> Settings:
    """Deep leakage from gradients (Zhu et al. 2019): squared L2, L-BFGS, labels optimised jointly, free pixels.

    Args:
        iterations: steps of L-BFGS with a line search each. The authors' code takes 300 calls of PyTorch's L-BFGS, of
            up to 20 steps each: compare at 6,000.
    """
    return Settings(pixels("normal", box=None), Gradients(squared_l2), optax.lbfgs(), iterations, labels="joint")


def idlg(iterations: int = 300, labels: str = "single_label") -> Settings:
    """iDLG (Zhao et al. 2020): DLG with the label read off the last layer; for batches name another rule."""
    return dlg(iterations)._replace(labels=labels)


def inverting_gradients(iterations: int = 4800, *, tv: float = 0.1) -> Settings:
    """Inverting Gradients (Geiping et al. 2020): cosine distance and total variation, signed Adam with step decay.

    The authors search in pixels that are normalised by the data's mean and deviation (about 0.22 on CIFAR-10). In their
    units the step of 0.1 here is four to five times as long, the prior as many times weaker, and the start wider.

    Args:
        iterations: 4,800 in the paper's CIFAR-10 runs.
        tv: weight >= 0 of the total variation; the paper's range is 1e-6 to 1e-1 on differently normalised images.
    """
    optimizer = signed(step_decay_adam(0.1, iterations))
    return Settings(pixels("normal"), Gradients(cosine), optimizer, iterations, priors=((tv, variation_prior()),))


def sapag(iterations: int = 4000) -> Settings:
    """SAPAG (Wang et al. 2020): the adaptive Gaussian-kernel distance, AdamW, labels optimised jointly."""
    optimizer = optax.adamw(optax.cosine_decay_schedule(0.05, iterations))
    return Settings(pixels("normal", box=None), Gradients(gaussian_kernel), optimizer, iterations, labels="joint")


def gradinversion(iterations: int = 20_000, *, granted_statistics: bool = False, group: int = 4) -> Settings:
    """GradInversion (Yin et al. 2021): L2 norms of layers, TV, l2, normalisation statistics, and a group of candidates.

    Left out are the registration of the candidates, the noise on the updates and the warm-up of 50 steps. The paper
    does not say how its variation is normalised: here it is a mean over differences, which the printed 1e-4 makes weak
    beside the norm of all differences that code of its authors for another paper has. Candidates begin as normal noise
    in pixels of [0, 1], which is clipped, so that half of all pixels begin black. The answer is the candidate whose
    gradient is nearest to the observed one. On small networks the printed weights draw all of them to the mean of their
    starts before they match the gradient. That mean of noise scores 1 to 3 dB more than one start, and shows nothing;
    `group=1` leaves it out.

    Args:
        iterations: 20,000 in the paper.
        granted_statistics: match the batch's normalisation statistics, which the threat must then grant; FedLeak's
            threat model denies them, and says (section 2.4) that it compares attacks that assume such information all
            the same; its table does not say which of them got it.
        group: candidates held together by group consistency, > 0; the paper does not print how many.
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
        tv: weight >= 0 of the variation, a mean over differences; beside nats, 0.1 is next to no prior. That of
            photographs is a sum, weighed by `client_updates.natural_tv`, as in `adaptive.informed`.

    Raises:
        ValueError: on another noise, or a scale that is not > 0.
    """
    _validate.one_of(("gaussian", "laplace"), noise=noise)
    _validate.positive(noise_scale=noise_scale)
    likelihood = gaussian_likelihood(noise_scale) if noise == "gaussian" else laplace_likelihood(noise_scale)
    optimizer = cosine_decay_adam(0.05, iterations)
    return Settings(pixels("uniform"), Gradients(likelihood), optimizer, iterations, priors=((tv, variation_prior()),))


def fedleak(iterations: int = 1000, *, homotopy: bool = True) -> Settings:
    """FedLeak as we recommend to run it: relative L1 + cosine, TV, activation penalty, and the smoothing homotopy.

    The scale of the L1 term decides more than anything the paper ablates; partial matching and the blend of gradients
    cost time and gave nothing where we measured them, so both are off (`experiments.fedleak --table table15 table16`).
    Where batch normalisation hides the scale of the images, the 99.9 % quantile of their pixels is taken for white.

    Args:
        iterations: steps of Adam at 0.05 with cosine decay; a homotopy wants thousands on networks with normalisation.
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
    """FedLeak as we recommend it, without the loss and without labels (ours): see `client_updates.AnyLoss`.

    For one gradient of one client. The answer has no labels. Steps twice as long as those of `fedleak` did better on
    four images behind a ConvNet.

    Args:
        iterations: steps of Adam at 0.1 with cosine decay; otherwise as in `fedleak`.
        homotopy: as in `fedleak`.
    """
    known = fedleak(iterations, homotopy=homotopy)
    optimizer = cosine_decay_adam(0.1, iterations)
    return known._replace(compare=AnyLoss(known.gradients.distance), labels="none", optimizer=optimizer)


def row_space(iterations: int = 4250, *, far: bool = False) -> Settings:
    """Row spaces of a few layers in place of gradients (ours): for deep networks, whose gradients are chaotic.

    Args:
        iterations: steps of Adam at 0.03, which falls to zero after 70 % of them; 2,250 per image try shifts.
        far: try shifts by up to 12 pixels instead of 6, which takes 4,470 per image; for several images.
    """
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

    L1, TV and activation penalty are sums as written, over the batch too, so that the weights of the last two grow with
    images and models. Where the paper is silent: TV is anisotropic, the penalty takes the output of every
    non-linearity, Lambda is global and chosen by the simulated gradient, the probe ascends with k = 0.01 and keeps
    Lambda. One reading differs from the print: the answer is the best iterate, with the inferred labels kept as they
    are, where Algorithm 1 returns the last and also optimises the labels.
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


#: From this height and width on the median filter of `fedleak_upstream` pays; in trials it cost 4 dB at 32 pixels.
FILTERED_FROM = 64


def fedleak_upstream(iterations: int = 10_000, *, median_filter: bool | None = None) -> Settings:
    """FedLeak as a public copy of its code runs it: the weights of an untrained generator, signed AdamW at 0.01.

    Per-tensor selection of the upper half, mean L1 + cosine, and a blend of 0.7 p + 0.3 q with q at the point that a
    step would reach. Its spectral norms and its second mask inside the cosine are left out; distances are over all
    entries instead of tensor by tensor, and the sign is taken of the blend instead of either gradient. Labels are given
    to it.

    Args:
        iterations: steps of AdamW with cosine decay, > 0.
        median_filter: filter the answer with a 5x5 median, as the code does; None filters images of at least
            `FILTERED_FROM` pixels in height and width.
    """
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

    GRANT: public data. The generator was trained on images of the victim's kind, none of them the victim's; say which
    beside every result. A defense's transform that the attacker estimates is part of the `share` that `inversion` gets.

    The numbers are those of the authors' code (500 generations of 50, KL weight 0.1, Adam at 0.1). It divides the
    distance by the number of tensors, so that the prior weighs less here, and its search by CMA-ES passes the latents
    through tanh and has no prior. Their labels come from iDLG's rule for one image; another rule serves batches.

    Args:
        iterations: generations, or steps of Adam (2,500 there).
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
    """ROG (Yue et al. 2023): squared L2 over the codes of an auto-encoder, by Adam; then a learned enhancement.

    GRANT: public data, for both networks; as in `ggl`. The authors' released search goes over images that are a quarter
    as wide and high, without a learned code, for 100 steps; codes are another choice of their paper. They enhance with
    three pretrained networks, of which one knows the label; here one small network learns to from the public images.

    Args:
        iterations: steps of Adam at 0.05 with cosine decay, > 0.
        generator: from `train_generator`, with kl = 0: a plain auto-encoder.
    """
    candidate = generator_latents(generator, generator.latent_size, bound=5.0)
    optimizer = cosine_decay_adam(0.05, iterations)
    return Settings(candidate, Gradients(squared_l2), optimizer, iterations, enhance=generator.enhance)


#: Presets that take a generator, hence public data, and the `kl` of `train_generator` that each wants: a search walks
#: through GGL's codes, and ROG's keep more detail.
GENERATIVE = {"ggl": 0.1, "rog": 0.0}
#: Presets whose optimizer, L-BFGS, evaluates the gradient several times per iteration.
LINE_SEARCHES = ("dlg", "idlg")
#: Presets whose descent by the signs of gradients stays when another optimizer takes the place of theirs.
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
    """The preset of this name, with its own number of iterations or another; those in `GENERATIVE` need a `generator`.

    Args:
        name: one of `PRESETS`.
        iterations: > 0; None takes the preset's own.
        options: arguments of the preset's own function.

    Raises:
        ValueError: on an unknown name, which the message answers with the known ones.
    """
    _validate.one_of(PRESETS, preset=name)
    if iterations is not None:
        _validate.count(iterations=iterations)
        options["iterations"] = iterations
    return PRESETS[name](**options)
