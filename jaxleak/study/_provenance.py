"""Provenance of a result: commit, versions, device and peak memory, and a short name for a configuration."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from jaxleak.study.files import jsonable

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "orbax-checkpoint")


def digest(what: dict[str, Any]) -> str:
    """Make a short name for a configuration: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(json.dumps(jsonable(what), sort_keys=True).encode()).hexdigest()[:16]


def provenance() -> dict[str, Any]:
    """Return the running clone's commit or the installed package's version, and this run's versions and device."""
    root = Path(__file__).parents[2]
    try:
        if not (root / ".git").exists():  # an installed package may lie inside another repository of the user
            raise FileNotFoundError
        commit = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = f"version {metadata.version('jaxleak')}"
    import jax

    device = jax.devices()[0]
    return {
        "commit": commit,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "device": f"{device.platform}: {device.device_kind}",
        "cores": _cores(),
    }


def _cores() -> int | None:
    """Count the cores that this process may use, or the machine's cores if the system does not tell."""
    return os.cpu_count() if sys.platform in ("win32", "darwin") else len(os.sched_getaffinity(0))


def peak_memory_gb() -> float:
    """Return the largest resident memory of this process so far, in GB (10^9 bytes)."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 1e9
    import resource  # Windows lacks this module

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9
