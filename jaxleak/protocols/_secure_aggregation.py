"""Secure aggregation: pairwise masks that cancel exactly (Bonawitz et al., CCS 2017).

**This is the algebra, not a network protocol.** One program plays all clients and draws all masks from one key. There
is no key agreement, no dropped client, no malicious party. The simulation is faithful for what an honest-but-curious
server sees: each upload is uniform over its range, whatever it hides, and the sum of all uploads is the sum of the
payloads.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxleak import _tree, _validate
from jaxleak._base import PyTree


class MaskedPayloads(NamedTuple):
    """What the clients upload."""

    shares: PyTree  # every leaf (clients, ...) uint32
    fraction_bits: int  # an entry v stands for round(v * 2^fraction_bits), modulo 2^32


def largest_entry(clients: int, fraction_bits: int) -> float:
    """The largest magnitude of an entry for which the sum over `clients` cannot leave the 32-bit range.

    It is > 0 and in the unit of the payloads.
    """
    _check(clients, fraction_bits)
    return _largest_integer(clients) / 2**fraction_bits


def masked_payloads(key: jax.Array, payloads: PyTree, *, fraction_bits: int = 16) -> MaskedPayloads:
    """Encode every client's payload in fixed point and hide it under pairwise masks modulo 2^32.

    Clients i < j share a uniform mask; i adds it and j subtracts it. Time grows with the square of the clients, memory
    does not.

    Args:
        key: random key of this round's masks; never reuse a key.
        payloads: every leaf (clients, ...), at least two clients.
        fraction_bits: in [0, 30]; entries are rounded to multiples of 2^-fraction_bits. Gradients are small: with a few
            clients, 24 bits allow magnitudes up to about 100 / clients.

    Raises:
        ValueError: if there are fewer than two clients, `fraction_bits` is out of range or not whole, leaves differ in
            their number, or an entry exceeds `largest_entry`. Inside jit values cannot be checked; larger entries are
            then clipped to the largest one, so that the sum never wraps around.
        FloatingPointError: if a payload is not finite (outside jit).
    """
    leaves, structure = jax.tree.flatten(payloads)
    counts = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(counts) != 1:
        raise ValueError(f"every leaf must have the same leading client axis, got lengths {sorted(counts)}")
    clients = counts.pop()
    limit = largest_entry(clients, fraction_bits)
    concrete = _tree.concrete(payloads)
    _validate.finite(concrete, "payloads")
    for leaf in jax.tree.leaves(concrete):
        largest = float(np.max(np.abs(leaf), initial=0))
        if largest > limit:
            raise ValueError(
                f"payload entries must be at most {limit:g} in magnitude for {clients} clients and "
                f"{fraction_bits} fraction bits, got {largest:g}"
            )
    masked = [_mask(jax.random.fold_in(key, i), _encode(leaf, clients, fraction_bits)) for i, leaf in enumerate(leaves)]
    return MaskedPayloads(jax.tree.unflatten(structure, masked), fraction_bits)


def aggregate(masked: MaskedPayloads, *, mean: bool = False) -> PyTree:
    """What the server computes: the sum (or mean) of all payloads, exact in fixed point, as float32.

    Args:
        masked: the uploads of all clients; without one of them the masks do not cancel and the result is noise.
        mean: divide by the number of clients.

    Returns:
        A tree of leaves without the client axis. Sums beyond 2^24 units are rounded to float32.
    """

    def decode(shares: jax.Array) -> jax.Array:
        total = jax.lax.bitcast_convert_type(jnp.sum(shares, axis=0, dtype=jnp.uint32), jnp.int32)
        value = total.astype(jnp.float32) * 2.0**-masked.fraction_bits
        return value / shares.shape[0] if mean else value

    return jax.tree.map(decode, masked.shares)


def secure_mean(key: jax.Array, payloads: PyTree, fraction_bits: int) -> PyTree:
    """The mean of all clients' payloads, leaves (clients, ...), as the server sees it; NaN if it cannot be held.

    Under `jax.jit`, `masked_payloads` cannot refuse such entries, and the sum of others would pass for one.
    """
    leaves = jax.tree.leaves(payloads)
    limit = largest_entry(len(leaves[0]), fraction_bits)
    fits = jnp.stack([jnp.all(jnp.abs(leaf) <= limit) for leaf in leaves]).all()  # which NaN never is
    mean = aggregate(masked_payloads(key, payloads, fraction_bits=fraction_bits), mean=True)
    return jax.tree.map(lambda leaf: jnp.where(fits, leaf, jnp.nan), mean)


def _encode(leaf: jax.Array, clients: int, fraction_bits: int) -> jax.Array:
    # Scaling by a power of two is exact, and so is the conversion: float32 holds no fractions beyond 2^24.
    units = jnp.round(leaf.astype(jnp.float32) * 2.0**fraction_bits)
    bound = float(_largest_integer(clients))
    return jax.lax.bitcast_convert_type(jnp.clip(units, -bound, bound).astype(jnp.int32), jnp.uint32)


def _mask(key: jax.Array, encoded: jax.Array) -> jax.Array:
    clients = encoded.shape[0]
    first, second = np.triu_indices(clients, k=1)

    def add_pair(shares: jax.Array, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        i, j = pair
        mask = jax.random.bits(jax.random.fold_in(key, i * clients + j), shares.shape[1:], jnp.uint32)
        return shares.at[i].add(mask).at[j].add(-mask), None

    return jax.lax.scan(add_pair, encoded, (jnp.asarray(first), jnp.asarray(second)))[0]


def _largest_integer(clients: int) -> int:
    """The largest float32 whose multiple by the number of clients fits into 32 bits with a sign."""
    return int(np.nextafter(np.float32((2**31 - 1) // clients), np.float32(0)))


def _check(clients: int, fraction_bits: int) -> None:
    _validate.count(clients=clients)
    if clients < 2:
        raise ValueError(f"clients must be >= 2, got {clients}: the sum over one client is its payload")
    _validate.index_below(31, fraction_bits=fraction_bits)
