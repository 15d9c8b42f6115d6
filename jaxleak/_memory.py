"""Refuse programs that do not fit in memory before their first step; say what they need and what lowers the need."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # JAX is imported where it is used: options are checked, and data found, without it
    import jax

_CGROUP = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def within_memory(lowered: Any, advice: str) -> Iterator[None]:
    """Refuse to enter the block if a program does not fit in memory, and say the same if it fails in the block.

    Args:
        lowered: `jitted.lower(...)`, or None to check nothing. Calling `jitted` later compiles nothing again.
        advice: the option that lowers the need, in the words of the message.

    Raises:
        MemoryError: if the program needs more memory than its device says is free, not counting its arguments, which
            are there already; or in the place of XLA's RESOURCE_EXHAUSTED.
    """
    if lowered is None:
        yield
        return
    import jax

    need, device = _needed_bytes(lowered.compile()), jax.local_devices()[0]
    if need is not None:
        require_bytes(need, device, advice)
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(_message(need, available_bytes(device), advice)) from error


def require_bytes(need: int, device: "jax.Device", advice: str) -> None:
    """Raise `MemoryError` if `device` says that fewer than `need` bytes are free; `advice` as in `within_memory`."""
    free = available_bytes(device)
    if free is not None and need > free:
        raise MemoryError(_message(need, free, advice))


def require_host_bytes(need: int, advice: str) -> None:
    """Raise `MemoryError` if the system says that fewer than `need` bytes are free for NumPy; `advice` as above."""
    free = _available_host_bytes()
    if free is not None and need > free:
        raise MemoryError(_message(need, free, advice))


def available_bytes(device: "jax.Device") -> int | None:
    """Bytes that a new program can get on `device`, or None if that is unknown."""
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else limit - stats.get("bytes_in_use", 0)
    return _available_host_bytes()


def _available_host_bytes() -> int | None:
    bounds = [bound for bound in (_free_of_host(), _free_of_control_group()) if bound is not None]
    return min(bounds, default=None)


def _free_of_host() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # no Linux
        return None


def _free_of_control_group() -> int | None:
    try:
        limit, used = (_CGROUP / "memory.max").read_text(), (_CGROUP / "memory.current").read_text()
        return int(limit) - int(used)
    except (OSError, ValueError):  # not in a control group, or its limit is the word "max"
        return None


def _needed_bytes(compiled: Any) -> int | None:
    analysis = compiled.memory_analysis()
    if analysis is None:
        return None
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes


def _message(need: int | None, free: int | None, advice: str) -> str:
    wants = "more than there is" if need is None else f"about {need / 1e9:.3g} GB"
    has = "" if free is None else f", {free / 1e9:.3g} GB are free"
    return f"out of memory: this needs {wants}{has}; {advice}"
