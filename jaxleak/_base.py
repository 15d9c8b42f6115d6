"""The contracts that every protocol, threat and attack of jaxleak speaks.

A `Protocol` runs rounds on private data and writes `Transcript`s. `jaxleak.threats` is the only door from a
transcript to an `Observation`, which has no field for private data. An `Attack` sees observations and nothing
else, is initialised from shapes, and answers with a `Reconstruction` that carries the attacker's own score.

Names: `key` comes first, `state` second, evidence third. `B` batch, `N` private set, `P` parties, `C` classes.
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
#: (logits (B, C), labels (B,) or (B, C)) -> scalar, which clients and attackers agree on. Clients may have labels (B,);
#: attackers always give (B, C), by which the loss must mean the same, as `objectives.cross_entropy` does.
Loss: TypeAlias = Callable[["jax.Array", "jax.Array"], "jax.Array"]


class Batch(NamedTuple):
    """Samples with their positions in the private set; a whole private set is the batch of all positions."""

    x: jax.Array  # (B, P, *slice) float32, slice p of every sample belongs to party p; P = 1 in horizontal FL
    y: jax.Array  # (B,) int32 in [0, C), or (B, C) soft labels >= 0, summing to one under cross-entropies
    index: jax.Array  # type: ignore[assignment]  # (B,) int32, positions in [0, N)


class PartyRecord(NamedTuple):
    """What one party of split vertical learning sees of one step: its own side and nothing else."""

    x: jax.Array  # (B, d_p), its own features, without padding
    params: PyTree  # the party's bottom model before the step
    params_after: PyTree  # and after it
    params_gradient: PyTree  # loss gradient at its parameters, possibly defended
    output: jax.Array  # (B, e), its bottom model's output before the step, without the noise it may send it with
    output_after: jax.Array  # (B, e), on the same input with the parameters after the step
    output_gradient: jax.Array  # (B, e), the loss gradient at `output` that came back, possibly defended
    party: jax.Array | None = None  # () int32, which party this is; None where a record was made without a protocol


class LabelHolderRecord(NamedTuple):
    """What the label holder of split vertical learning sees of one step at its top model, beside the labels."""

    received: tuple[jax.Array | None, ...]  # (B, e) from every party, as it arrived; None where a cipher hides it
    first: jax.Array  # (B, d), what the top's first layer gives: in the clear, whether or not it ran on ciphertexts
    first_gradient: jax.Array  # (B, d), the loss gradient at `first`, by which the label holder trains that layer
    params_gradient: PyTree  # the gradient at that layer's parameters, in the clear as well: the layer is trained by it
    first_params: PyTree  # the parameters of that layer before the step; None where a cipher blinds them
    rest_params: PyTree  # the parameters of the top behind that layer


class Transcript(NamedTuple):
    """The whole record of one round. Only `jaxleak.threats` may read it on behalf of an attacker."""

    round: jax.Array  # () int32
    params: PyTree  # the model at the start of the round
    payload: PyTree  # what reached the server: the aggregated (possibly defended) gradient
    index: jax.Array  # type: ignore[assignment]  # (B,) int32, which private samples took part
    statistics: PyTree  # per-layer mean and variance of the batch's activations, for threats that grant them
    private: Batch  # the data themselves
    parties: tuple[PartyRecord, ...] = ()  # every party's own record, where the protocol has parties that train
    label_holder: LabelHolderRecord | None = None  # and the label holder's, where the protocol has one


class Observation(NamedTuple):
    """What the attacker sees of one round. A field that the threat does not grant is None.

    Attributes:
        round: () int32, which round it is.
        params: the model's variables at the start of the round, a tree.
        payload: what the server receives, a tree in units of a gradient.
        index: (B,) int32, the positions of the batch's samples in the private set.
        labels: (B,) int32, or soft labels (B, C) where the client has such.
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
        y: (N,) int32, labels in [0, C), or -1 where the attack says nothing of a label. All are -1 in the answer of an
            attack that seeks none, whose x may well be an answer; scores of labels leave them out or refuse them.
        score: (N,) the attacker's own misfit, lower is better; computed without the truth. Of several restarts the
            sample with the lowest score is taken, so that an attack whose restarts may order the samples differently
            gives all samples of a batch the same score.
        answered: (N,) bool, False where the attack knows that it has no answer for this sample (never seen, not
            determined by what was seen). There x and y hold nothing of worth, whatever fills them: NaN, grey or zeros
            in x, -1 or a random label in y. True is no claim that the answer is right, and none that both x and y were
            sought.
        gradient_matched: (N,) bool, whether the answer reproduces the observed gradient, or None where the attack does
            not compare the two. True says nothing about whether the sample is right: many different images have nearly
            the same gradient.
        diagnosis: what the attack knows of its answer besides, such as the ranks of the systems that it solved; a tree
            of its own.
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
    step: `(key, state, observation) -> (state, info)`. `state` is what must be carried (checkpointable), `info`
        what one may look at (a dict of scalars, stackable by scan). Step t gets `fold_in(key, t)`.
    reconstruct: `(state, observation) -> Reconstruction`. `jaxleak.audit.invert` traces it. An attack on many rounds
        that solves in closed form, or by a solver of its own, may do it here in NumPy.
    iterations: how many steps its schedules are made for, or None where there are none.
    made_of: a digest of what it was made of, which binds the checkpoints of `jaxleak.audit.invert`; None binds nothing.
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
        it before it compiles the rounds, since labels have no values to look at inside; None checks nothing.
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
    """What a client of horizontal learning shares of its batch, and how it computes that.

    Called as `(params, batch, sharpness=None) -> payload`: `params` are the model's variables, `batch.x` is (M * E * B,
    1, H, W, channels), client by client and step by step; with a `sharpness` () the kinks of the model are smoothed,
    which is the attacker's copy. The payload is in units of a gradient and differentiable in the batch.

    A client of several epochs also has the attribute `total_steps`, as `protocols.ClientShare` has, and one whose
    `loss` attacks should check has that.
    """

    @property
    def batch_norm(self) -> BatchNormMode:
        """How the client's batch normalisation works; of no meaning for a model without."""
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
    """Steps >= 1 of all epochs of a client; one that does not state them has one epoch of its local steps."""
    return int(getattr(share, "total_steps", share.local_steps))


def loss_of(share: Share) -> Loss | None:
    """The loss of a client; None where it does not state one."""
    return getattr(share, "loss", None)


@dataclass(frozen=True)
class TransformedShare:
    """A share whose payload is computed another way, as behind a transform; in all else it is the share it stands for.

    Attributes:
        share: the share whose mode of batch normalisation, steps, clients and loss hold.
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
        """The client's loss, whatever is made of its gradient; None where it does not state one."""
        return loss_of(self.share)

    def __call__(self, params: PyTree, batch: Batch, *, sharpness: jax.Array | float | None = None) -> PyTree:
        """The payload that `compute` makes of a batch."""
        return self.compute(params, batch, sharpness=sharpness)
