"""The label holder of vertical training: what it receives, and what this reveals of the parties' features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxleak import audit, defenses, models, protocols
from jaxleak._base import Batch, LabelHolderRecord, Observation, PartyRecord
from jaxleak.attacks import party_records
from jaxleak.attacks._vertical import baselines
from jaxleak.study.parties import Runs, SplitCase, SplitJob, SplitJobs, _label_holder, about_run, in_report
from jaxleak.study.parties._label_holder import label_holder_scores
from jaxleak.study.parties._problem import split_problem
from jaxleak.threats import label_holder_view, party_view

N, B = 6, 3
MODEL = models.bottom_top((2, 3), 2, bottom=(4,), top=(5,))


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    """Use small forests: those of the published size give similar answers but take half of this file's time."""
    monkeypatch.setattr(baselines, "_TREES", 30)


def watched(threat=None, **options):
    """The initial parameters of a run, the private samples, and the label holder's (party 1's) view of two rounds."""
    private = Batch(
        jax.random.uniform(jax.random.key(3), (N, 2, 3)).at[:, 0, 2].set(0.0), jnp.arange(N) % 2, jnp.arange(N)
    )
    protocol = protocols.split_training(MODEL, num_samples=N, batch_size=B, **options)
    start = protocol.init(jax.random.key(0))
    seen = audit.watch(protocol, threat or label_holder_view(1), private, start, key=jax.random.key(1), rounds=2)[1]
    return start.params, private, seen


def test_it_receives_the_outputs_of_the_bottoms_and_what_its_layer_makes_of_them():
    params, private, seen = watched()
    index = seen.index[0]
    slices = MODEL.slices(private.x[index])
    sent = tuple(MODEL.bottom(own, x) for own, x in zip(params["bottom"], slices, strict=True))
    for received, b in zip(seen.label_holder.received, sent, strict=True):
        np.testing.assert_allclose(received[0], b, rtol=1e-5)
    np.testing.assert_allclose(seen.label_holder.first[0], MODEL.first(params["top"]["first"], sent), rtol=1e-5)
    np.testing.assert_array_equal(seen.labels[0], private.y[index])
    np.testing.assert_array_equal(seen.label_holder.first_params["kernel"][0], params["top"]["first"]["kernel"])
    assert seen.party.x.shape == (2, B, 3)


def test_noise_on_the_embeddings_is_in_what_it_receives():
    noise = defenses.split_defense("noise_embedding", 0.04, defenses.SplitRun(2, B, N, 1))
    plain, noisy = (watched(defenses=one)[2].label_holder.received[0][0] for one in ((), noise))
    assert 0.05 < np.std(plain - noisy) < 0.5


def test_a_cipher_hides_embeddings_and_weights_but_not_what_the_layer_gives():
    plain = watched()[2].label_holder
    hidden = watched(interactive=protocols.encrypted_first(active=1, cipher="plain"))[2].label_holder
    assert hidden.received[0] is None
    np.testing.assert_allclose(hidden.received[1], plain.received[1], rtol=1e-4)
    assert hidden.first_params is None
    np.testing.assert_allclose(hidden.first, plain.first, atol=1e-4)
    # A custom interactive layer does not state what it hides.
    own = watched(interactive=lambda key, params, b: MODEL.first(params, b))[2].label_holder
    assert own.received == (None, None)


def run(seed, samples=90, *, hidden=False, party=True, left_out=0, width=12):
    """Observations of a label holder, and the features from which the embeddings are computed."""
    rng = np.random.default_rng(seed)
    features, own = rng.uniform(size=(samples, 2)), rng.normal(size=(samples, 1))
    labels = (features[:, 0] > 0.5).astype(int)
    sent = np.concatenate([features @ [[1.0, 2.0], [-1.0, 1.0]], features[:, :1] ** 2], axis=1)
    index = np.concatenate([rng.permutation(samples - left_out) for _ in range(2)]).reshape(-1, 10)
    delta = rng.normal(size=(*index.shape, width))
    both = np.concatenate([sent, np.repeat(own, 3, axis=1)], axis=1)[index]
    holder = LabelHolderRecord(
        received=(None if hidden else jnp.asarray(sent[index]), jnp.asarray(both[..., 3:])),
        first=jnp.asarray(both @ np.random.default_rng(7).normal(size=(6, width))),
        first_gradient=jnp.asarray(delta),
        params_gradient={"kernel": jnp.asarray(np.swapaxes(both, 1, 2) @ delta)},
        first_params=None,
        rest_params=None,
    )
    record = PartyRecord(jnp.asarray(own[index]), None, None, None, None, None, None) if party else None
    seen = Observation(
        jnp.arange(len(index)),
        index=jnp.asarray(index),
        labels=jnp.asarray(labels[index]),
        party=record,
        label_holder=holder,
    )
    return seen, features


@pytest.mark.parametrize(("hidden", "party"), [(False, True), (True, False)])
def test_embeddings_tell_features_that_labels_and_own_features_do_not(hidden, party):
    shadow, features = run(0, hidden=hidden, party=party)
    found = party_records.fit_embedding_regression(shadow, features, 2)
    seen, truth = run(1, hidden=hidden, party=party, left_out=10)
    answer, alone = found.predict(seen, 90), found.predict_alone(seen, 90)
    assert ((answer - truth)[:80] ** 2).mean() < 0.01 < 0.03 < ((alone - truth)[:80] ** 2).mean()
    np.testing.assert_allclose(np.stack([answer, alone])[:, 80:], np.broadcast_to(features.mean(axis=0), (2, 10, 2)))
    # The labels reveal the first feature, but this is no leak of the embeddings.
    assert ((alone - truth)[:80, 0] ** 2).mean() < 0.7 * truth[:, 0].var()


def test_each_sample_of_a_real_run_is_read_at_its_first_visit():
    shadow, features = run(0)
    found = party_records.fit_embedding_regression(shadow, features, 2)
    late = shadow.label_holder._replace(received=tuple(b.at[9:].set(9.0) for b in shadow.label_holder.received))
    np.testing.assert_array_equal(*(found.predict(one, 90) for one in (shadow, shadow._replace(label_holder=late))))
    again = run(0, left_out=10)[0]
    assert not np.array_equal(found.predict(shadow, 90), found.predict(again, 90))


@pytest.mark.parametrize(("gain", "error", "gains"), [(2.1, 1.0, True), (1.9, 1.0, False), (0.0, 0.0, False)])
def test_a_gain_within_twice_its_error_is_none(gain, error, gains):
    assert party_records.EmbeddingRegression(None, None, gain, error, 2, np.zeros(1), False).gains is gains


def test_a_cipher_keeps_no_embedding_from_who_trains_the_layer():
    """The label holder knows the gradient of the layer's weights and the gradient at the layer's output."""
    plain = watched()[2]
    hidden = watched(interactive=protocols.encrypted_first(active=1, cipher="plain"))[2]
    for solved, sent in zip(party_records.solved_embeddings(hidden), plain.label_holder.received, strict=True):
        np.testing.assert_allclose(solved, sent, atol=1e-4)
    # With more samples than outputs of the layer, the solution is not unique; the shortest explains the gradient.
    seen = run(0, width=4)[0]
    delta, kernel = seen.label_holder.first_gradient, seen.label_holder.params_gradient["kernel"]
    solved = np.concatenate(party_records.solved_embeddings(seen), axis=-1)
    np.testing.assert_allclose(np.swapaxes(solved, 1, 2) @ delta, kernel, rtol=1e-4, atol=1e-4)
    free = seen.label_holder._replace(params_gradient={})
    with pytest.raises(ValueError, match="needs a first layer with a kernel that has as many rows for every party"):
        party_records.solved_embeddings(seen._replace(label_holder=free))


def test_the_layers_output_is_read_where_the_equations_leave_embeddings_open():
    for width, open_ in ((12, False), (4, True)):
        shadow, features = run(0, hidden=True, width=width)
        found = party_records.fit_embedding_regression(shadow, features, 2)
        assert found.reads_output is open_
        other = shadow.label_holder._replace(first=shadow.label_holder.first + 1.0)
        same = np.array_equal(*(found.predict(one, 90) for one in (shadow, shadow._replace(label_holder=other))))
        assert same is not open_


def test_a_column_that_is_zero_but_for_rounding_is_read_as_zero():
    """Otherwise standardisation would scale the rounding errors to the size of the other columns."""
    shadow, features = run(0, hidden=True)
    seen, _ = run(1, hidden=True)

    def rounded(one, seed):
        kernel = one.label_holder.params_gradient["kernel"]
        noise = 1e-5 * np.random.default_rng(seed).normal(size=(len(kernel), 60, kernel.shape[-1]))
        three, more = np.split(kernel, 2, axis=1)
        padded = np.concatenate([three, noise, more, noise], axis=1)
        return one._replace(label_holder=one.label_holder._replace(params_gradient={"kernel": jnp.asarray(padded)}))

    padded = party_records.fit_embedding_regression(rounded(shadow, 0), features, 2).predict(rounded(seen, 1), 90)
    narrow = party_records.fit_embedding_regression(shadow, features, 2).predict(seen, 90)
    np.testing.assert_allclose(padded, narrow, atol=1e-4)


def test_a_second_run_shows_what_was_learned_by_heart():
    """Embeddings that depend on features differently in every run are useless for a real run."""
    rng = np.random.default_rng(0)
    shadow, features = run(0, party=False)

    def of_heart(seen, mix):
        sent = np.asarray(features @ mix)[np.asarray(seen.index)] + 0.01 * rng.normal(size=(*seen.index.shape, 3))
        return seen._replace(label_holder=seen.label_holder._replace(received=(jnp.asarray(sent),)))

    mixes = rng.normal(size=(2, 2, 3))
    backwards = shadow._replace(index=shadow.index[::-1], labels=shadow.labels[::-1])
    first, second = of_heart(shadow, mixes[0]), of_heart(backwards, mixes[1])
    assert party_records.fit_embedding_regression(first, features, 2).gains
    judged = party_records.fit_embedding_regression(first, features, 2, again=second)
    assert not judged.gains
    np.testing.assert_array_equal(judged.predict(first, 90), judged.predict_alone(first, 90))


def test_what_is_withheld_or_does_not_fit_is_refused():
    shadow, features = run(0)
    for field, message in {
        "index": "must grant index",
        "labels": "must grant labels",
        "label_holder": r"what the label holder receives; the threat must grant it \(threats.label_holder_view\)",
    }.items():
        with pytest.raises(ValueError, match=message):
            party_records.fit_embedding_regression(shadow._replace(**{field: None}), features, 2)
    with pytest.raises(ValueError, match="every sample of the run, got 89 and a sample 89: samples are numbered"):
        party_records.fit_embedding_regression(shadow, features[:89], 2)
    with pytest.raises(ValueError, match="label"):
        party_records.fit_embedding_regression(shadow, features, 1)
    with pytest.raises(ValueError, match="again must be a shadow run in another order"):
        party_records.fit_embedding_regression(shadow, features, 2, again=shadow)
    with pytest.raises(ValueError, match="again must be a run of the records of shadow: labels or own features"):
        party_records.fit_embedding_regression(shadow, features, 2, again=run(1)[0])
    found = party_records.fit_embedding_regression(shadow, features, 2)
    with pytest.raises(ValueError, match="num_samples must be above the largest sample id, 89, got 89"):
        found.predict(shadow, 89)


@pytest.mark.parametrize("view", [party_view, label_holder_view])
@pytest.mark.parametrize("party", [-1, 0.5, True, "0"])
def test_a_party_is_a_whole_number(view, party):
    with pytest.raises(ValueError, match="party must be"):
        view(party)


SMALL = {"shadow_records": 48, "victim_records": 32}


@pytest.mark.slow
def test_a_study_scores_it_beside_what_it_knows_anyway():
    case = SplitCase("breast_cancer", defense="noise_embedding", strength=1e-4, **SMALL)
    problem = split_problem(case, 0)
    start = problem.victim_protocol.init(jax.random.key(0))
    scores, arrays = label_holder_scores(case, problem, start, 0)
    pictured = {f"label_holder_{name}" for name in ("own", "victims", "estimate")}
    assert arrays.keys() == pictured | {f"columns_label_holder{suffix}" for suffix in ("", "_adaptive", "_alone")}
    assert len(arrays["columns_label_holder"]) == len(problem.columns[0])
    error = np.mean((arrays["label_holder_estimate"] - arrays["label_holder_victims"]) ** 2)
    assert error == pytest.approx(scores["feature_mse_label_holder"], rel=1e-5)
    left = np.asarray(party_records.victims_features(problem.model, problem.victim.x, 1))
    assert scores["feature_variance_label_holder"] == pytest.approx(left.var(axis=0).mean(), rel=1e-5)
    alone, variance = scores["feature_mse_label_holder_alone"], scores["feature_variance_label_holder"]
    for suffix in ("", "_adaptive"):
        error = scores[f"feature_mse_label_holder{suffix}"]
        assert scores[f"feature_gain_label_holder{suffix}"] == pytest.approx((alone - error) / variance)
    assert scores["feature_mse_label_holder_adaptive"] < variance


def test_shadow_runs_are_the_real_runs_but_for_records_and_order(monkeypatch):
    """Shadow runs start from the real run's parameters, have its length, and differ; one pair has its defense."""
    case = SplitCase("breast_cancer", defense="noise_cut", victim_epochs=3, **SMALL)
    problem = split_problem(case, 0)
    start, watched, fitted = problem.victim_protocol.init(jax.random.key(9)), [], []

    def watch(protocol, threat, private, state, *, key, rounds):
        watched.append(
            (protocol, private.y.shape[0], state.params is start.params, jax.random.key_data(key).tolist(), rounds)
        )
        return None, run(len(watched))[0]

    def fit(shadow, known, classes, *, again, seed):
        fitted.append((shadow, again))
        return party_records.EmbeddingRegression(None, None, 0.0, 1.0, 2, known.mean(axis=0), False)

    monkeypatch.setattr(_label_holder.audit, "watch", watch)
    monkeypatch.setattr(_label_holder.party_records, "fit_embedding_regression", fit)
    monkeypatch.setattr(
        party_records.EmbeddingRegression, "predict_alone", lambda self, seen, count: np.tile(self.mean, (count, 1))
    )
    monkeypatch.setattr(_label_holder.np, "unique", lambda index: np.arange(32))
    label_holder_scores(case, problem, start, 0)
    protocols_seen, records, same, keys, rounds = zip(*watched, strict=True)
    assert protocols_seen == (
        problem.victim_protocol, *[problem.shadow_protocol] * 2, *[problem.adaptive_protocol] * 2
    )  # fmt: skip
    assert records == (32, *[48] * 4)
    assert same[1:] == (True,) * 4
    assert all(keys[a] != keys[b] for a, b in ((0, 1), (0, 2), (1, 2)))
    assert rounds == (6,) * 5
    assert len(fitted) == 2
    assert all(shadow is not again is not None for shadow, again in fitted)


def test_noise_that_is_no_number_is_noticed_in_what_is_received():
    broken = defenses.per_leaf("bottom_output", lambda key, leaf: leaf * jnp.nan)
    with pytest.raises(FloatingPointError, match="round 0: what the attacker sees is not finite"):
        watched(label_holder_view(), defenses=broken)


def test_a_report_says_what_was_run():
    said = about_run(SplitCase("breast_cancer", **SMALL), 0)
    assert said.endswith("The attackers see 1 epoch of the real run.")
    assert "defense" not in said
    case = SplitCase("breast_cancer", defense="noise_cut", task_epochs=3, **SMALL)
    assert (
        "Its defense is noise_cut of strength 0.01 (variance of Gaussian noise on the gradients that leave for the "
        "parties). The task's accuracies are those after 3 epochs, in which more leaks than the attackers see here"
    ) in about_run(case, 0)
    long = SplitCase("breast_cancer", defense="noise_cut", strength=0.5, task_epochs=3, victim_epochs=3, **SMALL)
    assert "strength 0.5 (" in about_run(long, 0)
    assert about_run(long, 0).endswith("after 3 epochs.")


def test_a_report_says_which_columns_hardly_count(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{'abc'[i % 3]},1.0,{i % 2}" for i in range(150)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["income,kind,same,y", *rows]))
    many = tmp_path / "m.csv"
    many.write_text("\n".join(["income,kind,y", *(f"{i % 7},k{i % 40},{i % 2}" for i in range(150))]))
    assert "hashed" not in about_run(SplitCase(f"csv:{many}?label=y", **SMALL), 0)
    case = SplitCase(f"csv:{path}?label=y", **SMALL)
    said = about_run(case, 0)
    assert "1 of its columns is constant or empty in the shadow records and left out (same)." in said
    assert "Of its categorical columns 1 has fewer than 20 categories, which are hardly apart" in said
    assert "hashed" not in about_run(SplitCase(f"csv:{path}?label=y", categories="one_hot", **SMALL), 0)


def test_scores_stand_by_question():
    names = ["task_accuracy", "feature_mse_shared", "label_accuracy_free", "label_balanced_free", "seconds"]
    assert in_report(names) == [names[3], names[2], names[1], names[0], names[4]]


def test_stored_results_keep_their_names_but_where_their_content_changed():
    identity = SplitJobs().identity
    case, defended = SplitCase("breast_cancer", **SMALL), SplitCase("breast_cancer", defense="noise", **SMALL)
    assert "label_holder" not in identity(SplitJob(case, Runs()), 0)["runs"]
    assert identity(SplitJob(case, Runs(label_holder=True)), 0)["runs"]["label_holder"]
    assert identity(SplitJob(case, Runs(comparisons=True)), 0)["runs"]["comparisons"] is True
    assert identity(SplitJob(defended, Runs(comparisons=True)), 0)["runs"]["comparisons"] == "of the real run"


def test_more_epochs_than_a_defense_is_calibrated_for_are_refused():
    case = SplitCase("breast_cancer", defense="label_dp", task_epochs=2, victim_epochs=3, **SMALL)
    with pytest.raises(ValueError, match="victim_epochs must be at most task_epochs=2 with a defense"):
        split_problem(case, 0)
