"""The study of defenses: every printed strength builds, bad input is refused early, a tiny study runs and resumes."""

import itertools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from experiments import defenses
from experiments._defenses import adaptive as defense_adaptive
from experiments._defenses import delegated as defense_delegated
from experiments._defenses import registry as defense_registry
from experiments._defenses import studies as defense_studies
from experiments._defenses import verdicts as defense_verdicts
from experiments._defenses.registry import REGISTRY, build, composed, true_epsilon
from experiments._defenses.studies import points_of
from experiments._defenses.utility import Utility
from experiments._inversion.attacker import threat_for
from experiments._inversion.case import Case
from experiments._inversion.client import victim
from jaxleak import _own_keys, data, models
from jaxleak import defenses as family
from jaxleak._base import Batch
from jaxleak.attacks import presets
from jaxleak.protocols import ClientShare

SHAPE = (8, 8, 1)
RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)
PRINTED = {
    "soteria": RATIOS,
    "outpost": RATIOS,
    "quantization": (32, 16, 8, 4, 1),
    "guardian": (0.1, 1, 10, 1e2, 1e3),
    "dp_sgd": (1e5, 1e4, 1e3, 1e2, 10, 5, 1, 0.1),
    "dp_soteria": (1e5, 1e4, 1e3, 1e2),
    "adaptive_dp_soteria": (1e5, 1e4, 1e3, 1e2),
}


@pytest.fixture(scope="module")
def client():
    model = models.build("mlp", SHAPE, 10, widths=(6,))
    key = jax.random.key(0)
    x = jax.random.uniform(key, (2, 1, *SHAPE))
    return model, ClientShare(model), model.init(key), Batch(x, jnp.array([1, 2]), jnp.arange(2))


@pytest.mark.parametrize("name", REGISTRY)
def test_every_strength_builds(name):
    assert set(PRINTED.get(name, ())) <= set(REGISTRY[name].strengths)
    for strength in REGISTRY[name].strengths:
        assert isinstance(build(name, strength), family.Defense)


def test_every_defense_is_in_a_study():
    base = Case(data="digits")
    swept = {p.case.defense for study in defense_studies.STUDIES for p in points_of(study, base, {})}
    assert set(REGISTRY) <= swept
    four = points_of("fedleak-fig4", base, {})
    assert {cell[0] for point in four for cell in point.paper} == {
        "text-fig4-accuracy/none/steps1", "text-fig4-accuracy/none/steps12", "text-fig4-accuracy/quantization/steps1",
        "text-fig4-psnr/none/steps1", "text-fig4-psnr/none/steps12", "text-fig4-psnr/quantization/steps1",
    }  # fmt: skip
    assert len({point.id for point in four}) == len(four)


TESTED_ELSEWHERE = ("stochastic_quantization", "withhold_top", "cancelling_noise")


@pytest.mark.parametrize("name", [n for n in REGISTRY if n not in TESTED_ELSEWHERE])
def test_the_victims_client_is_defended(name):
    strongest = REGISTRY[name].strengths[-1]
    case = Case(data="digits", model="mlp", batch_size=2, pool=4)
    plain, defended = (victim(c, 0) for c in (case, Case(**{**vars(case), "defense": name, "strength": strongest})))
    sent = []
    for side in (plain, defended):
        state = jax.jit(side.protocol.init)(jax.random.key(0))
        sent.append(jax.jit(side.protocol.round)(jax.random.key(1), state, side.private)[1].payload)
    pairs = zip(*map(jax.tree.leaves, sent), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)


def test_dp_before_soteria_is_both(client):
    model, share, variables, batch = client
    payload = share(variables, batch)
    known = {"model": model, "variables": variables, "x": batch.x[:, 0], "y": batch.y, "round": 0}
    known["mode"] = "eval"
    key = jax.random.key(3)
    weak = composed(family.dp_sgd(1e6, 0.0), family.soteria(0.0)).apply(key, payload, **known)
    for a, b in zip(jax.tree.leaves(weak), jax.tree.leaves(payload), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    both = composed(family.dp_sgd(1.0, 1.0), family.soteria(0.5)).apply(key, payload, **known)
    kernel = both[model.head]["kernel"]
    assert int((kernel == 0).all(axis=1).sum()) == kernel.shape[0] // 2
    assert all((leaf != 0).all() for name, of in both.items() for leaf in of.values() if name != model.head)
    with pytest.raises(ValueError, match="first_place"):
        composed(family.soteria(0.5), family.soteria(0.5))


def test_straight_through_has_the_defended_value_and_the_plain_derivative(client):
    _, share, variables, batch = client
    informed = defense_adaptive.straight_through(share, family.quantize(4), 1)
    sent = family.quantize(4).apply(jax.random.key(9), share(variables, batch))
    for a, b in zip(jax.tree.leaves(informed(variables, batch)), jax.tree.leaves(sent), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)

    def head_sum(of, x):
        return of(variables, batch._replace(x=x))["head"]["kernel"].sum()

    np.testing.assert_allclose(
        jax.grad(lambda x: head_sum(informed, x))(batch.x), jax.grad(lambda x: head_sum(share, x))(batch.x), atol=1e-6
    )


def test_clipped_examples_are_dp_without_noise(client):
    _, share, variables, batch = client
    informed = defense_adaptive.clipped_examples(share, 0.1)(variables, batch)
    each = jax.vmap(lambda x, y: share(variables, Batch(x[None], y[None], jnp.arange(1))))(batch.x, batch.y)
    defended = family.dp_sgd(0.1, 0.0).apply(jax.random.key(0), each)
    for a, b in zip(jax.tree.leaves(informed), jax.tree.leaves(defended), strict=True):
        np.testing.assert_allclose(a, b.mean(axis=0), rtol=1e-4, atol=1e-7)


def test_guardians_shadow_weights_say_where_the_noise_is(client):
    model, share, _, _ = client
    weak, strong = (
        defense_adaptive.shadow_weights(build("guardian", beta), model, share, 2) for beta in (1e-9, 1000.0)
    )
    assert weak == (1.0,) * len(weak)
    assert 0 < min(strong) < 0.5


SETTINGS = presets.preset("fedleak", 10)._replace(
    labels="given", white_point=0.5, candidate="a candidate", optimizer="one"
)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "magnitude_noise", "outpost", "dp_sgd", "dp_update"])
def test_who_knows_the_noise_compares_in_its_units(client, name):
    """Twice the noise: what is far from it weighs less, and nothing else of the attack changes."""
    model, share, variables, batch = client
    payload = share(variables, batch)
    other = jax.tree.map(lambda leaf: leaf + 0.1, payload)
    weak, strong = (0.1, 0.9) if name == "outpost" else (1e4, 1e3) if name.startswith("dp") else (0.1, 0.2)
    distances = []
    for strength in (weak, strong):
        _, settings = defense_adaptive.informed(name, strength, model, share, SETTINGS, 2)
        distances.append(settings.gradients.distance(payload, other))
        kept = ("candidate", "optimizer", "labels", "white_point", "smoothing", "iterations")
        assert all(getattr(settings, field) == getattr(SETTINGS, field) for field in kept)
        assert settings.gradients.distance(payload, payload) == 0
    ratio = distances[0] / distances[1]
    expected = {"gaussian": 4, "laplace": 2, "magnitude_noise": 4, "dp_sgd": 100, "dp_update": 100}
    if name == "outpost":
        assert ratio > 2  # only the entries that survive pruning are compared
    else:
        np.testing.assert_allclose(ratio, expected[name], rtol=1e-4)


def test_who_knows_that_noise_decays_goes_by_the_round(client):
    model, share, variables, batch = client
    payload = share(variables, batch)
    other = jax.tree.map(lambda leaf: leaf + 0.1, payload)
    early, late = (
        defense_adaptive.informed("adaptive_dp", 1e3, model, share, SETTINGS, 2, round_=t)[1].gradients for t in (0, 10)
    )
    first, later = early.distance(payload, other), late.distance(payload, other)
    np.testing.assert_allclose(later / first, defense_registry.DECAY**-20, rtol=1e-4)


def test_labels_are_optimised_where_the_heads_gradient_is_withheld(client):
    """The largest entries are the head's: without them a rule answers as if every class were in the batch alike."""
    model, share, variables, batch = client
    payload = share(variables, batch)
    seen = build("encrypt_top", 20.0).apply(jax.random.key(0), payload)
    assert not np.asarray(seen[model.head]["bias"]).any()
    kept = build("encrypt_bottom", 80.0).apply(jax.random.key(0), payload)
    np.testing.assert_array_equal(kept[model.head]["bias"], payload[model.head]["bias"])
    for name, labels, expected in (
        ("encrypt_top", "calibrated", "joint"),
        ("withhold_top", "given", "given"),
        ("encrypt_bottom", "calibrated", "calibrated"),
        ("soteria", "calibrated", "calibrated"),
    ):
        own = SETTINGS._replace(labels=labels)
        assert defense_adaptive.informed(name, 0.5, model, share, own, 2)[1].labels == expected


def test_attackers_draw_from_keys_of_their_own():
    """None is a key that a run of some seed derives by small numbers, and no two purposes share one."""
    purposes = [getattr(_own_keys, name) for name in ("TRANSFORMS", "MASKS", "WEIGHTS", "SHADOWS", "SAMPLES")]
    own = {tuple(jax.random.key_data(_own_keys.own_key(purpose)).tolist()) for purpose in purposes}
    assert len(own) == len(purposes)
    roots = [jax.random.key(seed) for seed in range(5)]
    children = [jax.random.fold_in(root, n) for root in roots for n in range(8)]
    theirs = [*roots, *children, *(jax.random.fold_in(child, n) for child in children for n in range(4))]
    assert not own & {tuple(jax.random.key_data(key).tolist()) for key in theirs}


def test_who_knows_of_dropout_averages_over_masks(client):
    model, share, variables, batch = client
    none, half = (
        defense_adaptive.dropped_features(share, family.feature_dropout(rate))(variables, batch) for rate in (0.0, 0.5)
    )
    np.testing.assert_allclose(ravel_pytree(none)[0], ravel_pytree(variables["params"])[0])  # rate 0 returns its input
    draws = []
    for key in jax.random.split(_own_keys.own_key(_own_keys.MASKS), defense_adaptive.SAMPLES):
        known = {"model": model, "variables": variables, "x": batch.x[:, 0], "y": batch.y}
        draws.append(ravel_pytree(family.feature_dropout(0.5).apply(key, variables["params"], **known))[0])
    np.testing.assert_allclose(ravel_pytree(half)[0], np.mean(draws, axis=0), atol=1e-6)


def test_who_knows_outpost_trusts_tensors_without_noise(client):
    """Zero biases get none: a deviation in them costs more than the same one in a noisy kernel."""
    model, share, variables, batch = client
    payload = share(variables, batch)
    distance = defense_adaptive.outpost_likelihood(model, 0.0)
    drawn = model.init(_own_keys.own_key(_own_keys.WEIGHTS))["params"]
    spread = jax.tree.map(lambda leaf: float(leaf.var(ddof=1)), drawn)

    def moved(layer, leaf):
        other = {**payload, layer: {**payload[layer], leaf: payload[layer][leaf] + 0.1}}
        # Zeros count as pruned.
        return float(distance(payload, other)) / jnp.count_nonzero(payload[layer][leaf])

    floor = max(0.8 * v for v in jax.tree.leaves(spread)) * defense_adaptive._CLEAN
    for layer, leaf in (("dense_0", "kernel"), ("dense_0", "bias"), ("head", "kernel")):
        deviation = 0.8 * spread[layer][leaf]
        np.testing.assert_allclose(moved(layer, leaf), 0.01 / 2 / (deviation**2 + floor**2), rtol=1e-3)


def test_shares_behind_a_defense_say_how_the_client_computes(client):
    model, *_ = client
    share = ClientShare(model, local_steps=3, batch_norm="eval")
    for wrapped in (
        defense_adaptive.straight_through(share, family.quantize(4), 1),
        defense_adaptive.clipped(share, 1.0),
        defense_adaptive.clipped_examples(share, 1.0),
    ):
        assert (wrapped.local_steps, wrapped.batch_norm) == (3, "eval")


def test_true_epsilon_is_no_shorthand():
    pytest.importorskip("dp_accounting")
    many, few = (true_epsilon("dp_sgd", 1.0, batch_size=4, own_samples=100, rounds=rounds) for rounds in (16, 4))
    assert 0 < few < many
    assert true_epsilon("adaptive_dp", 1.0, batch_size=4, own_samples=100, rounds=16) > many
    with pytest.raises(ValueError, match="no epsilon"):
        true_epsilon("soteria", 0.5, batch_size=4, own_samples=100, rounds=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study": ("fig4",)}, "study must be one of"),
        ({"strengths": ("shredder=1",)}, "defense must be one of"),
        ({"strengths": ("soteria=1.5",)}, "ratio must be in"),
        ({"strengths": ("quantization=3",)}, "bits must be one of"),
        ({"strengths": ("quantization=4.5",)}, "bits must be an integer"),
        ({"strengths": ("dp_sgd=0",)}, "epsilon must be > 0"),
        ({"strengths": ("guardian=-1",)}, "beta must be >= 0"),
        ({"strengths": ("soteria",)}, "NAME=NUMBER"),
        ({"study": ("fedleak-fig7",), "strengths": ("soteria=0.5",)}, "does not have"),
        ({"study": ("fedleak-fig7",), "strengths": ("secure_aggregation=1.5",)}, "whole numbers"),
        ({"only": ("shredder",)}, "only must be one of"),
        ({"study": ("vfl-table5",), "seeds": (3,)}, "counts seeds from 0"),
        ({"seeds": ()}, "seeds"),
        ({"budget": 0.0}, "budget must be > 0"),
        ({"batch_size": 200}, "batch_size must be in"),
        ({"learning_rate": 0.0}, "learning_rate must be > 0"),
        ({"attacked_round": 201}, "attacked_round must be in"),
        ({"labels": "iql"}, "labels must be one of"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(tmp_path, changes, message):
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=message):
        defenses.main(defenses.Args(**changes, out=out))
    assert not out.exists()


def test_examples_gradients_need_one_step():
    with pytest.raises(ValueError, match="local_steps = 1, got 12"):
        build("dp_soteria", 10.0, local_steps=12)


TINY = {
    "model": "mlp", "iterations": 2, "rounds": 2, "clients": 2, "samples": 16, "test_samples": 8, "batch_size": 2,
    "strengths": ("quantization=1", "cancelling_noise=1"),
}  # fmt: skip


def test_tiny_demo_runs_reports_and_resumes(tmp_path, monkeypatch):
    args = defenses.Args(**TINY, out=tmp_path)
    first = defenses.main(args)
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {row["id"]: row for row in results["cells"]}
    assert set(rows) == {"none/steps1", "quantization/1/steps1", "cancelling_noise/1/steps1"}
    for row in rows.values():
        assert 0 <= row["accuracy"] <= 1
        assert np.isfinite(row["psnr"])
        assert ("psnr_adaptive" in row) == (row["defense"] is not None)
        assert row["leak_change"] == pytest.approx(row["leak"] - rows["none/steps1"]["leak"])
    assert rows["none/steps1"]["bits_per_entry"] == 32
    assert 1 < rows["quantization/1/steps1"]["bits_per_entry"] < 1.1  # one scale per tensor
    text = (tmp_path / "report.md").read_text()
    assert "figures/demo-steps1.png" in text
    assert (tmp_path / "figures" / "demo-steps1.png").exists()
    assert "quantization" in text

    def refuse(*args, **kwargs):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr("experiments._defenses.utility.Utility._train", refuse)
    monkeypatch.setattr("experiments._fedleak.runs.Runner._run", refuse)
    again = defenses.main(args)
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in first.items() if k != "seconds"}


@pytest.mark.slow
def test_an_upload_of_a_later_round_is_that_of_the_defended_federation(tmp_path):
    strengths = ("outpost=0.5", "error_feedback=10")
    args = {**TINY, "strengths": strengths, "attacked_round": 1, "out": tmp_path}
    defenses.main(defenses.Args(**args))
    rows = {row["id"]: row for row in json.loads((tmp_path / "results.json").read_text())["cells"]}
    assert "attacked_round must be 0" in rows["error_feedback/10/steps1"]["not_run"]
    ran = [row for row in rows.values() if "accuracy" in row]
    assert len(ran) == 2
    assert all(np.isfinite([row["psnr"], row.get("psnr_adaptive", 0.0)]).all() for row in ran)
    utility = Utility(tmp_path / "utility", defenses.Args(**args).federation, fresh=False)
    case = Case(data="digits", model="mlp", attacked_round=1, learning_rate=0.5)
    plain = utility.variables(case, 0)
    noisy = utility.variables(replace(case, defense="outpost", strength=0.5), 0)
    start = models.build("mlp", data.load("digits", 1).x.shape[1:], 10).init(jax.random.key(0))
    assert len(list((tmp_path / "utility").glob("*.safetensors"))) == 2
    ends = [ravel_pytree(of["params"])[0] for of in (plain, noisy, start)]
    assert ends[0].shape == ends[2].shape
    assert all(float(jnp.abs(a - b).max()) > 1e-3 for a, b in itertools.combinations(ends, 2))


def test_unseen_samples_are_none_of_the_federations():
    args = defenses.Args(unseen=True)
    case = defenses._checked(args, ("demo",))["demo"][0].case
    own, attacked = data.load("digits", args.samples, 0), victim(case, 0).private
    assert len(attacked.x) == args.test_samples
    assert not {x.tobytes() for x in np.asarray(attacked.x)} & {x.tobytes() for x in own.x}


def test_granted_labels_are_granted_to_both_attackers():
    points = defenses._checked(defenses.Args(labels="given"), ("demo",))["demo"]
    granted = [threat_for(replace(p.case, adaptive=p.case.defense is not None)).labels for p in points]
    assert len(granted) > 1
    assert all(granted)


def test_without_data_the_command_fails_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    args = defenses.Args(**TINY | {"data": "cifar10", "strengths": ("quantization=1",)}, out=tmp_path)
    with pytest.raises(FileNotFoundError, match="JAXLEAK_DATA_DIR"):
        defenses.main(args)
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_listed(tmp_path):
    metrics = defenses.main(defenses.Args(study=("fedleak-fig7", "fedleak-fig5"), budget=1e-6, out=tmp_path))
    assert metrics["cells_run"] == 0
    rows = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert all("beyond the budget" in row["not_run"] or "statement" in row["not_run"] for row in rows)


def test_delegated_rows_become_curves():
    rows = [
        {"id": "table5-label/noise0.01#cut", "ours": 40.0},
        {"id": "table5-label/noise0.01#cut#adaptive", "ours": 50.0},
        {"id": "table5-utility/label/noise0.01#cut", "ours": -30.0},
        {"id": "table6-utility/marvell/criteo", "ours": None},
    ]
    curves = defense_delegated.trade_off_curves(rows)
    assert curves == {"noise on the cut": [{"strength": 0.01, "accuracy": -30.0, "psnr": 40.0, "psnr_adaptive": 50.0}]}
    assert defense_registry.sigma_of(1.0) == pytest.approx(np.sqrt(2 * np.log(1e5)))


def test_the_papers_orders_and_conclusions_stand_beside_ours():
    rows = [
        {"id": "table6-label/marvell/criteo", "paper": 82.0, "ours": 78.0},
        {"id": "table6-label/dp-sgd/criteo", "paper": 53.0, "ours": 99.0},
        {"id": "table6-label/dp-sgd/criteo#label-dp", "paper": 53.0, "ours": 58.0},
        {"id": "table6-label/marvell/avazu", "paper": 80.0, "ours": None},
    ]
    assert defense_verdicts.orders(rows) == [
        ("table6-label criteo", "dp-sgd < marvell", "marvell < dp-sgd"),
        ("table6-label criteo (label-dp)", "dp-sgd < marvell", "dp-sgd < marvell"),
    ]
    undefended = {"defense": None, "strength": 0.0, "local_steps": 1, "clients": 1, "accuracy": 0.9, "leak": 38.0}
    hidden = undefended | {"defense": "encrypt_top", "strength": 80.0, "leak": 12.0}
    found = defense_verdicts.verdicts("fedleak-fig8", [undefended, hidden])
    assert [(v.ours, v.holds) for v in found] == [("12.0 dB", False), ("", None)]
    assert [v.holds for v in defense_verdicts.verdicts("fedleak-fig4", [undefended, hidden])] == [False, None, None]
    for study in ("fedleak-fig4", "fedleak-fig5", "fedleak-fig7", "fedleak-fig8"):
        assert {v.holds for v in defense_verdicts.verdicts(study, [])} == {None}
    assert defense_verdicts.verdicts("further", []) == []


def test_fake_gradients_have_a_point_where_attack_and_training_both_ran():
    rows = [
        {"id": "text-fake-gradients/true/cifar10", "ours": 100.0},
        {"id": "text-fake-gradients/fake/cifar10#fake-relative", "ours": 15.0},
        {"id": "text-fake-gradients/fake/cifar10#fake-relative#adaptive", "ours": 108.0},
        {"id": "text-fake-gradients/fake/cifar10#fake-printed", "ours": 5.0},
        {"id": "table11/true/iter100", "ours": 2.0},
        {"id": "table11/fake/iter0#fake-relative", "ours": 2.3},
        {"id": "table11/fake/iter100#fake-relative", "ours": 2.1},
        {"id": "table11/fake/iter100#fake-printed", "ours": "nan"},
        {"id": "table11/dp-eps1/iter100", "ours": 2.2},
    ]
    point = {"strength": 100.0, "accuracy": 2.1, "psnr": 15.0, "psnr_adaptive": 108.0}
    assert defense_delegated.loss_curves(rows) == ({"fake-relative": [point]}, (100.0, 2.0))
