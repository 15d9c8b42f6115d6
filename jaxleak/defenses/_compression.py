"""Compressed updates as a defense: quantization, top-k sparsification, withheld entries, and what they cost to send."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxleak import _magnitudes, _validate
from jaxleak._base import PyTree
from jaxleak.defenses._base import SPLIT_PLACES, Defense, PayloadEncoding, broken, per_leaf, stateless
from jaxleak.defenses.mechanisms import Mechanism, Replayed

BITS = (32, 16, 8, 4, 1)
_PLACES = ("payload", *SPLIT_PLACES)


def quantize(bits: int, *, stochastic: bool = False, place: str = "payload") -> Defense:
    """Send every tensor on a uniform grid of `bits` bits per entry (FedLeak, 2025, section 6.4).

    * 32: the identity.
    * 16, 8, 4: the grid has 2^(bits - 1) - 1 steps on either side of zero and reaches to the tensor's largest
      magnitude, which is sent along as one float32. 16 bits are this grid and not float16, whose smallest number (6e-8)
      is above many gradient entries.
    * 1: deterministic, every entry becomes its sign times the mean magnitude, an entry of zero counting as positive;
      stochastic, plus or minus the largest magnitude.

    Deterministic rounding goes to the nearest grid point. Stochastic rounding goes to one of both neighbours so that
    the expectation is the true entry.

    Args:
        bits: one of 32, 16, 8, 4, 1.
        stochastic: round at random, without bias.
        place: "payload", or one of `SPLIT_PLACES` in split vertical training, such as "cut_gradient", where every
            party's gradient is a tensor.

    Raises:
        ValueError: on any other number of bits or an unknown place.
    """
    _validate.one_of(BITS, bits=bits)
    _validate.one_of(_PLACES, place=place)

    def round_(key: jax.Array, leaf: jax.Array) -> jax.Array:
        largest = jnp.max(jnp.abs(leaf), initial=0.0)
        unit = leaf / jnp.where(largest > 0, largest, 1.0)
        if bits == 1 and not stochastic:
            return jnp.where(leaf >= 0, 1.0, -1.0) * largest * jnp.abs(unit).mean()
        if bits == 1:
            return jnp.where(jax.random.uniform(key, leaf.shape) < (1 + unit) / 2, largest, -largest)
        steps = 2 ** (bits - 1) - 1
        position = unit * steps
        below = jnp.floor(position)
        # The remainder is exact in float32, while position + uniform would lose the low bits of 16.
        up = position - below > (jax.random.uniform(key, leaf.shape) if stochastic else 0.5)
        return (below + up) * (largest / steps)

    def encode(encoding: PayloadEncoding) -> PayloadEncoding:
        # One bit cannot encode zero, so entries that were left out before are sent again.
        share = 1.0 if bits == 1 else encoding.share
        return PayloadEncoding(min(bits, encoding.value_bits), share, scales=1)

    # One bit has no grid: all entries are sent with the same magnitude.
    replayed = Mechanism(Replayed(random=stochastic, grid=2 ** (bits - 1) - 1 if bits > 1 else None))
    mechanism = replayed if place == "payload" else None
    if bits == 32:
        return per_leaf(place, lambda key, leaf: leaf, lambda encoding: encoding, mechanism=mechanism)
    return per_leaf(place, round_, encode, mechanism=mechanism)


def sparsify(percent: float, *, error_feedback: bool = False, place: str = "payload") -> Defense:
    """Send only the `percent` largest entries in magnitude of the whole payload; the others become zero.

    Of n entries, the largest ceil(n percent / 100) are sent, together with all that tie with the last of them. Error
    feedback (Seide et al. 2014; Karimireddy et al. 2019) adds what was left out to the next round's update. Protocols
    keep this remainder from round to round; under `Defense.apply` every round starts without one.

    Args:
        percent: share that is sent, in (0, 100]; 100 is the identity.
        error_feedback: carry the remainder over; only at "payload", since split training keeps no state of a defense.
        place: "payload", or one of `SPLIT_PLACES` in split vertical training: at "cut_gradient" the largest entries of
            all parties' gradients together are sent.

    Raises:
        ValueError: on a share out of range, an unknown place, or error feedback elsewhere than at "payload".
    """
    _validate.one_of(_PLACES, place=place)
    if error_feedback and place != "payload":
        raise ValueError(f"error_feedback must be False but at the place payload, got place {place!r}")
    _magnitudes.share_count(1, percent)
    share = percent / 100

    def init(payload: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, payload) if error_feedback else optax.EmptyState()

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None, *, key: jax.Array, **extra: Any
    ) -> tuple[PyTree, PyTree]:
        del params, key, extra
        full = jax.tree.map(jnp.add, updates, state) if error_feedback else updates
        sent = _split_largest(full, percent)[0]
        return sent, (jax.tree.map(jnp.subtract, full, sent) if error_feedback else state)

    return Defense(
        place,
        optax.GradientTransformationExtraArgs(init, update),
        # After one-bit quantization all magnitudes of a tensor tie, and ties are sent.
        lambda encoding: encoding if encoding.value_bits == 1 else encoding._replace(share=min(encoding.share, share)),
        mechanism=Mechanism(zeroes=True, carries=error_feedback) if place == "payload" else None,
    )


def withhold_top(percent: float, *, encrypted: bool = False) -> Defense:
    """Withhold the `percent` largest entries in magnitude: the server finds zeros there (FedLeak, section 7).

    FedLeak's Figure 8 gives the attacker the smallest or the largest entries: the bottom p percent is `withhold_top(100
    - p)`, and the top p percent is `sparsify(p)`. FedLeak suggests encrypting the top 80 percent.

    Args:
        percent: share that is withheld, in [0, 100]; 0 is the identity. Entries that tie with the smallest withheld one
            are withheld too. On a grid, as after quantization, these may be many more, or all.
        encrypted: the entries do reach the aggregate, under encryption that is not simulated here. The defense then
            acts at "server_view": it hides them from the server without harming the model. Otherwise they are dropped
            from the payload.

    Raises:
        ValueError: on a share out of range.
    """
    _validate.in_range(0, 100, percent=percent)

    def update(key: jax.Array, payload: PyTree, **extra: object) -> PyTree:
        del key, extra
        return _split_largest(payload, percent)[1] if percent else payload

    def encode(encoding: PayloadEncoding) -> PayloadEncoding:
        # Ciphertexts are counted as if encryption did not expand them.
        return encoding if encrypted else encoding._replace(share=max(0.0, encoding.share - percent / 100))

    mechanism = Mechanism(zeroes=True, zeroes_head=True) if percent else Mechanism()
    return stateless("server_view" if encrypted else "payload", update, encode, mechanism=mechanism)


def bits_on_the_wire(defense: Defense | None, payload: PyTree) -> int:
    """How many bits the defended payload takes; without a defense 32 per entry.

    If entries are left out, positions have to be sent too: ceil(log2 n) bits for each entry that is sent, or one bit
    for every entry of the payload, whichever is less. Noise after compression undoes the compression, as in reality.
    Tensor shapes are public and cost nothing. Entropy coding is not modelled.

    Args:
        defense: a single defense or a chain; None for the plain payload.
        payload: arrays or `jax.ShapeDtypeStruct`s; only shapes are read.

    Returns:
        The number of bits for the stated encoding, without regard to ties in magnitude and to the rounding of a share
        to whole entries.
    """
    leaves = jax.tree.leaves(payload)
    entries = sum(math.prod(leaf.shape) for leaf in leaves)
    encoding = PayloadEncoding() if defense is None else defense.encode(PayloadEncoding())
    if not entries or not encoding.share:
        return 0
    sent = _magnitudes.share_count(entries, 100 * encoding.share)
    positions = min(sent * math.ceil(math.log2(entries)), entries) if sent < entries else 0
    return math.ceil(sent * encoding.value_bits) + positions + 32 * encoding.scales * len(leaves)


def _split_largest(tree: PyTree, percent: float) -> tuple[PyTree, PyTree]:
    """(`tree` with only its largest entries, `tree` without them)."""
    threshold = _magnitudes.magnitude_threshold(jax.tree.leaves(tree), percent)
    kept = jax.tree.map(lambda leaf: jnp.where(_magnitudes.reaches(leaf, threshold), leaf, 0.0), tree)
    rest = jax.tree.map(lambda leaf: jnp.where(_magnitudes.reaches(leaf, threshold), broken(leaf), leaf), tree)
    return kept, rest
