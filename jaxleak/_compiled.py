"""Compiled programs that outlive a process, so that the next command does not wait for the compiler again."""

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import jax
import platformdirs

#: Set to 0, nothing is kept.
SWITCH = "JAXLEAK_KEEP_COMPILED"
#: Seconds of compilation from which on a program is kept, and the most that all of them may take, in bytes.
LEAST_SECONDS, MOST_BYTES = 0.5, 2_000_000_000


def keep_compiled() -> Path | None:
    """Let JAX keep what it compiles in the user's cache folder, and look there first.

    Programs are machine code: every version of jaxlib and every kind of processor has a folder of its own, which only
    the user can read and write. A folder that the user chose by `JAX_COMPILATION_CACHE_DIR` stays as it is. Kept
    programs give the same bits as those that are compiled anew.

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
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    return folder


def _machine() -> str:
    """A name for this jaxlib on this kind of processor, whose instructions another kind may not have."""
    try:
        told = Path("/proc/cpuinfo").read_text().splitlines()
        kind = sorted({line for line in told if line.startswith(("model name", "flags", "Features", "CPU part"))})
    except OSError:
        kind = [platform.processor()]
    digest = hashlib.sha256("\n".join([platform.machine(), *kind]).encode()).hexdigest()
    return f"jaxlib-{metadata.version('jaxlib')}-{digest[:12]}"
