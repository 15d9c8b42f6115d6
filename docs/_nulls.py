"""Write docs/results/null_scores.json: what answers score that know nothing of the private images.

    python -m docs._nulls

For every data set: the mean PSNR over its images of an all-black image, of a grey one (0.5), of the one constant that
scores best, and of the mean image of the data set, in dB. Data sets that are files are read as docs/data.md says.
"""

import json

import numpy as np

from docs._storing import RESULTS
from jaxleak import data, metrics
from jaxleak.study import provenance
from jaxleak.study.files import write_text

DATA = ("digits", "mnist", "natural_patches", "photographs", "cifar10", "cifar100")


def null_scores(images: np.ndarray) -> dict[str, float]:
    """Mean PSNR in dB of answers that know nothing of single images, over (N, H, W, C) images in [0, 1].

    The constant is the best of 256 levels, in all channels.
    """

    def of(answer: np.ndarray) -> float:
        return float(metrics.psnr(images, np.broadcast_to(answer, images.shape)).mean())

    # The error of a constant c is E x^2 - 2 c E x + c^2 for every image.
    first, second = (np.mean(images.astype(np.float64) ** n, axis=(1, 2, 3)) for n in (1, 2))
    levels = np.linspace(0.0, 1.0, 256)
    errors = second - 2 * levels[:, None] * first + levels[:, None] ** 2
    return {
        "black": of(np.zeros(1)),
        "grey": float(metrics.grey_psnr(images).mean()),
        "best_constant": float((-10 * np.log10(errors + 1e-12)).mean(axis=1).max()),
        "mean_image": of(images.mean(axis=0)),
        "images": float(len(images)),
    }


def main() -> None:
    """Score all data sets."""
    metrics_of = {name: null_scores(data.load(name).x) for name in DATA}
    content = {"experiment": "null scores", "provenance": provenance(), "metrics": metrics_of}
    write_text(RESULTS / "null_scores.json", json.dumps(content, indent=2) + "\n")
    print(f"wrote {RESULTS / 'null_scores.json'}")


if __name__ == "__main__":
    main()
