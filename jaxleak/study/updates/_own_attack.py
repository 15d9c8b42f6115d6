"""A user's own attack in a study: a Python file makes its settings from the number of iterations, as presets do."""

import functools

from jaxleak import attacks
from jaxleak._base import Attack
from jaxleak._own_files import made_of, read_once
from jaxleak.study.updates._case import Case


def own_settings(case: Case) -> attacks.Settings:
    """Make the settings of a case with `own_attack`; the attack's file is run once in a process.

    Args:
        case: case whose attack is FILE.py:NAME, where NAME is a function that makes `attacks.Settings` from the number
            of iterations.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file cannot be imported or has no such name, or if the function needs other arguments, fails,
            or does not make settings with that number of iterations.
    """
    return _made(case.attack, case.iterations)


@functools.lru_cache(maxsize=32)
def _made(spec: str, iterations: int) -> attacks.Settings:
    name, found = spec.rpartition(":")[2], read_once(spec).value
    form = f"a function of the number of iterations (def {name}(iterations): ...) that returns attacks.Settings"
    if not callable(found) or isinstance(found, attacks.Settings | Attack):
        raise ValueError(f"{spec} must be {form}, got {type(found).__name__}")
    settings = made_of(spec, found, iterations, "settings")
    if isinstance(settings, Attack):
        raise ValueError(f"{spec} makes an Attack, which `audit.invert` runs in a program; here it must be {form}")
    if not isinstance(settings, attacks.Settings):
        raise ValueError(f"{spec} must be {form}, and it returns {type(settings).__name__}")
    if settings.iterations != iterations:
        raise ValueError(
            f"{spec} must make settings of as many iterations as it is given, and made {settings.iterations} of "
            f"{iterations}: pass its argument on to Settings"
        )
    return settings
