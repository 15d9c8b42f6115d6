"""The blend of two gradients, on a function with known derivatives and on a matching objective."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import models, objectives, protocols
from jaxleak._base import Batch


class TestGradientRegularization:
    """Gradient regularization of f(x) = sum a x^4, with known derivatives."""

    a = np.array([1.0, -0.5, 2.0])
    x = np.array([0.7, -1.1, 0.4])

    def direction(self, **options):
        def objective(x, chosen):
            assert chosen in (None, "kept")
            return jnp.sum(jnp.asarray(self.a) * x**4), "kept"

        regularization = objectives.gradient_regularization(0.6, **options)
        value, _, d = objectives.regularized_gradient(
            objective, jnp.asarray(self.x), regularization, selected=lambda aux: aux, step=lambda g: -0.1 * g
        )
        np.testing.assert_allclose(value, (self.a * self.x**4).sum(), rtol=1e-6)
        return np.asarray(d)

    def gradient(self, x):
        return 4 * self.a * x**3

    @pytest.mark.parametrize(("probe", "sign"), [("ascent", 1), ("descent", -1)])
    def test_blend_of_two_gradients(self, probe, sign):
        p = self.gradient(self.x)
        q = self.gradient(self.x + sign * 0.3 * p / np.linalg.norm(p))
        np.testing.assert_allclose(self.direction(length=0.3, probe=probe), 0.4 * p + 0.6 * q, rtol=1e-5)

    def test_probe_where_the_optimizer_would_step(self):
        p = self.gradient(self.x)
        expected = 0.4 * p + 0.6 * self.gradient(self.x - 0.1 * p)
        np.testing.assert_allclose(self.direction(probe="step"), expected, rtol=1e-5)

    @pytest.mark.parametrize("probe", ["ascent", "descent"])
    def test_a_gradient_of_zero_has_no_direction_to_probe_and_stays_zero(self, probe, monkeypatch):
        monkeypatch.setattr(self, "x", np.zeros(3))
        np.testing.assert_array_equal(self.direction(length=0.3, probe=probe), 0.0)

    @pytest.mark.parametrize("reselect", [False, True])
    def test_probe_keeps_the_first_choice_or_makes_its_own(self, reselect):
        """The objective is the square of the largest entry; probing downhill from (3, 2.9) makes the second largest."""

        def largest(x, chosen):
            chosen = jnp.argmax(x) if chosen is None else chosen
            return x[chosen] ** 2, chosen

        regularization = objectives.gradient_regularization(0.5, length=0.4, probe="descent", reselect=reselect)
        x = jnp.array([3.0, 2.9])
        _, _, d = objectives.regularized_gradient(
            largest, x, regularization, selected=lambda aux: aux, step=lambda g: g
        )
        np.testing.assert_allclose(d, [3.0, 2.9] if reselect else [3.0 + 2.6, 0.0], rtol=1e-6)

    def test_exact_product_is_the_limit_of_the_finite_difference(self):
        with jax.enable_x64(True):
            exact = self.direction(length=1e-5, exact=True) - self.gradient(self.x)
            finite = self.direction(length=1e-5) - self.gradient(self.x)
        cosine = exact @ finite / np.linalg.norm(exact) / np.linalg.norm(finite)
        assert cosine > 0.999
        hessian = 12 * self.a * self.x**2
        p = self.gradient(self.x)
        np.testing.assert_allclose(exact, 0.6 * 1e-5 * hessian * p / np.linalg.norm(p), rtol=1e-6)

    def test_exact_product_of_a_matching_objective(self):
        """For gradient matching, a small probe and one more exact derivative give the same direction."""
        with jax.enable_x64(True):
            model = models.mlp((3, 3, 1), 2, widths=(5,), activation="sigmoid", init="wide_uniform")
            variables = jax.tree.map(jnp.float64, reference.drawn(model))
            share, y = protocols.ClientShare(model), jnp.array([0, 1])
            truth, x = jax.random.uniform(jax.random.key(1), (2, 2, 1, 3, 3, 1), jnp.float64)
            observed = share(variables, Batch(truth, y, None))
            assert {leaf.dtype for leaf in jax.tree.leaves(observed)} == {jnp.dtype("float64")}

            def distance(x, _):
                return objectives.squared_l2(observed, share(variables, Batch(x, y, None))), None

            @jax.jit
            def directions(x):
                finite = objectives.gradient_regularization(1.0, length=1e-5)
                return [
                    objectives.regularized_gradient(distance, x, r, selected=lambda aux: aux, step=lambda g: g)[2]
                    for r in (finite._replace(blend=0.0), finite, finite._replace(exact=True))
                ]

            plain, *probed = (np.asarray(d).ravel() for d in directions(x))
        # The term that regularization adds to the gradient, per unit of length.
        finite, exact = ((d - plain) / 1e-5 for d in probed)
        assert exact @ finite / np.linalg.norm(exact) / np.linalg.norm(finite) > 0.999
        np.testing.assert_allclose(finite, exact, rtol=1e-2, atol=1e-3 * np.abs(exact).max())

    def test_plain_descent_is_what_is_meant_unless_said_otherwise(self):
        plain = objectives.GradientRegularization()
        assert plain == objectives.gradient_regularization(0.0) == (0.0, 1e-2, "ascent", False, False)
        assert objectives.gradient_regularization() == (0.7, 1e-2, "ascent", False, False)

        def objective(x, chosen):
            assert chosen is None  # evaluated once
            return jnp.sum(x**4), "aux"

        found = objectives.regularized_gradient(objective, jnp.ones(2), plain, selected=None, step=None)
        assert (float(found[0]), found[1], found[2].tolist()) == (2.0, "aux", [4.0, 4.0])

    def test_the_exact_product_has_the_sign_of_its_probe(self):
        p, hessian = self.gradient(self.x), 12 * self.a * self.x**2
        for probe, sign in (("ascent", 1), ("descent", -1)):
            expected = p + sign * 0.6 * 0.3 * hessian * p / np.linalg.norm(p)
            np.testing.assert_allclose(self.direction(length=0.3, probe=probe, exact=True), expected, rtol=1e-5)

    def test_the_bounds_of_the_arguments(self):
        for blend in (0.0, 1.0):
            assert objectives.gradient_regularization(blend).blend == blend
        for blend in (-1e-9, 1 + 1e-9):
            with pytest.raises(ValueError, match="blend must be in"):
                objectives.gradient_regularization(blend)
        with pytest.raises(ValueError, match="length must be > 0"):
            objectives.gradient_regularization(length=0.0)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="blend must be in \\[0, 1\\]"):
            objectives.gradient_regularization(1.5)
        with pytest.raises(ValueError, match="probe must be one of"):
            objectives.gradient_regularization(probe="sideways")
        with pytest.raises(ValueError, match="exact needs a probe along the gradient"):
            objectives.gradient_regularization(probe="step", exact=True)
