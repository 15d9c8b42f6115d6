"""Make gradient inversions for timing: one client's gradient on real images, and the attack before its first step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxleak import _mesh, attacks, audit, data, models, objectives, protocols, threats
from jaxleak._base import Batch, Observation
from jaxleak.attacks import presets
from jaxleak.audit import _invert

KEY = jax.random.key(0)
THREAT = threats.Threat(index=False, labels=True)

#: The ConvNet of the comparison: four 3x3 convolutions with ReLU, no normalisation.
CONVNET: dict[str, Any] = {"channels": (64, 64, 128, 256), "strides": (1, 1, 2, 2)}

#: Options with which Deep Leakage from Gradients was shown.
LENET: dict[str, Any] = {"init": "wide_uniform"}

EXECUTORS = ("jax.disable_jit", "op by op", "jit per step", "jit over the loop")


def repeated(one: Callable[[Any], Any], executor: str, length: int) -> Callable[[Any], Any]:
    """A function that applies `one` to a carry `length` times, by one of the `EXECUTORS`."""
    if executor == "jit over the loop":
        return jax.jit(lambda carry: jax.lax.scan(lambda c, _: (one(c), None), carry, length=length)[0])
    step = jax.jit(one) if executor == "jit per step" else one

    def loop(carry: Any) -> Any:
        with jax.disable_jit(executor == "jax.disable_jit"):
            for _ in range(length):
                carry = step(carry)
        return carry

    return loop


class Inversion(NamedTuple):
    """An attack before its first step, with its observation."""

    model: models.Classifier
    trials: _invert.Trials
    observation: Observation  # of one batch, labels included
    begin: _invert.InversionRun
    settings: attacks.Settings

    def run(self, executor: str, length: int) -> tuple[_invert.InversionRun, Any]:
        """Run `length` iterations from the beginning; return the final state and the stacked infos."""
        loop = _invert.loop_of(self.trials)
        if executor == "jit over the loop":
            return loop.scan(self.begin, self.observation, KEY, length)
        one = loop.step if executor == "jit per step" else loop.advance
        with jax.disable_jit(executor == "jax.disable_jit"):
            state, infos = self.begin, []
            for _ in range(length):
                state, info = one(state, self.observation, KEY)
                infos.append(info)
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *infos)

    def change(self, learning_rate: float, executor: str = "jit per step", length: int = 1) -> np.ndarray:
        """Change of the candidate under `descent`: over one step, the objective's gradient where the attack begins."""
        after, _ = self.run(executor, length)
        return gradient(self.begin.attack.variables["x"], after.attack.variables["x"], learning_rate)

    def compiled_loop(self, length: int) -> Callable[[], tuple[_invert.InversionRun, Any]]:
        """The call `run("jit over the loop", length)`, compiled at once."""
        compiled = _invert.loop_of(self.trials).scan.lower(self.begin, self.observation, KEY, length).compile()
        return lambda: compiled(self.begin, self.observation, KEY)

    def compiled_step(self) -> jax.stages.Compiled:
        """The compiled program of one step, for reading its costs."""
        return _invert.loop_of(self.trials).step.lower(self.begin, self.observation, KEY).compile()


def photographs(model: models.Classifier, batch_size: int) -> Batch:
    """The client's data."""
    images = data.load(f"natural_patches:{model.image_shape[0]}", batch_size, 0).x
    index = jnp.arange(batch_size)
    return Batch(jnp.asarray(images)[:, None], index % model.num_classes, index)


def observed(model: models.Classifier, batch_size: int) -> Observation:
    """What the server observes: the client's gradient and the labels."""
    protocol = protocols.client(protocols.ClientShare(model), num_samples=batch_size, batch_size=batch_size)
    _, transcript = jax.jit(protocol.round)(KEY, protocol.init(KEY), photographs(model, batch_size))
    return threats.view(THREAT, transcript)


def inversion(
    model: models.Classifier,
    settings: attacks.Settings,
    batch_size: int,
    *,
    restarts: int = 1,
    microbatch: int | None = None,
    devices: int = 1,
) -> Inversion:
    """An attack by `settings` on the gradient of a batch of photographs; devices share restarts, or one's images."""
    attack = attacks.inversion(model, protocols.ClientShare(model), settings, batch_size=batch_size)
    private = photographs(model, batch_size)
    mesh = _mesh.device_mesh(devices) if devices > 1 else None
    trials = _invert.Trials(attack, restarts, microbatch or restarts, mesh)
    start = _invert.both_ends(attack, restarts).start(audit.template_of(private), KEY)
    begin = _invert.InversionRun(jnp.zeros((), jnp.int32), start)
    if mesh is not None:
        begin = _invert.placed(begin, mesh, batch_size if restarts == 1 else restarts)
    return Inversion(model, trials, observed(model, batch_size), begin, settings)


def descent(name: str, learning_rate: float) -> attacks.Settings:
    """A preset with plain gradient descent, so that the change of a step shows the objective's gradient."""
    start = presets.pixels("normal", box=None)
    settings = presets.preset(name)._replace(candidate=start, optimizer=optax.sgd(learning_rate))
    return settings if settings.labels == "joint" else settings._replace(labels="given")


def gradient(before: jax.Array | np.ndarray, after: jax.Array | np.ndarray, learning_rate: float) -> np.ndarray:
    """The objective's gradient, computed from a step of plain descent."""
    return (np.asarray(before, np.float64) - np.asarray(after, np.float64)) / learning_rate


def assert_same_gradient(ours: np.ndarray, theirs: np.ndarray, tolerance: float = 2e-3) -> None:
    """Compare two gradients relative to the norm of `ours`, since single entries may be nothing but rounding."""
    difference = relative_difference(ours, theirs)
    assert difference < tolerance, f"gradients differ by {difference:.1e} of their norm"


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Norm of the difference, divided by the norm of `ours`."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(ours))


def torch_problem(peers: Any, problem: Inversion, forward: Any, learning_rate: float) -> Any:
    """The same problem in PyTorch, for `benchmarks.peers`."""
    s, observation = problem.settings, problem.observation
    labels = None
    if s.labels == "given":
        labels = peers.tensor(objectives.soft_labels(observation.labels, problem.model.num_classes))
    return peers.Problem(
        forward,
        peers.weights(observation.params["params"]),
        peers.weights(observation.payload),
        getattr(peers, s.gradients.distance.__name__),
        s.weight("tv"),
        labels,
        learning_rate,
    )


def torch_candidate(peers: Any, problem: Inversion) -> Any:
    """The attack's first candidate in PyTorch."""
    variables = problem.begin.attack.variables
    return peers.candidate(variables["x"], variables["y"])
