"""Make a mesh over the devices of all processes, place arrays on it, and gather their values on every host."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxleak._base import PyTree

#: The only axis of the meshes made here.
AXIS = "devices"


def device_mesh(devices_per_process: int) -> Mesh:
    """A mesh of the first `devices_per_process` devices of every process.

    Raises:
        ValueError: if a process has fewer devices.
    """
    chosen: list[Any] = []
    for process in range(jax.process_count()):
        local = [device for device in jax.devices() if device.process_index == process]
        if not 1 <= devices_per_process <= len(local):
            raise ValueError(
                f"devices must be in [1, {len(local)}], the number that process {process} has, "
                f"got {devices_per_process}"
            )
        chosen += local[:devices_per_process]
    return Mesh(np.array(chosen), (AXIS,))


def divided(mesh: Mesh, rank: int, axis: int) -> NamedSharding:
    """Sharding that divides one of `rank` axes among the devices; a negative axis counts from the last."""
    spec: list[str | None] = [None] * rank
    spec[axis] = AXIS
    return NamedSharding(mesh, PartitionSpec(*spec))


def replicated(mesh: Mesh) -> NamedSharding:
    """Sharding that puts the whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def mesh_of(array: Any) -> Mesh | None:
    """The mesh that an array was placed on; None for an array on one device."""
    if isinstance(array, jax.Array) and isinstance(array.sharding, NamedSharding):
        mesh = array.sharding.mesh
        return mesh if isinstance(mesh, Mesh) else None
    return None


def place(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Put arrays (N, ...) onto a mesh; every process holds the whole arrays, and each device receives its part only.

    Raises:
        ValueError: if a divided axis is not a multiple of the number of devices.
    """

    def one(leaf: Any) -> jax.Array:
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])

    return jax.tree.map(one, tree)


def gather(array: Any) -> np.ndarray:
    """The whole array on the host of every process."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)
