"""Gradient inversion: one engine behind DLG, Inverting Gradients, FedLeak and every other preset.

An attack combines a candidate, a data term, priors, an optimizer and a source of labels. Each step descends the
objective once. The objective compares the one observed payload with the attacker's copy of the model, which may be
smoothed. Nothing here sees the truth: the attacker's own objective chooses the best iterate, and the score of a
reconstruction is its data distance on the exact model.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxleak import _tree, _validate
from jaxleak._base import Attack, Batch, Observation, PyTree, Reconstruction, Share, loss_of
from jaxleak._identity import text_of
from jaxleak.attacks._inversion import priors
from jaxleak.attacks._inversion.data_term import Compared, DataTerm
from jaxleak.attacks._inversion.gradient_term import Gradients
from jaxleak.attacks._inversion.labels import LabelSource, label_source
from jaxleak.attacks._inversion.loss_probe import check_soft_labels
from jaxleak.attacks._inversion.settings import Settings, check_settings, leaves_read
from jaxleak.attacks._inversion.setup import Setup, has_kinks
from jaxleak.attacks._inversion.shift_search import Search, search_for
from jaxleak.attacks._inversion.smoothing import Smoothing, recommended_smoothing
from jaxleak.attacks._inversion.white_point import SOFT, hides_scale, stretch
from jaxleak.attacks._observed import Reads, require
from jaxleak.models import Classifier
from jaxleak.models._activations import Sharpness
from jaxleak.objectives import group_distance, regularized_gradient

#: `(variables, constants, mask or None) -> (loss, Compared)`
Objective = Callable[[dict[str, PyTree], PyTree, PyTree], tuple[jax.Array, Compared]]


class InversionState(NamedTuple):
    """What an inversion carries from iteration to iteration. With a group, variables have a leading axis G."""

    iteration: jax.Array  # () int32
    variables: dict[str, PyTree]  # "x": the candidate's variables, "y": label logits (B, C) or ()
    constants: PyTree
    optimizer: PyTree
    sharpness: jax.Array  # () beta of the next iteration; inf without smoothing
    best: dict[str, PyTree]
    best_loss: jax.Array  # () the objective of `best` at `best_sharpness`
    best_sharpness: jax.Array
    failed_at: jax.Array  # () int32, the iteration whose objective was not finite and that froze the trial; or -1
    label_key: jax.Array
    search: Any  # what the search for a shift carries, () without one


class Parts(NamedTuple):
    """The parts of an inversion: what its settings mean for one model."""

    setup: Setup
    settings: Settings
    term: DataTerm
    priors: tuple[tuple[float, priors.Prior], ...]
    labels: LabelSource
    search: Search
    smoothing: Smoothing | None
    optimizer: optax.GradientTransformationExtraArgs
    reads: Reads

    def objective_of_one(self, observation: Observation, fixed: jax.Array | None, sharpness: Sharpness) -> Objective:
        """The objective of one candidate at one sharpness. Labels are `fixed` (B, C), or optimised where it is None."""
        s = self.settings

        def one(variables: dict[str, PyTree], constants: PyTree, mask: PyTree) -> tuple[jax.Array, Compared]:
            x = s.candidate.decode(variables["x"], constants)
            y = self.labels.soft(variables["y"], fixed)
            found = self.term.compare(observation, x, y, mask, sharpness)
            evidence = priors.Evidence(self.setup, s.candidate, observation, variables["x"], x, sharpness)
            return found.distance + priors.total(self.priors, evidence), found

        return one

    def objective(self, observation: Observation, fixed: jax.Array | None, sharpness: Sharpness) -> Objective:
        """The objective that is descended: of one candidate, or of a group with the distance to its mean."""
        s, one = self.settings, self.objective_of_one(observation, fixed, sharpness)
        if s.group == 1:
            return one

        def together(variables: dict[str, PyTree], constants: PyTree, mask: PyTree) -> tuple[jax.Array, Compared]:
            # A mask of None is a tree without leaves, so vmap accepts it.
            losses, found = jax.vmap(one)(variables, constants, mask)
            images = jax.vmap(s.candidate.decode)(variables["x"], constants)
            total = losses.sum() + s.consistency * group_distance(images)
            return total / s.group, Compared(found.mask, found.distance.mean(), found.misfit.mean())

        return together

    def fixed_labels(self, observation: Observation, key: jax.Array) -> jax.Array | None:
        """The labels (B, C) that are granted, or that a rule infers from the gradient; None if they are optimised."""
        compare = self.settings.compare
        undone = compare.undone if isinstance(compare, Gradients) else None
        return self.labels.fixed(observation if undone is None else undone.read(observation), key)

    def fresh(self, variables: dict[str, PyTree]) -> PyTree:
        """The state of an optimizer that has learned nothing yet."""
        return _strong(self.optimizer.init(variables))


def inversion(model: Classifier, share: Share, settings: Settings, *, batch_size: int) -> Attack:
    """Reconstruct a client's batch from its gradient or update.

    Args:
        model: the model under attack.
        share: the client's computation, such as a `protocols.ClientShare`, or the server's estimate of it. Against a
            defense that the attacker knows, take the share that `adaptive.informed` returns.
        settings: see `jaxleak.attacks.presets`.
        batch_size: B >= 1, the number of all samples behind the payload, which is public. With several local steps or
            clients, it counts the samples of all of them: `share.clients * share.local_steps` times what
            `protocols.client` and `audit.check_update` call the batch size.

    Returns:
        An `Attack` to be driven by `jaxleak.audit.invert` against one observation. Its reconstruction holds x (B, 1, H,
        W, channels) and y (B,). They are in an arbitrary order unless labels were given, and y is -1 where labels are
        "none". The score is the data distance on the exact model, before any enhancement or change of scale.
        `gradient_matched` says that the gradient is matched (`MATCHED_BELOW`), or that the row spaces are
        (`ROWS_MATCHED_BELOW`). A match does not imply that the images are alike. Every image is `answered`. Inferred
        labels of several local steps or clients are assigned to them at random, since a sum carries no trace of their
        order. The info of a step has the loss and the data distance on the smoothed model, the sharpness, and whether
        the trial is frozen.

    Raises:
        ValueError: on settings out of range. Also if the client's loss differs between labels (B,) and their one-hot
            rows (`protocols.ClientShare`), or if a label rule is used under a loss that is not a multiple of the mean
            cross-entropy (`Settings`). `init` raises it if the template holds fewer images than B. The first look at an
            observation raises it if the threat withholds what the settings read, or the payload does not fit the model.
    """
    parts = assemble(model, share, settings, batch_size)

    def init(key: jax.Array, template: Batch) -> InversionState:
        return _init(parts, key, template)

    def step(
        key: jax.Array, state: InversionState, observation: Observation
    ) -> tuple[InversionState, dict[str, jax.Array]]:
        return _step(parts, key, state, observation)

    def reconstruct(state: InversionState, observation: Observation) -> Reconstruction:
        return _reconstruct(parts, state, observation)

    return Attack(init, step, reconstruct, settings.iterations, made_of(settings, share))


def made_of(settings: Settings, share: Share, **more: object) -> str:
    """All settings by name, in JSON, by which checkpoints recognise an attack.

    Args:
        settings: settings of the caller.
        share: the client; what it states of its training counts.
        more: further settings of the attack.
    """
    names = ("local_steps", "local_epochs", "learning_rate", "momentum", "clients", "batch_norm", "loss")
    return text_of(settings._asdict() | {name: getattr(share, name, None) for name in names} | more)


def assemble(model: Classifier, share: Share, settings: Settings, batch_size: int) -> Parts:
    """Make and check all parts; nothing is compiled. Raises `ValueError` as `inversion` does."""
    _validate.made(Classifier, "models.from_flax or models.build", model=model)
    _validate.made(Settings, "attacks.presets", settings=settings)
    _validate.count(batch_size=batch_size)
    check_settings(settings)
    if not isinstance(share, Share):
        raise ValueError(
            "share must say how the client computes, by attributes batch_norm, local_steps and clients as of "
            f"protocols.ClientShare; got {share!r}"
        )
    setup = Setup(model, share, batch_size)
    setup.check_parts()
    term = settings.compare.term(setup)
    # Soft labels reach the client's loss only if the attack simulates the client.
    asks_for_scale = settings.white_point and model.has_batch_norm and term.simulate is None
    if (loss := loss_of(share)) is not None and (settings.compare.reads_labels or asks_for_scale):
        check_soft_labels(loss, model.num_classes, setup.of_a_step)
    smoothing = resolved_smoothing(settings, model, batch_size)
    labels = label_source(settings.labels, setup)
    weighed = priors.resolved(settings.priors, setup, settings.candidate)
    reads = Reads(
        "gradient inversion",
        params=True,
        leaves=leaves_read(model, settings, batch_size=batch_size),
        labels=labels.reads_labels,
        statistics=any(prior.reads_statistics for _, prior in weighed),
    )
    return Parts(
        setup,
        settings,
        term,
        weighed,
        labels,
        search_for(settings.shifts, settings.iterations, batch_size, candidate=settings.candidate, smoothing=smoothing),
        smoothing,
        optax.with_extra_args_support(settings.optimizer),
        reads,
    )


def resolved_smoothing(settings: Settings, model: Classifier, batch_size: int) -> Smoothing | None:
    """The smoothing schedule of settings on a model, for B = `batch_size` images; None keeps kinks exact."""
    if settings.smoothing != "auto":
        return settings.smoothing
    recommended = recommended_smoothing(batch_norm=model.has_batch_norm, batch_size=batch_size)
    return recommended if recommended is not None and has_kinks(model) else None


def _init(parts: Parts, key: jax.Array, template: Batch) -> InversionState:
    s, model = parts.settings, parts.setup.model
    image = (parts.setup.batch_size, *model.image_shape)
    _validate.batch_of_images(template.x, model.image_shape)
    if template.x.shape[0] < parts.setup.batch_size:
        raise ValueError(
            f"batch_size must be at most the number of images of the template, {template.x.shape[0]}, "
            f"got {parts.setup.batch_size}"
        )
    label_key, start_key = jax.random.split(key)

    def one(key: jax.Array) -> tuple[dict[str, PyTree], PyTree]:
        x_key, y_key = jax.random.split(key)
        x, constants = s.candidate.init(x_key, image)
        return {"x": x, "y": parts.labels.start(y_key)}, constants

    variables, constants = one(start_key) if s.group == 1 else jax.vmap(one)(jax.random.split(start_key, s.group))
    sharpness = jnp.float32(jnp.inf if parts.smoothing is None else parts.smoothing.start)
    return InversionState(
        iteration=jnp.zeros((), jnp.int32),
        variables=variables,
        constants=constants,
        optimizer=parts.fresh(variables),
        sharpness=sharpness,
        best=jax.tree.map(jnp.copy, variables),
        best_loss=jnp.float32(jnp.inf),
        best_sharpness=sharpness,
        failed_at=jnp.full((), -1, jnp.int32),
        label_key=_data_of(label_key),
        search=parts.search.init(variables["x"]),
    )


def _data_of(key: jax.Array) -> jax.Array:
    """The key's data under JAX's default generator: checkpoints store arrays only, and no name of a generator."""
    if jax.random.key_impl(key) != jax.random.key_impl(jax.random.key(0)):
        key = jax.random.key(jax.random.bits(key, dtype=jnp.uint32))
    return jax.random.key_data(key)


def _step(
    parts: Parts, key: jax.Array, state: InversionState, observation: Observation
) -> tuple[InversionState, dict[str, jax.Array]]:
    _require(parts, observation)
    used = state.sharpness
    state = _searched(parts, state)
    loss, found, direction, (updates, optimizer) = _descended(parts, key, state, observation)
    moved = optax.apply_updates(state.variables, updates)
    x = parts.settings.candidate.project(moved["x"])
    x, search = parts.search.after(state.iteration, x, loss, state.search)
    # The loss belongs to the variables before the move; losses at different sharpness do not compare.
    better = (loss < state.best_loss) | (state.sharpness != state.best_sharpness)
    finite = jnp.isfinite(loss) & _tree.all_finite(direction)
    alive = (state.failed_at < 0) & finite
    new = state._replace(
        variables={**moved, "x": x},
        best=_tree.where(better, state.variables, state.best),
        best_loss=jnp.where(better, loss, state.best_loss),
        best_sharpness=state.sharpness,
        optimizer=_strong(optimizer),
        search=search,
    )
    if parts.smoothing is not None:
        sharper = parts.search.sharpness(parts.smoothing, state.sharpness, state.iteration, found.distance)
        new = new._replace(sharpness=sharper)
    state = _tree.where(alive, new, state)
    state = state._replace(
        failed_at=jnp.where((state.failed_at < 0) & ~finite, state.iteration, state.failed_at),
        iteration=state.iteration + 1,
    )
    return state, {"loss": loss, "distance": found.distance, "sharpness": used, "frozen": state.failed_at >= 0}


def _require(parts: Parts, observation: Observation) -> None:
    """Refuse an observation that lacks what the attack reads, or whose `params` are no model's variables."""
    if isinstance(observation, Observation) and observation.params is not None:
        _validate.variables(observation.params, name="params of the observation")
    require(observation, parts.reads)


def _searched(parts: Parts, state: InversionState) -> InversionState:
    """The state that this iteration starts from, after the search for shifts."""

    def fresh(x: PyTree) -> PyTree:
        return parts.fresh({**state.variables, "x": x})

    x, optimizer, search = parts.search.before(
        state.iteration, state.variables["x"], state.optimizer, state.search, fresh
    )
    return state._replace(variables={**state.variables, "x": x}, optimizer=optimizer, search=search)


def _descended(
    parts: Parts, key: jax.Array, state: InversionState, observation: Observation
) -> tuple[jax.Array, Compared, PyTree, tuple[PyTree, PyTree]]:
    """The objective, the comparison and the direction at the state's variables, and the optimizer's answer to them."""
    s = parts.settings
    fixed = parts.fixed_labels(observation, state.label_key)
    objective = parts.objective(observation, fixed, None if parts.smoothing is None else state.sharpness)

    def at(variables: dict[str, PyTree], mask: PyTree) -> tuple[jax.Array, Compared]:
        return objective(variables, state.constants, mask)

    def move(direction: PyTree, value: jax.Array) -> tuple[PyTree, PyTree]:
        return parts.optimizer.update(
            direction,
            state.optimizer,
            state.variables,
            value=value,
            grad=direction,
            value_fn=lambda variables: at(variables, None)[0],
            **({"key": key} if s.gradient_free else {}),
        )

    if s.gradient_free:
        loss, found = at(state.variables, None)
        direction = jax.tree.map(jnp.zeros_like, state.variables)
    else:
        loss, found, direction = regularized_gradient(
            at,
            state.variables,
            s.regularization,
            selected=lambda found: found.mask,
            step=lambda gradient: move(gradient, jnp.zeros(()))[0],
        )
    return loss, found, direction, move(direction, loss)


def _reconstruct(parts: Parts, state: InversionState, observation: Observation) -> Reconstruction:
    _require(parts, observation)
    size = parts.setup.batch_size
    fixed = parts.fixed_labels(observation, state.label_key)
    one, contenders = parts.objective_of_one(observation, fixed, None), _contenders(parts, state)
    compared = jax.lax.map(lambda it: one(it[0], it[1], None)[1]._replace(mask=None), contenders)
    finite = jnp.where(jnp.isnan(compared.distance), jnp.inf, compared.distance)
    (chosen, constants), found = jax.tree.map(lambda leaf: leaf[jnp.argmin(finite)], (contenders, compared))
    x, logits = parts.settings.candidate.decode(chosen["x"], constants), chosen["y"]
    soft = parts.labels.soft(logits, fixed)
    x = _finished(parts, x, soft, observation)
    score = jnp.broadcast_to(found.distance, (size,))
    matched = jnp.broadcast_to(found.misfit < parts.term.matched_below, (size,))
    y = parts.labels.hard(logits, soft)
    # A score that is not finite means that the search never left its start.
    return Reconstruction(x[:, None], y, score, jnp.isfinite(score), matched)


def _contenders(parts: Parts, state: InversionState) -> tuple[dict[str, PyTree], PyTree]:
    """The best and the last iterate of every candidate: variables and constants with a leading axis.

    The last iterate was never evaluated, because the loss of a step belongs to the variables before its update.
    """
    join = jnp.stack if parts.settings.group == 1 else jnp.concatenate
    one, other = ((variables, state.constants) for variables in (state.best, state.variables))
    return jax.tree.map(lambda *leaves: join(leaves), one, other)


def _finished(parts: Parts, x: jax.Array, soft: jax.Array, observation: Observation) -> jax.Array:
    """The answer's images, rescaled where the gradient hides their scale, and then enhanced."""
    s, (model, share, size) = parts.settings, parts.setup
    if s.white_point and model.has_batch_norm:

        def simulate(x: jax.Array) -> PyTree:
            if parts.term.simulate is not None:
                return parts.term.simulate(observation, x, jnp.float32(SOFT))
            return share(observation.params, Batch(x[:, None], soft, jnp.arange(size)), sharpness=jnp.float32(SOFT))

        x = jnp.where(hides_scale(simulate, x), stretch(x, s.white_point), x)
    return x if s.enhance is None else s.enhance(x)


def _strong(tree: PyTree) -> PyTree:
    # Some optimizers start from Python numbers, whose weak type would make JAX compile the next step again.
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), tree)
