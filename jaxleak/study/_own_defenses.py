"""A user's own defenses in a study, for clients and for parties: reading them from a Python file by name."""

from collections.abc import Callable
from typing import Any, TypeVar

from jaxleak._own_files import read_once
from jaxleak.defenses import Defense

Kind = TypeVar("Kind")


def own_defense(name: str, kind: type[Kind]) -> Kind | Callable[[float], Any]:
    """Read the description of a user's own defense, or the function that makes it from its strength.

    Args:
        name: FILE.py:NAME; the file is run once in a process.
        kind: `defenses.ClientDefense` or `defenses.SplitDefense`, whose `build` makes a defense.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file cannot be imported or has no such name, or if the name stands for something else.
    """
    found = read_once(name).value
    makes = getattr(found, "build", None) if isinstance(found, kind) else found
    if not callable(makes) or isinstance(found, Defense):
        raise ValueError(
            f"{name} must be a function that makes a jaxleak.defenses.Defense from its strength (def "
            f"{name.rpartition(':')[2]}(strength): ...), or a {kind.__name__}, got {type(found).__name__}"
        )
    return found
