"""The defense of a vertical run: a built-in one, or one that a Python file makes."""

import functools

from jaxleak import _validate
from jaxleak._own_files import is_own, made_of, require_named
from jaxleak.defenses import SPLIT_DEFENSES, Defense, SplitDefense, SplitRun
from jaxleak.study._own_defenses import own_defense


def kind_of_split_defense(name: str) -> SplitDefense:
    """Return the `SplitDefense` of a defense of vertical training: how it is made for a run, and the default strength.

    Args:
        name: a key of `defenses.SPLIT_DEFENSES`, or FILE.py:NAME. NAME is a function that makes a `defenses.Defense`
            from its strength, a float, or a `defenses.SplitDefense`, which makes it for a run and has a default
            strength. The file is run once in a process.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the name is unknown, if the file cannot be imported or has no such name, or if the name stands
            for something else.
    """
    require_named(("none", *SPLIT_DEFENSES), defense=name)
    return _loaded(name) if is_own(name) else SPLIT_DEFENSES[name]


def defense_of(name: str, strength: float, run: SplitRun) -> Defense:
    """Make the defense of this name and strength for a run; a strength of 0 takes the default.

    Raises:
        FileNotFoundError, ValueError: as in `kind_of_split_defense`; and `ValueError` if the strength is < 0, if it is
            0 and there is no default, or if the strength makes no defense.
        ImportError: if epsilon has to be computed and dp-accounting is missing.
    """
    kind = kind_of_split_defense(name)
    _validate.non_negative(strength=strength)
    if not (strength or kind.default):
        raise ValueError(f"strength must be given: {name} has no default")
    made = kind.build(strength or kind.default, run)
    if not isinstance(made, Defense):
        raise ValueError(f"{name} must return a jaxleak.defenses.Defense, got {type(made).__name__}")
    return made


@functools.lru_cache(maxsize=32)
def _loaded(name: str) -> SplitDefense:
    found = own_defense(name, SplitDefense)
    if isinstance(found, SplitDefense):
        return found
    return SplitDefense(
        lambda strength, run: made_of(name, found, strength, f"defense of strength {strength:g}"), 0.0, "strength"
    )
