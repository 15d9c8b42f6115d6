"""Compiled programs of a long study, given up before the system refuses to map more of them."""

from pathlib import Path

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def forget_when_many(share: float = 0.5) -> bool:
    """Drop JAX's compiled programs, once they take up `share` of the memory maps that Linux grants a process.

    `share` is in (0, 1].
    XLA keeps every program in dozens of maps, so that a study whose cells compile their own would end in the middle
    with "LLVM compilation error: Cannot allocate memory", however much memory is free. Where there is no such limit,
    nothing happens.

    Returns:
        Whether they were dropped; what is called again compiles again.
    """
    try:
        with _MAPS.open() as maps:
            used = sum(1 for _ in maps)
        limit = int(_LIMIT.read_text())
    except (OSError, ValueError):
        return False
    if used < share * limit:
        return False
    import jax

    jax.clear_caches()
    return True
