"""Slow, obvious references in NumPy loops, and tiny problems that several test files share."""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxleak import attacks, audit, data, defenses, models, protocols, threats
from jaxleak._base import Batch, Observation, Protocol, PyTree
from jaxleak.audit import template_of
from jaxleak.objectives import cross_entropy


class Problem(NamedTuple):
    model: models.SplitModel
    protocol: Protocol
    private: Batch
    params: PyTree
    template: Batch


class DenseExtractor(nn.Module):
    """A dense layer on the pixels that records statistics; it compiles in a fraction of a convolution's time."""

    @nn.compact
    def __call__(self, x, temperature=None):
        z = nn.Dense(3)(x.reshape(x.shape[0], -1))
        self.sow("statistics", "mean_0", z.mean(axis=0))
        self.sow("statistics", "var_0", z.var(axis=0))
        return nn.tanh(z)


class Sum(nn.Module):
    @nn.compact
    def __call__(self, u):
        return nn.Dense(2)(nn.tanh(u).sum(axis=1))


def small_problem(**options):
    """The smallest problem with images, several parties, statistics and all groups of parameters: N = 6, K = 2."""
    model = models.split_model(DenseExtractor(), Sum(), parties=2, slice_shape=(4, 4, 1), num_classes=2, width=5)
    return _problem(model, 6, 2, 2, **options)


def tiny_problem(*, n=12, k=4, parties=2, side=8, channels=(4, 8), width=32, hidden=16, classes=3, **options):
    """A problem with a miniature of CAFE's vertical network."""
    model = models.cafe_vertical(
        (side, side, 1), parties=parties, num_classes=classes, channels=channels, width=width, hidden=hidden
    )
    return _problem(model, n, k, classes, **options)


def split_problem(seed=0):
    """A problem with small bottom and top models and parties of unequal width: N = 6, B = 2."""
    model = models.bottom_top((3, 2), 2, bottom=(4,), top=(4,))
    protocol = protocols.split_training(model, num_samples=6, batch_size=2)
    x = np.random.default_rng(seed).random((6, 2, 3), np.float32)
    x[:, 1, 2] = 0.0
    private = Batch(given(x), jnp.array([0, 1, 1, 0, 1, 0], jnp.int32), jnp.arange(6))
    return Problem(model, protocol, private, jax.jit(protocol.init)(jax.random.key(1)).params, template_of(private))


def digit_tiles(n, parties=4):
    """A dense network on quarters of the digits, wide enough for CAFE's Steps I and II, and the private set."""
    digits = data.load("digits", n=n)
    tiles, _ = data.image_tiles(digits.x, parties)
    model = models.all_dense(tiles.shape[2:], parties=parties, width=256)
    return model, Batch(jnp.asarray(tiles), jnp.asarray(digits.y), jnp.arange(n))


def client_problem(n=4, model=None, **options):
    """A client that uses all its n samples in every round, by default with a narrow batch-normalised network."""
    model = model or models.convnet((4, 4, 1), 3, channels=(3,), strides=(2,), batch_norm=True)
    share = protocols.ClientShare(model, **options)
    size = n // (share.clients * share.local_steps)
    protocol = protocols.client(share, num_samples=n, batch_size=size, with_statistics=model.has_batch_norm)
    rng = np.random.default_rng(0)
    private = Batch(given(rng.random((n, 1, 4, 4, 1))), jnp.arange(n, dtype=jnp.int32) % 3, jnp.arange(n))
    return Problem(model, protocol, private, drawn(model, seed=1), template_of(private))


def growing(place):
    """A defense with memory: it multiplies updates by the number of the round, which it counts itself."""

    def update(updates, state, params=None, **_):
        return jax.tree.map(lambda leaf: (state["round"] + 1) * leaf, updates), {"round": state["round"] + 1}

    def init(params):
        return {"round": jnp.zeros((), jnp.int32)}

    return defenses.Defense(place, optax.GradientTransformationExtraArgs(init, update))


def sigmoid_mlp():
    """A narrow network without kinks; its gradients determine a small batch."""
    return models.mlp((4, 4, 1), 3, widths=(24,), activation="sigmoid")


def transformer():
    """A vision transformer of four tokens."""
    return models.vit((4, 4, 1), 3, patch_size=2, width=8, depth=1, heads=2)


def _problem(model, n, k, classes, **options):
    protocol = protocols.vertical(model, num_samples=n, batch_size=k, sampling="uniform", **options)
    # From the initialisers themselves: from other draws, CAFE's optimisations need more steps than their tests allow.
    x_key, y_key = jax.random.split(jax.random.key(0))
    x = jax.random.uniform(x_key, (n, model.parties, *model.slice_shape))
    private = Batch(x, jax.random.randint(y_key, (n,), 0, classes), jnp.arange(n))
    params = jax.jit(protocol.init)(jax.random.key(1)).params
    return Problem(model, protocol, private, params, template_of(private))


def first_transcript(problem):
    # Arguments, not closed-over constants: XLA would slowly evaluate constants at compile time.
    state = jax.jit(problem.protocol.init)(jax.random.key(1))._replace(params=problem.params)
    return jax.jit(problem.protocol.round)(jax.random.key(2), state, problem.private)[1]


def recovered(attack, state, params):
    """The result of Steps I and II for every sample, from the final state of an attack on rounds."""
    return attack.reconstruct(state, Observation(state.seen, params)).diagnosis


def assert_later_rounds_change_nothing(make, model, private, *, batch_size, key):
    """Assert that three rounds beyond the plan do not change the state of `make(model, plan, invert=False)`."""
    n = len(private.y)
    plan = attacks.plan_cafe_exact(model, num_samples=n, batch_size=batch_size, feature_rounds=8)
    protocol = protocols.vertical(model, num_samples=n, batch_size=batch_size, sampling="uniform")
    attack = make(model, plan, invert=False)
    run = functools.partial(audit.run, attack, protocol, threats.FIRST_LAYER_ONLY, private, key=key)
    exactly, _ = run(rounds=plan.rounds)
    longer, _ = run(rounds=plan.rounds + 3, state=exactly)
    jax.tree.map(np.testing.assert_array_equal, longer.attack, exactly.attack)


def true_features_and_output_gradients(problem, k):
    """True H (N, P, d1), and V (N, P, d2) = (1/K) dL/du by automatic differentiation, one sample at a time."""
    model, params = problem.model, problem.params

    @jax.jit
    def both(params, x, y):
        def gradient(u_n, y_n):
            return jax.grad(lambda u: cross_entropy(model.rest(params, u[None]), y_n[None]))(u_n) / k

        h = model.features(params, x)
        return h, jax.vmap(gradient)(model.pre_activations(params, h), y)

    return tuple(map(np.asarray, both(params, problem.private.x, problem.private.y)))


def output_objective(v, bias_gradient):
    total = 0.0
    for p in range(v.shape[1]):
        for e in range(v.shape[2]):
            total += (sum(float(v[n, p, e]) for n in range(len(v))) - float(bias_gradient[p, e])) ** 2
    return total


def feature_objective(h, v, kernel_gradient):
    total = 0.0
    for p in range(h.shape[1]):
        product = sum(np.outer(h[n, p], v[n, p]) for n in range(len(h)))
        total += float(((product - kernel_gradient[p]) ** 2).sum())
    return total


def numerical_gradient(function, x, step=1e-5):
    """The gradient by central differences, one entry at a time, in float64."""
    x = np.array(x, np.float64)
    gradient = np.zeros_like(x)
    for position in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[position] += step
        down[position] -= step
        gradient[position] = (function(up) - function(down)) / (2 * step)
    return gradient


def algorithm_1(V, batches, bias_gradients, learning_rate):
    """V by CAFE's Algorithm 1: plain SGD on V, one sample of the batch at a time."""
    V = np.array(V, np.float64)
    for batch, g in zip(batches, bias_gradients, strict=True):
        total = np.zeros(V.shape[1:])
        for n in batch:
            total += V[n]
        for n in batch:
            V[n] -= learning_rate * 2 * (total - g)
    return V


def total_variation(image):
    height, width, channels = image.shape
    total = 0.0
    for c in range(channels):
        for i in range(height):
            for j in range(width):
                if i + 1 < height:
                    total += abs(float(image[i + 1, j, c]) - float(image[i, j, c]))
                if j + 1 < width:
                    total += abs(float(image[i, j + 1, c]) - float(image[i, j, c]))
    return total


def squared_distance(a, b):
    return sum(
        (float(x) - float(y)) ** 2 for p, q in zip(a, b, strict=True) for x, y in zip(p.flat, q.flat, strict=True)
    )


def cosine_distance(a, b):
    a, b = (np.concatenate([np.ravel(leaf) for leaf in tree]).astype(np.float64) for tree in (a, b))
    return 1 - sum(a * b) / (np.sqrt(sum(a * a)) * np.sqrt(sum(b * b)))


def sapag_kernel(a, b):
    return sum(
        1 - np.exp(-squared_distance([p], [q]) / np.var(p.astype(np.float64))) for p, q in zip(a, b, strict=True)
    )


class TwiceCorrectedAdam:
    """The published CAFE code's Adam, row by row: moments per row, one counter, bias corrected twice."""

    def __init__(self, table, learning_rate):
        self.table, self.learning_rate, self.t = np.array(table, np.float64), learning_rate, 0
        self.mu, self.nu = np.zeros_like(self.table), np.zeros_like(self.table)

    def update(self, gradients, index):
        self.t += 1
        rate = self.learning_rate * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        for g, n in zip(gradients, index, strict=True):
            self.mu[n] = 0.9 * self.mu[n] + 0.1 * g
            self.nu[n] = 0.999 * self.nu[n] + 0.001 * g**2
            mu_hat, nu_hat = self.mu[n] / (1 - 0.9**self.t), self.nu[n] / (1 - 0.999**self.t)
            self.table[n] -= rate * mu_hat / (np.sqrt(nu_hat) + 1e-7)


def conv2d(x, kernel):
    """Cross-correlation with zero padding, one output entry at a time."""
    batch, height, width, _ = x.shape
    kh, kw, _, c_out = kernel.shape
    out = np.zeros((batch, height, width, c_out))
    for b, i, j, c in np.ndindex(out.shape):
        for di in range(kh):
            for dj in range(kw):
                row, column = i + di - kh // 2, j + dj - kw // 2
                if 0 <= row < height and 0 <= column < width:
                    out[b, i, j, c] += float(x[b, row, column] @ kernel[di, dj, :, c])
    return out


def _windows(z):
    """Yield the position of every pooling window, and the entries of `z` inside it."""
    batch, height, width, channels = z.shape
    for b, i, j, c in np.ndindex(batch, (height + 1) // 2, (width + 1) // 2, channels):
        cells = [(2 * i + di, 2 * j + dj) for di in range(2) for dj in range(2)]
        yield (b, i, j, c), [(b, row, column, c) for row, column in cells if row < height and column < width]


def max_pool(z):
    batch, height, width, channels = z.shape
    out = np.zeros((batch, (height + 1) // 2, (width + 1) // 2, channels), z.dtype)
    for position, cells in _windows(z):
        out[position] = max(z[cell] for cell in cells)
    return out


def smoothed_pool_tangent(z, dz, temperature):
    """Tangents of smoothed pooling: means over each window and zero, weighted by softmax(value / temperature)."""
    out = np.zeros_like(max_pool(z), np.float64)
    for position, cells in _windows(z):
        values = np.array([*(z[cell] for cell in cells), 0.0], np.float64) / temperature[position[0]]
        weights = np.exp(values - values.max())
        out[position] = sum(w * dz[cell] for w, cell in zip(weights[:-1] / weights.sum(), cells, strict=True))
    return out


def mean_of_sample_gradients(model, params, batch):
    """The mean, leaf by leaf, of gradients that are computed one sample at a time."""

    @jax.jit
    def one(params, x, y):
        return jax.grad(lambda p: cross_entropy(model.apply(p, x[None]), y[None]))(params)

    gradients = [one(params, x, y) for x, y in zip(batch.x, batch.y, strict=True)]
    return jax.tree.map(lambda *leaves: sum(np.asarray(leaf, np.float64) for leaf in leaves) / len(leaves), *gradients)


def mean_of_classifier_gradients(model, variables, batch):
    """The mean of gradients computed one sample at a time, for models without interaction between samples."""
    one = _gradient_of_one(model)
    gradients = [one(variables, x, y) for x, y in zip(batch.x, batch.y, strict=True)]
    return jax.tree.map(lambda *parts: sum(parts) / len(parts), *gradients)


@functools.cache
def _gradient_of_one(model):
    """The compiled gradient of one sample's loss with respect to the parameters, cached by model."""

    def loss(params, variables, x, y):
        logits = model.apply({**variables, "params": params}, x).logits[0]
        return -jax.nn.log_softmax(logits)[y]

    return jax.jit(lambda variables, x, y: jax.grad(loss)(variables["params"], variables, x, y))


def _candidate_5(member, reading):
    return [sorted(np.abs(leaf) if reading == "clamped" else leaf, reverse=True) for leaf in member]


def _ranked_5(gradient, reading):
    """Positions of a tensor's entries by descending magnitude, or by descending value for "paired"."""
    size = (lambda k: gradient.flat[k]) if reading == "paired" else (lambda k: abs(gradient.flat[k]))
    return sorted(range(gradient.size), key=size, reverse=True)


def algorithm_5_distance(gradients, member, *, reading):
    total = 0.0
    for psi, g in zip(_candidate_5(member, reading), gradients, strict=True):
        for rank, k in enumerate(_ranked_5(g, reading)):
            total += (float(psi[rank]) - float(abs(g.flat[k]) if reading == "clamped" else g.flat[k])) ** 2
    return total**0.5


def algorithm_5(gradients, pool, *, reading):
    """CAFE's fake gradients (Algorithm 5) from a given pool, entry by entry; "paired" uses the rule in the text."""
    member = min(pool, key=lambda member: algorithm_5_distance(gradients, member, reading=reading))
    fakes = []
    for psi, g in zip(_candidate_5(member, reading), gradients, strict=True):
        fake = np.zeros(g.shape)
        for rank, k in enumerate(_ranked_5(g, reading)):
            fake.flat[k] = psi[rank] if reading == "paired" else min(psi[rank], max(g.flat[k], -psi[rank]))
        fakes.append(fake)
    return fakes


def solve_step_1(batches, bias_gradients, n):
    """Least squares for V from sums over batches, in float64."""
    incidence = np.zeros((len(batches), n))
    for t, batch in enumerate(batches):
        for sample in batch:
            incidence[t, sample] += 1
    flat = np.asarray(bias_gradients, np.float64).reshape(len(batches), -1)
    return np.linalg.lstsq(incidence, flat, rcond=None)[0].reshape(n, *bias_gradients.shape[1:])


def solve_step_2(batches, v, kernel_gradients):
    """Least squares for H: one system per party from all batches' kernel gradients, stacked (T, P, d1, d2)."""
    n, parties, width = v.shape
    h, ranks = np.zeros((n, parties, kernel_gradients.shape[2])), []
    for p in range(parties):
        rows, right = [], []
        for batch, kernel in zip(batches, kernel_gradients, strict=True):
            block = np.zeros((width, n))
            for sample in batch:
                block[:, sample] = v[sample, p]
            rows.append(block)
            right.append(np.asarray(kernel[p], np.float64).T)
        stacked = np.concatenate(rows)
        h[:, p] = np.linalg.lstsq(stacked, np.concatenate(right), rcond=None)[0]
        ranks.append(np.linalg.matrix_rank(stacked))
    return h, min(ranks)


def flat(tree):
    """All numbers of a tree in one vector."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def given(numbers, dtype=np.float32):
    """Convert NumPy numbers to a JAX array; `jnp.asarray` would compile a program for every new shape."""
    return jax.device_put(np.asarray(numbers, dtype))


def normal(*shape, seed=0):
    """Numbers of a standard normal distribution, the same for the same seed."""
    return given(np.random.default_rng(seed).standard_normal(shape))


def uniform(*shape, seed=0):
    """Numbers in [0, 1), such as pixels, the same for the same seed; drawn in NumPy, since JAX compiles per shape."""
    return given(np.random.default_rng(seed).random(shape))


def drawn(model, seed=0):
    """Draw a model's variables from the distribution of PyTorch's initialisers, the default of the library's networks.

    The draw uses NumPy, since compiling an initialiser takes longer than most tests. `test_models` tests the
    initialisers themselves.
    """
    rng = np.random.default_rng([1, seed])  # not the numbers that `uniform` draws for the same seed

    def limit(kernel):
        # A kernel with an odd number of axes holds one kernel for each of several parties.
        inputs = kernel.shape[1 if len(kernel.shape) % 2 else 0 : -1]
        return 1 / np.sqrt(np.prod(inputs))

    def numbers(name, leaf, beside):
        if name in ("scale", "var"):
            return np.ones(leaf.shape)
        if name in ("kernel", "bias") and "kernel" in beside:
            return limit(beside["kernel"]) * rng.uniform(-1, 1, leaf.shape)
        return np.zeros(leaf.shape) if name in ("bias", "mean") else 0.02 * rng.standard_normal(leaf.shape)

    def filled(shapes):
        return {
            name: filled(part) if isinstance(part, dict) else given(numbers(name, part, shapes), part.dtype)
            for name, part in shapes.items()
        }

    return filled(jax.eval_shape(model.init, jax.random.key(0)))


def psnr_by_hand(x, truth):
    """Peak signal-to-noise ratios (n,) in dB of n samples of any shape, for a peak of one."""
    return -10 * np.log10(((np.asarray(x, np.float64) - truth) ** 2).reshape(len(x), -1).mean(axis=1) + 1e-30)
