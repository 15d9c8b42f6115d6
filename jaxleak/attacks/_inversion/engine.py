"""Gradient inversion: one engine behind DLG, Inverting Gradients, FedLeak and every other preset.

An attack is candidate x objective x optimizer x label strategy. Each step descends the objective once on the one
payload that was observed, with the attacker's copy of the model, possibly smoothed. Nothing here sees the truth: the
best iterate is chosen by the attacker's own objective, and a reconstruction's score is measured on the exact model.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jaxleak import _tree
from jaxleak._base import Attack, Batch, Observation, PyTree, Reconstruction
from jaxleak.attacks._inversion.priors import priors, recommended_tv
from jaxleak.attacks._inversion.reading import batch_norm_mode, check, inferred_labels, leaves_read, require
from jaxleak.attacks._inversion.row_space import (
    ROWS_MATCHED_BELOW,
    Timetable,
    distance_of_rows,
    informative_layers,
)
from jaxleak.attacks._inversion.settings import Settings
from jaxleak.attacks._inversion.smoothing import Smoothing, next_sharpness, recommended_smoothing
from jaxleak.attacks._inversion.white_point import SOFT, hides_scale, stretch
from jaxleak.models import Classifier
from jaxleak.objectives import (
    apply_mask,
    cosine,
    group_consistency,
    regularized_gradient,
    soft_labels,
)

#: `share(variables, batch, sharpness=...) -> payload`, differentiable in the batch: what the client ran.
SmoothableShare: TypeAlias = Callable[..., PyTree]

#: Above this cosine distance between the observed and the simulated gradient the attack says that it has no answer.
#: A convention, and no more than a necessary condition: a matched gradient is not a recovered image. In our runs iDLG
#: on a sigmoid ResNet ended at 0.0012 with 9.9 dB where a grey image scores 13.1, an attack on a vision transformer at
#: 3.6e-6 with 12.8 dB, and digits out of a generator at 0.004 with 13 dB.
MATCHED_BELOW = 0.01


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
    trying: Any  # `Trying` of settings that try shifts, else ()


class Terms(NamedTuple):
    """What an evaluation of the objective leaves besides its value."""

    mask: PyTree
    distance: jax.Array
    cosine_distance: jax.Array


def inversion(model: Classifier, share: SmoothableShare, settings: Settings, *, batch_size: int) -> Attack:
    """Reconstruct a client's batch from its gradient or update.

    Args:
        model: the model under attack.
        share: what the client ran, with its loss, reduction and batch-norm mode; or the server's estimate of it. Of a
            model with batch normalisation it must have an attribute `batch_norm` ("train" or "eval"); `local_steps`
            and `clients` default to one. `protocols.ClientShare` has all three.
        settings: see `jaxleak.attacks.presets`.
        batch_size: B >= 1, the number of samples behind the payload, which is public.

    Returns:
        An `Attack` to be driven by `jaxleak.audit.invert` against one observation. Its reconstruction holds
        x (B, 1, H, W, channels) and y (B,) in an order of its own, unless labels were given; y is -1 where labels are
        "none". The score is the data distance on the exact model, before any enhancement or change of scale, and
        `recovered` says that the gradient is matched (`MATCHED_BELOW`), or that its row spaces are
        (`ROWS_MATCHED_BELOW`), from which no likeness follows. Inferred labels of several local steps or clients are
        dealt out at random, since their order leaves no trace in a sum. Its info has the loss and the data distance on
        the model as smoothed, the sharpness, and whether the trial is frozen.

    Raises:
        ValueError: on settings out of range, and, when an observation is first seen, if the threat withholds what the
            settings read or the payload does not fit the model.
    """
    s = settings
    kinks = functools.cache(lambda: model.has_kinks)  # tracing the model takes seconds where it is deep
    if s.smoothing == "auto":
        recommended = recommended_smoothing(batch_norm=model.has_batch_norm, batch_size=batch_size)
        s = s._replace(smoothing=recommended if recommended is not None and kinks() else None)
    smoothing = s.smoothing if isinstance(s.smoothing, Smoothing) else None
    check(model, s, batch_size)
    image = (batch_size, *model.image_shape)
    mode = batch_norm_mode(model, share)
    if s.tv == "auto":
        coupled = model.has_batch_norm and mode == "train" and kinks()
        s = s._replace(tv=recommended_tv(coupled_kinks=coupled, batch_size=batch_size))
    read = leaves_read(model, s, batch_size=batch_size)
    timetable = None
    if s.row_space is not None:
        layers = informative_layers(model, s.row_space, batch_size)
        row_distance = distance_of_rows(model, s.row_space, layers, mode)
        timetable = Timetable(s.row_space, s.iterations, batch_size)
    optimizer = optax.with_extra_args_support(s.optimizer)
    joint = s.labels == "joint"
    # Of the batch, that were computed one after the other or by several clients.
    parts = getattr(share, "local_steps", 1) * getattr(share, "clients", 1)

    def init(key: jax.Array, template: Batch) -> InversionState:
        if tuple(template.x.shape[1:]) != (1, *model.image_shape):
            raise ValueError(f"private data must have shape (N, 1, {image[1:]}), got {tuple(template.x.shape)}")
        label_key, start_key = jax.random.split(key)

        def one(key: jax.Array) -> tuple[dict[str, PyTree], PyTree]:
            x_key, y_key = jax.random.split(key)
            x, constants = s.candidate.init(x_key, image)
            y = jax.random.normal(y_key, (batch_size, model.num_classes)) if joint else ()
            return {"x": x, "y": y}, constants

        variables, constants = one(start_key) if s.group == 1 else jax.vmap(one)(jax.random.split(start_key, s.group))
        sharpness = jnp.float32(jnp.inf if smoothing is None else smoothing.start)
        return InversionState(
            iteration=jnp.zeros((), jnp.int32),
            variables=variables,
            constants=constants,
            optimizer=_strong(optimizer.init(variables)),
            sharpness=sharpness,
            best=jax.tree.map(jnp.copy, variables),
            best_loss=jnp.float32(jnp.inf),
            best_sharpness=sharpness,
            failed_at=jnp.full((), -1, jnp.int32),
            label_key=jax.random.key_data(label_key),
            trying=() if timetable is None else Timetable.not_yet(variables["x"]),
        )

    def labels_of(state: InversionState, observation: Observation) -> jax.Array | None:
        if joint:
            return None
        if s.labels == "given":
            if observation.labels is None:
                raise ValueError('labels="given" needs the true labels; the threat must grant labels')
            return soft_labels(observation.labels, model.num_classes)
        if s.labels == "none":
            return jnp.full((batch_size, model.num_classes), 1 / model.num_classes)
        inferred = inferred_labels(model, s, observation, batch_size, state.label_key)
        if parts > 1:
            # Rules list labels by class, and parts of one class each would be unlike any that clients draw.
            order = jax.random.fold_in(jax.random.wrap_key_data(state.label_key), parts)
            inferred = jax.random.permutation(order, inferred)
        return soft_labels(inferred, model.num_classes)

    def compare(
        x: jax.Array, y: jax.Array, mask: PyTree, observation: Observation, sharpness: jax.Array | None
    ) -> Terms:
        if s.row_space is not None:
            distance = row_distance(observation.params, observation.payload, x, sharpness)
            return Terms(None, distance, jax.lax.stop_gradient(distance))
        batch = Batch(x[:, None], y, jnp.arange(batch_size))
        observed, simulated = observation.payload, share(observation.params, batch, sharpness=sharpness)
        if mask is None and s.selection is not None:
            mask = s.selection(observed, simulated)
        if mask is not None:
            distance = s.distance(apply_mask(mask, observed), apply_mask(mask, simulated))
        else:
            distance = s.distance(observed, simulated)
        return Terms(mask, distance, jax.lax.stop_gradient(cosine(observed, simulated)))

    def objective_for(observation: Observation, labels: jax.Array | None, sharpness: jax.Array | None) -> Callable:
        def one(variables: dict[str, PyTree], constants: PyTree, mask: PyTree) -> tuple[jax.Array, Terms]:
            x = s.candidate.decode(variables["x"], constants)
            y = jax.nn.softmax(variables["y"]) if labels is None else labels
            terms = compare(x, y, mask, observation, sharpness)
            loss = terms.distance + priors(model, mode, s, observation, x, sharpness)
            if s.latent and s.candidate.prior is not None:
                loss += s.latent * s.candidate.prior(variables["x"])
            return loss, terms

        if s.group == 1:
            return one

        def together(variables: dict[str, PyTree], constants: PyTree, mask: PyTree) -> tuple[jax.Array, Terms]:
            # The mask's own None is a tree without leaves, which vmap passes on.
            losses, terms = jax.vmap(one)(variables, constants, mask)
            images = jax.vmap(s.candidate.decode)(variables["x"], constants)
            total = losses.sum() + s.consistency * group_consistency(images)
            return total / s.group, Terms(terms.mask, terms.distance.mean(), terms.cosine_distance.mean())

        return together

    def step(
        key: jax.Array, state: InversionState, observation: Observation
    ) -> tuple[InversionState, dict[str, jax.Array]]:
        require(observation, s, read)
        used = state.sharpness
        sharpness = None if smoothing is None else used
        if timetable is not None:
            x, trying = timetable.shifted(state.iteration, state.variables["x"], state.trying)
            variables = {**state.variables, "x": x}
            opt_state = timetable.fresh(state.iteration, state.optimizer, _strong(optimizer.init(variables)))
            state = state._replace(variables=variables, optimizer=opt_state, trying=trying)
        objective = objective_for(observation, labels_of(state, observation), sharpness)

        def at(variables: dict[str, PyTree], mask: PyTree) -> tuple[jax.Array, Terms]:
            return objective(variables, state.constants, mask)

        def move(direction: PyTree, value: jax.Array) -> tuple[PyTree, PyTree]:
            return optimizer.update(
                direction,
                state.optimizer,
                state.variables,
                value=value,
                grad=direction,
                value_fn=lambda variables: at(variables, None)[0],
                **({"key": key} if s.gradient_free else {}),
            )

        if s.gradient_free:
            loss, terms = at(state.variables, None)
            direction = jax.tree.map(jnp.zeros_like, state.variables)
        else:
            loss, terms, direction = regularized_gradient(
                at,
                state.variables,
                s.regularization,
                selected=lambda terms: terms.mask,
                step=lambda gradient: move(gradient, jnp.zeros(()))[0],
            )
        updates, opt_state = move(direction, loss)
        moved = optax.apply_updates(state.variables, updates)
        moved = {**moved, "x": s.candidate.project(moved["x"])}
        trying = state.trying
        if timetable is not None:
            moved["x"], trying = timetable.kept(state.iteration, moved["x"], loss, trying)
        # The loss belongs to the variables before the move; losses at different sharpness do not compare.
        better = (loss < state.best_loss) | (state.sharpness != state.best_sharpness)
        finite = jnp.isfinite(loss) & _tree.all_finite(direction)
        alive = (state.failed_at < 0) & finite
        new = state._replace(
            variables=moved,
            best=_tree.where(better, state.variables, state.best),
            best_loss=jnp.where(better, loss, state.best_loss),
            best_sharpness=state.sharpness,
            trying=trying,
        )
        if smoothing is not None:
            if timetable is not None:
                sharper = timetable.sharpness(smoothing, state.iteration + 1)
            else:
                sharper = next_sharpness(smoothing, state.sharpness, state.iteration, s.iterations, terms.distance)
            new = new._replace(sharpness=sharper)
        state = _tree.where(alive, new._replace(optimizer=_strong(opt_state)), state)
        state = state._replace(
            failed_at=jnp.where((state.failed_at < 0) & ~finite, state.iteration, state.failed_at),
            iteration=state.iteration + 1,
        )
        info = {
            "loss": loss,
            "distance": terms.distance,
            "sharpness": used,
            "frozen": state.failed_at >= 0,
        }
        return state, info

    def reconstruct(state: InversionState, observation: Observation) -> Reconstruction:
        labels = labels_of(state, observation)
        exact = objective_for(observation, labels, None)
        # The last iterate was never compared: the loss of a step belongs to the variables before its move.
        contenders = (state.best, state.variables)
        terms = [exact(variables, state.constants, None)[1] for variables in contenders]
        last_wins = terms[1].distance < terms[0].distance
        chosen, found = _tree.where(last_wins, contenders[1], contenders[0]), _tree.where(last_wins, terms[1], terms[0])
        if s.group == 1:
            x, logits = s.candidate.decode(chosen["x"], state.constants), chosen["y"]
        else:
            x = jax.vmap(s.candidate.decode)(chosen["x"], state.constants).mean(axis=0)
            logits = chosen["y"].mean(axis=0) if joint else ()
        soft = jax.nn.softmax(logits) if labels is None else labels
        if s.group > 1:  # the candidates were compared one by one, and the answer is their mean
            found = compare(x, soft, None, observation, None)
        if s.white_point and model.has_batch_norm:

            def simulate(x: jax.Array) -> PyTree:
                return share(
                    observation.params, Batch(x[:, None], soft, jnp.arange(batch_size)), sharpness=jnp.float32(SOFT)
                )

            x = jnp.where(hides_scale(simulate, x), stretch(x, s.white_point), x)
        if s.enhance is not None:
            x = s.enhance(x)
        y = jnp.argmax(logits if labels is None else labels, axis=-1).astype(jnp.int32)
        y = jnp.full_like(y, -1) if s.labels == "none" else y
        score = jnp.broadcast_to(found.distance, (batch_size,))
        below = MATCHED_BELOW if s.row_space is None else ROWS_MATCHED_BELOW
        matched = jnp.broadcast_to(found.cosine_distance < below, (batch_size,))
        return Reconstruction(x[:, None], y, score, matched)

    return Attack(init, step, reconstruct, s.iterations)


def _strong(tree: PyTree) -> PyTree:
    # Some optimizers start from Python numbers; a weak type would compile the next step anew.
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), tree)
