"""What a client of horizontal federated learning uploads: FedSGD's gradient or FedAvg's update, in one function."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxleak import _validate
from jaxleak._base import Batch, Loss, Protocol, ProtocolState, PyTree, Transcript
from jaxleak.defenses import HORIZONTAL_PLACES, Defense
from jaxleak.defenses._representation import OfClient
from jaxleak.models import Classifier
from jaxleak.models._classifier import BATCH_NORM_MODES, BatchNormMode
from jaxleak.objectives import cross_entropy
from jaxleak.objectives._losses import needs_distributions
from jaxleak.protocols._defending import acts_at, check_defense, defended, defended_upload, mean_of_examples, memory
from jaxleak.protocols._local_training import descend, gradient_of
from jaxleak.protocols._sampling import defense_key, draw_batch
from jaxleak.protocols._secure_aggregation import largest_entry, secure_mean


class ClientShare:
    """`share(params, batch, sharpness=None) -> payload`: the function that a client runs.

    The client takes `local_steps` steps of gradient descent in each of its `local_epochs` passes over the same samples.
    The payload is the uploaded update in units of a gradient, `(w - w') / (learning_rate * steps)`, where `steps`
    counts the steps of all epochs. With one step it is the gradient itself. With momentum, each gradient is weighed by
    its part in the update. Under secure aggregation the payload is averaged over the clients. The server knows all
    constants, so it can do this arithmetic itself. Samples are ordered client by client, and within a client step by
    step as in the first epoch.

    Clients that compute the same function compare equal, so that compiled code is reused.
    """

    def __init__(
        self,
        model: Classifier,
        *,
        local_steps: int = 1,
        local_epochs: int = 1,
        learning_rate: float = 1e-4,
        momentum: float = 0.0,
        clients: int = 1,
        batch_norm: BatchNormMode = "train",
        loss: Loss = cross_entropy,
    ):
        """Define what the client computes.

        Args:
            model: the global model.
            local_steps: E >= 1 steps of an epoch, each on its own B samples.
            local_epochs: K >= 1 passes over these E * B samples, as in ordinary federated averaging.
            learning_rate: step size of the local steps, > 0.
            momentum: momentum of the local steps, in [0, 1); the velocity starts at zero in every round, as with
                PyTorch's `SGD` if the client creates its optimiser anew.
            clients: M >= 1 clients whose updates are averaged before the server sees them (FedLeak, section 7).
            batch_norm: "train" normalises by the statistics of each local batch, "eval" by the running ones.
            loss: `(logits (B, C), y) -> ()`, with its reduction. The client calls it with its own labels, which are
                integers (B,) or rows (B, C). An attack always calls it with (B, C). So the loss must accept both, and
                must give the same value for integers and for their one-hot rows, as `objectives.cross_entropy` does by
                `objectives.soft_labels`; attacks refuse other losses. A loss of several labels per image, whose y is
                never (B,), need not accept integers.

        Raises:
            ValueError: on arguments out of range.
        """
        _validate.made(Classifier, "models.from_flax or models.build", model=model)
        _validate.functions(loss=loss)
        _validate.count(local_steps=local_steps, local_epochs=local_epochs, clients=clients)
        _validate.positive(learning_rate=learning_rate)
        _validate.below_one(momentum=momentum)
        _validate.one_of(BATCH_NORM_MODES, batch_norm=batch_norm)
        self.model, self.loss, self.batch_norm = model, loss, batch_norm
        self.local_steps, self.local_epochs, self.clients = int(local_steps), int(local_epochs), int(clients)
        self.learning_rate, self.momentum = float(learning_rate), float(momentum)

    def __eq__(self, other: object) -> bool:
        """Whether the other client computes the same, by the same model and the same loss."""
        return isinstance(other, ClientShare) and type(self) is type(other) and self._computed() == other._computed()

    def __hash__(self) -> int:
        """A hash that equal clients share."""
        return hash(self._computed())

    def _computed(self) -> tuple[Any, ...]:
        """Everything that defines what the client computes. The loss enters by its id, as it may have no hash."""
        steps = (self.local_steps, self.local_epochs, self.learning_rate, self.momentum, self.clients)
        return self.model, id(self.loss), self.batch_norm, steps

    @property
    def total_steps(self) -> int:
        """The number K * E of steps over all epochs; every step changes the weights."""
        return self.local_steps * self.local_epochs

    def in_mode(self, batch_norm: BatchNormMode) -> "ClientShare":
        """The same client with another mode of batch normalisation."""
        return self._changed(batch_norm=batch_norm)

    def with_model(self, model: Classifier) -> "ClientShare":
        """The same client with another model, such as one in which some layers are constants."""
        return self._changed(model=model)

    def with_loss(self, loss: Loss) -> "ClientShare":
        """The same client with another loss."""
        return self._changed(loss=loss)

    def in_one_epoch(self) -> "ClientShare":
        """A client with the same number of steps, each on its own samples: one epoch of K * E local steps."""
        return self._changed(local_steps=self.total_steps, local_epochs=1)

    def in_one_step(self) -> "ClientShare":
        """A client that takes only the first of these steps, on its first B samples: it sends their gradient."""
        return self._changed(local_steps=1, local_epochs=1)

    def _changed(self, **changed: Any) -> "ClientShare":
        names = ("local_steps", "local_epochs", "learning_rate", "momentum", "clients", "batch_norm", "loss")
        kept = {name: getattr(self, name) for name in names}
        return ClientShare(**{"model": self.model, **kept, **changed})

    def __call__(
        self,
        params: PyTree,
        batch: Batch,
        *,
        sharpness: jax.Array | float | None = None,
        orders: jax.Array | None = None,
    ) -> PyTree:
        """The payload of a batch x (M * E * B, 1, H, W, channels); `params` are the model's variables.

        With a `sharpness` the kinks of the model are smoothed, as in the attacker's copy. `orders` (M, K - 1, E * B)
        are the permutations of every client's samples in its later epochs. None repeats the order of the first epoch,
        which is all that an attacker can assume.

        Under `jax.jit` labels are traced and their values cannot be checked, only their dtype and shape. With the
        losses of `jaxleak.objectives`, an image whose label is out of range then adds no gradient.

        Raises:
            ValueError: if `batch.x` has another shape or is not M * E equal parts, if `batch.y` does not hold one
                integer in [0, C) per image or one soft label (C,) >= 0, which sums to one under a cross-entropy of
                `jaxleak.objectives`, or if `orders` have another shape.
        """
        updates = self.updates(params, batch, sharpness=sharpness, orders=orders)
        return updates[0] if self.clients == 1 else jax.tree.map(lambda *parts: sum(parts) / self.clients, *updates)

    def updates(
        self,
        params: PyTree,
        batch: Batch,
        *,
        sharpness: jax.Array | float | None = None,
        orders: jax.Array | None = None,
    ) -> list[PyTree]:
        """Every client's own payload, before they are averaged."""
        self._check(batch)
        total = batch.x.shape[0]
        if total % (self.clients * self.local_steps):
            raise ValueError(
                f"the batch must hold clients * local_steps = {self.clients} * {self.local_steps} equal parts, "
                f"got {total} samples"
            )
        x, y = batch.x[:, 0], batch.y

        def gradient(_: object, variables: PyTree, x: jax.Array, y: jax.Array) -> tuple[PyTree, PyTree]:
            return gradient_of(self.model, self.loss, self.batch_norm, variables, x, y, sharpness)

        if self.clients == self.total_steps == 1:
            return [gradient(0, params, x, y)[0]]

        def one_client(x: jax.Array, y: jax.Array, visits: jax.Array | None) -> PyTree:
            if visits is not None:
                x, y = x[visits], y[visits]
            mean, _ = descend(
                gradient, params, x, y, self.learning_rate,
                steps=self.total_steps, momentum=self.momentum, unrolled=True,
            )  # fmt: skip
            return mean

        split = (leaf.reshape(self.clients, -1, *leaf.shape[1:]) for leaf in (x, y))
        visits = self._visits(total // self.clients, orders)
        return [one_client(*one) for one in zip(*split, visits, strict=True)]

    def _visits(self, samples: int, orders: jax.Array | None) -> list[jax.Array | None]:
        """For every client, the samples that it visits, one epoch after the other; None if there is only one epoch."""
        later = (self.clients, self.local_epochs - 1, samples)
        if orders is not None and orders.shape != later:
            raise ValueError(f"orders must be (clients, local_epochs - 1, samples) = {later}, got {orders.shape}")
        if self.local_epochs == 1:
            return [None] * self.clients
        first = jnp.arange(samples)
        if orders is None:
            return [jnp.tile(first, self.local_epochs)] * self.clients
        return [jnp.concatenate([first, *own]) for own in orders]

    def example_gradients(self, params: PyTree, batch: Batch) -> PyTree:
        """The payload of each single example, for one step of one client: leaves with a leading axis B."""
        self._check(batch)  # before `vmap` hides the labels
        return jax.vmap(lambda x, y, i: self(params, Batch(x[None], y[None], i[None])))(*batch)

    def _check(self, batch: Batch) -> None:
        _validate.batch_of_images(batch.x, self.model.image_shape)
        distributions = needs_distributions(self.loss)
        _validate.batch_labels(batch.y, batch.x.shape[0], self.model.num_classes, distributions=distributions)


def averaged_share(share: ClientShare) -> ClientShare:
    """The server's estimate of `share`: one gradient step on all samples at once (FedLeak, section 2).

    With several local steps, epochs or clients, the estimate ignores that the weights change in between, and that each
    step normalises its own batch. With one of each it equals `share`.
    """
    return ClientShare(share.model, batch_norm=share.batch_norm, loss=share.loss)


def draw_orders(share: ClientShare, key: jax.Array, samples: int) -> jax.Array:
    """The orders (M, K - 1, samples) of a client that draws a new permutation of its samples in every later epoch."""
    keys = jax.random.split(key, (share.clients, share.local_epochs - 1))
    return jax.vmap(jax.vmap(lambda one: jax.random.permutation(one, samples)))(keys)


def client(
    share: ClientShare,
    *,
    num_samples: int,
    batch_size: int,
    variables: PyTree = None,
    defense: Defense | None = None,
    reshuffle: bool = False,
    neighbours: int = 0,
    secure_aggregation: int | None = None,
    with_statistics: bool = False,
) -> Protocol:
    """One client's upload per round, from a model that stays as it is: what gradient inversion attacks.

    Args:
        share: what the client computes.
        num_samples: N, the size of the client's data; with M aggregated clients, of all their data together.
        batch_size: B of each local step; a round uses M * E * B <= N different samples.
        variables: the global model of the attacked round, e.g. trained; None draws the model's initial ones.
        defense: the client's defense at "payload", "representation" or "per_example_gradient", or at "server_view" what
            the server cannot read. It needs a single client, and one that acts inside a step needs a single local step.
            With `neighbours` it must act at "client_payloads". Its state is kept from round to round.
        reshuffle: whether a client of several epochs draws a new order of its samples in each, as PyTorch's loaders do
            with `shuffle=True`. The attacker does not know these orders: its copy, the protocol's share, repeats the
            first one.
        neighbours: number of other clients with equally many samples, whose payloads a defense at "client_payloads"
            needs. The server sees the first client's upload, and the transcript holds that client's samples.
        secure_aggregation: fraction bits in [0, 30] of `masked_payloads`. Several clients then upload under masks that
            cancel in the sum, so the transcript holds only the mean, and no single payload. None averages in floating
            point, which reveals no more.
        with_statistics: also record the batch's normalisation statistics, for threats that grant them.

    Returns:
        A `Protocol` whose params are the model's variables and whose payload has the tree of `variables["params"]`. A
        transcript's batch is in the order in which the client drew it: compare a reconstruction with
        `transcript.private`.

    Raises:
        ValueError: on sizes out of range, secure aggregation of one client, a defense at a place that this client does
            not have, or `reshuffle` where no order matters; when a round is run, if the private set does not hold N
            samples with labels in [0, C) (not checked under `jax.jit`).
    """
    _validate.made(ClientShare, "protocols.ClientShare", share=share)
    own_size = share.clients * share.local_steps * batch_size
    _validate.count(num_samples=num_samples, batch_size=batch_size)
    _validate.count_or_zero(neighbours=neighbours)
    per_round = (1 + neighbours) * own_size
    counted = "clients * local_steps * batch_size" + (" * (1 + neighbours)" if neighbours else "")
    _validate.in_range(1, num_samples, **{counted: per_round})
    check_defense(
        defense,
        [place for place in HORIZONTAL_PLACES if (place == "client_payloads") == bool(neighbours)],
        num_classes=share.model.num_classes,
        local_steps=share.total_steps,
        inside=False,
        mixes_examples=share.model.mixes_images(share.batch_norm),
        loss=share.loss,
    )
    if defense is not None and share.clients > 1:
        raise ValueError(f"a defense of one client's upload needs clients = 1, got {share.clients}")
    if defense is None and neighbours:
        raise ValueError(f"neighbours are of a defense at client_payloads, got {neighbours} and no defense")
    if reshuffle and (share.local_epochs == 1 or share.local_steps == 1):
        raise ValueError(
            "reshuffle changes which samples share a batch in later epochs: needs local_epochs > 1 and "
            f"local_steps > 1, got {share.local_epochs} and {share.local_steps}"
        )
    if reshuffle and neighbours:
        raise ValueError(
            f"reshuffle is of one client or of clients that are summed: needs neighbours = 0, got {neighbours}"
        )
    if secure_aggregation is not None:
        largest_entry(share.clients, secure_aggregation)
    model = share.model

    def init(key: jax.Array) -> ProtocolState:
        start = model.init(key) if variables is None else variables
        leading = {"per_example_gradient": (own_size,), "client_payloads": (1 + neighbours,)}
        axes = () if defense is None else leading.get(defense.place, ())
        return ProtocolState(jnp.zeros((), jnp.int32), start, (), memory(defense, start["params"], *axes))

    def check(private: Batch) -> None:
        distributions = needs_distributions(share.loss)
        _validate.private_set(private, num_samples, model.num_classes, distributions=distributions)

    def round_(key: jax.Array, state: ProtocolState, private: Batch) -> tuple[ProtocolState, Transcript]:
        check(private)
        index = draw_batch(key, state.round, num_samples=num_samples, batch_size=per_round, sampling="epoch")
        drawn = Batch(private.x[index], private.y[index], index)
        batch = jax.tree.map(lambda leaf: leaf[:own_size], drawn)
        noise_key = defense_key(key, state.round)
        order_key = jax.random.fold_in(jax.random.fold_in(key, state.round), 2)
        orders = draw_orders(share, order_key, own_size // share.clients) if reshuffle else None
        if secure_aggregation is None:
            payload = share(state.params, batch, orders=orders)
        else:
            updates = share.updates(state.params, batch, orders=orders)
            uploads = jax.tree.map(lambda *leaves: jnp.stack(leaves), *updates)
            payload = secure_mean(noise_key, uploads, secure_aggregation)
        kept = state.defense
        if acts_at(defense, "client_payloads"):
            each = jax.tree.map(lambda leaf: leaf.reshape(1 + neighbours, own_size, *leaf.shape[1:]), drawn)
            all_payloads = jax.lax.map(lambda one: share(state.params, one), each)
            all_payloads, kept = defended(defense, "client_payloads", noise_key, all_payloads, kept, round=state.round)
            payload = jax.tree.map(lambda leaf: leaf[0], all_payloads)
        if acts_at(defense, "per_example_gradient"):
            examples = share.example_gradients(state.params, batch)
            examples, kept = defended(defense, "per_example_gradient", noise_key, examples, kept, round=state.round)
            payload = mean_of_examples(examples)
        x, mode = batch.x[:, 0], share.batch_norm
        own = OfClient(model=model, variables=state.params, x=x, y=batch.y, mode=mode, loss=share.loss)
        payload, kept = defended_upload(defense, noise_key, payload, kept, round=state.round, **own)
        payload, kept = defended(defense, "server_view", noise_key, payload, kept, round=state.round)
        statistics = None
        if with_statistics:
            statistics = model.apply(state.params, batch.x[:, 0], mode=share.batch_norm).statistics
        transcript = Transcript(state.round, state.params, payload, batch.index, statistics, batch)
        return state._replace(round=state.round + 1, defense=kept), transcript

    return Protocol(init, round_, share, check)
