"""The notebooks in `examples/` run from an empty folder, have their stated results, and draw the pictures they show."""

import importlib.util
import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.py"))


spec = importlib.util.spec_from_file_location("_notebooks", ROOT / "docs" / "_notebooks.py")
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)


def shown(notebook):
    """The pictures that the text of a notebook shows."""
    return re.findall(r"^# !\[.+\]\((.+)\)$", notebook.read_text(), re.MULTILINE)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_its_question_and_its_pictures_are_stored(notebook):
    assert re.match(r"# %% \[markdown\]\n# # .+\?\n", notebook.read_text())
    assert shown(notebook)
    assert all((ROOT / "docs" / "examples" / picture).is_file() for picture in shown(notebook))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_every_cell_printed_is_stored(notebook):
    printed = json.loads((ROOT / "docs" / "examples" / f"{notebook.stem}.json").read_text())
    code = [body for is_text, body, _ in notebooks.cells(notebook.read_text()) if not is_text]
    assert [bool(said) for said in printed] == ["print(" in body for body in code]


def test_cells_keep_their_lines_and_an_error_its_number(tmp_path):
    text = "# %% [markdown]\n# # Text\n\n# %%\na = 1\n# %%\n\nprint(a)\nb = 1 / 0\n"
    assert notebooks.cells(text) == [
        (True, "# # Text\n\n", 1), (False, "a = 1\n", 4), (False, "\nprint(a)\nb = 1 / 0\n", 6),
    ]  # fmt: skip
    (tmp_path / "wrong.py").write_text(text)
    with pytest.raises(ZeroDivisionError) as error:
        notebooks.run(tmp_path / "wrong.py")
    assert error.traceback[-1].lineno + 1 == 9


def ran(name, folder, monkeypatch):
    """Run a notebook in an empty folder; returns the names that it defines, after a check that it drew its pictures."""
    monkeypatch.chdir(folder)
    names = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    assert all((folder / picture).is_file() for picture in shown(ROOT / "examples" / f"{name}.py"))
    return names


@pytest.mark.slow
def test_an_update_of_pytorch_leaks_and_a_mistaken_one_is_noticed(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    names = ran("audit_a_torch_model", tmp_path, monkeypatch)
    assert names["verdict"].verdict == "leaks"
    assert names["verdict"].metrics["psnr"] > 30
    assert names["mistaken"].verdict == "inputs inconsistent"


@pytest.mark.slow
def test_cafe_reads_faces(tmp_path, monkeypatch):
    names = ran("cafe_on_a_vertical_federation", tmp_path, monkeypatch)
    assert names["psnr"].min() > 100


@pytest.mark.slow
def test_an_attack_of_ones_own_runs_beside_published_ones(tmp_path, monkeypatch):
    names = ran("add_an_attack", tmp_path, monkeypatch)
    assert set(names["curves"]) == {"every tensor alike (ours)", "Inverting Gradients", "FedLeak"}
    assert all(curve[-1] < curve[0] for _, curve in names["curves"].values())


@pytest.mark.slow
def test_a_defense_is_chosen_by_what_it_leaves_to_who_knows_it(tmp_path, monkeypatch):
    names = ran("choose_a_defense", tmp_path, monkeypatch)
    soteria = names["curves"]["soteria"][0]
    assert soteria["psnr_adaptive"] > soteria["psnr"] + 20  # hides only from an attacker who does not know it
    assert names["leak"] == min(leak for leak, _ in names["affordable"]) < names["none"]
