"""The study of defenses: every printed strength builds, bad input is refused early, a tiny study runs and resumes."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from slowness import slow_but
from tiny_studies import args_of

from experiments import defenses
from experiments._defenses import delegated as defense_delegated
from experiments._defenses import studies as defense_studies
from experiments._defenses import verdicts as defense_verdicts
from experiments._defenses.studies import points_of
from jaxleak import data, models
from jaxleak import defenses as family
from jaxleak.defenses import CLIENT_DEFENSES, client_defense, true_epsilon
from jaxleak.study.updates import (
    Case,
    Federation,
    TradeOffPoint,
    Utilities,
    _federation,
    _trade_offs,
    cell_of_point,
    resolved,
    utility_of,
    victim,
)

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


@pytest.mark.parametrize("name", CLIENT_DEFENSES)
def test_every_strength_builds(name):
    assert set(PRINTED.get(name, ())) <= set(CLIENT_DEFENSES[name].strengths)
    for strength in CLIENT_DEFENSES[name].strengths:
        assert isinstance(client_defense(name, strength), family.Defense)


def test_every_defense_is_in_a_study():
    base = Case(data="digits")
    swept = {p.case.defense for study in defense_studies.STUDIES for p in points_of(study, base, {})}
    assert set(CLIENT_DEFENSES) <= swept
    four = points_of("fedleak-fig4", base, {})
    assert {cell[0] for point in four for cell in point.paper} == {
        "text-fig4-accuracy/none/steps1", "text-fig4-accuracy/none/steps12", "text-fig4-accuracy/quantization/steps1",
        "text-fig4-psnr/none/steps1", "text-fig4-psnr/none/steps12", "text-fig4-psnr/quantization/steps1",
    }  # fmt: skip
    assert len({point.id for point in four}) == len(four)


TESTED_ELSEWHERE = ("stochastic_quantization", "withhold_top", "cancelling_noise")


#: One defense of each place and kind. The others run here with -m slow, and have their own and the common tests.
ONE_OF_EACH = ("dp_sgd", "encrypt_top", "error_feedback", "quantization", "soteria")


@pytest.mark.parametrize(
    "name", slow_but([name for name in CLIENT_DEFENSES if name not in TESTED_ELSEWHERE], ONE_OF_EACH)
)
def test_the_victims_client_is_defended(name):
    strongest = CLIENT_DEFENSES[name].strengths[-1]
    case = Case(data="digits", model="mlp", batch_size=2, pool=4)
    plain, defended = (victim(c, 0) for c in (case, Case(**{**vars(case), "defense": name, "strength": strongest})))
    sent = []
    for side in (plain, defended):
        state = jax.jit(side.protocol.init)(jax.random.key(0))
        sent.append(jax.jit(side.protocol.round)(jax.random.key(1), state, side.private)[1].payload)
    pairs = zip(*map(jax.tree.leaves, sent), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)


def test_defenses_that_are_named_without_a_study_are_those_that_run():
    planned = defenses._checked(args_of(defenses.Args, only=("gaussian", "quantization")), ("demo",))["demo"]
    drawn = [(point.case.defense, point.case.strength) for point in planned]
    own = [("gaussian", strength) for strength in CLIENT_DEFENSES["gaussian"].strengths]
    assert drawn == [(None, 0.0), *own, ("quantization", 4.0), ("quantization", 1.0)]
    own_strengths = args_of(defenses.Args, only=("gaussian",), strengths=("gaussian=0.5",))
    planned = defenses._checked(own_strengths, ("demo",))["demo"]
    assert [(point.case.defense, point.case.strength) for point in planned] == [(None, 0.0), ("gaussian", 0.5)]
    with pytest.raises(ValueError, match="strengths of gaussian, which demo does not have"):
        defenses._checked(args_of(defenses.Args, only=("soteria",), strengths=("gaussian=0.5",)), ("demo",))


@pytest.mark.slow
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
        defenses.main(args_of(defenses.Args, **changes, out=out))
    assert not out.exists()


def test_sizes_of_a_federation_hold_up_to_their_bounds():
    Federation(clients=8, samples=8, batch_size=1).check()
    Federation(clients=8, samples=23, batch_size=2).check()
    for sizes, message in (
        ({"samples": 7}, "samples must be in"),
        ({"samples": 23, "batch_size": 3}, r"batch_size must be in \[1, 2\], got 3"),
        ({"rounds": 0}, "rounds must be > 0"),
        ({"test_samples": 0}, "test_samples must be > 0"),
        ({"learning_rate": 0.0}, "learning_rate must be > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Federation(**{"clients": 8, **sizes}).check()


def test_what_leaves_the_trained_model_as_it_is_shares_its_training():
    plain = Case(model="mlp", data="digits", attacked_round=2, local_steps=1)
    for defense, strength, same in (
        ("encrypt_top", 20.0, True),
        ("cancelling_noise", 0.5, True),
        ("gaussian", 0.1, False),
        ("soteria", 0.5, False),
    ):
        defended = replace(plain, defense=defense, strength=strength, attack="dlg", pool=7)
        assert (utility_of(defended) == utility_of(plain)) == same
    assert utility_of(replace(plain, attacked_round=3)) != utility_of(plain)
    for name, value in (("momentum", 0.9), ("local_epochs", 2), ("loss", "focal_loss")):
        with pytest.raises(ValueError, match=f"{name} must be .* where the federation is trained .*, got {value}"):
            utility_of(replace(plain, **{name: value}))


def test_a_point_is_attacked_by_who_knows_the_defense_where_it_is_asked_for():
    federation, plain = Federation(), Case(model="mlp", data="digits")
    noisy = replace(plain, defense="gaussian", strength=0.1)
    pruned = replace(plain, defense="soteria", strength=0.5)
    unaware, knows, without_prior = (False, None), (True, None), (True, "weak")
    for case, adaptive, attacks in (
        (plain, None, [unaware]),
        (plain, ("gaussian",), [unaware]),
        (noisy, None, [unaware, knows, without_prior]),
        (noisy, (), [unaware]),
        (noisy, ("gaussian",), [unaware, knows, without_prior]),
        (noisy, ("soteria",), [unaware]),
        (pruned, None, [unaware, knows]),
    ):
        for attacked_round in (0, 4):
            of_round = replace(case, attacked_round=attacked_round)
            training, *jobs = cell_of_point(TradeOffPoint(of_round, "", 0.0), federation, adaptive).jobs
            assert training == utility_of(of_round)
            assert [(job.case.adaptive, job.case.prior) for job in jobs] == attacks
            assert {job.federation for job in jobs} == {federation if attacked_round else None}


def test_epsilon_is_that_of_a_clients_own_samples():
    federation = Federation(samples=82, clients=8, batch_size=5, rounds=3)
    expected = true_epsilon("dp_sgd", 2.0, batch_size=5, own_samples=10, rounds=3)
    assert _trade_offs._epsilon(Case(defense="dp_sgd", strength=2.0), federation) == {"true_epsilon": expected}
    assert _trade_offs._epsilon(Case(defense="gaussian", strength=2.0), federation) == {}
    assert _trade_offs._epsilon(Case(), federation) == {}


def test_a_federation_whose_data_are_drawn_from_other_files_is_refused(monkeypatch):
    drawn = {1: np.zeros((1, 8, 8, 1)), 1200: np.ones((1200, 8, 8, 1))}
    monkeypatch.setattr(_federation.data, "load", lambda spec, n, seed: SimpleNamespace(x=drawn[n]))
    with pytest.raises(
        ValueError, match=r"samples must be fewer: digits draws .*, got samples=800 and test_samples=400"
    ):
        Utilities(Federation(), None).require(utility_of(Case(data="digits")), 0)


def test_an_attack_without_a_score_is_not_the_best_one():
    assert max(([20.0, 22.0], [float("nan"), 50.0], [21.0, 22.0]), key=_trade_offs._mean) == [21.0, 22.0]


def test_changes_are_of_the_same_seeds():
    row = {"accuracy_values": [0.5, 0.75], "leak_values": [10.0, 14.0]}
    without = {"accuracy_values": [0.75, 0.75], "leak_values": [20.0, 20.0]}
    found = _trade_offs._change(row, without)
    assert found["accuracy_change_values"] == [-0.25, 0.0]
    assert (found["leak_change"], found["leak_change_spread"]) == (-8.0, 2.0)
    assert _trade_offs._change(row, None) == {}


def test_changes_are_against_the_undefended_upload_of_a_single_client(monkeypatch):
    """The average over several clients leaks less, but not because of the defense, so it is no baseline."""
    cases = [Case(), Case(clients=2), Case(defense="quantization", strength=1.0), Case(local_steps=2)]
    leaks = dict(zip(cases, (20.0, 5.0, 16.0, 9.0), strict=True))
    measured = lambda point, *_: {"accuracy_values": [0.5], "leak_values": [leaks[point.case]]}  # noqa: E731
    monkeypatch.setattr(_trade_offs, "_measured", measured)
    monkeypatch.setattr(_trade_offs, "cell_of_point", lambda point, *_: point)
    monkeypatch.setattr(_trade_offs, "run_cells", lambda cells, *_, beside, **__: [beside(cell, []) for cell in cells])
    points = [TradeOffPoint(case, "curve", case.strength) for case in cases]
    rows = _trade_offs.run_trade_off(points, None, None, SimpleNamespace(federation=None), seeds=(0,), budget=None)
    assert [row["leak_change"] for row in rows] == [0.0, -15.0, -4.0, 0.0]


def test_examples_gradients_need_one_step():
    with pytest.raises(ValueError, match="one local step in all, got 12"):
        client_defense("dp_soteria", 10.0, local_steps=12)


TINY = {
    "model": "mlp", "iterations": 2, "rounds": 2, "clients": 2, "samples": 16, "test_samples": 8, "batch_size": 2,
    "strengths": ("quantization=1", "cancelling_noise=1"),
}  # fmt: skip


@pytest.mark.slow
def test_tiny_demo_runs_reports_and_resumes(tmp_path, monkeypatch):
    args = args_of(defenses.Args, **TINY, out=tmp_path)
    first = defenses.main(args)
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {row["id"]: row for row in results["cells"]}
    assert set(rows) == {"none/steps1", "quantization/1/steps1", "cancelling_noise/1/steps1"}
    for row in rows.values():
        assert 0 <= row["accuracy"] <= 1
        assert (row["ours"], row["values"]) == (row["accuracy"], row["accuracy_values"])
        assert np.isfinite(row["psnr"])
        assert ("psnr_adaptive" in row) == (row["defense"] is not None)
        assert row["leak_change"] == pytest.approx(row["leak"] - rows["none/steps1"]["leak"])
    assert rows["none/steps1"]["bits_per_entry"] == 32
    assert 1 < rows["quantization/1/steps1"]["bits_per_entry"] < 1.1  # one scale per tensor
    text = (tmp_path / "report.md").read_text()
    assert "figures/demo-steps1.png" in text
    assert (tmp_path / "figures" / "demo-steps1.png").exists()
    for part in (
        "python -m experiments.defenses --strengths quantization=1 cancelling_noise=1 --model mlp",
        "## demo\n\n* Data digits, model mlp, batch 2, 2 iterations of the attack fedleak.\n",
        "| quantization | 1 | 1 | ",
        "2 clients with 8 samples each, all in each of 2 rounds, SGD at 0.5, tested on 8 other samples.",
        "* Of 1 local step: ",
        "Every point is one defense at one strength.",
    ):
        assert part in text

    def refuse(*args, **kwargs):
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr("jaxleak.study.updates.Utilities.run", refuse)
    monkeypatch.setattr("jaxleak.study.updates.Inversions.run", refuse)
    again = defenses.main(args)
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in first.items() if k != "seconds"}


def test_a_mechanism_that_its_defense_contradicts_is_refused_before_anything_runs(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from jaxleak import defenses\nfrom jaxleak.defenses.mechanisms import GaussianNoise, Mechanism\n"
        "def mine(strength):\n    noise = Mechanism(noise=GaussianNoise(strength))\n"
        "    return defenses.per_leaf('payload', lambda key, leaf: leaf, mechanism=noise)\n"
    )
    own = {"only": (f"{file}:mine",), "strengths": (f"{file}:mine=0.1",)}
    args = args_of(defenses.Args, **TINY | own, out=tmp_path / "o")
    with pytest.raises(ValueError, match=r"mine of strength 0\.1: mechanism declares noise"):
        defenses.main(args)
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_an_upload_of_a_later_round_is_that_of_the_defended_federation(tmp_path):
    strengths = ("outpost=0.5", "error_feedback=10")
    args = {**TINY, "strengths": strengths, "attacked_round": 1, "out": tmp_path}
    defenses.main(args_of(defenses.Args, **args))
    rows = {row["id"]: row for row in json.loads((tmp_path / "results.json").read_text())["cells"]}
    assert "attacked_round must be 0" in rows["error_feedback/10/steps1"]["not_run"]
    ran = [row for row in rows.values() if "accuracy" in row]
    assert len(ran) == 2
    assert all(np.isfinite([row["psnr"], row.get("psnr_adaptive", 0.0)]).all() for row in ran)
    utilities = Utilities(args_of(defenses.Args, **args).federation, tmp_path / "utility")
    case = Case(data="digits", model="mlp", attacked_round=1, learning_rate=0.5)
    plain = utilities.variables(utility_of(case), 0)
    noisy = utilities.variables(utility_of(replace(case, defense="outpost", strength=0.5)), 0)
    start = models.build("mlp", data.load("digits", 1).x.shape[1:], 10).init(jax.random.key(0))
    assert len(list((tmp_path / "utility").glob("*.safetensors"))) == 2
    ends = [ravel_pytree(of["params"])[0] for of in (plain, noisy, start)]
    assert ends[0].shape == ends[2].shape
    assert all(float(jnp.abs(a - b).max()) > 1e-3 for a, b in itertools.combinations(ends, 2))


def test_the_attacked_samples_are_of_the_training():
    federation = defenses.Args().federation
    few = defenses.Args(federation=replace(federation, samples=100, test_samples=50))
    assert {p.case.pool for p in defenses._checked(few, ("demo",))["demo"]} == {100}


def test_unseen_samples_are_none_of_the_federations():
    args = defenses.Args(unseen=True)
    case = defenses._checked(args, ("demo",))["demo"][0].case
    own, attacked = data.load("digits", args.federation.samples, 0), victim(case, 0).private
    assert len(attacked.x) == args.federation.test_samples
    assert not {x.tobytes() for x in np.asarray(attacked.x)} & {x.tobytes() for x in own.x}


def test_granted_labels_are_granted_to_both_attackers():
    points = defenses._checked(defenses.Args(labels="given"), ("demo",))["demo"]
    granted = [resolved(replace(p.case, adaptive=p.case.defense is not None)).threat.labels for p in points]
    assert len(granted) > 1
    assert all(granted)


def test_without_data_the_command_fails_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXLEAK_DATA_DIR", raising=False)
    args = args_of(defenses.Args, **TINY | {"data": "cifar10", "strengths": ("quantization=1",)}, out=tmp_path)
    with pytest.raises(FileNotFoundError, match="JAXLEAK_DATA_DIR"):
        defenses.main(args)
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_listed(tmp_path):
    metrics = defenses.main(defenses.Args(study=("fedleak-fig7", "fedleak-fig5"), budget=1e-6, out=tmp_path))
    assert metrics["cells_run"] == 0
    rows = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert all("beyond the budget" in row["not_run"] or "statement" in row["not_run"] for row in rows)
    assert {"defense", "strength", "curve", "clients"} <= rows[0].keys()
    text = (tmp_path / "report.md").read_text()
    assert "minutes: fedleak-fig7: none/steps12, fedleak-fig7: none/steps12-clients2" in text
    assert "## fedleak-fig7: what the paper concludes, and whether it holds here\n" in text
    assert "* `text-secure-aggregation-clients/degraded`: degraded" in text


@pytest.mark.slow
def test_every_study_stays_in_the_log(tmp_path):
    options = TINY | {"study": ("fedleak-fig8", "further"), "only": ("none",), "strengths": ()}
    defenses.main(args_of(defenses.Args, **options, out=tmp_path))
    for _ in range(2):
        log = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [line["id"] for line in log] == ["none/steps1", "none/steps1"]
        defenses.main(args_of(defenses.Args, **options, out=tmp_path))


def test_delegated_rows_become_curves():
    rows = [
        {"id": "table5-label/noise0.01#cut", "ours": 40.0},
        {"id": "table5-label/noise0.01#cut#adaptive", "ours": 50.0},
        {"id": "table5-utility/label/noise0.01#cut", "ours": -30.0},
        {"id": "table6-utility/marvell/criteo", "ours": None},
    ]
    curves = defense_delegated.trade_off_curves(rows)
    assert curves == {"noise on the cut": [{"strength": 0.01, "accuracy": -30.0, "psnr": 40.0, "psnr_adaptive": 50.0}]}


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
    undefended = {"defense": None, "strength": 0.0, "local_steps": 1, "clients": 1, "accuracy": 0.9}
    undefended |= {"leak": 8.0, "leak_best_match": 38.0}
    hidden = undefended | {"defense": "encrypt_top", "strength": 80.0, "leak_best_match": 12.0}
    found = defense_verdicts.verdicts("fedleak-fig8", [undefended, hidden])
    assert [(v.ours, v.holds) for v in found] == [("12.0 dB", False), ("", None)]
    assert [v.holds for v in defense_verdicts.verdicts("fedleak-fig4", [undefended, hidden])] == [False, None, None]
    many = {"local_steps": 12}
    strong, weak = hidden | many | {"leak_best_match": 5.0, "accuracy": 0.4}, hidden | many  # below 10 dB, and above
    for rows, holds in (([undefended | many], None), ([weak], False), ([weak, strong], True)):
        assert defense_verdicts.verdicts("fedleak-fig4", rows)[1].holds is holds
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
