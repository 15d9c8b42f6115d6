"""Contact sheets: small images are enlarged enough to be judged, and every image with a truth has its PSNR."""

import numpy as np
import pytest
from PIL import Image

from jaxleak.study import parties, sheets


@pytest.fixture
def captions(monkeypatch):
    """The texts below drawn images, one list for each row with texts."""
    kept, below = [], sheets._captions
    monkeypatch.setattr(sheets, "_captions", lambda texts, *where: kept.append(list(texts)) or below(texts, *where))
    return kept


@pytest.mark.parametrize("side", [8, 28, 32])
@pytest.mark.parametrize(("draw", "columns"), [("comparison", 8), ("comparison", 16), ("contact", 8), ("contact", 20)])
def test_small_images_are_at_least_64_pixels_wide(draw, columns, side, tmp_path):
    dark, path = np.zeros((columns, side, side, 1)), tmp_path / "sheet.png"
    if draw == "comparison":
        sheets.comparison_sheet(path, {"private images": dark}, columns=columns)
    else:
        sheets.contact_sheet(path, dark, dark, columns=columns)
    black = (np.asarray(Image.open(path).convert("L")) == 0).sum(axis=1)
    assert black.max() >= 64 * columns
    assert black.max() <= 1700


def test_large_images_are_shown_as_they_are(tmp_path):
    sheets.comparison_sheet(tmp_path / "sheet.png", {"private images": np.zeros((2, 224, 224, 3))})
    assert (np.asarray(Image.open(tmp_path / "sheet.png").convert("L")) == 0).sum(axis=1).max() == 2 * 224


def test_every_reconstruction_has_the_psnr_of_what_is_shown(captions, tmp_path):
    truth = np.full((3, 8, 8, 1), 0.5)
    wrong = np.stack([truth[0] + 0.1, truth[1] + 9.0, np.full((8, 8, 1), np.nan)])
    sheets.comparison_sheet(tmp_path / "sheet.png", {"private": truth, "wrong": wrong, "right": truth}, columns=3)
    assert captions == [["20.0 dB", "6.0 dB", "not finite"], ["exact"] * 3]


def test_a_row_beside_no_truth_has_no_psnr(captions, tmp_path):
    rows = {"best start": np.zeros((2, 8, 8, 1)), "second best start": np.ones((1, 8, 8, 1))}
    sheets.comparison_sheet(tmp_path / "sheet.png", rows, truth_first=False)
    assert captions == []


def test_strips_of_victims_have_a_title_and_their_psnr(captions, tmp_path, monkeypatch):
    texts, text = [], sheets._text
    monkeypatch.setattr(sheets, "_text", lambda said, size: texts.append(said) or text(said, size))
    victims = np.full((4, 32 * 16), 0.25)
    parties.draw_strips(tmp_path / "strips.png", victims, victims + 0.1)
    assert captions == [["20.0 dB"] * 4]
    title, *rows = texts
    assert "higher PSNR leaks more" in title
    assert len(rows) == 2
