"""An argument of the wrong type is refused by name, before anything is compiled."""

import logging
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxleak import (
    Attack,
    Batch,
    Observation,
    Protocol,
    Reconstruction,
    attacks,
    audit,
    capture,
    models,
    protocols,
)
from jaxleak.attacks import presets
from jaxleak.audit._private import check_private
from jaxleak.threats import SERVER_WITHOUT_INDICES

BATCH = Batch(jnp.zeros((2, 1, 2, 2, 1)), jnp.zeros(2, jnp.int32), jnp.arange(2))
SEEN = Observation(jnp.zeros((), jnp.int32), {"params": {"w": jnp.ones(2)}}, {"w": jnp.ones(2)})


def _answer(state, observation):
    del observation
    return Reconstruction(jnp.zeros((2, 1, 2, 2, 1)), jnp.zeros(2, jnp.int32), state, jnp.ones(2, bool))


#: An attack that always answers with black images.
BLACK = Attack(lambda key, template: jnp.zeros(2), lambda key, state, seen: (state, {}), _answer, 1)
MODEL = models.mlp((2, 2, 1), 3, widths=(4,))
SETTINGS = presets.inverting_gradients(2)
GIVEN = {"attack": BLACK, "observation": SEEN, "template": audit.template_of(BATCH), "key": jax.random.key(0)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"attack": None}, "attack must be an Attack, as attacks.inversion makes, got None"),
        ({"observation": {"w": 1}}, "observation must be an Observation, as threats.view makes, got a dict"),
        ({"template": tuple(BATCH)}, "template must be a Batch, as audit.template_of makes, got a tuple"),
        ({"key": 0}, r"key must be one random key, as jax.random.key\(0\) makes, got an int"),
        ({"key": np.zeros(2)}, "key must be one random key, .* got a ndarray"),
        ({"key": jax.random.split(jax.random.key(0))}, r"key must be one random key, .* got an array of shape \(2,\)"),
        ({"checkpoints": "folder"}, "checkpoints must be a Checkpoints, as jaxleak.checkpoint makes, got a str"),
        ({"restarts": 2.0}, "restarts must be a whole number, got 2.0, a float"),
        ({"devices": 1}, r"devices must be a list of devices, such as jax.devices\(\), got an int"),
        ({"callbacks": None}, "callbacks must be a list of functions, got None"),
    ],
)
def test_an_inversion_names_the_argument(changed, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        audit.invert(**(GIVEN | changed))


@pytest.mark.parametrize("around", [jax.jit, jax.vmap])
def test_an_inversion_inside_another_program_says_what_to_do(around):
    call = around(lambda key: audit.invert(**(GIVEN | {"key": key})))
    with pytest.raises(ValueError, match=r"cannot be called inside jax.jit, .* scan the attack's step"):
        call(jax.random.split(jax.random.key(0)) if around is jax.vmap else jax.random.key(0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"candidate": "uniform"}, "candidate must be a Candidate, as client_updates.pixels makes, got a str"),
        ({"optimizer": optax.adam}, "optimizer must be a GradientTransformation, .* got a function"),
        ({"optimizer": optax.cosine_decay_schedule(0.1, 2)}, "optimizer must be a GradientTransformation, .* function"),
        ({"priors": ((0.1, jnp.sum),)}, r"a prior of your own is client_updates.Prior\(name, value\)"),
    ],
)
def test_settings_name_the_field(changed, message):
    with pytest.raises(ValueError, match=message):
        attacks.inversion(MODEL, protocols.ClientShare(MODEL), SETTINGS._replace(**changed), batch_size=1)


def test_an_attack_names_what_it_is_made_of():
    share = protocols.ClientShare(MODEL)
    with pytest.raises(ValueError, match=r"model must be a Classifier, as models.from_flax or models.build makes, got"):
        attacks.inversion(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), share, SETTINGS, batch_size=1)
    with pytest.raises(ValueError, match=r"settings must be a Settings, as attacks.presets makes, got a function"):
        attacks.inversion(MODEL, share, presets.dlg, batch_size=1)
    with pytest.raises(ValueError, match=r"must be one of distance, .*, got 'distanc'; did you mean distance"):
        SETTINGS.comparing(distanc=jnp.sum)
    with pytest.raises(ValueError, match=r"plan must be a CafeExactPlan, as attacks.plan_cafe_exact makes, got None"):
        attacks.cafe_exact(models.cafe_vertical((8, 8, 1)), None)


class _Network(nnx.Module):
    def __init__(self):
        self.head = nnx.Linear(4, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.head(x.reshape(len(x), 4))


def test_a_gradient_in_the_form_of_flax_is_no_matter_of_grants():
    module = _Network()
    model, variables = models.from_flax(module, image_shape=(2, 2, 1))
    own = nnx.grad(lambda net: net(jnp.ones((1, 2, 2, 1))).sum())(module)
    share = protocols.ClientShare(model)
    attack = attacks.inversion(model, share, SETTINGS._replace(labels="joint"), batch_size=1)
    seen = Observation(jnp.zeros((), jnp.int32), variables, own)
    given = {"template": Batch(jnp.zeros((1, 1, 2, 2, 1)), jnp.zeros(1, jnp.int32), jnp.arange(1)), "key": GIVEN["key"]}
    with pytest.raises(
        ValueError, match="names of the model's parameters, such as head/bias, got head/bias/value; cap"
    ):
        audit.invert(attack, seen, **given)
    with pytest.raises(ValueError, match=r"params of the observation must be \{\"params\": .* got a dict of head"):
        audit.invert(attack, seen._replace(params=variables["params"]), **given)
    # What the message says to do.
    gradient = capture.gradient_of(capture.as_update(own), variables["params"])
    found, _, _ = audit.invert(attack, seen._replace(payload=gradient), **given)
    assert found.x.shape == (1, 1, 2, 2, 1)


def test_a_federation_names_what_is_wrong_with_its_parties_and_clients():
    model = models.cafe_vertical((4, 4, 1), parties=4, num_classes=10, channels=(2,), width=8, hidden=4)
    protocol = protocols.vertical(model, num_samples=2, batch_size=1)
    whole = Batch(jnp.zeros((2, 8, 8, 1)), jnp.zeros(2, jnp.int32), jnp.arange(2))
    with pytest.raises(
        ValueError, match=r"private.x .* of shape \(N, 4, 4, 4, 1\), got \(2, 8, 8, 1\): data.image_til"
    ):
        audit.start(BLACK, protocol, whole, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"parts must be a list of arrays, .* got an int"):
        protocols.federated_averaging(MODEL, 3, batch_size=1)
    with pytest.raises(ValueError, match=r"parts\[0\] must be a list of indices of samples, .* got an int"):
        protocols.federated_averaging(MODEL, [50, 20], batch_size=1)
    federation = protocols.federated_averaging(MODEL, [np.arange(2)], batch_size=1)
    with pytest.raises(ValueError, match=r"variables must be .* got _Network"):
        federation.init(None, _Network())


class _WithoutTemperature(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x.reshape(len(x), -1))


def test_a_partys_network_takes_a_temperature():
    sizes = {"parties": 2, "slice_shape": (2, 2, 1), "num_classes": 4, "width": 4}
    with pytest.raises(ValueError, match=r"called as \(x, temperature=None\), and _WithoutTemperature takes no temp"):
        models.split_model(_WithoutTemperature(), nn.Dense(4), **sizes)
    with pytest.raises(ValueError, match=r"extractor must be a Module, as a class of flax.linen makes, got"):
        models.split_model(_WithoutTemperature, nn.Dense(4), **sizes)


def test_callbacks_that_come_from_a_generator_are_called_after_every_chunk():
    done = []
    given = GIVEN | {"attack": BLACK._replace(iterations=None), "iterations": 3, "chunk": 1, "executor": "eager"}
    audit.invert(**given, callbacks=(call for call in [lambda iterations, *_: done.append(iterations)]))
    assert done == [1, 2, 3]


def test_an_inversion_refuses_weights_that_diverged_and_says_that_nothing_was_sent(caplog):
    diverged = SEEN._replace(params={"params": {"w": jnp.array([1.0, jnp.nan])}})
    with pytest.raises(FloatingPointError, match="the observed parameters: non-finite values in"):
        audit.invert(**(GIVEN | {"observation": diverged}))
    with caplog.at_level(logging.WARNING, "jaxleak"):
        audit.invert(**(GIVEN | {"observation": SEEN._replace(payload={"w": jnp.zeros(2)})}), executor="eager")
    assert "the observed payload is zero everywhere" in caplog.text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"attack": "dlg"}, "attack must be an Attack, as jaxleak.attacks makes, got a str"),
        ({"protocol": None}, "protocol must be a Protocol, as jaxleak.protocols makes, got None"),
        ({"threat": "server"}, "threat must be a Threat, as jaxleak.threats makes, got a str"),
        ({"private": (1, 2)}, "private must be a Batch, as jaxleak.Batch makes, got a tuple"),
        ({"key": None}, "key must be one random key, .* got None"),
        ({"callbacks": print}, "callbacks must be a list of functions, got a builtin_function_or_method"),
        ({"checkpoints": "folder"}, "checkpoints must be a Checkpoints, as jaxleak.checkpoint makes, got a str"),
    ],
)
def test_a_run_names_the_argument(changed, message):
    given = {
        "attack": BLACK,
        "protocol": Protocol(*3 * [lambda *_: None]),
        "threat": SERVER_WITHOUT_INDICES,
        "private": BATCH,
    }
    with pytest.raises(ValueError, match=f"^{message}"):
        audit.run(**(given | {"key": jax.random.key(0), "rounds": 1} | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "mlp"}, "model must be a Classifier, as models.from_torch makes, got a str"),
        ({"variables": {"params": {"w": np.full(2, np.nan)}}}, "variables must be finite, got NaN or infinity in w"),
        ({"variables": {"params": {"w": np.arange(2)}}}, "variables must hold floats, got int64 in w"),
        ({"minutes": True}, "minutes must be a number, got a bool: True"),
        ({"truth": "t.npz"}, r"truth must be \(images, labels\), with None for labels .* got a str"),
        ({"truth": (1,)}, r"truth must be \(images, labels\), .* got 1 of them"),
        ({"batch_size": 2.0}, "batch_size must be a whole number, got 2.0, a float"),
        ({"frozen": 3}, "frozen must hold names of layers, got 3"),
        ({"update": b"abc"}, "update must hold its arrays by name, as a dictionary, a tree or a module, got bytes"),
        ({"update": (leaf for leaf in ())}, "update must hold its arrays by name, .* got generator"),
        ({"out": pathlib.Path(__file__)}, "out must be a folder, and .*test_argument_kinds.py is a file"),
    ],
)
def test_an_audit_names_the_argument(changed, message, perceptron):
    model, variables, _, gradient = perceptron
    given = {"model": model, "variables": variables, "update": gradient, "batch_size": 1} | changed
    with pytest.raises(ValueError, match=f"^{message}"):
        audit.update(given.pop("model"), given.pop("variables"), given.pop("update"), **given)


def test_numbers_of_numpy_are_facts(tmp_path):
    path = tmp_path / "u.safetensors"
    capture.save(
        path, {"w": np.ones(2)}, kind="weights", batch_size=np.int64(4), local_steps=np.int32(2),
        learning_rate=np.float32(0.5),
    )  # fmt: skip
    facts = capture.load(path).facts
    assert (facts.batch_size, facts.local_steps, facts.learning_rate) == (4, 2, 0.5)


@pytest.mark.parametrize(
    ("array", "got"),
    [
        (np.ones(2, complex), "dtype complex128"),
        (np.array(["a"]), "dtype <U1"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "a mask"),
    ],
)
def test_an_update_holds_real_numbers(array, got, tmp_path):
    with pytest.raises(ValueError, match=f"w must be an array of real numbers, got {got}"):
        capture.save(tmp_path / "u.safetensors", {"w": array}, batch_size=1)


def test_a_file_needs_its_folder_and_says_what_is_not_finite(tmp_path, caplog):
    with pytest.raises(FileNotFoundError, match="path must be in a folder that exists"):
        capture.save(tmp_path / "none" / "u.safetensors", {"w": np.ones(2)}, batch_size=1)
    with caplog.at_level(logging.WARNING, "jaxleak"):
        capture.save(tmp_path / "u.safetensors", {"w": np.array([1, np.inf])}, batch_size=1)
    assert "w holds values that are not finite, so that an audit will refuse" in caplog.text


@pytest.mark.parametrize("index", [[0, 5], [-1, 0]])
def test_a_private_sets_index_is_in_range(index):
    private = BATCH._replace(index=np.array(index))
    with pytest.raises(ValueError, match=r"private.index must be in \[0, 2\)"):
        check_private(Protocol(*3 * [lambda *_: None]), private)
