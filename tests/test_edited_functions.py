"""A run does not go on with a function of one's own that was edited after the run began."""

import json
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
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


@pytest.mark.parametrize(
    "edited",
    [
        ('{"scale": 1.0}', '{"scale": 2.0}'),
        ("[1, 2, 3]", "[1, 2, 4]"),
        ("entry**2", "entry**4"),
        ("factor = 3", "factor = 4"),
        ("Term(0.5)", "Term(0.7)"),
        ("offset + 1", "offset + 2"),
        ("return 7", "return 8"),
    ],
    ids=["dictionary", "list", "method", "attribute", "object", "base", "property"],
)
def test_an_edit_of_a_class_or_a_list_of_ones_own_is_another_configuration(edited):
    source = """
SETTINGS = {"scale": 1.0}
POWERS = [1, 2, 3]
class Base:
    def moved(self, offset):
        return offset + 1
class Term(Base):
    factor = 3
    def __init__(self, weight):
        self.weight = weight
    @property
    def more(self):
        return 7
    def of(self, entry):
        return self.factor * self.moved(entry**2) + super().moved(self.weight) + self.more
TERM = Term(0.5)
def distance(observed, simulated):
    return TERM.of(observed) + Term(2).of(simulated) + SETTINGS["scale"] + POWERS[0]
"""
    assert edited[0] in source
    first = described({"f": _compiled(source)})
    assert described({"f": _compiled("# a comment" + source)}) == first
    assert described({"f": _compiled(source.replace(*edited))}) != first


def test_a_method_of_an_object_of_ones_own_is_described_with_its_class():
    source = """
class Distance:
    def __call__(self, observed, simulated):
        return self.of(observed - simulated)
    def of(self, entry):
        return entry**2
distance = Distance().__call__
"""
    first = described({"f": _compiled(source)})
    assert described({"f": _compiled(source)}) == first
    assert described({"f": _compiled(source.replace("entry**2", "entry**3"))}) != first


@pytest.mark.parametrize("stride", [1, 2])
def test_modules_of_flax_are_told_apart_by_their_fields(stride):
    """Weights have the same shapes for any stride, and a module may stand in a list of one's own module."""
    source = "import flax.linen as nn\nLAYERS = [nn.Conv(2, (3, 3), strides=1)]\ndef distance(x):\n    return LAYERS"
    of_list = described({"f": _compiled(source.replace("strides=1", f"strides={stride}"))})
    assert (of_list == described({"f": _compiled(source)})) == (stride == 1)

    def made(module):
        return described({"f": lambda x, variables: module.apply(variables, x)})

    net = nn.Sequential([nn.Conv(2, (3, 3), strides=stride), nn.relu])
    before, x = made(net), jnp.ones((1, 4, 4, 1))
    net.apply(net.init(jax.random.key(0), x), x)
    assert made(net) == before
    assert (made(nn.Sequential([nn.Conv(2, (3, 3)), nn.relu])) == before) == (stride == 1)
    assert made(nn.Sequential([nn.Conv(2, (3, 3), strides=stride), nn.tanh])) != before


def test_a_schedule_has_the_same_description_after_its_first_call():
    """Optax changes a closure of the schedule; a run would else not go on in the process that began it."""
    schedule = optax.cosine_decay_schedule(0.1, 4)
    before = described({"f": schedule}), described((schedule,), (0,), coarse=True)
    schedule(1)
    assert (described({"f": schedule}), described((schedule,), (0,), coarse=True)) == before
    assert described({"f": optax.cosine_decay_schedule(0.1, 5)}) != before[0]


def test_functions_of_ones_own_that_call_each_other_are_described():
    mutual = _compiled("def other(n):\n    return distance(n)\ndef distance(n):\n    return n and other(n - 1)")
    assert described({"f": mutual}) == described({"f": mutual})


def test_functions_of_jaxleak_are_described_without_their_code():
    assert "code " not in json.dumps(described({"settings": presets.fedleak(4)}))


def _inverted(settings, iterations, folder):
    """An inversion of one image by an MLP, up to this iteration, with its checkpoints in a folder."""
    model = models.mlp((2, 2, 1), 3, widths=(4,))
    share = protocols.ClientShare(model)
    variables = model.init(jax.random.key(0))
    secret = Batch(jnp.ones((1, 1, 2, 2, 1)) / 2, jnp.zeros(1, jnp.int32), jnp.arange(1))
    seen = Observation(jnp.zeros((), jnp.int32), variables, share(variables, secret))
    attack = attacks.inversion(model, share, settings, batch_size=1)
    given = {"key": jax.random.key(1), "chunk": 2, "iterations": iterations}
    return audit.invert(attack, seen, audit.template_of(secret), checkpoints=Checkpoints(folder, {}), **given)


def test_an_inversion_does_not_go_on_with_an_edited_distance(tmp_path):
    """Otherwise one run would descend one distance before it was killed, and another one afterwards."""
    source = """
import jax
WEIGHT = 1.0
def distance(observed, simulated):
    return WEIGHT * sum(((a - b) ** 2).sum() for a, b in zip(jax.tree.leaves(observed), jax.tree.leaves(simulated)))
"""

    def inverted(source, iterations):
        settings = presets.dlg(4)._replace(labels="joint").comparing(distance=_compiled(source))
        return _inverted(settings, iterations, tmp_path)

    inverted(source, 2)
    with pytest.raises(ConfigMismatchError, match="another choice of settings"):
        inverted(source.replace("WEIGHT = 1.0", "WEIGHT = 3.0"), 4)
    assert len(inverted(source, 4)[2]["loss"]) == 4


def test_an_inversion_goes_on_with_the_same_settings_and_says_which_setting_is_another(tmp_path):
    settings = presets.fedleak(4)
    _inverted(settings, 2, tmp_path)
    with pytest.raises(ConfigMismatchError, match=r"Settings that differ: priors: 'auto' there, '0.3' now$"):
        _inverted(settings.weighing(tv=0.3), 4, tmp_path)
    assert len(_inverted(settings, 4, tmp_path)[2]["loss"]) == 4
