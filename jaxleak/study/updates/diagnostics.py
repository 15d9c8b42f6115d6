"""Measurements that explain gradient inversions: label rules, and the theory of FedLeak (Figs. 1, 9 and 10).

Each measurement reads the truth or descends a parabola. The results explain attacks; no attack uses them.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import attacks, audit, data, metrics, objectives
from jaxleak._base import Batch, PyTree
from jaxleak.attacks import LABEL_RULES, infer_labels
from jaxleak.models import HeadLayer
from jaxleak.study.updates._attacker import resolved
from jaxleak.study.updates._case import Case
from jaxleak.study.updates._client import build_model, victim
from jaxleak.study.updates._problem import attack, observe, template_of_images

__all__ = [
    "FIG1_ATTACKED",
    "NOISE_DRAWS",
    "STRENGTHS",
    "fig1_seeds",
    "label_rules",
    "magnitude_sensitivity",
    "parabola_path",
    "path_steepness",
    "settled_after",
    "sign_noise",
    "summary_of_ratios",
]

#: Strengths of sign noise in units of 1/255; the paper prints 16.
STRENGTHS = (0, 2, 4, 8, 16, 32, 64)
#: Number of noise draws for each of the `Case.pool` images; the paper has 100 draws.
NOISE_DRAWS = 4
#: Number of images that iDLG attacks for Fig. 1.
FIG1_ATTACKED = 3


def sign_noise(case: Case, seed: int) -> dict[str, float]:
    """Compare the gradient distance of the truth plus sign noise with that of the case's attack (Fig. 1b: iDLG).

    Args:
        case: case that names the model, the data, the pool and the attack.
        seed: random seed of the data, the weights and the noise.

    Returns:
        `noise0` to `noise64`: mean L2 distance of the gradients; the number in the name is the noise strength in 1/255.
        `distance`, `element` and `psnr`: the attack's final L2 distance, the root mean square difference of a
        gradient's elements, and the PSNR in dB, each a mean over `FIG1_ATTACKED` images.
    """
    dataset = data.load(case.data, case.pool, seed)
    model = build_model(case, dataset.x.shape[1:], len(dataset.classes))
    variables = model.init(jax.random.key(seed))

    def gradient(x: jax.Array, y: jax.Array) -> PyTree:
        return jax.grad(
            lambda w: objectives.cross_entropy(model.apply({**variables, "params": w}, x[None]).logits, y[None])
        )(variables["params"])

    @jax.jit
    def distances(key: jax.Array, x: jax.Array, y: jax.Array, strength: jax.Array) -> jax.Array:
        def one(now: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            key, x, y = now
            noisy = jnp.clip(x + strength * jax.random.rademacher(key, x.shape, x.dtype), 0, 1)
            return jnp.sqrt(objectives.squared_l2(gradient(x, y), gradient(noisy, y)))

        return jax.lax.map(one, (jax.random.split(key, len(y)), x, y))

    x, y = jnp.asarray(np.tile(dataset.x, (NOISE_DRAWS, 1, 1, 1))), jnp.asarray(np.tile(dataset.y, NOISE_DRAWS))
    found = {
        f"noise{s}": float(distances(jax.random.fold_in(jax.random.key(seed), s), x, y, jnp.float32(s / 255)).mean())
        for s in STRENGTHS
    }
    scores = [attack(case, of_image).scores for of_image in fig1_seeds(seed)]
    entries = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    distance = float(np.mean([s["l2_distance"] for s in scores]))
    found |= {"distance": distance, "psnr": float(np.mean([s["psnr"] for s in scores]))}
    return found | {"element": distance / entries**0.5}


def fig1_seeds(seed: int) -> list[int]:
    """List the seeds of the images that `sign_noise` attacks.

    Args:
        seed: random seed of the measurement.
    """
    return [1000 * seed + i for i in range(FIG1_ATTACKED)]


def magnitude_sensitivity(case: Case, seed: int) -> dict[str, float]:
    """Correlate (Pearson) |g_i| and sum_j |dg_i / dx_j| over the kernel of the last dense layer (FedLeak, Fig. 9).

    Every image is a batch of its own, normalised in training mode. With features f, softmax outputs p and label y, the
    kernel's gradient is f_a (p_c - y_c). The derivatives of this product follow from the derivatives of f and p, so
    that F + C backward passes suffice instead of F * C.

    Args:
        case: case that names the model, the data and the pool.
        seed: random seed of the data and the weights.

    Returns:
        `pearson` in [-1, 1] and `pearson_spread`, mean and standard deviation over the `case.pool` images, and
        `images`.
    """
    dataset = data.load(case.data, case.pool, seed)
    model = build_model(case, dataset.x.shape[1:], len(dataset.classes))
    variables = model.init(jax.random.key(seed))

    @jax.jit
    def correlation(x: jax.Array, y: jax.Array) -> jax.Array:
        def outputs(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = model.apply(variables, x[None])
            return out.features[0], jax.nn.softmax(out.logits[0])

        (f, p), pull = jax.vjp(outputs, x)
        rows_f = jax.lax.map(lambda e: pull((e, jnp.zeros_like(p)))[0].ravel(), jnp.eye(f.size), batch_size=32)
        rows_p = jax.lax.map(lambda e: pull((jnp.zeros_like(f), e))[0].ravel(), jnp.eye(p.size), batch_size=32)
        residual = p - jax.nn.one_hot(y, p.size)
        # Classes are processed one at a time: all derivatives together would be F * C * pixels numbers.
        sensitivity = jax.lax.map(
            lambda c: jnp.abs(rows_f * residual[c] + f[:, None] * rows_p[c]).sum(axis=1), jnp.arange(p.size)
        )
        magnitude = jnp.abs(residual[:, None] * f)
        return jnp.corrcoef(magnitude.ravel(), sensitivity.ravel())[0, 1]

    values = [float(correlation(jnp.asarray(a), jnp.asarray(b))) for a, b in zip(dataset.x, dataset.y, strict=True)]
    return {"pearson": float(np.mean(values)), "pearson_spread": float(np.std(values)), "images": float(len(values))}


def label_rules(case: Case, batches: int, seed: int, drawn_classes: int | None = None) -> dict[str, float]:
    """Measure the accuracy of every label rule on batches of the case's size; repeated labels count.

    Args:
        case: case that names the model, the data and the batch size.
        batches: number of batches, > 0.
        seed: random seed of the data, the weights and the batches.
        drawn_classes: number of classes from which labels are drawn uniformly, with replacement; None takes the data's
            own labels. Drawn labels are as hard to infer as the data's own, since an untrained network knows no
            classes.

    Returns:
        Accuracy in [0, 1] by rule, NaN if a rule does not take this batch size; and `distinct`, the highest accuracy
        that a rule of distinct labels can reach on these batches.

    Raises:
        ValueError: if the data have fewer samples than a batch.
    """
    dataset = data.load(case.data, None, seed)
    total = len(dataset.y)
    if total < case.batch_size:
        raise ValueError(f"{case.data} has {total} samples, fewer than a batch of {case.batch_size}")
    rng = np.random.default_rng(seed)
    labels, num_classes = dataset.y, len(dataset.classes)
    if drawn_classes is not None:
        labels, num_classes = rng.integers(drawn_classes, size=total).astype(labels.dtype), drawn_classes
    init, found_by_all = _label_programs(case, dataset.x.shape[1:], num_classes)
    variables = init(jax.random.key(seed))
    hits: dict[str, list[float]] = {name: [] for name in LABEL_RULES}
    ceiling = []
    for number in range(batches):
        chosen = rng.permutation(total)[: case.batch_size]
        truth = labels[chosen]
        ceiling.append(len(np.unique(truth)) / len(truth))
        key = jax.random.key(1000 * seed + number)
        for name, found in found_by_all(variables, key, dataset.x[chosen], truth).items():
            hits[name].append(metrics.label_multiset_accuracy(truth, np.asarray(found)))
    accuracy = {name: float(np.mean(values)) if values else float("nan") for name, values in hits.items()}
    return accuracy | {"distinct": float(np.mean(ceiling))}


@functools.cache
def _label_programs(case: Case, image_shape: tuple[int, ...], num_classes: int) -> tuple[Callable, Callable]:
    """Make `key -> variables` and `(variables, key, x, y) -> labels by rule`, compiled once for all seeds."""
    model = build_model(case, image_shape, num_classes)

    def found_by(rule: str, gradient: HeadLayer, head: HeadLayer, key: jax.Array) -> jax.Array:
        return infer_labels(rule, *gradient, case.batch_size, **head._asdict(), key=key)

    def takes(rule: str) -> bool:
        head = jax.eval_shape(lambda key: model.head_of(model.init(key)["params"], gradient=False), jax.random.key(0))
        try:
            jax.eval_shape(lambda head: found_by(rule, head, head, jax.random.key(0)), head)
        except ValueError:  # the rule does not take this batch size
            return False
        return True

    usable = [rule for rule in LABEL_RULES if takes(rule)]

    @jax.jit
    def found_by_all(variables: PyTree, key: jax.Array, x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
        head = model.head_of(variables["params"], gradient=False)

        def loss(layer: HeadLayer) -> jax.Array:
            weights = model.with_head(variables["params"], layer, gradient=False)
            return objectives.cross_entropy(model.apply({**variables, "params": weights}, x).logits, y)

        # The gradient of the last layer alone needs a single forward pass through the layers below.
        gradient = jax.grad(loss)(head)
        return {rule: found_by(rule, gradient, head, key) for rule in usable}

    return model.init, found_by_all


def path_steepness(case: Case, seed: int, *, every: int = 10) -> dict[str, np.ndarray]:
    """Measure 2mu/L along an attack's path: 2 <x' - x, d> / ||d||^2, d the gradient of the gradient distance (sec. 6).

    d is the gradient of the distance alone, with the true labels: it includes neither the attack's priors nor the sign
    that its optimizer may take. A plain gradient step of a size below this ratio brings x' closer to the truth x.

    Args:
        case: a case with a single image, so that no matching is needed.
        seed: random seed of the data, the weights and the start.
        every: number of iterations between two measurements along the path.

    Returns:
        `iteration` and `ratio`, arrays along the path, and `psnr` along it.
    """
    side = victim(case, seed)
    observation, truth = observe(case, seed, side)
    s = resolved(case).settings
    engine = attacks.inversion(side.model, side.share, s, batch_size=case.images)
    exact = truth.x[:, 0]

    @jax.jit
    def ratio(x: jax.Array) -> jax.Array:
        def distance(x: jax.Array, mask: PyTree) -> tuple[jax.Array, PyTree]:
            simulated = side.share(observation.params, Batch(x[:, None], truth.y, truth.index))
            observed = observation.payload
            if s.gradients.selection is not None:
                mask = s.gradients.selection(observed, simulated) if mask is None else mask
                observed, simulated = (objectives.apply_mask(mask, tree) for tree in (observed, simulated))
            return s.gradients.distance(observed, simulated), mask

        _, _, d = objectives.regularized_gradient(
            distance, x, s.regularization, selected=lambda mask: mask, step=lambda g: -0.05 * g
        )
        return 2 * jnp.vdot(x - exact, d) / jnp.maximum(jnp.vdot(d, d), 1e-30)

    iterations, ratios, psnr = [], [], []

    def look(done: int, run: audit.InversionRun, _: dict[str, np.ndarray]) -> None:
        x = run.attack.variables["x"]
        iterations.append(done)
        ratios.append(float(ratio(x)))
        psnr.append(float(metrics.psnr(np.asarray(exact), np.asarray(jnp.clip(x, 0, 1)))[0]))

    audit.invert(
        engine,
        observation,
        template_of_images(case, side.private),
        key=jax.random.key(seed),
        iterations=case.iterations,
        chunk=every,
        callbacks=(look,),
    )
    return {"iteration": np.array(iterations), "ratio": np.array(ratios), "psnr": np.array(psnr)}


def parabola_path(case: Case) -> np.ndarray:
    """Run gradient descent on y = x^2 from x = 0.5 (Fig. 10), with the case's step size, blend and probe.

    Args:
        case: case that gives the step size, the blend, the probe and the number of iterations.

    Returns:
        (iterations + 1,) values of x before the first step and after each step, without a unit.
    """
    regularization = resolved(case).settings.regularization
    path = [jnp.float32(0.5)]
    for _ in range(case.iterations):
        _, _, direction = objectives.regularized_gradient(
            lambda x, _: (x**2, None),
            path[-1],
            regularization,
            selected=lambda aux: aux,
            step=lambda gradient: -case.step_size * gradient,
        )
        path.append(path[-1] - case.step_size * direction)
    return np.array(path)


def settled_after(curve: np.ndarray, share: float = 0.05) -> float:
    """Find the iteration after which a curve stays close to its last value.

    Close means that the curve lies above its last value by at most a share of its fall from first to last value.

    Args:
        curve: (iterations,) values, not empty.
        share: share of the curve's fall, > 0.
    """
    above = np.flatnonzero(curve > curve[-1] + share * max(curve[0] - curve[-1], 0.0))
    return float(above[-1] + 1 if len(above) else 0)


def summary_of_ratios(ratios: np.ndarray) -> dict[str, float]:
    """Compute the median, the quartiles and the share of positive values.

    Args:
        ratios: (N,) numbers, not empty.
    """
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    positive = float(np.mean(ratios > 0))
    return {"median": float(middle), "quartile_low": float(low), "quartile_high": float(high), "positive": positive}
