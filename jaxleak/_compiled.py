"""Compiled programs that outlive a process, so that the next command does not wait for the compiler again."""

import contextlib
import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import jax
import platformdirs

#: Set to 0, nothing is kept.
SWITCH = "JAXLEAK_KEEP_COMPILED"
#: The most that the programs of a folder may take, in bytes, and how many files there may be.
MOST_BYTES, MOST_FILES = 2_000_000_000, 10_000


def keep_compiled() -> Path | None:
    """Let JAX keep what it compiles in the user's cache folder, and look there first.

    Programs are machine code: every version of jaxlib and every kind of processor has a folder of its own, which only
    the user can read and write. A folder that the user chose by `JAX_COMPILATION_CACHE_DIR` stays as it is. Kept
    programs give the same bits as those that are compiled anew. However small a program is, it is kept: a command
    begins with hundreds of them. What was longest unread is given up here, since JAX would look at the whole folder
    for every program that it writes.

    Returns:
        The folder, or None where nothing is kept: `JAXLEAK_KEEP_COMPILED=0` was set, the user has chosen a folder, or
        the folder cannot be written.
    """
    chosen = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if os.environ.get(SWITCH, "1") == "0" or chosen is not None:
        return None
    folder = platformdirs.user_cache_path("jaxleak") / "compiled" / _machine()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    _give_up_the_oldest(folder)
    return folder


def _give_up_the_oldest(folder: Path) -> None:
    """Remove the files that were longest unread, until the folder has its size; others may do the same meanwhile."""
    files = list[tuple[float, int, str]]()
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # gone already
            found = entry.stat()
            files.append((found.st_atime, found.st_size, entry.path))
    kept = 0
    for number, (_, size, path) in enumerate(sorted(files, reverse=True)):
        kept += size
        if kept > MOST_BYTES or number >= MOST_FILES:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _machine() -> str:
    """A name for this jaxlib on this kind of processor, whose instructions another kind may not have."""
    try:
        told = Path("/proc/cpuinfo").read_text().splitlines()
        kind = sorted({line for line in told if line.startswith(("model name", "flags", "Features", "CPU part"))})
    except OSError:
        kind = [platform.processor()]
    digest = hashlib.sha256("\n".join([platform.machine(), *kind]).encode()).hexdigest()
    return f"jaxlib-{metadata.version('jaxlib')}-{digest[:12]}"
