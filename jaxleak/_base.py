"""The interfaces that every protocol, threat and attack of jaxleak follows.

A `Protocol` runs rounds on private data and writes `Transcript`s. `jaxleak.threats` is the only door from a transcript
to an `Observation`, which has no field for private data. An `Attack` sees observations and nothing else. It is
initialised from shapes, and its answer is a `Reconstruction` with the attacker's own score.

Order of arguments: `key`, then `state`, then the evidence. Sizes: `B` batch, `N` private set, `P` parties, `C` classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, runtime_checkable
from typing import Protocol as TypingProtocol

if TYPE_CHECKING:  # so that a command can read its options before JAX is imported
    import jax

PyTree = Any
#: How batch normalisation normalises: by the statistics of the batch ("train"), or by the running ones ("eval").
BatchNormMode: TypeAlias = Literal["train", "eval"]
#: (logits (B, C), labels (B,) or (B, C)) -> scalar: the loss that clients and attackers share. Clients may pass labels
#: (B,), while attackers always pass (B, C). The loss must mean the same for both, as `objectives.cross_entropy` does.
Loss: TypeAlias = Callable[["jax.Array", "jax.Array"], "jax.Array"]


class Batch(NamedTuple):
    """Samples with their positions in the private set; a whole private set is the batch of all positions.

    Attributes:
        x: (B, P, *slice) float32; slice p of every sample belongs to party p. In horizontal learning P = 1, so that
            images are (B, 1, H, W, channels), with pixels in [0, 1].
        y: (B,) int32 in [0, C), or (B, C) soft labels >= 0, which sum to one under cross-entropies.
        index: (B,) int32, positions in [0, N).
    """

    x: jax.Array
    y: jax.Array
    index: jax.Array  # type: ignore[assignment]


class PartyRecord(NamedTuple):
    """What one party of split vertical learning sees of one step: its own side and nothing else."""

    x: jax.Array  # (B, d_p), its own features, without padding
    params: PyTree  # the party's bottom model before the step
    params_after: PyTree  # the party's bottom model after the step
    params_gradient: PyTree  # loss gradient at the party's parameters, possibly defended
    output: jax.Array  # (B, e), output of its bottom model before the step, without noise that it may add when it sends
    output_after: jax.Array  # (B, e), on the same input with the parameters after the step
    output_gradient: jax.Array  # (B, e), the loss gradient at `output` that came back, possibly defended
    party: jax.Array | None = None  # () int32, which party this is; None where a record was made without a protocol


class LabelHolderRecord(NamedTuple):
    """What the label holder of split vertical learning sees of one step at its top model, beside the labels."""

    received: tuple[jax.Array | None, ...]  # (B, e) from every party, as it arrived; None where a cipher hides it
    first: jax.Array  # (B, d), output of the top's first layer: in the clear, even if that layer ran on ciphertexts
    first_gradient: jax.Array  # (B, d), the loss gradient at `first`, which trains that layer
    params_gradient: PyTree  # the gradient at that layer's parameters, in the clear as well, since it trains the layer
    first_params: PyTree  # the parameters of that layer before the step; None if a cipher hides them
    rest_params: PyTree  # the parameters of the top behind that layer


class Transcript(NamedTuple):
    """The whole record of one round. Only `jaxleak.threats` may read it on behalf of an attacker.

    Attributes:
        round: () int32, which round it is.
        params: the model's variables at the start of the round, a tree.
        payload: what reached the server, a tree in units of a gradient: one upload or the aggregate, possibly defended.
        index: (B,) int32, which private samples took part.
        statistics: mean and variance of the batch in every layer, for threats that grant them; None if not recorded.
        private: the samples of the round themselves, for scores alone.
        parties: every party's own record, where the protocol has parties that train.
        label_holder: the label holder's record, where the protocol has one.
    """

    round: jax.Array
    params: PyTree
    payload: PyTree
    index: jax.Array  # type: ignore[assignment]
    statistics: PyTree
    private: Batch
    parties: tuple[PartyRecord, ...] = ()
    label_holder: LabelHolderRecord | None = None


class Observation(NamedTuple):
    """What the attacker sees of one round. A field that the threat does not grant is None.

    Attributes:
        round: () int32, which round it is.
        params: the model's variables at the start of the round, a tree.
        payload: what the server receives, a tree in units of a gradient.
        index: (B,) int32, the positions of the batch's samples in the private set.
        labels: (B,) int32, or soft labels (B, C) if the client has them.
        statistics: mean and variance of the batch in every normalisation layer, a tree.
        party: what a party of a vertical federation records.
        label_holder: what its label holder records beside the labels.
    """

    round: jax.Array
    params: PyTree = None
    payload: PyTree = None
    index: jax.Array | None = None  # type: ignore[assignment]
    labels: jax.Array | None = None
    statistics: PyTree = None
    party: PartyRecord | None = None
    label_holder: LabelHolderRecord | None = None


class Reconstruction(NamedTuple):
    """The attacker's answer for the whole private set, in index order where indices were granted.

    Attributes:
        x: (N, P, *slice), the samples' parts by party.
        y: (N,) int32, labels in [0, C), or -1 where the attack says nothing of a label. An attack that seeks no labels
            sets all to -1, and its x may still be an answer. Scores of labels leave out or refuse -1.
        score: (N,) the attacker's own misfit, lower is better; computed without the truth. Each sample is taken from
            the restart with its lowest score. An attack whose restarts may order the samples differently therefore
            gives all samples of a batch the same score.
        answered: (N,) bool, False where the attack knows that it has no answer for this sample, because it was never
            seen or is not determined by what was seen. There x and y are worthless, whatever fills them: NaN, grey or
            zeros in x, -1 or a random label in y. True does not claim that the answer is right, nor that both x and y
            were sought.
        gradient_matched: (N,) bool, whether the answer reproduces the observed gradient, or None where the attack does
            not compare the two. True says nothing about whether the sample is right: many different images have nearly
            the same gradient.
        diagnosis: what else the attack knows of its answer, such as the ranks of the systems that it solved; a tree
            that the attack defines.
    """

    x: jax.Array
    y: jax.Array
    score: jax.Array
    answered: jax.Array
    gradient_matched: jax.Array | None = None
    diagnosis: PyTree = None


class Attack(NamedTuple):
    """An attack as three pure functions over a PyTree state.

    init: `(key, template) -> state`, where `template` is a `Batch` of `jax.ShapeDtypeStruct` for the whole
        private set: shapes are public, so `init` cannot peek.
    step: `(key, state, observation) -> (state, info)`. `state` is what the next step needs and checkpoints keep;
        `info` is a dict of scalars to look at, which a scan can stack. Step t gets `fold_in(key, t)`.
    reconstruct: `(state, observation) -> Reconstruction`. `jaxleak.audit.invert` traces it. An attack on many rounds
        that solves in closed form, or by its own solver, may do so here in NumPy.
    iterations: number of steps that the attack's schedules are made for, or None without schedules.
    made_of: a JSON object that describes the attack's settings by their names. It binds the checkpoints of
        `jaxleak.audit.invert`, and a refusal says what differs; None binds nothing.
    """

    init: InitFn
    step: StepFn
    reconstruct: ReconstructFn
    iterations: int | None = None
    made_of: str | None = None


class ProtocolState(NamedTuple):
    """What training carries from round to round."""

    round: jax.Array  # () int32
    params: PyTree
    opt_state: PyTree
    defense: PyTree = ()  # the state of a defense with memory


class Protocol(NamedTuple):
    """A federated learning protocol.

    init: `(key) -> ProtocolState`.
    round: `(key, state, private) -> (state, transcript)`; draws the batch of round t from `fold_in(key, t)`.
    share: `(params, batch) -> payload`, pure and differentiable in the batch: what the clients compute together.
        An attack receives this very function, so both sides agree on the loss and its reduction.
    check: `(private) -> None` raises `ValueError` for a private set that the rounds do not take. `jaxleak.audit` calls
        it before it compiles the rounds, since compiled rounds cannot look at the values of labels; None checks
        nothing.
    """

    init: ProtocolInitFn
    round: RoundFn
    share: ShareFn
    check: CheckFn | None = None


class InitFn(TypingProtocol):
    def __call__(self, key: jax.Array, template: Batch) -> PyTree: ...


class StepFn(TypingProtocol):
    def __call__(
        self, key: jax.Array, state: PyTree, observation: Observation
    ) -> tuple[PyTree, dict[str, jax.Array]]: ...


class ReconstructFn(TypingProtocol):
    def __call__(self, state: PyTree, observation: Observation) -> Reconstruction: ...


class ProtocolInitFn(TypingProtocol):
    def __call__(self, key: jax.Array) -> ProtocolState: ...


class RoundFn(TypingProtocol):
    def __call__(self, key: jax.Array, state: ProtocolState, private: Batch) -> tuple[ProtocolState, Transcript]: ...


class CheckFn(TypingProtocol):
    def __call__(self, private: Batch) -> None: ...


class ShareFn(TypingProtocol):
    def __call__(self, params: PyTree, batch: Batch) -> PyTree: ...


class Simulation(TypingProtocol):
    def __call__(self, params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree: ...


@runtime_checkable
class Share(TypingProtocol):
    """The payload that a client of horizontal learning computes from its batch, and how it computes it.

    A share is called as `(params, batch, sharpness=None) -> payload`. `params` are the model's variables. `batch.x` is
    (M * E * B, 1, H, W, channels), client by client and step by step. With a `sharpness` () the kinks of the model are
    smoothed, which is for the attacker's copy. The payload is in units of a gradient and differentiable in the batch.

    A client of several epochs also has the attribute `total_steps`, as `protocols.ClientShare` has. A client whose loss
    attacks should check has the attribute `loss`.
    """

    @property
    def batch_norm(self) -> BatchNormMode:
        """How the client's batch normalisation works; it means nothing for a model without batch normalisation."""
        ...

    @property
    def local_steps(self) -> int:
        """E >= 1 steps of gradient descent, each on its own part of the batch."""
        ...

    @property
    def clients(self) -> int:
        """M >= 1 clients whose payloads are averaged, each with its own part of the batch."""
        ...

    def __call__(self, params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree:
        """The payload of a batch."""
        ...


def total_steps(share: Share) -> int:
    """Steps >= 1 of all epochs of a client; a client that does not state them has one epoch of its local steps."""
    return int(getattr(share, "total_steps", share.local_steps))


def loss_of(share: Share) -> Loss | None:
    """The loss of a client; None if the client does not state one."""
    return getattr(share, "loss", None)


@dataclass(frozen=True)
class TransformedShare:
    """A share with another way to compute its payload, such as behind a transform; all else is that of another share.

    Attributes:
        share: the share that gives the mode of batch normalisation, the steps, the clients and the loss.
        compute: `(params, batch, sharpness=None) -> payload`, which usually calls `share`.
    """

    share: Share
    compute: Simulation

    @property
    def batch_norm(self) -> BatchNormMode:
        """See `Share`."""
        return self.share.batch_norm

    @property
    def local_steps(self) -> int:
        """See `Share`."""
        return self.share.local_steps

    @property
    def total_steps(self) -> int:
        """Steps >= 1 of all epochs together."""
        return total_steps(self.share)

    @property
    def clients(self) -> int:
        """See `Share`."""
        return self.share.clients

    @property
    def loss(self) -> Loss | None:
        """The client's loss, whatever is made of its gradient; None if the client does not state one."""
        return loss_of(self.share)

    def __call__(self, params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree:
        """The payload that `compute` makes of a batch."""
        return self.compute(params, batch, sharpness=sharpness)
