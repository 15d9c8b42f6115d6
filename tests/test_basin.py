"""The basin around the truth: the compared distances, and the summary of a row."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments import basin
from jaxleak import objectives
from jaxleak.study.updates import Case, victim
from jaxleak.study.updates import basin as measured

CASE = Case(model="mlp", data="digits")
SHARPNESS = (2.0, 1e4)


@pytest.fixture(scope="module")
def found():
    return measured.distances(CASE, SHARPNESS, 4, 0)


def test_distances_are_those_of_the_gradients(found):
    """Distances of the truth and of the other batch equal those of gradients computed by hand."""
    side = victim(CASE, 0)
    variables = side.model.init(jax.random.key(0))

    def gradient(x, y):
        def loss(params):
            logits = side.model.apply({**variables, "params": params}, x).logits
            return -jax.nn.log_softmax(logits)[0, y]

        return jax.grad(loss)(variables["params"])

    x, y = side.private.x[:, 0], side.private.y
    expected = objectives.cosine(gradient(x[1:2], y[1]), gradient(x[-2:-1], y[1]))
    assert found.shape == (4, 2, len(measured.CANDIDATES))
    assert found[1, 1, measured.CANDIDATES.index("other")] == pytest.approx(float(expected), abs=1e-3)
    np.testing.assert_allclose(found[:, 1, 0], 0, atol=1e-3)
    assert (found[:, 0, 0] > 0.01).all()  # bias of the smooth copy


def test_row_spaces_need_no_backward_pass():
    """The distance of row spaces is the part of a layer's gradient outside the span of the candidate's inputs."""
    found = measured.distances(CASE, (1e4,), 2, 0, compare="row_spaces")[:, 0]
    truth, other = (found[:, measured.CANDIDATES.index(name)] for name in ("truth", "other"))
    assert (truth < 0.05).all()
    assert (other > 3 * truth).all()


def test_noise_has_the_level_that_it_is_called_by(found):
    """If kinks matter little, gradients deviate in proportion to small noise: 10 dB is a cosine factor of ten."""
    forty, thirty = (found[:, 1, measured.CANDIDATES.index(f"{level} dB")].mean() for level in (40, 30))
    assert 0 < forty < thirty < found[:, 1, measured.CANDIDATES.index("other")].mean()
    assert 4 < thirty / forty < 25


def test_reach_is_the_share_of_the_distance_at_the_best_sharpness():
    """The reach in an example of two batches, with other images at mean distances 0.8 (sharpness 2) and 0.4 (5)."""
    of_others = np.array([[0.7, 0.4], [0.9, 0.4]])
    noisy = {"truth": (0.4, 0.0), "40 dB": (0.6, 0.1), "30 dB": (0.4, 0.3), "20 dB": (0.7, 0.4)}
    values = np.empty((2, 2, len(measured.CANDIDATES)))
    for j, name in enumerate(measured.CANDIDATES):
        values[:, :, j] = noisy.get(name, of_others)
    cell = measured.reach_of_row("row", (2.0, 5.0), values)
    assert cell["reach"] == pytest.approx({"truth": 1.0, "40 dB": 0.75, "30 dB": 0.5, "20 dB": 0.125})
    assert cell["at_sharpness"] == {"truth": 5.0, "40 dB": 5.0, "30 dB": 2.0, "20 dB": 2.0}
    assert cell["standard_error"]["30 dB"] == pytest.approx(0.05 / 0.8 / np.sqrt(2))  # the mean 0.4 of 0.35 and 0.45
    assert cell["distance"]["other"] == pytest.approx([0.8, 0.4])
    assert cell["ours"] == cell["reach"]["30 dB"]


@pytest.mark.slow
def test_rows_are_stored_and_drawn(tmp_path):
    args = basin.Args(rows=("convnet-b4",), data="digits", sharpness=(3.0,), batches=2, seeds=(0, 1), out=tmp_path)
    (cell,) = basin.main(args)
    stored = json.loads((tmp_path / "results.json").read_text())
    assert cell["batches"] == 4
    assert stored["metrics"]["reach_30_db/convnet-b4"] == pytest.approx(cell["ours"])
    assert (tmp_path / "figures" / "convnet-b4.png").exists()


def test_warm_weights_are_those_that_are_measured(tmp_path, monkeypatch):
    seen = []

    def distances(case, sharpness, batches, seed, variables, compare):
        seen.append(variables)
        return np.ones((batches, len(sharpness), len(measured.CANDIDATES)))

    monkeypatch.setattr(measured, "distances", distances)
    monkeypatch.setattr(basin, "trained", lambda case, training, seed, folder: (f"weights {seed}", {}))
    args = basin.Args(rows=("convnet-b1",), data="digits", batches=1, seeds=(3, 5), out=tmp_path / "random")
    basin.main(replace(args, weights="warm", out=tmp_path / "warm"))
    basin.main(replace(args, seeds=(3,)))
    assert seen == ["weights 3", "weights 5", None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ("resnet99",)}, "rows must be one of"),
        ({"sharpness": (1.0, 0.0)}, r"sharpness\[1\] must be > 0, got 0.0"),
        ({"sharpness": ()}, "sharpness must be > 0, got 0"),
        ({"batches": 33, "rows": ("convnet-b4",)}, r"batches must be in \[1, 32\], got 33"),
        ({"seeds": ()}, "seeds must hold at least one seed"),
        ({"weights": "warm"}, "crops of the same photographs, which overlap, so weights"),
    ],
)
def test_bad_options_are_refused_at_once(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        basin.main(basin.Args(out=tmp_path, **options))
