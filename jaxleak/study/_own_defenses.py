"""Defenses of one's own in a study: what a Python file has under a name, for clients and for parties."""

from collections.abc import Callable
from typing import Any, TypeVar

from jaxleak._own_files import read_once
from jaxleak.defenses import Defense

Kind = TypeVar("Kind")


def own_defense(name: str, kind: type[Kind]) -> Kind | Callable[[float], Any]:
    """What is known of a defense, or the function that makes it from its strength.

    Args:
        name: FILE.py:NAME; the file is run once in a process.
        kind: `defenses.ClientDefense` or `defenses.SplitDefense`, whose `build` makes a defense.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: on a file that cannot be imported or has no such name, or if it stands for something else.
    """
    found = read_once(name).value
    makes = getattr(found, "build", None) if isinstance(found, kind) else found
    if not callable(makes) or isinstance(found, Defense):
        raise ValueError(
            f"{name} must be a function that makes a jaxleak.defenses.Defense from its strength (def "
            f"{name.rpartition(':')[2]}(strength): ...), or a {kind.__name__}, got {type(found).__name__}"
        )
    return found
