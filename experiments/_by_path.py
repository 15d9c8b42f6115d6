"""Modules of a clone that belong to no package: the generators in docs/ and the networks in examples/."""

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


@functools.cache
def module_at(path: str) -> ModuleType:
    """Load the module in a file.

    Args:
        path: the file's path from the root of the clone.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: if the file is no Python code, or needs a package that is missing.
    """
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py").replace("/", "."), ROOT / path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no file of Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # classes look up their own module here
    spec.loader.exec_module(module)
    return module
