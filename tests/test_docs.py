"""Programs in the documentation run and find what they say."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def program(page):
    """The one Python program of a page."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return code


def run(page):
    names = {"__name__": page}
    exec(compile(program(page), page, "exec"), names)
    return names


def test_a_model_of_ones_own_is_attacked_with_a_captured_gradient():
    names = run("docs/your_model.md")
    assert int(names["found"].y[0]) == names["secret"].y[0]
    assert float(names["metrics"].psnr(names["secret"].x, names["found"].x[:, 0])[0]) > 40


def test_archives_of_ones_own_are_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXLEAK_DATA_DIR", "")  # which the page sets; pytest then restores it
    names = run("docs/data.md")
    assert names["images"].x.shape == (20, 28, 28, 1)
    assert names["images"].x.max() <= 1
    assert names["adult"].numeric.shape == (100, 2)
    assert names["adult"].categorical.shape == (100, 1)


def test_the_readmes_program_recovers_both_images():
    names = run("README.md")
    assert sorted(names["found"].y.tolist()) == sorted(names["transcript"].private.y.tolist())
    assert names["metrics"].psnr(names["truth"], names["answer"][names["order"]]).min() > 25
