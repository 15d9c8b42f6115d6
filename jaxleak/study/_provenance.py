"""What made a result: the commit, the versions, the device and its memory, and a short name for the configuration."""

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
    """A short name for a configuration."""
    return hashlib.sha256(json.dumps(jsonable(what), sort_keys=True).encode()).hexdigest()[:16]


def provenance() -> dict[str, Any]:
    """Commit of the clone that runs, or the version of the installed package; versions and device of this run."""
    root = Path(__file__).parents[2]
    try:
        if not (root / ".git").exists():  # an environment may lie in a repository of its user's
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
    """Cores that this process may use; those of the machine where the system does not tell."""
    return os.cpu_count() if sys.platform in ("win32", "darwin") else len(os.sched_getaffinity(0))


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far, in GB (10^9 bytes)."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 1e9
    import resource  # which Windows lacks

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9
