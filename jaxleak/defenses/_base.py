"""The interface of a defense: an optax transform of a shared value that gets a fresh key every round."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from jaxleak import _tree, _validate
from jaxleak._base import PyTree
from jaxleak.defenses.mechanisms import Mechanism

#: The places where a defense may act in split vertical training. "bottom_output" is at the parties: the tuple of
#: embeddings (one (B, e) per party) before they are sent to the label holder. The next three are at the label holder:
#: the top's output before the loss, the loss gradient at that output, and the tuple of gradients (one (B, e) per party)
#: that are sent to the bottoms. "per_example_gradient" is at every owner: the gradients of single examples, a tuple
#: with one tree per owner, bottoms first and the top last.
SPLIT_PLACES = ("bottom_output", "top_output", "top_output_gradient", "cut_gradient", "per_example_gradient")

#: The places where a defense may act in horizontal training, see `Defense.place`.
HORIZONTAL_PLACES = ("payload", "per_example_gradient", "representation", "client_payloads", "server_view")


class PayloadEncoding(NamedTuple):
    """How a payload is written on the wire; the default is every entry as a float32."""

    value_bits: float = 32  # per value that is sent
    share: float = 1.0  # share of entries that are sent, in [0, 1]; below 1 their positions are sent as well
    scales: int = 0  # float32 numbers per tensor that decoding needs


def dense(encoding: PayloadEncoding) -> PayloadEncoding:
    """The encoding after noise: whatever it was before, every entry is an arbitrary float32 again."""
    del encoding
    return PayloadEncoding()


class _Fields(NamedTuple):
    place: str
    transform: optax.GradientTransformationExtraArgs
    encode: Callable[[PayloadEncoding], PayloadEncoding] = dense
    one_step: bool = False
    mechanism: Mechanism | None = None
    num_classes: int | None = None


class Defense(_Fields):
    """A defense: a transform, and the place where it acts.

    The constructor raises `ValueError` for a place that no protocol has, a transform that is not one of optax, and a
    mechanism that is not a `mechanisms.Mechanism`.

    place: one of `SPLIT_PLACES` in split vertical training, or of `HORIZONTAL_PLACES`:

        * "payload": one client's (or party's) gradient or model update before it is uploaded;
        * "per_example_gradient": gradients with a leading example axis (B, ...) on every leaf. Shapes stay, and the
          mean over examples is the gradient that the protocol works with;
        * "representation": as "payload", but the defender uses its model and batch: `apply` must be given the keywords
          `model` (a `Classifier`), `variables`, `x` (B, H, W, channels) and `y`, and `round` where it says so; `mode`,
          "train" unless given, is that of the client's batch normalisation, and `loss`, the mean cross-entropy unless
          given, is the client's. A transform of your own takes others that it does not use as `**extra`;
        * "client_payloads": the payloads of all clients of a round together, with a leading client axis;
        * "server_view": the part of the payload that the server can read. The model is updated with the payload itself.

        A protocol refuses a defense for a place that it does not have.
    transform: an `optax.GradientTransformationExtraArgs` whose `update` takes the keyword `key`, or any other
        transform of optax, which gets no key. A transform with its own generator or seed, such as `optax.add_noise`,
        repeats its noise in every run, whatever the run's seed.
    encode: how the transform changes the encoding on the wire, see `bits_on_the_wire`.
    one_step: whether the payload must be the gradient of a single local step, because the defense recomputes that
    gradient or takes a step of another optimizer with it; protocols then refuse several steps.
    mechanism: what an attacker who knows the defense can infer about a payload; `jaxleak.attacks.adaptive` reads it.
    None if no attack here uses such knowledge.
    num_classes: number C of classes for which the transform is made; a protocol refuses the defense if its model has
    another number. None if the transform does not depend on it.
    """

    __slots__ = ()

    def __new__(
        cls,
        place: str,
        transform: optax.GradientTransformation,
        encode: Callable[[PayloadEncoding], PayloadEncoding] = dense,
        one_step: bool = False,
        mechanism: Mechanism | None = None,
        num_classes: int | None = None,
    ) -> "Defense":
        """Check the fields; payloads are checked later."""
        _validate.one_of(tuple(dict.fromkeys((*HORIZONTAL_PLACES, *SPLIT_PLACES))), place=place)
        if not isinstance(transform, optax.GradientTransformation):
            raise ValueError(
                f"transform must be one of optax, such as optax.GradientTransformationExtraArgs, got {transform!r}; "
                "defenses.stateless(place, update) makes a defense of a function update(key, payload, **extra)"
            )
        if not (mechanism is None or isinstance(mechanism, Mechanism)):
            raise ValueError(
                "mechanism must be a jaxleak.defenses.mechanisms.Mechanism or None, such as "
                f"Mechanism(simulation=Replayed()), got {mechanism!r}"
            )
        transform = optax.with_extra_args_support(transform)
        return super().__new__(cls, place, transform, encode, one_step, mechanism, num_classes)

    @property
    def in_step(self) -> bool:
        """Whether the defense acts inside a local step, so that clients with several steps cannot use it."""
        return self.one_step or self.place == "per_example_gradient"

    def init(self, payload: PyTree) -> PyTree:
        """The state before the first round, for a protocol that lets clients keep state; only shapes are read."""
        return self.transform.init(payload)

    def update(self, key: jax.Array, payload: PyTree, state: PyTree, **extra: object) -> tuple[PyTree, PyTree]:
        """Transform one round's payload with state kept from the rounds before; `key` must be new every round.

        Args:
            key: random key of this round.
            payload: the value that is shared.
            state: from `init` or the last `update` of the same client.
            **extra: what else the defender knows, e.g. `labels`; the transform gets it as keywords.

        Returns:
            The transformed payload, of the same types, and the new state.

        Raises:
            FloatingPointError: if the payload is not finite, or if the transform makes numbers of it that are not.
                Inside jit values cannot be checked, and such numbers pass.
            ValueError: if the transform does not return a payload and a state, changes the payload's tree or the shape
                of a leaf, or returns complex numbers; the message names the leaf.
        """
        _validate.finite(_tree.concrete(payload), "payload")
        made = self.transform.update(payload, state, None, key=key, **extra)
        if not (isinstance(made, tuple) and len(made) == 2):
            raise ValueError(
                "transform of a defense must return a payload and its new state, a tuple of two, got "
                f"{_validate.kind_of(made)}"
            )
        shared, state = made
        _require_same_shapes(payload, shared)
        _validate.finite(_tree.concrete(shared), "what the transform of a defense makes of a finite payload")
        # Noise is drawn in float32, and then the sum is rounded. Noise drawn in bfloat16 would take few different
        # values.
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), shared, payload), state

    def apply(self, key: jax.Array, payload: PyTree, **extra: object) -> PyTree:
        """`update` for clients that keep no state between rounds: every round starts from the initial state."""
        return self.update(key, payload, self.init(payload), **extra)[0]


def _require_same_shapes(payload: PyTree, shared: PyTree) -> None:
    """Refuse a transformed payload that would be broadcast over the weights, or would match none of them."""
    before, after = ({name: jnp.shape(leaf) for name, leaf in _tree.named_leaves(t).items()} for t in (payload, shared))
    if before.keys() != after.keys():
        changed = ", ".join(sorted(before.keys() ^ after.keys()))
        raise ValueError(f"transform of a defense must keep the payload's tree, and changes {changed or 'it'}")
    for name, leaf in _tree.named_leaves(shared).items():
        if jnp.iscomplexobj(leaf):
            raise ValueError(f"transform of a defense must give real numbers, and makes complex ones in {name or 'it'}")
    for name, shape in before.items():
        if after[name] != shape:
            raise ValueError(
                f"transform of a defense must keep the shapes of the payload, and makes {after[name]} of {shape} in "
                f"{name or 'it'}"
            )


def in_order(defenses: Defense | Sequence[Defense]) -> tuple[Defense, ...]:
    """The defenses of a protocol as a tuple; a single `Defense` becomes a tuple of one.

    Raises:
        ValueError: if anything among them is no `Defense`.
    """
    if isinstance(defenses, Defense):  # a Defense is itself a tuple of its fields
        return (cast(Defense, defenses),)  # mypy makes `Defense | Defense` of it in some orders of the modules
    if isinstance(defenses, str) or not isinstance(defenses, Iterable):  # a string would be iterated letter by letter
        one_defense(defenses=defenses)
    members = tuple(defenses)  # convert first: a generator can be read only once
    for member in members:
        one_defense(defenses=member)
    return members


def one_defense(**named: object) -> None:
    """Raise `ValueError` unless every value is a `Defense`."""
    for name, value in named.items():
        if not isinstance(value, Defense):
            how = ", a text: call a function, such as defenses.marvell(num_classes=2)" if isinstance(value, str) else ""
            raise ValueError(f"{name} must be made by jaxleak.defenses (a Defense), got {value!r}{how}")


def chain(*defenses: Defense) -> Defense:
    """Apply defenses one after the other, each with its own key.

    `optax.chain` would give every member the same key, so that two members would draw the same noise. A chain of
    several members has no mechanism: what a member declares holds for its own output, which later members change.

    Raises:
        ValueError: if a member is no `Defense`, if they act at different places or are made for other numbers of
            classes, or if there is none.
    """
    for defense in defenses:
        one_defense(defense=defense)
    places = {defense.place for defense in defenses}
    if len(places) != 1:
        raise ValueError(f"chain needs defenses that act at one place, got {sorted(places) or 'no defense'}")
    classes = {defense.num_classes for defense in defenses if defense.num_classes is not None}
    if len(classes) > 1:
        raise ValueError(f"num_classes of the chained defenses must be one number, got {sorted(classes)}")

    def init(params: PyTree) -> tuple:
        return tuple(defense.transform.init(params) for defense in defenses)

    def update(
        updates: PyTree, state: tuple, params: PyTree = None, *, key: jax.Array, **extra: object
    ) -> tuple[PyTree, tuple]:
        new = []
        for member, (defense, member_state) in enumerate(zip(defenses, state, strict=True)):
            updates, member_state = defense.transform.update(
                updates, member_state, params, key=jax.random.fold_in(key, member), **extra
            )
            new.append(member_state)
        return updates, tuple(new)

    def encode(encoding: PayloadEncoding) -> PayloadEncoding:
        for defense in defenses:
            encoding = defense.encode(encoding)
        return encoding

    one_step = any(defense.one_step for defense in defenses)
    mechanism = defenses[0].mechanism if len(defenses) == 1 else None
    transform = optax.GradientTransformationExtraArgs(init, update)
    return Defense(places.pop(), transform, encode, one_step, mechanism, classes.pop() if classes else None)


def stateless(
    place: str,
    update: Callable[..., PyTree],
    encode: Callable[[PayloadEncoding], PayloadEncoding] = dense,
    *,
    one_step: bool = False,
    mechanism: Mechanism | None = None,
) -> Defense:
    """A defense without state from `update(key, payload, **extra) -> payload`.

    Args:
        place: see `Defense`.
        update: the function; it must accept keywords that it does not use.
        encode: see `Defense`.
        one_step: see `Defense`.
        mechanism: see `Defense`.

    Raises:
        ValueError: on a place or mechanism that `Defense` refuses, or a function that does not take
            `(key, payload, **extra)`.
    """
    _validate.takes("(key, payload, **extra)", update=update)

    def transform(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None, *, key: jax.Array, **extra: object
    ) -> tuple[PyTree, optax.EmptyState]:
        del params
        return update(key, updates, **extra), state

    transformation = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), transform)
    return Defense(place, transformation, encode, one_step, mechanism)


def per_leaf(
    place: str,
    change: Callable[[jax.Array, jax.Array], jax.Array],
    encode: Callable[[PayloadEncoding], PayloadEncoding] = dense,
    *,
    mechanism: Mechanism | None = None,
) -> Defense:
    """A defense that changes every leaf separately, each with its own key.

    Args:
        place: see `Defense`.
        change: `(key, leaf) -> leaf`, of the same shape.
        encode: see `Defense`.
        mechanism: see `Defense`.

    Raises:
        ValueError: on a place or mechanism that `Defense` refuses, or a function that does not take `(key, leaf)`.
    """
    _validate.takes("(key, leaf)", change=change)

    def update(key: jax.Array, payload: PyTree, **extra: object) -> PyTree:
        del extra
        return map_with_keys(change, key, payload)

    return stateless(place, update, encode, mechanism=mechanism)


def broken(leaf: jax.Array) -> jax.Array:
    """Zeros, and NaN where an entry is not finite. Defenses add this so that they do not hide a broken payload."""
    return jnp.where(jnp.isfinite(leaf), 0.0, jnp.nan).astype(leaf.dtype)


def map_with_keys(change: Callable[..., jax.Array], key: jax.Array, tree: PyTree, *rest: PyTree) -> PyTree:
    """`change(key, leaf, *other leaves)` on every leaf, each leaf with a key of its own."""
    leaves, structure = jax.tree.flatten(tree)
    others = [jax.tree.leaves(other) for other in rest]
    new = [change(jax.random.fold_in(key, i), *args) for i, args in enumerate(zip(leaves, *others, strict=True))]
    return jax.tree.unflatten(structure, new)
