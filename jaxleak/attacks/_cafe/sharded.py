"""The exact CAFE engine on several devices: where its tables and the simulated parties' features live.

Columns are shared out and not rows. All columns of a table solve one and the same N x N system, so conjugate gradients
need none of the other devices' columns, only the scalars of their step lengths; and a round moves the K rows of V that
its batch touches, where tables divided by rows would move whole tables at every product of the solvers.
"""

import math

import jax

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
        plan: a matrix-free one.
        state: before the first round, or restored.
        private: x (N, P, d1), the parties' features (`models.frozen_features`).
        mesh: from `jaxleak._mesh.device_mesh`; every process holds `state` and `private` alike.

    Returns:
        Both with V and the bias gradients divided along d2, `projected` and x along d1, and the rest on every device.

    Raises:
        ValueError: if the plan factorises, or the number of devices does not divide d1 and d2.
    """
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
