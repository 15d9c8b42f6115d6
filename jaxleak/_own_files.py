"""What stands under a name in somebody's Python file, which is run as it is."""

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
    except (Exception, SystemExit) as error:  # whatever somebody's file does
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
    """What stands under a name in a file, and the sources that it was made of."""

    value: Any
    sources: Mapping[str, bytes]  # by the file's path


@functools.cache
def read_once(spec: str) -> Code:
    """What "FILE.py:NAME" names, as it was when this process first asked: an edit never mixes with an older version.

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
    """Refuse a name that is neither built in nor FILE.py:NAME of a file that is there.

    Args:
        known: the names that are built in.
        **named: a name by the option that it was given for, which messages mention.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: on an unknown name.
    """
    for option, name in named.items():
        if not is_own(name):
            if name not in known:
                raise ValueError(
                    f"{option} must be FILE.py:NAME of your own or one of {', '.join(known)}, got {name!r}"
                )
            continue
        try:
            require_file(name)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{option}: {error}") from None


def _require_own_neighbours(spec: str) -> None:
    """Refuse a file whose imports from its folder, direct or not, would get modules of that name from elsewhere."""
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
    """What a function of one number makes.

    Args:
        spec: "FILE.py:NAME" of the function.
        found: the function.
        number: what the function is given.
        what: what it is to make, as "settings" or "defense of strength 0.1".

    Raises:
        ValueError: if it needs other arguments or fails.
    """
    if len(needed := needed_arguments(found)) > 1:
        raise ValueError(f"{spec} must need one argument, and needs {', '.join(needed)}")
    try:
        return found(number)
    except Exception as error:  # whatever somebody's code does
        raise ValueError(f"{spec} makes no {what}: {told(error, file_of(spec))}") from error


def told(error: BaseException, path: Path) -> str:
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
    """The first words of the modules that a Python file imports."""
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
    """The source of a module or of a package in this folder; nothing if it is elsewhere."""
    alone = folder / f"{name}.py"
    return [alone] if alone.is_file() else sorted((folder / name).rglob("*.py"))
