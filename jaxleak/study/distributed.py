"""Options for several devices and several processes, and how a command starts them."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from jaxleak import _validate

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = [
    "Devices",
    "join_devices",
    "together",
]

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class Devices:
    """Devices and processes: where a study runs; without options, in one process on one device."""

    devices: int | None = None
    """Devices of each process that share the work; on CPU, as many virtual devices are created."""
    distributed: bool = False
    """One process of a cluster's job (Slurm, Open MPI or Kubernetes), from whose environment JAX reads the rest."""
    coordinator: str | None = None
    """HOST:PORT of process 0 (for clusters that JAX does not recognise); with --num-processes and --process-id."""
    num_processes: int | None = None
    """Number of processes that share the run; None reads it from the cluster."""
    process_id: int | None = None
    """Number of this process from 0; None reads it from the cluster."""


def join_devices(options: Devices) -> "Mesh | None":
    """Join the other processes and make a mesh of all devices; call it before anything else uses JAX.

    Returns:
        The mesh, or None for one process without `--devices`.

    Raises:
        ValueError: if options do not go together, if the coordinator cannot be reached, or if there are fewer devices
            than asked for.
    """
    import jax  # imported here, so that --help shows the options above without JAX

    from jaxleak import _mesh, _processes

    named = (options.coordinator, options.num_processes, options.process_id)
    several = options.distributed or any(value is not None for value in named)
    if options.devices is not None:
        _validate.count(devices=options.devices)
        with contextlib.suppress(RuntimeError):  # once JAX has started, the number is fixed
            jax.config.update("jax_num_cpu_devices", options.devices)
    if several:
        _join_processes(options)
    elif options.devices is None:
        return None
    if not _processes.is_writer():  # one process's messages are enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _mesh.device_mesh(jax.local_device_count() if options.devices is None else options.devices)


def _join_processes(options: Devices) -> None:
    import jax

    coordinator, processes, number = options.coordinator, options.num_processes, options.process_id
    given = [value is not None for value in (coordinator, processes, number)]
    if any(given) and not all(given):
        raise ValueError("--coordinator, --num-processes and --process-id go together, or none of them is given")
    if processes is not None and number is not None:
        _validate.count(num_processes=processes)
        _validate.in_range(0, processes - 1, process_id=number)
    try:
        jax.distributed.initialize(coordinator, processes, number)
    except (RuntimeError, ValueError) as error:
        hint = "" if any(given) else "; outside Slurm, Open MPI and Kubernetes, give --coordinator HOST:PORT"
        raise ValueError(f"the processes cannot join: {str(error).splitlines()[0]}{hint}") from error


def together(step: Callable[[], Opened]) -> Opened:
    """Run `step` in every process; if it fails in one, all stop, so that no process waits for one that has ended.

    Raises:
        ValueError: in the processes where `step` succeeded while it failed in another one. A process where `step`
            fails raises the error of `step`.
    """
    import jax

    from jaxleak import _processes

    try:
        done = step()
    except Exception:
        _processes.any_process(True)
        raise
    if _processes.any_process(False):
        raise ValueError(f"another process could not start, so process {jax.process_index()} stops too")
    return done
