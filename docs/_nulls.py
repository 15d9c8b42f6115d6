"""Write docs/results/null_scores.json: what answers score that know nothing of the private images.

    python -m docs._nulls

For every data set: the mean PSNR over its images of an all-black image, of a grey one (0.5), of the one constant that
scores best, of the mean colour of the data set, and of its mean image, in dB. Two more answers know the label alone:
the mean of the other images of the class, and another image of the class. Of these, and of the mean image, stands how
many images they would "recognise", by the SSIM above 0.8 that stands for recognition elsewhere. Of the data on which
the ledger has LPIPS, the LPIPS of the mean colour and of another image of the class stand beside them, which takes
`metrics.lpips` with its package and weights. Data sets that are files are read as docs/data.md says.
"""

import json

import numpy as np

from docs._storing import RESULTS
from jaxleak import data, metrics
from jaxleak.metrics._images import RECOGNISED_ABOVE
from jaxleak.study import provenance
from jaxleak.study.files import write_text

DATA = (
    "digits", "mnist", "natural_patches", "photographs", "cifar10", "cifar100", "lc25000_lung32", "lc25000_lung",
    "ham10000",
)  # fmt: skip
#: Data sets for which the ledger has cells of LPIPS.
OF_LPIPS = ("lc25000_lung32",)


def null_scores(images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores of answers that know nothing of the individual image, over (N, H, W, C) images in [0, 1] with labels (N,).

    Scores whose key names no metric are mean PSNR in dB. The constant is the best of 256 levels, equal in all channels.
    Answers that know the label leave out images that are alone in their class.
    """

    def of(answer: np.ndarray) -> float:
        return float(metrics.psnr(images, np.broadcast_to(answer, images.shape)).mean())

    def recognised(places: np.ndarray, answers: np.ndarray) -> float:
        return float(np.mean(metrics.ssim(images[places], answers) > RECOGNISED_ABOVE))

    places, means, others = _by_label(images, labels)

    # A constant c has the mean square error E x^2 - 2 c E x + c^2 on every image.
    first, second = (np.mean(images.astype(np.float64) ** n, axis=(1, 2, 3)) for n in (1, 2))
    levels = np.linspace(0.0, 1.0, 256)
    errors = second - 2 * levels[:, None] * first + levels[:, None] ** 2
    return {
        "black": of(np.zeros(1)),
        "grey": float(metrics.grey_psnr(images).mean()),
        "best_constant": float((-10 * np.log10(errors + 1e-12)).mean(axis=1).max()),
        "mean_colour": of(images.mean(axis=(0, 1, 2))),
        "mean_image": of(images.mean(axis=0)),
        "mean_image_recognised": recognised(np.arange(len(images)), np.broadcast_to(images.mean(axis=0), images.shape)),
        "class_mean": float(metrics.psnr(images[places], means).mean()),
        "class_mean_recognised": recognised(places, means),
        "same_class": float(metrics.psnr(images[places], others).mean()),
        "same_class_recognised": recognised(places, others),
        "images": float(len(images)),
    }


def null_lpips(images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Mean LPIPS of the mean colour and of a class's other image, over images (N, H, W, C) in [0, 1], H and W >= 32."""
    places, _, others = _by_label(images, labels)
    colour = np.broadcast_to(images.mean(axis=(0, 1, 2)), images.shape)
    return {
        "mean_colour_lpips": float(metrics.lpips(images, colour).mean()),
        "same_class_lpips": float(metrics.lpips(images[places], others).mean()),
    }


def _by_label(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of images that are not alone in their class; the mean of the class's others, and the next of them."""
    places, means, others = [], [], []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        if len(own) > 1:
            places.append(own)
            means.append((images[own].sum(axis=0) - images[own]) / (len(own) - 1))
            others.append(images[np.roll(own, -1)])
    return np.concatenate(places), np.concatenate(means), np.concatenate(others)


def main() -> None:
    """Score all data sets."""
    loaded = {name: data.load(name) for name in DATA}
    metrics_of = {name: null_scores(found.x, found.y) for name, found in loaded.items()}
    for name in OF_LPIPS:
        metrics_of[name] |= null_lpips(loaded[name].x, loaded[name].y)
    content = {"experiment": "null scores", "provenance": provenance(), "metrics": metrics_of}
    write_text(RESULTS / "null_scores.json", json.dumps(content, indent=2) + "\n")
    print(f"wrote {RESULTS / 'null_scores.json'}")


if __name__ == "__main__":
    main()
