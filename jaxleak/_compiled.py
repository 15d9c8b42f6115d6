"""Keep compiled programs on disk, so that the next command does not wait for the compiler again."""

import contextlib
import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import jax
import platformdirs

#: Environment variable; nothing is kept if it is 0.
SWITCH = "JAXLEAK_KEEP_COMPILED"
#: Largest size in bytes of the programs of a folder, and largest number of files.
MOST_BYTES, MOST_FILES = 2_000_000_000, 10_000


def keep_compiled() -> Path | None:
    """Let JAX keep what it compiles in the user's cache folder, and look there first.

    Programs are machine code, so every version of jaxlib and every kind of processor has its own folder, which only the
    user can read and write. A folder that the user chose by `JAX_COMPILATION_CACHE_DIR` stays as it is. Kept programs
    give the same bits as those that are compiled anew. Even small programs are kept, because a command begins with
    hundreds of them. The files that have been unread for longest are removed here, since JAX would look at the whole
    folder for every program that it writes.

    Returns:
        The folder, or None if this function keeps nothing there: `JAXLEAK_KEEP_COMPILED=0` was set, the user has chosen
        a folder, or the folder cannot be written.
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
    """Remove the files unread for longest until the folder is small enough; other processes may do so meanwhile."""
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
    """A name for this jaxlib on this kind of processor; another kind may lack some of its instructions."""
    try:
        told = Path("/proc/cpuinfo").read_text().splitlines()
        kind = sorted({line for line in told if line.startswith(("model name", "flags", "Features", "CPU part"))})
    except OSError:
        kind = [platform.processor()]
    digest = hashlib.sha256("\n".join([platform.machine(), *kind]).encode()).hexdigest()
    return f"jaxlib-{metadata.version('jaxlib')}-{digest[:12]}"
