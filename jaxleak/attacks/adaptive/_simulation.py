"""How an attacker applies the client's defense to a candidate's payload: one function for each mechanism."""

import functools

import jax

from jaxleak import _tree
from jaxleak._base import Batch, PyTree, Share, TransformedShare, loss_of
from jaxleak._own_keys import Purpose, own_key
from jaxleak.attacks.adaptive._client import KnownClient
from jaxleak.defenses._representation import OfClient
from jaxleak.defenses.mechanisms import AdamStep, Clipped, Recomputed, Replayed, Simulation

#: Number of own draws over which the attacker averages a random transform.
DRAWS = 4


@functools.singledispatch
def simulated(simulation: Simulation | None, client: KnownClient) -> Share:
    """The attacker's simulation of a client with this mechanism; without a mechanism it is the share itself."""
    assert simulation is None, simulation
    return client.share


@simulated.register
def _replayed(simulation: Replayed, client: KnownClient) -> Share:
    """The defended share, averaged over draws if the defense is random; the derivative ignores the defense."""
    share, defense = client.share, client.defense

    def compute(params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree:
        payload = share(params, batch, sharpness=sharpness)
        # Every iteration uses the same draws. With fresh draws the objective would fluctuate, and the best iterate
        # would be a random one.
        keys = jax.random.split(own_key(Purpose.TRANSFORMS), DRAWS if simulation.random else 1)
        sent = jax.lax.stop_gradient(payload)
        drawn = jax.vmap(lambda key: defense.apply(key, sent, round=client.round))(keys)
        return jax.tree.map(lambda own, new: own + jax.lax.stop_gradient(new.mean(axis=0) - own), payload, drawn)

    return TransformedShare(share, compute)


@simulated.register
def _before_adam(_: AdamStep, client: KnownClient) -> Share:
    """The share itself: the step is undone where gradients are compared, see `BeforeAdam`."""
    return client.share


@simulated.register
def _recomputed(_: Recomputed, client: KnownClient) -> Share:
    """The mean of what the defense computes under the attacker's own draws, which all iterations share."""
    share, defense = client.share, client.defense
    keys = jax.random.split(own_key(Purpose.MASKS), DRAWS)

    def compute(params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree:
        x, mode, loss = batch.x[:, 0], share.batch_norm, loss_of(share)
        known = OfClient(model=client.model, variables=params, x=x, y=batch.y, mode=mode, loss=loss)
        # The defense ignores the undefended payload here; the weights are passed only because they have its shapes.
        sent = functools.partial(defense.apply, **known, round=client.round, sharpness=sharpness)
        drawn = jax.vmap(lambda key: sent(key, params["params"]))(keys)
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), drawn)

    return TransformedShare(share, compute)


@simulated.register
def _clipped(simulation: Clipped, client: KnownClient) -> Share:
    """The share with the whole payload, or every example's gradient, clipped to the known norm."""
    share = client.share

    def whole(params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree:
        payload = share(params, batch, sharpness=sharpness)
        factor = _tree.clip_factor(payload, simulation.norm)
        return jax.tree.map(lambda leaf: factor * leaf, payload)

    def examples(params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree:
        each = jax.vmap(lambda x, y, i: whole(params, Batch(x[None], y[None], i[None]), sharpness=sharpness))
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), each(*batch))

    return TransformedShare(share, examples if simulation.examples else whole)
