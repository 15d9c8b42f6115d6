"""Dropping the compiled programs of a long study before the system refuses to map more of them."""

from pathlib import Path

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def forget_when_many(share: float = 0.5) -> bool:
    """Drop JAX's compiled programs once the process has used `share` of the memory maps that Linux allows it.

    `share` is in (0, 1]. XLA keeps every program in dozens of maps. A study whose cells compile programs of their own
    would therefore end with "LLVM compilation error: Cannot allocate memory", however much memory is free. On a system
    without such a limit, nothing happens.

    Returns:
        Whether the programs were dropped; a dropped program is compiled again when it is called.
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
