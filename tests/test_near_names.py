"""An unknown option or name is refused with the usage of its own command, and with the names that may be meant."""

import pytest

from experiments import defenses as study
from jaxleak import _near_names, _validate
from jaxleak.__main__ import main
from jaxleak.defenses import CLIENT_DEFENSES
from jaxleak.study import run_command
from jaxleak.study.updates import kind_of_defense, parse_strengths


def test_every_other_name_is_of_a_defense():
    assert set(_near_names.OTHER_NAMES.values()) <= {*CLIENT_DEFENSES, "secure_aggregation"}
    assert not set(_near_names.OTHER_NAMES) & set(CLIENT_DEFENSES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("top-k", ["sparsification"]), ("DPSGD", ["dp_sgd"]), ("gausian", ["gaussian"]), ("shredder", [])],
)
def test_near_names_are_other_words_and_other_spellings(name, expected):
    assert _near_names.near(name, CLIENT_DEFENSES)[:1] == expected


def test_a_message_on_an_unknown_name_asks_whether_a_near_one_was_meant():
    with pytest.raises(ValueError, match=r"got 'topk'; did you mean sparsification\?"):
        _validate.one_of(tuple(CLIENT_DEFENSES), defense="topk")
    with pytest.raises(ValueError, match=r"got 'sotera'; did you mean soteria or dp_soteria\?"):
        kind_of_defense("sotera")
    with pytest.raises(ValueError, match=r"got 'secagg'; did you mean secure_aggregation\?"):
        parse_strengths(("secagg=2",))
    with pytest.raises(ValueError, match=r"got 7$"):
        _validate.one_of((1, 2), bits=7)


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        (
            ("audit", "--topk"),
            "usage: jaxleak audit",
            "--topk; the defense sparsification is chosen by --defense spars",
        ),
        (("audit", "--wieghts=w.pt"), "usage: jaxleak audit", "--wieghts; did you mean --weights?"),
        (("compare", "a", "--topk", "5"), "usage: jaxleak compare", "unknown option --topk\n"),
        (("models", "extra"), "usage: jaxleak models", "unrecognized arguments: extra"),
    ],
)
def test_the_usage_of_an_unknown_option_is_that_of_its_command(capsys, words, usage, message):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(usage)
    assert message in said


def test_the_study_of_defenses_knows_a_defense_by_its_other_names(capsys):
    with pytest.raises(SystemExit):
        run_command(study.main, study.Args, study.__doc__, name="study", words=("--topk", "5", "--seeds", "0"))
    assert "\nunknown option --topk; the defense sparsification is chosen by --only sparsification\n" in (
        capsys.readouterr().err
    )
