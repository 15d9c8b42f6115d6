"""A run that was killed and started again leaves the files of an uninterrupted one, and is bound to its data."""

import json
import shutil

import pytest
from slowness import slow_among
from tiny_studies import Killed, left_by, studies  # noqa: F401

from experiments import invert
from jaxleak.study import Progress, plots
from jaxleak.study.updates import Case

#: Options of each study, and the number of the stub's call at which the study is killed.
KILLED = {
    "invert": ({"seeds": (5, 7)}, 2),
    "homotopy": ({"seeds": (5, 7)}, 2),
    "basin": ({"seeds": (5, 7)}, 2),
    "cafe_tables": ({"seeds": (0, 1)}, 2),
    "fedleak": ({"seeds": (5, 7)}, 2),
    "fedleak, demo": ({"seeds": (5, 7)}, 2),
    "defenses": ({"seeds": (5, 7)}, 5),
    "vflrecon": ({"seeds": (0, 1)}, 2),
    "vflrecon, tables": ({"seeds": (0, 1)}, 6),
    "agreement": ({"seeds": (0, 1)}, 3),
    "audited": ({"seed": 3}, 2),
    "mistakes": ({"seed": 3}, 12),
}


#: Studies whose runs take longest; the same code resumes the seeds of all studies.
LONG = ("agreement", "basin", "cafe_tables", "defenses", "homotopy", "mistakes", "fedleak", "vflrecon, tables")


@pytest.mark.parametrize("name", slow_among(KILLED, LONG))
def test_a_killed_study_leaves_the_same_files(studies, name):  # noqa: F811
    options, kill_at = KILLED[name]
    studies.draw(name, 0)
    whole, resumed = studies.resumed(name, kill_at, **options)
    assert resumed.keys() == whole.keys()
    assert {file for file in whole if whole[file] != resumed[file]} == set()
    assert "metrics.jsonl" in whole or name in ("agreement", "audited")  # these keep files of their cases
    pictures = {file for file in whole if file.endswith(".png")}
    assert pictures or name in ("audited", "cafe_tables", "mistakes", "vflrecon")  # these draw no picture here
    study = name.partition(",")[0]
    command = "jaxleak invert" if study == "invert" else f"python -m experiments.{study}"
    assert command in whole["report.md"].decode() or study == "defenses"  # its report has another form
    assert "figures/fig6.png" in pictures or name != "vflrecon, tables"
    # The finished run also serves for a second test: whether the run is bound to its data.
    studies.refuse_other_data(name, **options)


@pytest.mark.slow
def test_curves_of_an_inversion_go_on_where_a_kill_cut_them(tmp_path, monkeypatch):
    """The attack itself runs here: after seed 5 is done, seed 7 is killed after 100 of its 150 iterations."""
    args = invert.Args(
        Case(data="digits", model="mlp", pool=8, iterations=150, restarts=2), seeds=(5, 7), out=tmp_path / "out"
    )
    drawn, curves = [], plots.curves
    monkeypatch.setattr(
        plots, "curves", lambda path, series, **how: (drawn.append(series), curves(path, series, **how))
    )
    invert.main(args)
    whole = left_by(args.out)
    shutil.rmtree(args.out)

    def cut(self, phase, done, total, note=""):
        if (phase, done) == ("seed 7", 100):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "update", cut)
        with pytest.raises(Killed):
            invert.main(args)
    invert.main(args)
    assert left_by(args.out) == whole
    assert {label: len(y) for label, (_, y) in drawn[1].items()} == {"seed 5": 150, "seed 7": 150}
    assert [json.loads(line)["seed"] for line in (args.out / "metrics.jsonl").open()] == [5, 7]
