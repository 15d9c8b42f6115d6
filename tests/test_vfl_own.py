"""A vertical run with a user's table, division of the columns, and defense."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments import vflrecon
from experiments._vfl.options import Args
from jaxleak import audit
from jaxleak.defenses import Defense, SplitRun
from jaxleak.study.parties import (
    THREAT,
    SplitCase,
    SplitSetup,
    about_run,
    column_section,
    sources_of_parties,
    split_problem,
)
from jaxleak.study.parties._split_defense import defense_of
from jaxleak.study.parties._truth import Truth

DEFENSES = """
import jax
import jax.numpy as jnp
from jaxleak import defenses


def silent(strength):
    return defenses.stateless("cut_gradient", lambda key, gradient, **_: jax.tree.map(jnp.zeros_like, gradient))


def nothing(strength):
    return None


kind = defenses.SplitDefense(lambda strength, run: silent(strength * run.batch_size), 2.0, "nothing at all")
number = 3
"""


@pytest.fixture
def table(tmp_path):
    """A CSV file of 96 rows with four numbers (one often missing) and a code; returns its data specification."""
    rng = np.random.default_rng(0)
    x = rng.random((96, 4)).round(3)
    rows = [
        f"{row[0]},{row[1] if n % 3 else ''},{'ab'[n % 2]},{row[2]},{row[3]},{int(row.sum() > 2)}"
        for n, row in enumerate(x)
    ]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["age,income,job,balance,score,default", *rows]))
    return f"csv:{path}?label=default"


def case_of(table, **options):
    return SplitCase(table, batch_size=8, network_epochs=1, task_epochs=2, **options)


@pytest.mark.parametrize(
    ("options", "widths", "columns"),
    [
        ({"columns": ("score, age",)}, (2, 3), ([0, 3], [1, 2, 4])),  # numeric columns come first, and the job is last
        ({"columns": ("job", "income,age"), "parties": 3}, (1, 2, 2), ([4], [0, 1], [2, 3])),
        ({"columns": ("job", "income,age,balance,score")}, (1, 4), ([4], [0, 1, 2, 3])),
    ],
)
def test_columns_are_dealt_by_name(table, options, widths, columns):
    problem = split_problem(case_of(table, **options), 0)
    assert problem.model.widths == widths
    for found, wanted in zip(problem.columns, columns, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_columns_without_names_have_numbers():
    problem = split_problem(SplitCase("breast_cancer", columns=("3,0",)), 0)
    np.testing.assert_array_equal(problem.columns[0], [0, 3])
    assert problem.model.widths == (2, 28)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ("age,wage",)}, "has no column 'wage'; it has age, income, balance, score, job"),
        ({"columns": ("age", "income,age")}, "'age' must be given once, got it 2 times"),
        ({"columns": ("age", "income")}, "nobody holds balance, score, job: give them to a party"),
        ({"columns": ("age", "job", "score")}, "lists of 1 or 2 parties, as parties is 2, got 3"),
        (
            {"columns": ("age,income,job,balance,score",)},
            "party 1, the label holder, would have no column that says anything, since",
        ),
        ({"columns": ("age",), "parties": 1}, "parties must be at least 2, got 1"),
        ({"columns": ("age",), "share": 0.3}, "share and partition must not be given beside them"),
        ({"columns": ("age",), "partition": "random"}, "share and partition must not be given beside them"),
    ],
)
def test_divisions_that_do_not_fit_are_refused(table, options, message):
    with pytest.raises(ValueError, match=message):
        split_problem(case_of(table, **options), 0)


def test_columns_are_of_data_and_not_of_the_papers_tables(tmp_path):
    with pytest.raises(ValueError, match="columns are of --data, and the papers' tables have their own"):
        vflrecon.main(Args(table=("table3",), setup=SplitSetup(columns=("0",)), out=tmp_path))


def test_a_missing_value_counts_in_no_score(table):
    problem = split_problem(case_of(table, columns=("age",)), 0)
    truth = Truth(problem, np.arange(64).reshape(8, 8))
    assert truth.known.sum(axis=0).tolist() == [int(np.sum(~problem.missing[:, 1, 0])), 64, 64, 64]
    assert 0 < truth.known[:, 0].sum() < 64
    x = truth.victims(problem.victim.x)
    np.testing.assert_array_equal(x[~truth.known], 0)
    assert truth.feature_mse_of(np.where(truth.known, x, 7.0)) == 0
    known = [column[counts] for column, counts in zip(x.T, truth.known.T, strict=True)]
    wanted = sum(((one - one.mean()) ** 2).sum() for one in known) / truth.known.sum()
    assert truth.feature_variance == pytest.approx(wanted, rel=1e-5)
    assert not problem.without_truth().missing.any()
    assert not split_problem(case_of(table, columns=("age",), missing="zero"), 0).missing.any()


def test_columns_are_scored_one_by_one_with_all_features_of_a_category(table):
    case = case_of(table, columns=("age",), categories="one_hot")
    problem = split_problem(case, 0)
    truth = Truth(problem, np.arange(32).reshape(4, 8))
    assert problem.model.widths == (1, sum(problem.spans[1]))
    assert max(problem.spans[1]) > 1  # the categories' columns
    x = truth.victims(problem.victim.x)
    estimate = x + 0.1 * np.random.default_rng(0).standard_normal(x.shape)
    wanted, begin = [], 0
    for width in problem.spans[1]:
        errors = squares = 0.0
        for feature in range(begin, begin + width):
            rows = [row for row in range(32) if truth.known[row, feature]]
            mean = np.mean(x[rows, feature])
            errors += sum((x[row, feature] - estimate[row, feature]) ** 2 for row in rows)
            squares += sum((x[row, feature] - mean) ** 2 for row in rows)
        begin += width
        wanted.append(1 - errors / squares)
    np.testing.assert_allclose(truth.by_column(estimate), wanted, rtol=1e-4)

    arrays = {"columns_shared": np.array([0.1, 0.2, np.nan, 0.4]), "columns_label_holder": np.array([0.9])}
    arrays |= {"columns_shared_adaptive": np.array([0.0, 0.3, np.nan, 0.4])}
    (section,) = column_section("people", case, arrays, seed=0)
    assert section.header == ("column", "VFLRecon, shared start", "label holder")
    assert [tuple(row) for row in section.rows] == [
        ("age", "own", "0.900"), ("income", "0.100", "own"), ("balance", "0.300", "own"), ("score", "-", "own"),
        ("job", "0.400", "own"),
    ]  # fmt: skip
    assert "hashed" not in section.text[0]
    bad = {"columns_shared": np.array([-193.0, 0.0, np.nan, 1e-3])}
    (section,) = column_section("people", replace(case, categories="hashed"), bad, seed=0)
    assert [tuple(row) for row in section.rows] == [
        ("age", "own"), ("income", "none"), ("balance", "none"), ("score", "-"), ("job (hashed)", "0.001"),
    ]  # fmt: skip
    assert "'none' stands for 0" in section.text[0]
    assert "'(hashed)' marks" in section.text[0]
    assert column_section("people", case, {"right_free": np.ones(2)}, seed=0) == ()
    assert column_section("digits", SplitCase("digits"), arrays, seed=0) == ()


def _gradients(protocol, private):
    start = protocol.init(jax.random.key(0))
    _, seen = audit.watch(protocol, THREAT, private, start, key=jax.random.key(1), rounds=1)
    return np.asarray(seen.party.output_gradient)


@pytest.mark.slow
def test_a_defense_of_ones_own_is_in_the_real_run_and_in_the_shadow_run_of_who_knows_it(table, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(DEFENSES)
    case = case_of(table, columns=("age",), defense=f"{path}:silent", strength=1.0)
    problem = split_problem(case, 0)
    assert not _gradients(problem.victim_protocol, problem.victim).any()
    assert not _gradients(problem.adaptive_protocol, problem.shadow).any()
    assert _gradients(problem.shadow_protocol, problem.shadow).any()
    (file,) = (name for name in sources_of_parties(case) if name.startswith("the defense"))
    assert file == f"the defense {path}:silent (its file {path})"


def test_what_is_known_of_a_defense_of_ones_own_is_said(table, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(DEFENSES)
    case = case_of(table, columns=("age",), defense=f"{path}:kind")
    assert f"Its defense is {path}:kind of strength 2 (nothing at all)." in about_run(case, 0)
    assert isinstance(defense_of(case.defense, 0.0, SplitRun(2, 8, 64, 1)), Defense)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("silent", {}, "strength must be given: .*silent has no default"),
        ("nothing", {"strength": 1.0}, "must return a jaxleak.defenses.Defense, got NoneType"),
        ("number", {"strength": 1.0}, "must be a function that makes a jaxleak.defenses.Defense from its strength"),
        ("absent", {"strength": 1.0}, "mine.py has no 'absent'"),
    ],
)
def test_defenses_that_are_none_are_refused(table, tmp_path, name, options, message):
    path = tmp_path / "mine.py"
    path.write_text(DEFENSES)
    with pytest.raises(ValueError, match=message):
        split_problem(case_of(table, defense=f"{path}:{name}", **options), 0)
