"""The report of an audit: one HTML file that works offline, in light and dark mode, and on paper."""

import base64
import io
import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from jaxleak._replacing import replacing
from jaxleak.audit._verdict import Verdict
from jaxleak.audit._verdict.verdict import called
from jaxleak.metrics._images import RECOGNISED_ABOVE

_MEANING = {
    "leaks images and labels": "Private images of this client and their labels can be read from its update.",
    "leaks images": "Private images of this client can be read from its update.",
    "leaks labels": "Labels of this client's data can be read from its update. No image is certified, but those below "
    "may be right all the same.",
    "not shown to leak": "The attacks below did not show private data. That is no proof of safety.",
    "not attacked": "Nothing is known of a leak: the time was spent before any attack came to its end, or none here "
    "knows the loss.",
    "inputs inconsistent": "The update cannot come from the client that was described, so nothing was attacked.",
}
#: Readable names of the metrics, by their names in results.json. Scores against the truth need a given truth.
_NUMBERS = {
    "verdict": "verdict",
    "label_count": "labels proven to be in the batch",
    "images_certified": "certified images",
    "attacked": "whether an attack on images came to its end",
    "token_count": "tokens named, if the inputs are one-hot codes",
    "gradient_misfit": "difference between the update and the answer's gradient, relative to the update",
    "agreement": "agreement: mean SSIM between independent starts (1: the same image)",
    "undetermined": "share of images in whose place another one explains the update as well",
    "remainder": "difference between the update and the gradient of images near the answer, found without a prior",
    "below_head": "the same difference for the layers below the head alone, relative to their own part of the update; "
    "0 if it was not computed",
    "psnr": "PSNR to the truth, in dB (30 and more show an image's detail)",
    "psnr_best_match": "the same, where several true images may share an answer",
    "psnr_up_to_scale": "the same after a common factor, for answers of wrong brightness",
    "psnr_grey": "PSNR of a grey image, which has found nothing, in dB",
    "psnr_mean_image": "PSNR of the mean of the true images in place of each, which tells none apart, in dB",
    "ssim": "SSIM to the truth (1: the same image)",
    "ssim_max": "SSIM of the image that leaks most",
    "recognised": f"share of images whose SSIM is above {RECOGNISED_ABOVE}",
    "label_accuracy": "share of the true labels found",
}


#: How many numbers of a row, or of an image that cannot be drawn, a report shows.
_NUMBERS_SHOWN = 64


def write_report(path: str | Path, verdict: Verdict, provenance: dict[str, Any]) -> Path:
    """Write the report of a verdict as one file that loads nothing from elsewhere.

    Args:
        path: the file to write, which is replaced.
        verdict: from `audit.update`.
        provenance: names and values that describe the environment and the inputs, as the report is to show them.

    Returns:
        The path.
    """
    import jinja2

    template = resources.files("jaxleak.audit").joinpath("report.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["with_options"] = _with_options
    best = verdict.best
    pictures = []
    if best is not None:
        for i, image in enumerate(best.x):
            pictures.append(
                {
                    "found": _shown(image),
                    "truth": None if verdict.truth is None else _shown(verdict.truth[i]),
                    "label": int(best.y[i]),
                    "shown": bool(best.shown[i]),
                    "agreement": None if best.counted_agreement is None else float(best.counted_agreement[i]),
                }
            )
    text = environment.from_string(template).render(
        verdict=verdict,
        meaning=_meaning(verdict),
        kind={"leaks": "bad", "inputs inconsistent": "wrong"}.get(verdict.verdict, "open"),
        pictures=pictures,
        called=called,
        numbers={_NUMBERS.get(name, name): value for name, value in verdict.metrics.items()},
        labels=[(c, int(count)) for c, count in enumerate(verdict.labels) if count],
        provenance=provenance,
    )
    path = Path(path)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def _meaning(verdict: Verdict) -> str:
    if "tokens" not in verdict.leaked:
        return _MEANING[verdict.headline]
    tokens = "The update names the tokens that the batch holds, if its inputs are one-hot codes."
    without = verdict._replace(tokens=None)
    return f"{_MEANING[without.headline]} {tokens}" if without.leaked else f"{tokens} No image is certified."


def _with_options(text: str) -> Any:
    """The text as HTML, without line breaks inside of an option such as --batch-norm."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"--[a-z][a-z-]*", r'<span class="option">\g<0></span>', str(escape(text))))


def _shown(image: np.ndarray) -> dict[str, Any]:
    """An image (H, W, channels) as the report shows it: the URL of a `picture`, or `numbers` if it cannot be drawn.

    A row of a table is an image of one pixel, whose channels are its columns.
    """
    if image.shape[2] not in (1, 3, 4) or image.shape[:2] == (1, 1):
        columns = image.reshape(-1)
        left_out = f", and {len(columns) - _NUMBERS_SHOWN} more" if len(columns) > _NUMBERS_SHOWN else ""
        return {"picture": "", "numbers": ", ".join(f"{value:.3g}" for value in columns[:_NUMBERS_SHOWN]) + left_out}
    return {"picture": _picture(image), "numbers": ""}


def _picture(image: np.ndarray) -> str:
    """An image (H, W, 1, 3 or 4) in [0, 1] as the URL of an inline PNG."""
    from PIL import Image  # heavy, and only a report needs it

    pixels = np.round(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    contents = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(contents, "PNG")
    return "data:image/png;base64," + base64.b64encode(contents.getvalue()).decode()
