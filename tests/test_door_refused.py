"""Users' networks that are refused: those that read tokens, and those with active dropout."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from flax import nnx

from jaxleak import models

IMAGE, CLASSES = (8, 8, 3), 5
X = reference.uniform(2, *IMAGE, seed=1)


class Tokens(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Embed(5, 4)(x.reshape(len(x), -1)).mean(1))


class TokensOfNnx(nnx.Module):
    def __init__(self):
        self.words = nnx.Embed(5, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.words(x.reshape(len(x), -1)).mean(1)


class TokensOfEquinox(eqx.Module):
    words: eqx.nn.Embedding

    def __call__(self, x):
        return jax.vmap(self.words)(x.ravel()).mean(0)


TOKENS = {
    "linen": lambda **size: models.from_flax(
        Tokens(), Tokens().init(jax.random.key(0), jnp.zeros((1, 6), jnp.int32)), **size
    ),
    "drawn": lambda **size: models.classifier(Tokens(), **size),
    "nnx": lambda **size: models.from_flax(TokensOfNnx(), **size),
    "equinox": lambda **size: models.from_equinox(
        TokensOfEquinox(eqx.nn.Embedding(5, 3, key=jax.random.key(0))), **size
    ),
    "function": lambda **size: models.from_function(
        lambda v, x: jnp.take(v["params"]["words"], x[:, 0, :, 0], axis=0).mean(1),
        {"params": {"words": jnp.ones((5, 3))}},
        **size,
    ),
}


@pytest.mark.parametrize("door", TOKENS)
def test_a_network_that_reads_tokens_is_refused_with_the_reason(door):
    with pytest.raises(ValueError, match=r"reads integer token ids.* rows of an embedding's gradient"):
        TOKENS[door](image_shape=(1, 6, 1))


TABLE = jnp.arange(8.0).reshape(4, 2)
CODED = {
    "looked up": lambda x: TABLE[x[:, 0, 0, 5].astype(jnp.int32)],
    "looked up after a change of unit": lambda x: jnp.take(TABLE, jnp.round(3 * x[:, 0, 0, 5]).astype(int), axis=0),
    "one-hot": lambda x: jax.nn.one_hot(x[:, 0, 0, 5].astype(jnp.int32), 2),
}
NOT_CODED = {
    "a comparison": lambda x: (x[:, 0, 0, :2] > 0.5).astype(jnp.int32).astype(jnp.float32),
    "the place of a maximum": lambda x: TABLE[jnp.argmax(x[:, 0, 0], axis=-1)],
    "rounded": lambda x: x[:, 0, 0, :2] + jax.lax.stop_gradient(jnp.round(x[:, 0, 0, :2]) - x[:, 0, 0, :2]),
    "a place that layers compute": lambda x: TABLE[jnp.tanh(x[:, 0, 0] @ jnp.ones(6)).astype(jnp.int32)],
    "constant places": lambda x: x[:, 0, 0, jnp.array([4, 1])] + TABLE[jnp.array([1.0]).astype(jnp.int32)],
}


@pytest.mark.parametrize("name", [*CODED, *NOT_CODED])
def test_a_network_that_looks_some_of_its_inputs_up_is_refused_with_the_reason(name):
    def network(variables, x):
        read = (CODED | NOT_CODED)[name](x)
        return jnp.concatenate([x[:, 0, 0, :5], read], axis=1) @ variables["params"]["kernel"]

    variables = {"params": {"kernel": jnp.ones((7, 3))}}
    if name in NOT_CODED:
        models.from_function(network, variables, image_shape=(1, 1, 6))
        return
    with pytest.raises(ValueError, match=r"some of its inputs as whole numbers \(codes of an embedding\).* one-hot"):
        models.from_function(network, variables, image_shape=(1, 1, 6))


def test_dropout_of_linen_is_refused_where_it_acts():
    class Dropped(nn.Module):
        rate: float = 0.5

        @nn.compact
        def __call__(self, x, deterministic):
            x = nn.Dropout(self.rate, deterministic=deterministic)(x.reshape(len(x), -1))
            return nn.Dense(CLASSES)(x)

    with pytest.raises(ValueError, match=r"the module draws random numbers in training.* set its dropout rate to 0"):
        models.classifier(Dropped(), image_shape=IMAGE)
    variables = Dropped().init(jax.random.key(0), X, True)
    model, same = models.from_flax(Dropped(0.0), variables, image_shape=IMAGE)
    np.testing.assert_allclose(model.apply(same, X).logits, Dropped().apply(variables, X, True), atol=1e-6)
    # The caller's keywords replace the known ones.
    known = {"train_arguments": {"deterministic": True}, "eval_arguments": {"deterministic": True}}
    model, same = models.from_flax(Dropped(), variables, image_shape=IMAGE, **known)
    for mode in ("train", "eval"):
        np.testing.assert_allclose(
            model.apply(same, X, mode=mode).logits, Dropped().apply(variables, X, True), atol=1e-6
        )


def test_active_dropout_is_refused():
    class Dropped(nnx.Module):
        def __init__(self, rngs):
            self.drop, self.dense = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(192, CLASSES, rngs=rngs)

        def __call__(self, x):
            return self.dense(self.drop(x.reshape(len(x), -1)))

    with pytest.raises(ValueError, match=r"drop is dropout with rate 0.5"):
        models.from_flax(Dropped(nnx.Rngs(0)), image_shape=IMAGE)
    with pytest.raises(TypeError, match="module must be a Flax module, of Linen or NNX, got the class Tokens"):
        models.from_flax(Tokens, image_shape=IMAGE)
