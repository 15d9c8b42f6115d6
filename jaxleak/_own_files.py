"""Load the object of a given name from a user's Python file, which is run as it is."""

import ast
import contextlib
import functools
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from jaxleak._near_names import meant


class _Source(importlib.machinery.SourceFileLoader):
    """Reads the source itself: a compiled module counts as current if its source changed within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def is_own(name: str) -> bool:
    """Whether a name is a user's own FILE.py:NAME rather than a built-in name."""
    return ":" in name


def file_of(spec: str) -> Path:
    """The file in "FILE.py:NAME"."""
    return Path(spec.rpartition(":")[0])


def short_name(spec: str) -> str:
    """A name for folders and legends: "FILE-NAME" without the path; a built-in name stays as it is."""
    return f"{file_of(spec).stem}-{spec.rpartition(':')[2]}" if is_own(spec) else spec


def named_in_file(
    spec: str, *, inside: Callable[[Path], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
) -> Any:
    """Run a file and return the object that has the given name in it.

    Args:
        spec: "FILE.py:NAME".
        inside: makes, from the file's path, the context in which the file is run.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a Python file, cannot be imported, or has no such name.
    """
    path, name = file_of(spec), spec.rpartition(":")[2]
    require_file(spec)
    if path.suffix != ".py":
        raise ValueError(f"{path} is no Python file")
    if _is_installed(path.stem):
        raise ValueError(f"{path} has the name of an installed package, which would be read in its place; rename it")
    _require_own_neighbours(spec)
    loader = _Source(path.stem, str(path))
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(path.stem, loader, origin=str(path)))
    module.__file__ = str(path)
    known = path.stem in sys.modules
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        with inside(path):
            loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        sys.path.remove(str(path.parent))
        if not known:
            del sys.modules[path.stem]
        raise ValueError(f"{path} cannot be imported: {told(error, path)}") from error
    if not hasattr(module, name):
        public = {n: value for n, value in vars(module).items() if n[0] != "_" and not isinstance(value, ModuleType)}
        own = [n for n, value in public.items() if getattr(value, "__module__", None) == path.stem]
        raise ValueError(f"{path} has no {name!r}; it has {', '.join(own or public)}")
    return getattr(module, name)


class Code(NamedTuple):
    """An object from a user's file, with the sources that it was made of."""

    value: Any
    sources: Mapping[str, bytes]  # by the file's path


@functools.cache
def read_once(spec: str) -> Code:
    """Load "FILE.py:NAME" once per process, so that a later edit never mixes with an older version.

    Args:
        spec: "FILE.py:NAME".

    Raises:
        FileNotFoundError, ValueError: as `named_in_file`.
    """
    sources = {str(file): file.read_bytes() for file in sources_of(spec)}
    return Code(named_in_file(spec), sources)


def require_file(spec: str) -> None:
    """Raise `FileNotFoundError` if "FILE.py:NAME" names no file."""
    path = file_of(spec)
    if not path.is_file():
        hint = f"; is it {path.with_suffix('.py')}?" if path.with_suffix(".py").is_file() else ""
        raise FileNotFoundError(f"no such file: {path.absolute()}{hint}")


def require_named(known: Collection[str], **named: str) -> None:
    """Refuse a name that is neither built in nor FILE.py:NAME of an existing file.

    Args:
        known: the built-in names.
        **named: names by the options that they were given for; messages mention the option.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: on an unknown name.
    """
    for option, name in named.items():
        if not is_own(name):
            if name not in known:
                raise ValueError(
                    f"{option} must be FILE.py:NAME of your own or one of {', '.join(known)}, got {name!r}"
                    f"{meant(name, known)}"
                )
            continue
        try:
            require_file(name)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{option}: {error}") from None


def _require_own_neighbours(spec: str) -> None:
    """Refuse a file if a module that it imports from its folder, directly or not, is loaded from elsewhere already."""
    path = file_of(spec)
    for file in sources_of(spec):
        package = file.name == "__init__.py" and file.parent.parent == path.parent
        if file == path or not (package or file.parent == path.parent):
            continue
        module = sys.modules.get(file.parent.name if package else file.stem)
        origin = getattr(module, "__file__", None)
        if module is not None and (origin is None or Path(origin).resolve() != file.resolve()):
            raise ValueError(
                f"{path} imports {file.absolute()}, and another module of that name was imported before"
                f"{f' ({origin})' if origin else ''}: give one of them another name"
            )


def _is_installed(name: str) -> bool:
    """Whether a package of this name was installed, such as flax; a file of that name would hide it."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return found is not None and "site-packages" in str(found.origin)


def made_of(spec: str, found: Callable[[Any], Any], number: float, what: str) -> Any:
    """Call a user's function with one number and return what it makes.

    Args:
        spec: "FILE.py:NAME" of the function.
        found: the function.
        number: the argument of the function.
        what: what the function makes, for messages, such as "settings" or "defense of strength 0.1".

    Raises:
        ValueError: if the function needs other arguments or fails.
    """
    if len(needed := needed_arguments(found)) > 1:
        raise ValueError(f"{spec} must need one argument, and needs {', '.join(needed)}")
    try:
        return found(number)
    except Exception as error:  # a user's code may raise anything
        raise ValueError(f"{spec} makes no {what}: {told(error, file_of(spec))}") from error


def told(error: BaseException, path: Path) -> str:
    """The error as one line, with the number of the file's line that raised it if the traceback has one."""
    inside = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = f" (line {inside[-1]})" if inside else ""
    return f"{type(error).__name__}: {error}{line}"


def needed_arguments(found: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a call needs."""
    is_class = isinstance(found, type)
    try:  # a class is not inspected itself: the libraries' metaclasses take any arguments
        parameters = list(inspect.signature(found.__init__ if is_class else found).parameters.values())
    except (TypeError, ValueError):
        return []
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters[is_class:] if p.default is p.empty and p.kind not in anything]


def sources_of(spec: str) -> list[Path]:
    """The file in "FILE.py:NAME" and the files that it imports from its own folder, directly or not; sorted."""
    require_file(spec)
    found: set[Path] = set()
    waiting, folder = [file_of(spec)], file_of(spec).parent
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [file for name in _imported(path) for file in _beside(folder, name)]
    return sorted(found)


def _imported(path: Path) -> set[str]:
    """The first part of the name of every module that a Python file imports."""
    names: set[str] = set()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a package may have a file that nobody imports
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _beside(folder: Path, name: str) -> list[Path]:
    """The source files of a module or package in this folder; none if it is elsewhere."""
    alone = folder / f"{name}.py"
    return [alone] if alone.is_file() else sorted((folder / name).rglob("*.py"))
