"""Packages that import their names when these are first used, so that options are read before JAX is imported."""

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy(package: str, module_of: Mapping[str, str], *, functions: Collection[str] = ()) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package.

    Args:
        package: the package's full name.
        module_of: maps a public name to the submodule that has it; a submodule's own name stands for the submodule.
        functions: public names of functions whose submodules need JAX. As long as nobody has imported JAX, such a name
            is a function that imports the submodule when it is called.

    Returns:
        A function that maps a name to its object and raises `AttributeError` on any other name.
    """

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path = f"{package}.{module_of[name]}"
        if name in functions and "jax" not in sys.modules:
            return _when_called(path, name)
        module = importlib.import_module(path)
        return module if module_of[name] == name else getattr(module, name)

    return find


def _when_called(path: str, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(path), name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{name}` of `{path}`, which is imported when this is called."
    return call
