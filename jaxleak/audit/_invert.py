"""Gradient inversion: an attack sees one recorded round for thousands of iterations, in several trials at once."""

import functools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxleak import _identity, _mesh, _validate
from jaxleak._base import Attack, Batch, Observation, PyTree, Reconstruction, Transcript
from jaxleak._memory import within_memory
from jaxleak._random_streams import stream_of
from jaxleak.audit._chunks import EXECUTORS, Executor, in_chunks, one_by_one
from jaxleak.audit._random_streams import Stream
from jaxleak.audit._restarts import best_restart, start_trials, step_of, step_trials
from jaxleak.audit._rounds import template_of
from jaxleak.checkpoint import Checkpoints

_log = logging.getLogger("jaxleak")

#: The shortest chunk that may replace the requested one, as a share of the requested length.
_NEARLY = 0.8

#: The number of attacks whose compiled programs are kept. An audit of one update runs fewer.
KEPT = 32


class InversionRun(NamedTuple):
    """All that an inversion carries from one iteration to the next; a checkpoint holds exactly this."""

    iteration: jax.Array  # () int32
    attack: PyTree  # the state of the attack, with a leading axis of restarts when restarts > 1


def invert(
    attack: Attack,
    observation: Observation,
    template: Batch,
    *,
    key: jax.Array,
    iterations: int | None = None,
    chunk: int = 100,
    restarts: int = 1,
    microbatch: int | None = None,
    callbacks: Iterable[Callable[[int, InversionRun, dict[str, np.ndarray]], None]] = (),
    checkpoints: Checkpoints | None = None,
    executor: Executor = "scan",
    devices: Sequence[jax.Device] = (),
) -> tuple[Reconstruction, InversionRun, dict[str, np.ndarray]]:
    """Invert a gradient: show one recorded round to an attack in every iteration.

    A second call with the same attack object and shapes compiles nothing, whatever the key and the observation. A
    trial whose objective is not finite freezes with its best candidate while the others go on; the logger "jaxleak"
    then says which, since when and why (`frozen_trials`).

    Args:
        attack: e.g. from `jaxleak.attacks.inversion`.
        observation: what the attacker sees of one round, from `threats.view` of its transcript.
        template: shapes of the private data, from `template_of`; of arrays, only the shapes are read.
        key: the attack's randomness.
        iterations: total number, counted from the attack's start; None takes the attack's own number, which is also the
            most that its schedules allow. A run of fewer iterations is logged as cut short.
        chunk: iterations per compiled chunk, > 0; callbacks and checkpoints happen between chunks. If a length of at
            least 0.8 times this one divides the iterations, it is taken instead.
        restarts: number of independent trials, vmapped; the first trial is the one of `restarts=1`. For every sample,
            the trial with the lowest `score` is returned. Gradient inversions have one score for all samples, the
            distance to the update without priors, so that one trial is returned whole.
        microbatch: how many restarts a device computes at once; fewer need less memory. None computes all restarts of
            the device at once.
        callbacks: called as `callback(iterations_done, run, infos_of_chunk)`.
        checkpoints: saves after every chunk; an existing one is resumed if it had the same key, observation, restarts,
            length of schedules, settings and stated client (of `attacks.inversion`) and start. The settings of an
            attack that is not from `attacks.inversion` belong in the configuration: `Checkpoints(folder,
            {"settings": settings})`.
        executor: "scan", "step" or "eager", as in `run`.
        devices: devices of this process, e.g. `jax.devices()`. They share the restarts evenly and exchange nothing
            before the best one is chosen. If there is a single trial, they share its images and add up their gradients
            in every iteration. An empty sequence (the default) means the default device.

    Returns:
        The reconstruction, the final `InversionRun`, and the stacked infos of all iterations, including those before a
        resumed checkpoint. With several restarts, infos have an axis of restarts after the axis of iterations.

    Raises:
        ConfigMismatchError: naming what differs, if the checkpoints are from another run.
        FloatingPointError: if the observation is not finite.
        MemoryError: before the first step, with the estimated need, if the compiled program does not fit.
        ValueError: on arguments out of range or of another kind, fewer iterations than a checkpoint has done, a
            transcript in place of an observation, since it holds the truth, or an attack whose answer does not have
            the template's shapes.
    """
    _check_kinds(attack, observation, template, key)
    _check_observed(observation)
    if checkpoints is not None:
        _validate.made(Checkpoints, "jaxleak.checkpoint", checkpoints=checkpoints)
    iterations = _length(attack, iterations)
    _validate.count(chunk=chunk, restarts=restarts)
    _validate.one_of(EXECUTORS, executor=executor)
    devices = _validate.members("devices, such as jax.devices()", devices=devices)
    callbacks = _validate.members("functions", callbacks=callbacks)
    if devices and executor == "eager":
        raise ValueError("devices share compiled programs: executor must be 'scan' or 'step', got 'eager'")
    if restarts > 1 and devices and restarts % len(devices):
        raise ValueError(f"restarts must be a multiple of the {len(devices)} devices, got {restarts}")
    on_device = restarts if restarts == 1 or not devices else restarts // len(devices)
    microbatch = on_device if microbatch is None else microbatch
    _validate.count_in_range(1, on_device, microbatch=microbatch)
    ends = both_ends(attack, restarts)
    state = InversionRun(jnp.zeros((), jnp.int32), ends.start(template_of(template), key))
    history: dict[str, np.ndarray] = {}
    if checkpoints is not None:
        checkpoints.bind(
            {
                "key": _identity.of_key(key),
                "observation": _identity.of_arrays(observation),
                "number of restarts": restarts,
                "length of the attack's schedules": attack.iterations,
                "choice of settings": _identity.of_text(attack.made_of),
                "start of the attack": _identity.of_arrays(state.attack),
            }, settings=attack.made_of,
        )  # fmt: skip
        state, history = checkpoints.restore_with_history(state)
    # This needs shapes alone, and comes before hours go into an answer that could not be read.
    _require_answer(jax.eval_shape(ends.answers, state.attack, observation), template, restarts)
    trials = Trials(attack, restarts, microbatch, Mesh(np.array(devices), (_mesh.AXIS,)) if devices else None)
    if trials.mesh is not None:
        images = jax.eval_shape(attack.reconstruct, state.attack, observation).x.shape[0] if restarts == 1 else 0
        state = placed(state, trials.mesh, images or restarts)
        observation, key = jax.device_put((observation, key), _mesh.replicated(trials.mesh))

    loop = loop_of(trials)

    def run_chunk(carry: InversionRun, length: int) -> tuple[InversionRun, dict[str, Any]]:
        if executor == "scan":
            return loop.scan(carry, observation, key, length)
        one = loop.advance if executor == "eager" else loop.step
        return one_by_one(lambda c: one(c, observation, key), carry, length)

    first, lowered = int(state.iteration), None
    if first > iterations:
        raise ValueError(f"iterations must be at least the {first} that the checkpoint has done, got {iterations}")
    if first == iterations:
        _log.warning("nothing is left to do: the answer is that of the checkpoint of iteration %d", first)
    chunk = _even(iterations - first, chunk)
    if first < iterations and executor == "scan":
        lowered = loop.scan.lower(state, observation, key, min(chunk, iterations - first))
    elif first < iterations and executor == "step":
        lowered = loop.step.lower(state, observation, key)
    with within_memory(lowered, _what_lowers_memory(trials)):
        state, infos = in_chunks(run_chunk, state, first, iterations, chunk, callbacks, checkpoints, history)
    for line in frozen_trials(infos):
        _log.warning(line)
    answers = ends.answers(state.attack, observation)
    return (answers if restarts == 1 else best_restart(answers)), state, infos


def _even(iterations: int, chunk: int) -> int:
    """A chunk length nearly as large that divides the iterations, if there is one: a remainder would compile again."""
    shorter = range(min(chunk, iterations), math.ceil(_NEARLY * chunk) - 1, -1)
    return next((length for length in shorter if iterations % length == 0), chunk)


def _check_kinds(attack: Any, observation: Any, template: Any, key: Any) -> None:
    """Refuse arguments of another kind, including a transcript in place of the observation: it holds the truth."""
    if isinstance(observation, Transcript):
        raise ValueError("observation must be what a threat grants, threats.view(threat, transcript); got a transcript")
    _validate.made(Attack, "attacks.inversion", attack=attack)
    _validate.made(Observation, "threats.view", observation=observation)
    _validate.made(Batch, "audit.template_of", template=template)
    _validate.random_key(key=key)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((key, observation))):
        raise ValueError(
            "audit.invert compiles its own programs and cannot be called inside jax.jit, jax.vmap or jax.grad; there, "
            "scan the attack's step between its init and its reconstruct (docs/scale.md has the program)"
        )


def _check_observed(observation: Observation) -> None:
    """Refuse an observation that is not finite, and log a warning if the payload is zero everywhere."""
    _validate.finite(observation.payload, "the observed payload")
    _validate.finite(observation.params, "the observed parameters")
    if not any(np.any(leaf) for leaf in jax.tree.leaves(observation.payload)):
        _log.warning("the observed payload is zero everywhere, so that no answer explains it better than another")


def all_starts(attack: Attack, run: InversionRun, observation: Observation, *, restarts: int) -> Reconstruction:
    """The answers of all restarts, of which `invert` returns the best.

    Args:
        attack: as given to `invert`.
        run: the final `InversionRun` that `invert` returned.
        observation: as given to `invert`.
        restarts: as given to `invert`, > 1.

    Returns:
        One stacked `Reconstruction`, every field with a leading axis of `restarts`.

    Raises:
        ValueError: if there was one restart only.
    """
    if restarts < 2:
        raise ValueError(f"restarts must be > 1: a single start is what invert returns, got {restarts}")
    return both_ends(attack, restarts).answers(run.attack, observation)


def _require_answer(answers: Reconstruction, template: Batch, restarts: int) -> None:
    """Refuse an answer of other shapes, which would be broadcast or taken for the answer on other samples."""
    if not isinstance(answers, Reconstruction):
        said = "an array" if isinstance(answers, jax.ShapeDtypeStruct) else type(answers).__name__
        raise ValueError(f"reconstruct of the attack must return a jaxleak.Reconstruction, got {said}")
    shapes = {name: getattr(getattr(answers, name), "shape", None) for name in ("x", "y", "score", "answered")}
    own = {name: shape if shape is None or restarts == 1 else shape[1:] for name, shape in shapes.items()}
    if own["x"] and own["x"][0] != template.x.shape[0]:
        _log.warning(
            "the attack was made for %d samples and the template has %d: batch_size of an attack is the number of all "
            "samples behind the payload, of all local steps",
            own["x"][0], template.x.shape[0],
        )  # fmt: skip
    # An attack on one batch answers for the number of samples that it was made for.
    samples = own["x"][:1] if own["x"] else template.x.shape[:1]
    for name, shape in own.items():
        wanted = (*samples, *template.x.shape[1:]) if name == "x" else samples
        if shape != wanted:
            got = "no array" if shape is None else f"shape {shape}"
            raise ValueError(f"reconstruct of the attack must give {name} of shape {wanted}, got {got}")


def _length(attack: Attack, iterations: int | None) -> int:
    planned = attack.iterations
    if iterations is None:
        if planned is None:
            raise ValueError("iterations must be given: this attack has no schedule that says how many")
        return planned
    _validate.count(iterations=iterations)
    if planned is not None and iterations > planned:
        raise ValueError(f"iterations must be at most {planned}, where the attack's schedules end, got {iterations}")
    if planned is not None and iterations < planned:
        _log.warning("cut short: %d iterations of a schedule of %d; it was made for all of them", iterations, planned)
    return iterations


def frozen_trials(infos: dict[str, np.ndarray]) -> list[str]:
    """One line for each trial that froze: which, from which iteration on, and why.

    Args:
        infos: the infos that `invert` returned; an attack that never freezes has no "frozen" or no "loss" among them.
    """
    if not {"frozen", "loss"} <= infos.keys():
        return []
    frozen, loss = (np.asarray(infos[name]).reshape(len(infos[name]), -1) for name in ("frozen", "loss"))
    lines = []
    for trial in np.flatnonzero(frozen[-1]):
        since = int(np.argmax(frozen[:, trial]))
        value = loss[since, trial]
        cause = "the gradient of its objective was not finite" if np.isfinite(value) else f"its objective was {value}"
        when = f"{since} to {len(frozen) - 1}"
        others = "none is left" if frozen[-1].all() else "the others went on"
        lines.append(f"trial {trial} of {frozen.shape[1]} is frozen in iterations {when}: {cause}; {others}")
    return lines


def _what_lowers_memory(trials: "Trials") -> str:
    if trials.microbatch > 1:
        return f"lower microbatch (now {trials.microbatch} of {trials.restarts} restarts at once)"
    return "attack fewer images at once (batch_size), or a narrower model (width)"


class Trials(NamedTuple):
    """What is compiled: an attack, the number of its trials, how many run at once, and the devices that share them."""

    attack: Attack
    restarts: int
    microbatch: int
    mesh: Mesh | None = None


class Ends(NamedTuple):
    """The compiled programs before and after the loop."""

    start: Any  # `(template, key) -> states`
    answers: Any  # `(states, observation) -> Reconstruction`


class Loop(NamedTuple):
    """One iteration, the same iteration compiled, and a compiled chunk of iterations."""

    advance: Callable[..., tuple[InversionRun, dict[str, jax.Array]]]  # `(carry, observation, key)`
    step: Any  # likewise
    scan: Any  # `(carry, observation, key, length)`


# Another call with the same attack compiles nothing. Attacks hold weights and generators, so that this cache lets old
# ones go: JAX's own cache, with the attack as a static argument, would keep thousands of them.
@functools.lru_cache(maxsize=KEPT)
def both_ends(attack: Attack, restarts: int) -> Ends:
    """The compiled programs around the loop; they are kept for the last `KEPT` attacks."""

    @functools.partial(jax.jit, static_argnums=0)
    def start(template: Batch, key: jax.Array) -> PyTree:
        return start_trials(attack, stream_of(key, Stream.ATTACK_START), template, restarts)

    @jax.jit
    def answers(states: PyTree, observation: Observation) -> Reconstruction:
        if restarts == 1:
            return attack.reconstruct(states, observation)
        return jax.lax.map(lambda state: attack.reconstruct(state, observation), states)

    return Ends(start, answers)


@functools.lru_cache(maxsize=KEPT)
def loop_of(trials: Trials) -> Loop:
    """The programs of the loop; they are kept for the last `KEPT` attacks."""

    def advance(
        carry: InversionRun, observation: Observation, key: jax.Array
    ) -> tuple[InversionRun, dict[str, jax.Array]]:
        k = jax.random.fold_in(stream_of(key, Stream.ATTACK_STEPS), carry.iteration)
        state, info = step_trials(
            trials.attack, k, carry.attack, observation, trials.restarts, together=_all_trials(trials)
        )
        return InversionRun(carry.iteration + 1, state), info

    @functools.partial(jax.jit, static_argnums=3)
    def scan(
        carry: InversionRun, observation: Observation, key: jax.Array, length: int
    ) -> tuple[InversionRun, dict[str, jax.Array]]:
        return jax.lax.scan(lambda c, _: advance(c, observation, key), carry, length=length)

    return Loop(advance, jax.jit(advance), scan)


def _all_trials(trials: Trials) -> Callable[..., tuple[PyTree, dict[str, jax.Array]]]:
    """A step of every trial: `(keys (restarts,), states, observation)`, shared out among the devices of a mesh."""

    def in_batches(keys: jax.Array, states: PyTree, seen: Observation) -> tuple[PyTree, dict[str, jax.Array]]:
        # Batches of trials one after the other, each vmapped: on CPU this is faster than all at once.
        return jax.lax.map(
            lambda trial: step_of(trials.attack, trial[0], trial[1], seen), (keys, states), batch_size=trials.microbatch
        )

    if trials.mesh is None:
        return in_batches
    rows, whole = PartitionSpec(_mesh.AXIS), PartitionSpec()
    return jax.shard_map(in_batches, mesh=trials.mesh, in_specs=(rows, rows, whole), out_specs=rows, check_vma=False)


def placed(state: InversionRun, mesh: Mesh, rows: int) -> InversionRun:
    """Give every device its part of all arrays with so many rows, one per trial or image, and other arrays whole."""
    if rows % mesh.size:
        raise ValueError(f"{mesh.size} devices share the images evenly: their number must be a multiple, got {rows}")

    def place(leaf: jax.Array) -> jax.Array:
        # If an array has that many rows by chance, results stay the same: the compiler moves what a device lacks.
        has_rows = leaf.ndim > 0 and leaf.shape[0] == rows
        return jax.device_put(leaf, _mesh.divided(mesh, leaf.ndim, 0) if has_rows else _mesh.replicated(mesh))

    return jax.tree.map(place, state)
