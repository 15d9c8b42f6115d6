"""Vertical training with bottom and top models: every party's own record of every step.

A step runs as the parties would run it, not as the derivative of one loss. The parties send their embeddings to the
label holder. The label holder propagates the gradient at the top's output back through the top and cuts it into one
piece per party. Each owner then updates its own parameters. A defense can therefore act exactly where it acts in
reality, and a layer on ciphertexts can replace the top's first layer.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from jaxleak import _validate
from jaxleak._base import Batch, LabelHolderRecord, Loss, PartyRecord, Protocol, ProtocolState, PyTree, Transcript
from jaxleak.defenses import SPLIT_PLACES, Defense
from jaxleak.defenses._base import in_order
from jaxleak.models import BottomTopModel
from jaxleak.objectives import cross_entropy
from jaxleak.objectives._losses import needs_distributions
from jaxleak.protocols._defending import acts_at, check_defense, defended, mean_of_examples
from jaxleak.protocols._objective import objective
from jaxleak.protocols._sampling import SAMPLINGS, Sampling, defense_key, draw_batch

#: (key, params["top"]["first"], (b_0, ..., b_P-1)) -> z: a differentiable stand-in for `model.first`.
InteractiveLayer = Callable[[jax.Array, PyTree, tuple[jax.Array, ...]], jax.Array]


def default_optimizer() -> optax.GradientTransformation:
    """Adam with rate 1e-3, VFLRecon's default (section V-A)."""
    return optax.adam(1e-3)


def split_training(
    model: BottomTopModel,
    *,
    num_samples: int,
    batch_size: int,
    optimizer: optax.GradientTransformation | None = None,
    loss: Loss = cross_entropy,
    defenses: Defense | Sequence[Defense] = (),
    interactive: InteractiveLayer | None = None,
    sampling: Sampling = "epoch",
) -> Protocol:
    """Train bottom and top models on vertically divided samples (VFLRecon, section II and Algorithm 1).

    In every step, party p sends b_p = bottom_p(x_p), or the defended version of it if a defense acts at
    "bottom_output". The label holder computes o = top(b), the loss and dL/do, sends dL/db_p back and updates the top.
    Every party updates its bottom. Each owner runs its own optimiser, so a transform that reads the whole gradient
    (clipping by norm) sees only its owner's part.

    Args:
        model: from `models.bottom_top`; samples are (P, max d_p), zero-padded.
        num_samples: N.
        batch_size: B, 1 <= B <= N. `sampling="epoch"` leaves out the last N mod B samples of each permutation.
        optimizer: the optimizer of every owner; None is Adam with rate 1e-3.
        loss: `(logits (B, C), y) -> ()`, the mean over the batch.
        defenses: one defense, or several. Each acts at its `place`, one of `SPLIT_PLACES`, in the order given. Their
            transforms also get the keyword `round`, the number of the step, and at the label holder the keyword
            `labels`; parties at "bottom_output" have no labels. A bottom treats the gradient that comes back as the
            gradient at its own output, as is right for added noise. A defense at "per_example_gradient" (DP-SGD)
            changes the gradients with which every owner updates its parameters; the gradients that the label holder
            sends to the parties stay as they are. A defense with state is refused when a step is run, since no state is
            kept.
        interactive: function that replaces the top's first layer, e.g. by one on ciphertexts; it is differentiated with
            `jax.vjp`. The label holder's record then lacks the layer's parameters, and has embeddings only of the
            parties in the function's attribute `shown`, if there is one. If the function has a method `check(model)`,
            it is called first.
        sampling: "epoch" or "uniform", see `draw_batch`.

    Returns:
        A `Protocol` whose transcripts carry `parties`, one `PartyRecord` each, and `label_holder`. The payload is the
        tuple of gradients at the bottoms' outputs; `share` computes it without defenses.

    Raises:
        ValueError: if a size is not whole, B is not in [1, N], an option or a defense's place is unknown, a
            defense is made for another number of classes than the model's, one needs gradients of single examples,
            which an interactive layer does not give, or such a layer does not fit the model; when a step is run, if a
            defense remembers earlier rounds, or the private set does not hold N samples of the model's parties and
            columns, with labels in [0, C) and zeros beyond a party's width. Under `jax.jit` values cannot be checked,
            so `audit.run` and `audit.watch` check them before they compile.
    """
    _validate.count(num_samples=num_samples)
    _validate.count_in_range(1, num_samples, batch_size=batch_size)
    _validate.one_of(SAMPLINGS, sampling=sampling)
    _validate.functions(loss=loss)
    _validate.optimizer(optimizer=optimizer)
    defenses = in_order(defenses)
    by_example = any(acts_at(defense, "per_example_gradient") for defense in defenses)
    _check_parts(model, defenses, interactive, loss)
    shown = range(model.parties) if interactive is None else getattr(interactive, "shown", ())
    transform = default_optimizer() if optimizer is None else optimizer
    mean_loss = functools.partial(objective, loss, num_classes=model.num_classes)

    def defend(key: jax.Array, place: str, value: PyTree, step: jax.Array, **known: object) -> PyTree:
        for i, defense in enumerate(defenses):
            value, _ = defended(defense, place, jax.random.fold_in(key, i), value, round=step, **known)
        return value

    def share(params: PyTree, batch: Batch) -> PyTree:
        embeddings = _embed(model, params["bottom"], batch.x)
        return jax.grad(lambda b: mean_loss(model.top(params["top"], b), batch.y))(embeddings)

    def init(key: jax.Array) -> ProtocolState:
        return split_state(model.init(key), transform)

    def round_(key: jax.Array, state: ProtocolState, private: Batch) -> tuple[ProtocolState, Transcript]:
        _check(model, num_samples, loss, private)
        index = draw_batch(key, state.round, num_samples=num_samples, batch_size=batch_size, sampling=sampling)
        batch = Batch(private.x[index], private.y[index], index)
        noise_key = defense_key(key, state.round)
        params, slices = state.params, model.slices(batch.x)
        pulls, embeddings = [], []
        for own, x in zip(params["bottom"], slices, strict=True):
            b, pull = jax.vjp(lambda own, x=x: model.bottom(own, x), own)
            pulls.append(pull)
            embeddings.append(b)
        sent = defend(noise_key, "bottom_output", tuple(embeddings), state.round)
        z, pull_first = jax.vjp(
            model.first if interactive is None else functools.partial(interactive, noise_key),
            params["top"]["first"],
            sent,
        )
        output, pull_rest = jax.vjp(model.rest, params["top"]["rest"], z)
        output = defend(noise_key, "top_output", output, state.round, labels=batch.y)
        output_gradient = jax.grad(mean_loss)(output, batch.y)
        output_gradient = defend(noise_key, "top_output_gradient", output_gradient, state.round, labels=batch.y)
        rest_gradient, z_gradient = pull_rest(output_gradient)
        first_gradient, cut = pull_first(z_gradient)
        top_gradient = {"first": first_gradient, "rest": rest_gradient}
        cut = defend(noise_key, "cut_gradient", cut, state.round, labels=batch.y)
        if by_example:
            examples = _example_gradients(model, params, slices, sent, cut, output_gradient)
            examples = defend(noise_key, "per_example_gradient", examples, state.round, labels=batch.y, owners=True)
            *bottoms, top_gradient = mean_of_examples(examples)
        else:
            bottoms = [pull(c)[0] for pull, c in zip(pulls, cut, strict=True)]
        gradients = {"bottom": tuple(bottoms), "top": top_gradient}

        new_params, opt_state = _update_owners(transform, gradients, state.opt_state, params)
        parties = _party_records(model, params, new_params, gradients, slices, tuple(embeddings), cut)
        received = tuple(b if p in shown else None for p, b in enumerate(sent))
        own = (params["top"]["first"] if interactive is None else None, params["top"]["rest"])
        label_holder = LabelHolderRecord(received, z, z_gradient, first_gradient, *own)
        transcript = Transcript(state.round, params, cut, index, None, batch, parties, label_holder)
        return ProtocolState(state.round + 1, new_params, opt_state), transcript

    return Protocol(init, round_, share, functools.partial(_check, model, num_samples, loss))


def _party_records(
    model: BottomTopModel,
    params: PyTree,
    new_params: PyTree,
    gradients: PyTree,
    slices: tuple[jax.Array, ...],
    embeddings: tuple[jax.Array, ...],
    cut: tuple[jax.Array, ...],
) -> tuple[PartyRecord, ...]:
    return tuple(
        PartyRecord(
            x=slices[p],
            params=params["bottom"][p],
            params_after=new_params["bottom"][p],
            params_gradient=gradients["bottom"][p],
            output=embeddings[p],
            output_after=model.bottom(new_params["bottom"][p], slices[p]),
            output_gradient=cut[p],
            party=jnp.int32(p),
        )
        for p in range(model.parties)
    )


def _check(model: BottomTopModel, num_samples: int, loss: Loss, private: Batch) -> None:
    _validate.private_set(private, num_samples, model.num_classes, distributions=needs_distributions(loss))
    model.check_padding(private.x)


def split_state(params: PyTree, optimizer: optax.GradientTransformation | None = None) -> ProtocolState:
    """The state of `split_training` before its first step, from given parameters, e.g. those of a shadow run.

    Args:
        params: `{"bottom": (...), "top": ...}`.
        optimizer: the optimizer that `split_training` got; None is its default.
    """
    transform = default_optimizer() if optimizer is None else optimizer
    opt_state = {
        "bottom": tuple(transform.init(own) for own in params["bottom"]),
        "top": transform.init(params["top"]),
    }
    return ProtocolState(jnp.zeros((), jnp.int32), params, opt_state)


def _example_gradients(
    model: BottomTopModel,
    params: PyTree,
    slices: tuple[jax.Array, ...],
    embeddings: tuple[jax.Array, ...],
    cut: tuple[jax.Array, ...],
    output_gradient: jax.Array,
) -> tuple[PyTree, ...]:
    """Parameter gradients of each example's own loss: leaves with a leading axis B, bottoms first and the top last."""
    batch = len(output_gradient)  # returned gradients are those of the mean loss

    def of_bottom(own: PyTree, x: jax.Array, gradient: jax.Array) -> PyTree:
        return jax.vjp(lambda own: model.bottom(own, x[None]), own)[1](batch * gradient[None])[0]

    def of_top(b: tuple[jax.Array, ...], gradient: jax.Array) -> PyTree:
        one = tuple(embedding[None] for embedding in b)
        return jax.vjp(lambda own: model.top(own, one), params["top"])[1](batch * gradient[None])[0]

    bottoms = (
        jax.vmap(of_bottom, in_axes=(None, 0, 0))(*owner) for owner in zip(params["bottom"], slices, cut, strict=True)
    )
    return (*bottoms, jax.vmap(of_top)(embeddings, output_gradient))


def _embed(model: BottomTopModel, bottoms: Sequence[PyTree], x: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(model.bottom(own, x_p) for own, x_p in zip(bottoms, model.slices(x), strict=True))


def _update_owners(
    transform: optax.GradientTransformation, gradients: PyTree, states: PyTree, params: PyTree
) -> tuple[PyTree, PyTree]:
    def one(gradient: PyTree, state: PyTree, own: PyTree) -> tuple[PyTree, PyTree]:
        updates, state = transform.update(gradient, state, own)
        return optax.apply_updates(own, updates), state

    bottoms = [one(*owner) for owner in zip(gradients["bottom"], states["bottom"], params["bottom"], strict=True)]
    top, top_state = one(gradients["top"], states["top"], params["top"])
    return (
        {"bottom": tuple(new for new, _ in bottoms), "top": top},
        {"bottom": tuple(state for _, state in bottoms), "top": top_state},
    )


def _mixes_samples(model: BottomTopModel) -> bool:
    """Whether the model's output for a random sample depends on the other sample of the batch."""
    with jax.ensure_compile_time_eval():
        # Weights may start at zero, which would hide any dependence.
        drawn, unravel = ravel_pytree(model.init(jax.random.key(0)))
        params = unravel(drawn + 0.1 * jax.random.normal(jax.random.key(2), drawn.shape, drawn.dtype))
        both = jax.random.uniform(jax.random.key(1), (2, model.parties, *model.slice_shape))

        def logits(rows: jax.Array) -> jax.Array:
            return model.top(params["top"], _embed(model, params["bottom"], rows))

        together, alone = logits(both), jnp.concatenate([logits(both[i : i + 1]) for i in range(2)])
    size = float(jnp.max(jnp.abs(jnp.nan_to_num(alone))))
    return not np.allclose(together, alone, rtol=1e-3, atol=1e-4 * size, equal_nan=True)


def _check_parts(
    model: BottomTopModel, defenses: Sequence[Defense], interactive: InteractiveLayer | None, loss: Loss
) -> None:
    """Refuse a model, defenses or a layer of the wrong type, or that do not fit together."""
    _validate.made(BottomTopModel, "models.bottom_top", model=model)
    _validate.functions(interactive=interactive)
    for defense in defenses:
        check_defense(defense, SPLIT_PLACES, num_classes=model.num_classes, loss=loss)
    by_example = any(acts_at(defense, "per_example_gradient") for defense in defenses)
    if by_example and _mixes_samples(model):
        raise ValueError(
            "a defense at per_example_gradient (dp_sgd) needs a model whose parts treat every sample by itself: the "
            "output of this one for a sample depends on the other samples of the batch"
        )
    if by_example and interactive is not None:
        raise ValueError(
            "a defense at per_example_gradient (dp_sgd) needs gradients of single examples, which an interactive layer "
            "(a cipher) does not give: leave one of them out"
        )
    if check := getattr(interactive, "check", None):
        check(model)
