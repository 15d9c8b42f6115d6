"""The recipes of CONTRIBUTING.md, followed in a copy of the package: the files they touch, and the effect on commands.

A subprocess asks the copy; this process keeps the package that all other tests use.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxleak
from jaxleak._base import Reconstruction
from jaxleak._registry import names_in
from jaxleak.defenses.mechanisms import GaussianNoise

PACKAGE = Path(jaxleak.__file__).parent

ATTACK = '''
def shy(iterations: int = 20, *, far: bool = False) -> Settings:
    """Squared L2 from grey images, by Adam."""
    rate = 0.2 if far else 0.1
    return Settings(pixels("nearly_grey"), Gradients(squared_l2), cosine_decay_adam(rate, iterations), iterations)


'''
MODEL = '''"""A linear model."""

import flax.linen as nn
import jax

from jaxleak.models._classifier import Classifier
from jaxleak.models._door import classifier


class Linear(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(self.num_classes, name="head")(x.reshape(x.shape[0], -1))


def linear(image_shape: tuple[int, ...], num_classes: int) -> Classifier:
    """One dense layer on the pixels."""
    return classifier(Linear(num_classes), image_shape=image_shape, num_classes=num_classes)
'''
DEFENSE = '''"""A payload that is sent smaller than it is."""

from jaxleak import _validate
from jaxleak.defenses._base import Defense, per_leaf
from jaxleak.defenses.mechanisms import Mechanism, Replayed


def shrink(factor: float) -> Defense:
    """Multiply the payload by `factor`, in (0, 1]."""
    _validate.in_range(0, 1, factor=factor)
    return per_leaf("payload", lambda key, leaf: factor * leaf, mechanism=Mechanism(Replayed()))
'''
#: Files that each recipe touches: the text of a new file, or text to insert and the existing text that follows it.
RECIPES = {
    "attack": {
        "attacks/presets.py": (
            ("#: Every preset by name.", ATTACK.lstrip("\n")),
            ('    "dlg": dlg', '    "shy": shy,\n'),
        )
    },
    "model": {
        "models/_linear.py": MODEL,
        "models/__init__.py": (
            ("from jaxleak.models._mobilenet", "from jaxleak.models._linear import linear\n"),
            ('    "mlp": mlp', '    "linear": linear,\n'),
            ('    "load_weights",', '    "linear",\n'),
        ),
    },
    "defense": {
        "defenses/_shrink.py": DEFENSE,
        "defenses/__init__.py": (
            ("from jaxleak.defenses._soteria", "from jaxleak.defenses._shrink import shrink\n"),
            ('    "soteria",', '    "shrink",\n'),
        ),
        "defenses/_client_defenses.py": (
            ("from jaxleak.defenses._soteria", "from jaxleak.defenses._shrink import shrink\n"),
            ('    "soteria": ', '    "shrink": ClientDefense(shrink, (0.9, 0.5), "factor of every entry"),\n'),
        ),
    },
    "dataset": {"data/_load.py": (('    "sensorless",', '    "pebbles",\n'),)},
}
#: Largest number of files that a recipe may touch outside of tests and docs.
AT_MOST = {"attack": 3, "model": 2, "defense": 3, "dataset": 1}

ASK = """
import dataclasses, json, sys
from jaxleak._command.invert.options import HELP
without_jax = "jax" not in sys.modules
import jaxleak
from jaxleak.study.updates import Case, check, defense_of, resolved, victim
case = Case(
    attack="shy", far=True, model="linear", data="pebbles", defense="shrink", strength=0.5, pool=4, iterations=7
)
check(case)
side = victim(case, 0)
built = [
    resolved(case).build(side.model, side.share).iterations, defense_of(case, side.model).place, side.private.x.shape
]
try:
    check(Case(attack="dlg", far=True))
except ValueError as error:
    refused = str(error)
print(json.dumps([jaxleak.__file__, HELP, without_jax, refused, built]))
"""


def _follow(recipe, package):
    for name, change in recipe.items():
        file = package / name
        if isinstance(change, str):
            assert not file.exists()
            file.write_text(change)
            continue
        text = file.read_text()
        for before, new in change:
            assert text.count(before) == 1, f"{name} has {text.count(before)} times {before!r}"
            text = text.replace(before, new + before)
        file.write_text(text)


def test_recipes_touch_few_files_and_commands_know_what_they_add(tmp_path):
    package = tmp_path / "jaxleak"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for kind, recipe in RECIPES.items():
        assert len(recipe) <= AT_MOST[kind]
        _follow(recipe, package)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "pebbles.npz", x=rng.random((8, 6, 6, 1), np.float32), y=np.arange(8) % 4)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "JAXLEAK_DATA_DIR": str(tmp_path)}
    asked = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    where, text, without_jax, refused, built = json.loads(asked.stdout)
    assert Path(where).is_relative_to(tmp_path)
    assert without_jax
    for option, name in {"attack": "shy", "model": "linear", "defense": "shrink"}.items():
        assert re.search(rf"--{option}: .*\b{name}\b", text)
    assert refused == "far is read by shy and row_space only, got attack dlg"
    assert built == [7, "payload", [4, 1, 6, 6, 1]]


def test_computed_names_are_refused(tmp_path):
    file = tmp_path / "registry.py"
    file.write_text(
        "ONE = ('a', *TWO)\nTWO: dict = {'b': 1, **THREE}\nTHREE = {'c': 1}\nFOUR = {name: 1 for name in TWO}\n"
    )
    assert names_in(file, "ONE") == ("a", "b", "c")
    for registry in ("FOUR", "FIVE"):
        with pytest.raises(ValueError, match=f"{registry} in .* must be a dict with names as keys or a tuple of names"):
            names_in(file, registry)


@pytest.mark.slow
def test_the_example_of_a_defense_runs_as_it_is_printed():
    page = (PACKAGE.parent / "docs" / "defenses_list.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)  # the page's own example
    assert isinstance(names["answer"], Reconstruction)
    assert np.isfinite(names["answer"].score).all()
    assert names["defense"].mechanism.noise == GaussianNoise(1e-3)
    noise = jaxleak.defenses.Defense.apply(
        names["defense"], names["jax"].random.key(0), np.zeros((100, 100), np.float32)
    )
    assert abs(float(noise.std()) / 1e-3 - 1) < 0.02
