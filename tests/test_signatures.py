"""Signatures of public functions: options are passed by name, and defaults equal the stored ones."""

import ast
import importlib
import inspect
import os
import typing
from pathlib import Path

from test_public_names import NAMES

ROOT = Path(__file__).parents[1]
STORED = Path(__file__).parent / "snapshots" / "defaults.txt"
UPDATE = "JAXLEAK_UPDATE_SNAPSHOTS"
SOURCES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "jaxleak").rglob("*.py"))}


def test_no_argument_can_be_given_by_its_position_only():
    """Without position-only arguments, the stored signatures show where a bare star requires names."""
    nodes = [(path.name, node) for path, tree in SOURCES.items() for node in ast.walk(tree)]
    assert [
        (file, node.posonlyargs) for file, node in nodes if isinstance(node, ast.arguments) and node.posonlyargs
    ] == []


def test_sequences_are_read_side_by_side_to_the_end_of_all():
    """A zip that stops at the shortest sequence would silently lose samples."""
    calls = [
        (path.name, node) for path, tree in SOURCES.items() for node in ast.walk(tree) if isinstance(node, ast.Call)
    ]
    zips = [(file, call) for file, call in calls if getattr(call.func, "id", "") == "zip"]
    short = {(file, ast.unparse(call.args[0])) for file, call in zips if not ast.unparse(call).endswith("strict=True)")}
    # Exceptions: a program has inputs after the leaves, a plot has spare styles, and a point has one attack or two.
    assert short == {
        ("facts.py", "program.inputs"),
        ("plots.py", "(':', '-.', '--')"),
        ("plots.py", "series.items()"),
        ("_trade_offs.py", "_SUFFIXES"),
    }


def _is_plain(value):
    return isinstance(value, bool | int | float | str) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _defaults():
    """A line for every public function and class with defaults: its name, and the defaults that are plain values."""
    lines, seen = [], set()
    for module in NAMES:
        shown = importlib.import_module(module)
        for name in NAMES[module].split():
            thing = getattr(shown, name)
            callable_ = inspect.isfunction(thing) or (inspect.isclass(thing) and not issubclass(thing, Exception))
            if id(thing) in seen or not callable_ or typing.is_typeddict(thing):
                continue
            seen.add(id(thing))
            taken = inspect.signature(thing).parameters.values()
            plain = [f"{one.name}={one.default!r}" for one in taken if _is_plain(one.default)]
            if plain:
                lines.append(f"{module}.{name}: {', '.join(plain)}")
    return lines


def test_defaults_are_the_stored_ones():
    """A changed default changes everybody's results. An intended change is stored as in `test_snapshots`."""
    if os.environ.get(UPDATE):
        STORED.write_text("\n".join(_defaults()) + "\n")
    assert _defaults() == STORED.read_text().splitlines(), f"if this is wanted, run with {UPDATE}=1"
