"""What stands under a name in somebody's Python file, which is run as it is."""

import ast
import contextlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


class _Source(importlib.machinery.SourceFileLoader):
    """Reads the file itself: compiled modules count as current if the file was last written in the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def is_own(name: str) -> bool:
    """Whether a name is FILE.py:NAME of somebody's own, and none that is built in."""
    return ":" in name


def file_of(spec: str) -> Path:
    """The file that "FILE.py:NAME" names."""
    return Path(spec.rpartition(":")[0])


def written(spec: str | None) -> int:
    """When the file that "FILE.py:NAME" names was last written; 0 for a name that is built in, or no such file."""
    if spec is None or not is_own(spec) or not file_of(spec).is_file():
        return 0
    return file_of(spec).stat().st_mtime_ns


def short_name(spec: str) -> str:
    """A name for folders and legends: "FILE-NAME" without the path; a name that is built in stays as it is."""
    return f"{file_of(spec).stem}-{spec.rpartition(':')[2]}" if is_own(spec) else spec


def named_in_file(
    spec: str, *, inside: Callable[[Path], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
) -> Any:
    """What stands under the name in the file; the file is run.

    Args:
        spec: "FILE.py:NAME".
        inside: given the file, makes the context in which it is run.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no Python file, cannot be imported, or has no such name.
    """
    path, name = file_of(spec), spec.rpartition(":")[2]
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if path.suffix != ".py":
        raise ValueError(f"{path} is no Python file")
    loader = _Source(path.stem, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(path.stem, loader, origin=str(path)))
    module.__file__ = str(path)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        with inside(path):
            loader.exec_module(module)
    except Exception as error:  # whatever somebody's file does
        raise ValueError(f"{path} cannot be imported: {told(error, path)}") from error
    if not hasattr(module, name):
        public = [n for n, value in vars(module).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
        raise ValueError(f"{path} has no {name!r}; it has {', '.join(public)}")
    return getattr(module, name)


def told(error: Exception, path: Path) -> str:
    """The error in a line, with the line of the file that raised it where the traceback has one."""
    inside = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = f" (line {inside[-1]})" if inside else ""
    return f"{type(error).__name__}: {error}{line}"


def needed_arguments(found: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a call needs."""
    is_class = isinstance(found, type)
    try:  # not of the class itself: the libraries' metaclasses take any arguments
        parameters = list(inspect.signature(found.__init__ if is_class else found).parameters.values())
    except (TypeError, ValueError):
        return []
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters[is_class:] if p.default is p.empty and p.kind not in anything]


def sources_of(spec: str) -> list[Path]:
    """The file that "FILE.py:NAME" names, and what it imports from its own folder, directly or not; sorted."""
    found: set[Path] = set()
    waiting = [file_of(spec)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [file for name in _imported(path) for file in _beside(path.parent, name)]
    return sorted(found)


def _imported(path: Path) -> set[str]:
    """The first words of the modules that a Python file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _beside(folder: Path, name: str) -> list[Path]:
    """The source of a module or of a package in this folder; nothing if it is elsewhere."""
    alone = folder / f"{name}.py"
    return [alone] if alone.is_file() else sorted((folder / name).rglob("*.py"))
