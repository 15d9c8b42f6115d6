"""The exact CAFE engine on several devices: where its tables and the simulated parties' features are stored.

The devices share the columns of the tables, not their rows. All columns of a table solve the same N x N system, so
conjugate gradients exchange only the scalars of their step lengths, and a round exchanges only the K rows of V that its
batch touches. If the tables were divided by rows, every product of the solvers would exchange whole tables.
"""

import math

import jax
from jax.sharding import AxisType

from jaxleak import _mesh
from jaxleak._base import Batch
from jaxleak.attacks._cafe.exact import CafeExactPlan, CafeExactState
from jaxleak.models import SplitModel


def shard_cafe(
    model: SplitModel, plan: CafeExactPlan, state: CafeExactState, private: Batch, mesh: jax.sharding.Mesh
) -> tuple[CafeExactState, Batch]:
    """Place the state of `cafe_exact` and the private set of frozen features on a mesh.

    Args:
        model: the attacked model.
        plan: plan for the matrix-free solver.
        state: state before the first round, or restored from a checkpoint.
        private: x (N, P, d1), the parties' features (`models.frozen_features`).
        mesh: a mesh with the single axis "devices" of type Auto (the compiler decides its sharding), such as
            `jax.sharding.Mesh(jax.devices(), ("devices",))`; every process holds the same `state` and `private`.

    Returns:
        State and private set: V and the bias gradients are divided along d2, `projected` and x along d1, and every
        device holds the rest.

    Raises:
        ValueError: if the plan factorises, if the mesh has other axes or an explicit axis (the default of
            `jax.make_mesh`), or if the number of devices does not divide d1 and d2.
    """
    if mesh.axis_names != (_mesh.AXIS,):
        raise ValueError(f'mesh must have the single axis "{_mesh.AXIS}", got the axes {mesh.axis_names}')
    if AxisType.Explicit in mesh.axis_types:
        raise ValueError(
            'mesh must have an axis of type Auto, as of jax.sharding.Mesh(devices, ("devices",)), got an explicit one'
        )
    if plan.direct:
        raise ValueError("several devices need solver='matrix_free': a factorisation runs on one host")
    if model.width % mesh.size or model.feature_size % mesh.size:
        raise ValueError(
            f"devices in all must divide d1={model.feature_size} and d2={model.width}, whose columns they share, "
            f"as the divisors of {math.gcd(model.width, model.feature_size)} do; got {mesh.size}"
        )
    columns, whole = _mesh.divided(mesh, 3, axis=-1), _mesh.replicated(mesh)
    tables = {name: _mesh.place(getattr(state, name), columns) for name in ("bias_gradients", "V", "projected")}
    rest = {name: _mesh.place(getattr(state, name), whole) for name in ("seen", "batches", "resolved")}
    return CafeExactState(**tables, **rest), Batch(
        _mesh.place(private.x, columns), _mesh.place(private.y, whole), _mesh.place(private.index, whole)
    )
