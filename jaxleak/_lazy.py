"""Packages whose names are imported when they are first used, so that options are read before JAX is imported."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: the package's full name.
        module_of: public name to the submodule that has it; a submodule's own name stands for the submodule.

    Returns:
        A function from a name to what it stands for, which raises `AttributeError` on any other name.
    """

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{module_of[name]}")
        return module if module_of[name] == name else getattr(module, name)

    return find
