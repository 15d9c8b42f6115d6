import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxleak import models, protocols, threats
from jaxleak._base import Batch
from jaxleak.threats import Threat, label_holder_view, party_view, view

THREATS = {name: value for name, value in vars(threats).items() if isinstance(value, Threat)}
THREATS |= {"labels": Threat(labels=True), "statistics": Threat(statistics=True)}


@pytest.fixture(scope="module")
def transcript():
    return reference.first_transcript(reference.small_problem(with_statistics=True))


def _nan_fields(observation):
    return {
        name
        for name, field in observation._asdict().items()
        if any(np.isnan(np.asarray(leaf, np.float32)).any() for leaf in jax.tree.leaves(field))
    }


def test_the_module_has_the_papers_threats():
    assert THREATS.keys() >= {"HONEST_BUT_CURIOUS_SERVER", "BIAS_GRADIENT_ONLY", "FIRST_LAYER_ONLY"}


@pytest.mark.parametrize("name", THREATS)
def test_poison_in_the_private_part_shows_only_where_it_is_granted(transcript, name):
    poison = Batch(*(jnp.full(leaf.shape, jnp.nan) for leaf in transcript.private))
    observation = view(THREATS[name], transcript._replace(private=poison))
    assert _nan_fields(observation) == ({"labels"} if THREATS[name].labels else set())


@pytest.mark.parametrize("name", THREATS)
def test_a_view_copies_exactly_what_is_granted(transcript, name):
    threat = THREATS[name]
    observation = view(threat, transcript)
    assert (observation.index is not None) == threat.index
    assert (observation.labels is not None) == threat.labels
    assert (observation.statistics is not None) == threat.statistics
    paths = {"/".join(k.key for k in path) for path, _ in jax.tree_util.tree_leaves_with_path(observation.payload)}
    if threat.payload is None:
        assert jax.tree.structure(observation.payload) == jax.tree.structure(transcript.payload)
    else:
        assert paths == set(threat.payload)


def test_views_refuse_what_the_transcript_does_not_hold(transcript):
    with pytest.raises(ValueError, match="with_statistics=False"):
        view(Threat(statistics=True), transcript._replace(statistics=None))
    with pytest.raises(ValueError, match="payload has no leaf 'second/bias'; top-level groups are"):
        view(Threat(payload=("second/bias",)), transcript)


@pytest.mark.parametrize("freeze", [lambda tree: tree, flax.core.freeze])
def test_grants_reach_leaves_of_any_depth_and_whole_parts(transcript, freeze):
    deep = freeze({"stage": {"block": {"kernel": jnp.ones(2), "bias": jnp.ones(1)}}, "position": jnp.ones(3)})
    seen = view(Threat(payload=("stage/block/kernel", "position")), transcript._replace(payload=deep))
    assert [leaf.shape for leaf in jax.tree.leaves(seen.payload)] == [(3,), (2,)]
    assert seen.payload["stage"]["block"]["bias"] is None
    part = view(Threat(payload=("stage",)), transcript._replace(payload=deep)).payload
    assert sorted(leaf.shape for leaf in jax.tree.leaves(part)) == [(1,), (2,)]
    with pytest.raises(ValueError, match="payload has no leaf 'stag'"):
        view(Threat(payload=("stag",)), transcript._replace(payload=deep))


@pytest.mark.parametrize("freeze", [lambda tree: tree, flax.core.freeze])
def test_running_statistics_stay_out_of_any_kind_of_mapping(transcript, freeze):
    params = freeze({"params": {"w": jnp.ones(1)}, "batch_stats": {"mean": jnp.zeros(1)}})
    assert not jax.tree.leaves(view(Threat(), transcript._replace(params=params)).params["batch_stats"])
    granted = view(Threat(running_statistics=True), transcript._replace(params=params))
    assert jax.tree.leaves(granted.params["batch_stats"])


@pytest.mark.parametrize("params", [{"first": {"w": np.ones(1)}}, (np.ones(1), np.ones(2))])
def test_params_without_running_statistics_are_seen_as_they_are(transcript, params):
    seen = view(Threat(), transcript._replace(params=params)).params
    assert jax.tree.structure(seen) == jax.tree.structure(params)


def test_a_party_may_be_kept_from_the_indices():
    for threat in (Threat(party=1), Threat(party=1, index=False)):
        assert (view(threat, _split_transcript()).index is not None) == threat.index


def _split_transcript():
    model = models.bottom_top((2, 1), 2, bottom=(3,), top=(3,))
    protocol = protocols.split_training(model, num_samples=4, batch_size=2)
    private = Batch(jnp.ones((4, 2, 2)), jnp.array([0, 1, 1, 0]), jnp.arange(4))
    state = jax.jit(protocol.init)(jax.random.key(0))
    return jax.jit(protocol.round)(jax.random.key(1), state, private)[1]


def test_a_party_sees_its_own_record_and_nothing_else():
    transcript = _split_transcript()
    poisoned = jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan), transcript)
    for party in (0, 1):
        parties = tuple(own if p == party else poisoned.parties[p] for p, own in enumerate(transcript.parties))
        elsewhere = poisoned._replace(round=transcript.round, index=transcript.index, parties=parties)
        observation = view(party_view(party), elsewhere)
        assert _nan_fields(observation) == set()
        assert jax.tree.structure(observation.party) == jax.tree.structure(transcript.parties[party])
        assert observation.params is None
        assert observation.payload is None
        assert _nan_fields(view(party_view(party, active=True), elsewhere)) == {"labels"}
        holder = view(label_holder_view(party), elsewhere)
        assert _nan_fields(holder) == {"labels", "label_holder"}
        assert holder.params is None
        assert holder.payload is None
        own_poison = transcript._replace(parties=poisoned.parties)
        assert _nan_fields(view(party_view(party), own_poison)) == {"party"}
    nobodys = view(label_holder_view(), transcript)
    assert nobodys.party is None
    assert jax.tree.structure(nobodys.label_holder) == jax.tree.structure(transcript.label_holder)
    with pytest.raises(ValueError, match="threat is a label holder, but the protocol has none"):
        view(label_holder_view(), transcript._replace(label_holder=None))
    with pytest.raises(ValueError, match="threat is party 2, but 2 parties kept records"):
        view(label_holder_view(2), transcript)
    with pytest.raises(ValueError, match="threat is party -1, but 2 parties kept records"):
        view(party_view(0)._replace(party=-1), transcript)
    with pytest.raises(ValueError, match="threat is party 2, but 2 parties kept records"):
        view(party_view(2), transcript)
