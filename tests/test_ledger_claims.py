"""Claims about several numbers: all of them together support a claim, and a single one refutes it."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_study import FakeStudy, measurement, run

from experiments._ledger import vflrecon
from experiments._ledger.cafe import CafeStudy
from experiments._ledger.papers import ledger_of
from jaxleak.study.ledger import claims
from jaxleak.study.rounds.runs import Setting

THEIRS = "text-claims/cafe-always"  # printed with a bound of 30 dB


def of(*values):
    return [SimpleNamespace(scores={"value": value}) for value in values]


def members(*, variant="printed"):
    tables = [measurement("table2/cafe/cifar10", 24.0, variant), measurement("table2/cafe/mnist", 50.0, variant)]
    return [replace(m, differs=note, data=("a", "b")[:n]) for n, (m, note) in enumerate(zip(tables, "xy", strict=True))]


def test_a_statement_is_about_all_of_its_numbers_in_a_variant_that_all_have():
    tables = [*members(), *members(variant="reduced")[:1], measurement("table2/dlg/mnist", 1.0)]
    whole, *alone = claims(tables, THEIRS, ["table2/cafe/cifar10", "table2/cafe/mnist"], min)
    assert (whole.cell, whole.variant, whole.name, whole.partial) == (THEIRS, "printed", "", False)
    assert (whole.jobs, whole.differs, whole.data) == ((24.0, 50.0), "x; y", ("a",))
    assert whole.read(of(24.0, 50.0)) == 24.0
    (most, *_) = claims(tables, THEIRS, ["table2/cafe/cifar10", "table2/cafe/mnist"], max)
    assert most.read(of(24.0, 50.0)) == 50.0
    assert [m.name for m in alone] == ["alone-cafe-cifar10", "alone-cafe-mnist"]
    assert all(m.partial and m.cell == THEIRS and m.variant == "reduced" for m in alone)
    assert alone[0].differs == "of table2/cafe/cifar10 alone, which can refute the statement; x"
    assert alone[1].read(of(50.0)) == 50.0


@pytest.mark.parametrize("name", ["", "reduced"])
def test_one_number_on_other_data_tests_a_statement_too(name):
    tables = [replace(m, name=name) for m in members(variant="stand-in")]
    _, *alone = claims(tables, THEIRS, ["table2/cafe/cifar10", "table2/cafe/mnist"], min)
    ending = f"-{name}" if name else ""
    assert [m.name for m in alone] == [f"alone-cafe-cifar10{ending}", f"alone-cafe-mnist{ending}"]
    assert all(m.partial and m.variant == "stand-in" for m in alone)
    narrow = [replace(m, name="narrow") for m in members(variant="stand-in")]
    assert len(claims(narrow, THEIRS, ["table2/cafe/cifar10", "table2/cafe/mnist"], min)) == 1


def test_a_statement_about_one_number_is_no_part_of_itself():
    assert [m.partial for m in claims(members(), THEIRS, ["table2/cafe/mnist"], min)] == [False]


@pytest.mark.parametrize(("value", "status"), [(24.0, "missed"), (50.0, "not run")])
def test_one_number_refutes_a_statement_and_does_not_meet_it(tmp_path, value, status):
    ledger = ledger_of("cafe", tmp_path)
    part = replace(measurement(THEIRS, value), partial=True)
    (entry,) = run(FakeStudy(part), ledger, tmp_path)
    assert entry.status == status
    assert entry.why.endswith(f"{value:g} against at least 30")
    assert (entry.value is None) == (status == "not run")
    # A further seed that does not refute the claim withdraws the refutation.
    if status == "missed":
        run(FakeStudy(replace(part, jobs=(100.0,), differs="another seed")), ledger, tmp_path)
        assert ledger.entries[part.key].status == "not run"


@pytest.mark.parametrize("values", [(40.0, float("nan")), (float("nan"), 40.0)])
@pytest.mark.parametrize("combine", [min, max])
def test_a_run_without_a_number_leaves_none_of_a_statement_about_all(values, combine):
    whole = claims(members(), THEIRS, ["table2/cafe/cifar10", "table2/cafe/mnist"], combine)[0]
    assert math.isnan(whole.read(of(*values)))


@pytest.fixture(scope="module")
def cafe(tmp_path_factory):
    studies = {name: CafeStudy(name, tmp_path_factory.mktemp(name)) for name in ("cafe", "cafe-iclr")}
    return {name: {m.key: m for m in study.measurements()} for name, study in studies.items()}


def test_table_10_cuts_all_steps_and_is_read_off_one_descent_beside_that(cafe):
    cell = "table10/cafe/epoch150/k40"
    (own,) = cafe["cafe"][cell, "stand-in", "reduced-narrow"].jobs
    assert (own.iterations, own.steps_at, own.num_samples, own.batch_size) == (3000, 3000, 80, 4)
    (whole,) = cafe["cafe"][cell, "ours", "whole-steps-reduced-narrow"].jobs
    assert (whole.iterations, whole.steps_at) == (7000, 0)


def test_table_4_of_the_submission_keeps_its_epochs(cafe):
    cell = "table4/cafe/vfl-cifar10/ratio{}"
    for ratio, iterations in ((0.1, 8000), (0.05, 16_000), (0.02, 40_000), (0.01, 80_000)):
        (setting,) = cafe["cafe-iclr"][cell.format(ratio), "printed", ""].jobs
        assert setting.iterations == iterations
        assert setting.batch_size == 800 * ratio
    reduced = cafe["cafe-iclr"][cell.format(0.01), "reduced", ""]
    (setting,) = reduced.jobs
    # The steps are fewer but longer, so the path of a sample has the same length.
    assert setting.iterations * setting.batch_size / setting.num_samples == 50
    assert dict(setting.overrides) == {"data_learning_rate": pytest.approx(1.6)}
    assert "50 updates of every sample for 800, each 16 times as long (1.6)" in reduced.differs


def test_all_of_the_submission_descends_by_normalised_steps(cafe):
    settings = [job for m in cafe["cafe-iclr"].values() for job in m.jobs if job.kind != "exact"]
    assert {s.method for s in settings} == {"cafe-iclr", "cafe-cosine", "dlg", "cosine"}
    assert {s.data_optimizer for s in settings if s.kind == "descent"} == {"normalized"}
    assert all(dict(s.overrides)["data_learning_rate"] >= 0.1 for s in settings)


def test_the_psnr_that_decides_is_the_one_that_the_paper_prints(cafe):
    found = [SimpleNamespace(scores={"psnr": 1.0, "psnr_channel_peak": 2.0})]
    for paper, cell, plain, other in (
        ("cafe", "table2/cafe/mnist", 1.0, "channel-peak"),
        ("cafe-iclr", "table2b/cafe/cifar10", 2.0, "peak-one"),
    ):
        assert cafe[paper][cell, "printed", ""].read(found) == plain
        assert cafe[paper][cell, "printed", other].read(found) == 3.0 - plain


def test_other_data_are_named_and_so_is_what_no_paper_prints(cafe):
    assert ("table2/cafe/linnaeus5", "ours", "stand-in") in cafe["cafe"]
    assert ("table11/true/iter0", "stand-in", "") in cafe["cafe"]
    assert ("table11/true/iter0", "stand-in", "reduced") in cafe["cafe"]
    for (_, variant, _), m in cafe["cafe"].items():
        if variant == "printed" and any(isinstance(job, Setting) and job.kind != "exact" for job in m.jobs):
            assert "not printed" in m.differs


def test_the_papers_record_starts_at_the_attackers_own_weights_and_more_is_named(tmp_path):
    found = {m.key: m for m in vflrecon.VflReconStudy(tmp_path).measurements()}
    cell = "table6-label/no-defense/sensorless"
    own, shared = found[cell, "reduced", ""], found[cell, "ours", "shared-start"]
    assert [m.jobs[0].runs.shadow_init for m in (own, shared)] == [("own_bottom",), ("shared",)]
    assert own.jobs[0].case == shared.jobs[0].case
    scores = {"label_accuracy_own_bottom": 0.25, "label_accuracy_shared": 0.75}
    assert [m.read([SimpleNamespace(scores=scores)]) for m in (own, shared)] == [25.0, 75.0]
    assert "more than the paper grants" in shared.differs
    assert "more than the paper grants" not in own.differs
    for (_, variant, _), m in found.items():
        assert variant == "ours" or "more than the paper grants" not in m.differs
    sgd = found["table4-optimizer-label/plain/sgd", "reduced", ""]
    assert "sgd at a rate of 0.1, where 0.001 is printed" in sgd.differs
