"""Measure what second-order products through a matching objective cost in time and memory.

The first test compares, in the engine, the gradient regularization by a finite difference with that by the exact
Hessian-vector product. The second compares three orders of differentiation for the product itself, two of them also
with rematerialisation of the network. Before anything is timed, both regularizations must give nearly the same
direction, and all orders the same product. This direction is mostly the plain gradient. A column therefore gives the
cosine of the two changes to the plain gradient, since a finite step crosses ReLUs that a derivative at one point does
not see.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _limits, _problems
from benchmarks._quiet import first_call, measure
from jaxleak import models
from jaxleak.objectives import cosine, cross_entropy, gradient_regularization

BATCH = 4
RATE = 1.0
ALIKE = 0.99
REGULARIZATIONS = {
    "none": gradient_regularization(0.0),
    "finite difference": gradient_regularization(0.7),
    "exact": gradient_regularization(0.7, exact=True),
}


@functools.cache
def problem_of(regularization: str) -> _problems.Inversion:
    settings = _problems.descent("inverting_gradients", RATE)._replace(regularization=REGULARIZATIONS[regularization])
    return _problems.inversion(models.build("resnet10", (32, 32, 3), 10), settings, BATCH)


def direction(regularization: str) -> np.ndarray:
    """The direction of one step, as one vector."""
    before = arguments()[1].variables["x"]
    state, _ = step_of(regularization)(*arguments())
    return _problems.gradient(before, state.variables["x"], RATE).ravel()


def cosine_of(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@functools.cache
def step_of(regularization: str):
    problem = problem_of(regularization)
    return jax.jit(problem.trials.attack.step).lower(*arguments()).compile()


def arguments():
    problem = problem_of("none")
    return _problems.KEY, problem.begin.attack, problem.observation


@pytest.mark.parametrize("regularization", REGULARIZATIONS)
def test_gradient_regularization(benchmark, regularization):
    _, infos = first_call(benchmark, lambda: step_of(regularization)(*arguments()))
    _, plain = step_of("none")(*arguments())
    np.testing.assert_allclose(infos["loss"], plain["loss"], rtol=1e-4)
    columns = {"temporary MB": _limits.temporary_megabytes(step_of(regularization))}
    if regularization != "none":
        ours, plain_descent, exact = map(direction, (regularization, "none", "exact"))
        assert cosine_of(ours, exact) > ALIKE
        columns["cosine of its change with the exact one"] = cosine_of(ours - plain_descent, exact - plain_descent)
    measure(
        benchmark,
        lambda: step_of(regularization)(*arguments()),
        group=f"Gradient regularization, one step, ResNet10, B = {BATCH}, 32x32x3",
        name=regularization,
        **columns,
    )


def objective(remat: bool):
    """The cosine distance as a function of the images (B, H, W, C)."""
    problem = problem_of("none")
    model, observation = problem.model, problem.observation
    variables, y = observation.params, observation.labels

    def logits(params, x):
        return model.apply({**variables, "params": params}, x).logits

    forward = jax.checkpoint(logits) if remat else logits

    def value(x):
        gradient = jax.grad(lambda params: cross_entropy(forward(params, x), y))(variables["params"])
        return cosine(observation.payload, gradient)

    return value


def forward_over_reverse(f, x, v):
    return jax.jvp(jax.grad(f), (x,), (v,))[1]


def reverse_over_reverse(f, x, v):
    return jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), v))(x)


def reverse_over_forward(f, x, v):
    return jax.grad(lambda x: jax.jvp(f, (x,), (v,))[1])(x)


ORDERS = {
    "forward over reverse": (forward_over_reverse, False),
    "reverse over reverse": (reverse_over_reverse, False),
    "reverse over forward": (reverse_over_forward, False),
    "forward over reverse, network rematerialised": (forward_over_reverse, True),
    "reverse over reverse, network rematerialised": (reverse_over_reverse, True),
}


def point():
    x = problem_of("none").begin.attack.variables["x"]
    return x, jax.random.normal(jax.random.key(1), x.shape)


@functools.cache
def product_of(order: str):
    product, remat = ORDERS[order]
    return jax.jit(functools.partial(product, objective(remat))).lower(*point()).compile()


@pytest.mark.parametrize("order", ORDERS)
def test_hessian_vector_product(benchmark, order):
    ours = first_call(benchmark, lambda: product_of(order)(*point()))
    theirs = product_of("forward over reverse")(*point())
    _problems.assert_same_gradient(np.asarray(theirs), np.asarray(ours))
    product, (x, v) = product_of(order), point()
    measure(
        benchmark,
        lambda: product(x, v),
        group=f"Hessian-vector product of the matching objective, ResNet10, B = {BATCH}, 32x32x3",
        name=order,
        **{"temporary MB": _limits.temporary_megabytes(product)},
    )
