"""Tokens that the rows of an embedding's gradient reveal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, models, protocols
from jaxleak._tree import named_leaves, replaced
from jaxleak.audit._checks.labels import Labels
from jaxleak.audit._checks.tokens import are_codes, tokens_of
from jaxleak.audit._report import _meaning
from jaxleak.audit._verdict.verdict import Answer, Verdict, decide

KEY, TOKENS, WIDTH, LENGTH = jax.random.key(0), 30, 6, 3
SENTENCES = jnp.array([[4, 9, 4], [17, 9, 28]])


@pytest.fixture(scope="module")
def client():
    keys = jax.random.split(KEY, 2)
    params = {
        "embedding": jax.random.normal(keys[0], (TOKENS, WIDTH)),
        "out": {"kernel": jax.random.normal(keys[1], (WIDTH, 4)), "bias": jnp.zeros(4)},
    }

    def network(variables, x):
        p = variables["params"]
        return jnp.tanh(x[..., 0] @ p["embedding"]).mean(axis=1) @ p["out"]["kernel"] + p["out"]["bias"]

    model, variables = models.from_function(network, {"params": params}, image_shape=(LENGTH, TOKENS, 1), num_classes=4)
    return protocols.ClientShare(model), variables


def _sent(client, x):
    share, variables = client
    return share(variables, Batch(x[:, None], jnp.array([2, 0]), jnp.arange(2)))


def _codes():
    return jax.nn.one_hot(SENTENCES, TOKENS)[..., None]


def test_the_rows_of_an_embedding_name_the_tokens(client):
    found = tokens_of(*client, _sent(client, _codes()), 2, KEY)
    assert found.numbers.tolist() == [4, 9, 17, 28]
    assert (found.known, found.leaf) == (TOKENS, "embedding")
    assert "those of 4 of 30 tokens, 4, 9, 17, 28. Which sample holds which" in str(found)


def test_images_and_rows_that_are_zero_for_another_reason_name_none(client):
    """A matrix of the same size that the network reads only in part also has zero rows, but these are no tokens."""
    share, variables = client
    payload = _sent(client, jax.random.uniform(KEY, (2, LENGTH, TOKENS, 1)))
    assert tokens_of(share, variables, payload, 2, KEY) is None

    def network(variables, x):
        p = variables["params"]
        h = jnp.tanh(x[..., 0] @ p["embedding"]).mean(axis=1) @ p["beside"][:, :TOKENS]
        return h[:, :5] @ p["out"]

    shapes = {"embedding": (TOKENS, WIDTH), "beside": (WIDTH, TOKENS), "out": (5, 4)}
    params = {name: jax.random.normal(KEY, shape) for name, shape in shapes.items()}
    model, other = models.from_function(network, {"params": params}, image_shape=(LENGTH, TOKENS, 1), num_classes=4)
    share = protocols.ClientShare(model)
    payload = share(other, Batch(_codes()[:, None], jnp.array([2, 0]), jnp.arange(2)))
    dense = replaced(payload, {"embedding": jnp.ones((TOKENS, WIDTH))})
    assert np.asarray(named_leaves(dense)["beside"]).any(axis=0).sum() == 5
    assert tokens_of(share, other, dense, 2, KEY) is None


def test_tokens_that_are_named_leak(client):
    found = tokens_of(*client, _sent(client, _codes()), 2, KEY)
    nothing = Labels.none(4)
    for tokens, attacked, outcome, headline in (
        (found, True, "leaks", "leaks tokens (if its inputs are one-hot codes)"),
        (found, False, "leaks", "leaks tokens (if its inputs are one-hot codes)"),
        (None, True, "not shown to leak", "not shown to leak"),
    ):
        verdict, reasons = decide([], nothing, None, ["Tried."], [], attacked=attacked, tokens=tokens)
        assert verdict == outcome
        numbers = None if tokens is None else tokens.numbers
        told = Verdict(verdict, reasons, (), (), None, nothing.proven, "", {}, tokens=numbers)
        assert told.headline == headline
        assert ("names the tokens" in _meaning(told)) == (tokens is not None)
        if tokens is not None:
            assert reasons[0] == str(tokens)
            assert "of this batch alone, without momentum and weight decay, the update names" in reasons[0]
            assert "and its momentum begins at zero, the update" in str(tokens._replace(momentum=True))
            assert ("No attack on images came to its end" in reasons[1]) == (not attacked)


def test_more_tokens_than_places_and_sides_of_images_name_none(client):
    payload = _sent(client, _codes())
    assert tokens_of(*client, payload, 2, KEY) is not None
    assert tokens_of(*client, payload, 1, KEY) is None  # four tokens in three places
    share, variables = client
    square = share.with_model(share.model._replace(image_shape=(TOKENS - 1, TOKENS, 1)))
    assert tokens_of(square, variables, payload, 2, KEY) is None


def test_an_answer_that_is_no_code_refutes_the_condition():
    codes = np.asarray(_codes())
    assert are_codes(np.clip(codes + 0.1, 0, 1))
    assert not are_codes(0.5 * codes)


def test_a_headline_lists_what_leaks():
    best = Answer("fedleak_400", np.random.default_rng(0).random((1, 8, 8, 1)), np.zeros(1, int), 0.0, 0.0, solved=True)
    everything = Verdict("leaks", (), (), (), best, np.ones(2, int), "", {}, tokens=np.arange(3))
    assert everything.headline == "leaks images, labels and tokens (if its inputs are one-hot codes)"
    assert everything._replace(best=None).headline == "leaks labels and tokens (if its inputs are one-hot codes)"
    assert everything._replace(best=None, tokens=None).headline == "leaks labels"
