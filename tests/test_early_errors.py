"""Inputs that would cause silent or late errors are refused immediately and by name."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import Batch, Transcript, attacks, audit, data, defenses, metrics, models, objectives, protocols, threats
from jaxleak._jitted import jitted_for_few
from jaxleak.attacks import aggregated, party_records
from jaxleak.capture._update import named_arrays

KEY = jax.random.key(0)
PARTIES = models.bottom_top((2, 1), 3, bottom=(4,), top=(4,))
HEAD = {"kernel_gradient": jnp.ones((4, 3)), "bias_gradient": jnp.ones(3)}


def _payload():
    return {"first": {"bias": jnp.ones(2)}, "head": {"kernel": jnp.ones((2, 3))}}


SENT = Transcript(None, None, _payload(), None, None, None)


def _averaging(**options):
    parts = [np.arange(2), np.arange(2, 4)]
    model = models.mlp((2, 2, 1), 3, widths=(4,))
    return protocols.federated_averaging(model, parts, batch_size=2, learning_rate=0.1, **options)


def _draw(*, workers=None, **changed):
    options = {"num_samples": 8, "batch_size": 4, "sampling": "epoch"} | changed
    if workers is None:
        return protocols.draw_batch(KEY, jnp.int32(0), **options)
    return protocols.draw_worker_batches(KEY, jnp.int32(0), workers=workers, **options)


@pytest.mark.parametrize("attack", [attacks.cafe_exact, attacks.cafe_censored, attacks.cafe_ordinal])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "seed must be whole numbers in"),
        ({"inversion": aggregated.FeatureInversionOptions(max_steps=0)}, "max_steps must be > 0"),
    ],
)
def test_step_three_of_cafe_is_checked_before_the_rounds(attack, wrong, message):
    model = models.cafe_vertical((8, 8, 1), parties=4, num_classes=3, channels=(4, 8), width=16, hidden=8)
    plan = attacks.plan_cafe_exact(model, num_samples=12, batch_size=4)
    with pytest.raises(ValueError, match=message):
        attack(model, plan, **wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": 5}, "window must be in"),
        ({"window": 100.5}, "window must be a whole number"),
        ({"restarts": 0}, "restarts must be > 0"),
        ({"seed": -1}, "seed must be whole numbers in"),
        ({"party": 1.0}, "party must be a whole number"),
        ({"party": 2}, r"party must be in \[0, 2\), got 2"),
    ],
)
def test_the_clusters_of_directions_are_checked_before_the_rounds(wrong, message):
    sizes = {"num_samples": 8, "rounds": 2, "batch_size": 4, "party": 0}
    with pytest.raises(ValueError, match=message):
        attacks.vflrecon_free(PARTIES, None, **(sizes | wrong))


def test_labels_without_a_recorded_step_say_so():
    with pytest.raises(ValueError, match="no step was recorded"):
        party_records.free_labels(np.zeros((0, 4)), np.zeros(0, int), np.zeros((0, 3)), num_samples=8)


def test_paths_of_leaves_are_no_text():
    for refused in (
        lambda: attacks.check_payload(_payload(), {"params": _payload()}, read="head/kernel"),
        lambda: threats.view(
            threats.Threat(payload="first/bias"), Transcript(None, None, _payload(), None, None, None)
        ),
    ):
        with pytest.raises(ValueError, match=r"paths of leaves must be a tuple, such as \('.*',\), got a text"):
            refused()


@pytest.mark.parametrize("party", [-1, 2, 0.5])
def test_features_of_the_others_are_those_of_a_party_that_is_there(party):
    with pytest.raises(ValueError, match=r"party must be in \[0, 2\)|party must be a whole number"):
        party_records.victims_features(PARTIES, jnp.ones((3, 2, 2)), party)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: protocols.encrypted_first(cipher="plain", active=0.5), "active must be a whole number, got 0.5"),
        (lambda: protocols.masked_payloads(KEY, jnp.ones((3, 4)), fraction_bits=2.5), "fraction_bits must be a whole"),
        (lambda: defenses.cancelling_noise(0.1, clients=2.5), "clients must be a whole number"),
        (lambda: _averaging(clients_per_round=1.5), "clients_per_round must be a whole number"),
        (lambda: _draw(sampling="Uniform"), "sampling must be one of"),
        (lambda: _draw(batch_size=9), r"batch_size must be in \[1, 8\], got 9"),
        (lambda: _draw(workers=3), "workers=3 must divide num_samples=8 and batch_size=4"),
        (lambda: aggregated.CafeOptions(thresholds=(1e-9,)).check(8), "thresholds must be two numbers"),
        (lambda: aggregated.CafeOptions(thresholds=1e-9).check(8), "thresholds must be two numbers"),
    ],
)
def test_numbers_that_would_be_rounded_or_ignored_are_refused(refused, message):
    with pytest.raises(ValueError, match=message):
        refused()


@pytest.mark.parametrize("name", ["kernel_gradient", "bias_gradient"])
def test_labels_are_not_read_off_what_is_not_finite(name):
    with pytest.raises(ValueError, match=f"{name} must be finite"):
        attacks.infer_labels("averaged_counts", batch_size=2, **(HEAD | {name: HEAD[name].at[0].set(jnp.nan)}))


def test_an_empty_batch_has_no_gradient():
    model = models.mlp((2, 2, 1), 3, widths=(4,))
    nothing = Batch(jnp.zeros((0, 1, 2, 2, 1)), jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.int32))
    with pytest.raises(ValueError, match="a batch must hold at least one sample, got none"):
        protocols.ClientShare(model)(model.init(KEY), nothing)


def test_images_and_labels_of_an_evaluation_fit():
    federation = _averaging()
    variables = federation.init(KEY).variables
    with pytest.raises(ValueError, match=r"x must have shape \(n, 2, 2, 1\), got \(3, 4\)"):
        federation.evaluate(variables, jnp.ones((3, 4)), jnp.zeros(3, jnp.int32))
    for y in (jnp.zeros(1, jnp.int32), jnp.zeros((3, 3), jnp.int32)):
        with pytest.raises(ValueError, match="label"):
            federation.evaluate(variables, jnp.ones((3, 2, 2, 1)), y)


def test_programs_of_few_objects_are_kept_and_those_of_others_let_go():
    class Weights:
        """An object that is equal only to itself."""

    traced = []

    @jitted_for_few(0, 2)
    def scaled(owner, x, factor):
        traced.append(owner)
        return factor * x

    first = Weights()
    assert [float(scaled(first, 2.0, n)) for n in (3, 3, 4)] == [6, 6, 8]
    assert len(traced) == 2
    gone = weakref.ref(first)
    traced.clear()
    del first
    for _ in range(8):
        scaled(Weights(), 1.0, 1)
    traced.clear()
    gc.collect()
    assert gone() is None


TABLE = np.random.default_rng(0).normal(size=(40, 3))


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (
            lambda: protocols.split_training(PARTIES, num_samples=4, batch_size=2, optimizer=1),
            "optimizer must be one",
        ),
        (lambda: protocols.split_training(PARTIES, num_samples=4, batch_size=2, loss="bce"), "loss must be a function"),
        (
            lambda: protocols.split_training(PARTIES, num_samples=4, batch_size=2, interactive="ckks"),
            "interactive must be a function, got a str",
        ),
        (lambda: protocols.vertical(PARTIES, num_samples=4, batch_size=2), "model must be a SplitModel"),
        (lambda: attacks.plan_cafe_exact(PARTIES, num_samples=4, batch_size=2), "model must be a SplitModel"),
        (lambda: party_records.norm_labels(0.5, TABLE), "gradients must be a ndarray"),
        (lambda: party_records.norm_labels(TABLE, "0.5"), "positive_share must be a number"),
        (lambda: party_records.direction_labels(TABLE, 0), "anchor must be a ndarray"),
        (lambda: metrics.label_accuracy([-1, 1], [0, 1]), r"truth must hold labels in \[0, C\).* got -1: recode"),
        (lambda: metrics.feature_r2(TABLE, TABLE, np.ones(40, int)), "samples must hold no number twice; a mask of"),
        (lambda: metrics.feature_mse(TABLE, TABLE, [0, -1]), r"samples must hold whole numbers in \[0, 40\)"),
        (lambda: metrics.feature_mse(TABLE, TABLE, [0.0]), r"samples must hold whole numbers in \[0, 40\)"),
    ],
)
def test_what_parties_and_scores_cannot_take_is_named(refused, message):
    with pytest.raises(ValueError, match=message):
        refused()


def test_labels_that_count_from_one_are_suspected(caplog):
    found = np.arange(30) % 3
    metrics.label_accuracy(found, found)
    party_records.fit_label_baseline(TABLE[:30], found, 3)
    assert not caplog.records
    assert metrics.label_accuracy(found + 1, found) == 0
    party_records.fit_label_baseline(TABLE[:30], found + 1, 4)
    assert [record.getMessage()[:20] for record in caplog.records] == ["truth agrees with th", "class 0 has no shado"]


def test_own_features_in_another_unit_are_suspected(caplog):
    baseline = party_records.fit_label_baseline(TABLE, np.arange(40) % 2, 2)
    baseline.predict(TABLE[:5])
    assert not caplog.records
    baseline.predict(TABLE[:5] + np.array([0, 50, 0]))
    assert "column 1 has a mean of 49.9, and 0.0347" in caplog.text


def test_features_of_other_records_are_refused():
    own = party_records.fit_feature_baseline(TABLE[:, :2], TABLE[:, 2:])
    with pytest.raises(ValueError, match="features must be those of the records that own was fitted on"):
        party_records.fit_gradient_regression(None, TABLE[::-1, 2:], own)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: objectives.squared_l2({"w": jnp.ones((3, 1))}, {"w": jnp.ones((3, 4))}), "must have the same shapes"),
        (lambda: objectives.cosine({"w": jnp.ones((3, 1))}, {"w": jnp.ones((1, 3))}), "must have the same shapes"),
        (lambda: objectives.relative_l1({"w": jnp.ones(1)}, {"w": jnp.ones(3)}), "must have the same shapes"),
        (lambda: objectives.gaussian_kernel({"w": jnp.ones(1)}, {"w": jnp.ones(3)}), "must have the same shapes"),
        (lambda: objectives.feature_distance(jnp.ones((4, 1, 3)), jnp.ones((4, 2, 3))), "must have the same shapes"),
        (lambda: objectives.gaussian_kernel({}, {}, variance=-1.0), "variance must be > 0"),
        (lambda: objectives.cross_entropy(jnp.ones((4, 3)), jnp.ones(1, jnp.int32)), r"labels must be \(B,\) or"),
        (lambda: objectives.squared_error(jnp.ones((4, 3)), jnp.ones((1, 3))), r"labels must be \(B,\) or"),
        (lambda: objectives.binary_cross_entropy(jnp.ones((4, 3)), jnp.ones((4, 1))), r"labels must be \(B,\) or"),
        (
            lambda: defenses.true_epsilon("dp_update", 10, batch_size=100, own_samples=10, rounds=1),
            r"batch_size must be in \[1, 10\]",
        ),
        (lambda: defenses.client_defense("encrypt_bottom", 120), r"percent must be in \[0, 100\], got 120"),
        (lambda: data.quantity_skew(0, np.zeros(900), 3, low=50.7), "low must be a whole number"),
        (lambda: threats.view(threats.Threat(party=0, payload=("first",)), SENT), "a party sees no payload"),
        (lambda: protocols.client("x", num_samples=4, batch_size=2), "share must be a ClientShare, as protocols"),
        (
            lambda: protocols.horizontal("x", workers=2, num_samples=4, batch_size=2),
            "model must be a SplitModel, as models.split_model makes, got a str",
        ),
        (lambda: protocols.federated_averaging("x", [[0]], batch_size=1), "model must be a Classifier, as models"),
        (lambda: named_arrays({"a.b": np.ones(2), "a": {"b": np.ones(3)}}), "update has two arrays under the name a.b"),
        (
            lambda: audit.watch(None, threats.Threat(payload=["head"]), None, None, key=KEY, rounds=1),
            r"threat\.payload must be a tuple of paths, .* or None, got \['head'\]",
        ),
        (
            lambda: defenses.epsilon_of_schedule(noise_multipliers=[], sampling_rate=0.1, delta=1e-5),
            "the number of noise_multipliers must be > 0",
        ),
        (
            lambda: protocols.ClientShare("convnet"),
            "model must be a Classifier, as models.from_flax or models.build makes, got a str",
        ),
        (lambda: protocols.ClientShare(models.mlp((2, 2, 1), 3), loss="mse"), "loss must be a function"),
    ],
)
def test_what_would_be_broadcast_or_ignored_is_refused(refused, message):
    with pytest.raises(ValueError, match=message):
        refused()
