"""A run does not go on with a function of one's own that was edited after the run began."""

import json
import types

import jax
import jax.numpy as jnp
import pytest

from jaxleak import Batch, Observation, attacks, audit, models, protocols
from jaxleak._configuration import described
from jaxleak.attacks import presets
from jaxleak.checkpoint import Checkpoints, ConfigMismatchError


def _compiled(source):
    """The function `distance` of a module of this source, as a process makes it that reads the file."""
    module = types.ModuleType("mine")
    exec(compile(source, "mine.py", "exec"), module.__dict__)
    return module.distance


@pytest.mark.parametrize(
    "edited",
    [
        ("WEIGHT = 1.0", "WEIGHT = 2.0"),
        ("observed - simulated", "observed + simulated"),
        ("return tree**2", "return tree**4"),
        ("range(2)", "range(3)"),
        ("{1, 2, 3}", "{1, 2, 4}"),
    ],
    ids=["global", "body", "helper", "inner", "set"],
)
def test_an_edit_of_a_function_of_ones_own_is_another_configuration(edited):
    source = """
WEIGHT = 1.0
def power(tree):
    return tree**2
def distance(observed, simulated):
    return sum(WEIGHT * power(observed - simulated) for part in range(2) if part not in {1, 2, 3})
"""
    assert edited[0] in source
    first = described({"f": _compiled(source)})
    assert described({"f": _compiled("# a comment" + source)}) == first
    assert described({"f": _compiled(source.replace(*edited))}) != first
    assert described({"f": jax.jit(_compiled(source))}) != described({"f": jax.jit(_compiled(source.replace(*edited)))})


def test_functions_of_ones_own_that_call_each_other_are_described():
    mutual = _compiled("def other(n):\n    return distance(n)\ndef distance(n):\n    return n and other(n - 1)")
    assert described({"f": mutual}) == described({"f": mutual})


def test_functions_of_jaxleak_are_described_without_their_code():
    assert "code " not in json.dumps(described({"settings": presets.fedleak(4)}))


def test_an_inversion_does_not_go_on_with_an_edited_distance(tmp_path):
    """Otherwise one run would descend one distance before it was killed, and another one afterwards."""
    model = models.mlp((2, 2, 1), 3, widths=(4,))
    share = protocols.ClientShare(model)
    variables = model.init(jax.random.key(0))
    secret = Batch(jnp.ones((1, 1, 2, 2, 1)) / 2, jnp.zeros(1, jnp.int32), jnp.arange(1))
    seen = Observation(jnp.zeros((), jnp.int32), variables, share(variables, secret))
    source = """
import jax
WEIGHT = 1.0
def distance(observed, simulated):
    return WEIGHT * sum(((a - b) ** 2).sum() for a, b in zip(jax.tree.leaves(observed), jax.tree.leaves(simulated)))
"""

    def inverted(source, iterations):
        settings = presets.dlg(4)._replace(labels="joint").comparing(distance=_compiled(source))
        attack = attacks.inversion(model, share, settings, batch_size=1)
        given = {"key": jax.random.key(1), "chunk": 2, "iterations": iterations}
        return audit.invert(attack, seen, audit.template_of(secret), checkpoints=Checkpoints(tmp_path, {}), **given)

    inverted(source, 2)
    with pytest.raises(ConfigMismatchError, match="another choice of settings"):
        inverted(source.replace("WEIGHT = 1.0", "WEIGHT = 3.0"), 4)
    assert len(inverted(source, 4)[2]["loss"]) == 4
