"""Sheets of images: private images beside their reconstructions, with pixels large enough to be judged."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from jaxleak import metrics
from jaxleak.study.files import write_bytes

__all__ = ["FLAG_COLOUR", "comparison_sheet", "contact_sheet"]

#: Vermilion of the colour-blind safe palette that the charts use too.
FLAG_COLOUR = (213, 94, 0)
#: Sizes in pixels: the letters of titles, texts and captions; and the frame of an image, the gaps and the margin.
_TITLE_SIZE, _TEXT_SIZE, _SMALL_SIZE = 17, 13, 11
_FRAME, _GAP, _MARGIN = 2, 10, 8
#: Sizes in pixels if the caller names no zoom: least length of an image's longer side, and about the width of a row.
_LEAST_SIDE, _ROW_WIDTH = 64, 800
_FLAGGED = "An orange frame around grey: the attack says that it has no answer for this image."


def contact_sheet(
    path: Path | str,
    truth: np.ndarray,
    estimate: np.ndarray,
    *,
    second: np.ndarray | None = None,
    unanswered: np.ndarray | None = None,
    captions: Sequence[str] = (),
    title: str = "",
    columns: int = 20,
    zoom: int | None = None,
) -> None:
    """Draw rows of private images, each with its reconstruction below.

    Args:
        path: PNG to write.
        truth: (I, H, W, C) private images in [0, 1].
        estimate: (I, H, W, C) reconstructions; values outside [0, 1] are clipped.
        second: (I, H, W, C) reconstructions of another start of the attack, shown below the first ones.
        unanswered: (I,) bool, samples for which the attack says that it has no answer; they are shown as framed grey
            tiles, and a line at the end explains the frames.
        captions: one caption per image, below its reconstruction; a newline separates the lines of a caption.
        title: text above the sheet that says what it shows.
        columns: number of images per row.
        zoom: every pixel becomes zoom x zoom; None takes a zoom at which small images can be judged.
    """
    zoom = zoom or _zoom(truth, columns)
    flagged = np.zeros(len(truth), bool) if unanswered is None else np.asarray(unanswered)
    answer = np.where(flagged[:, None, None, None], 0.5, estimate)
    shown = {"private": truth, "reconstructed": answer}
    if second is not None:
        shown["second start"] = second
    margin = max(_size(label, _TEXT_SIZE)[0] for label in shown) + _GAP
    tile = _tile(truth, zoom, captions)
    strips = [_text(title, _TITLE_SIZE)] if title else []
    for first in range(0, len(truth), columns):
        some = slice(first, first + columns)
        for label, images in shown.items():
            frames = flagged[some] if label == "reconstructed" else np.zeros(len(images[some]), bool)
            strips.append(_strip(images[some], zoom, tile, frames, label=label, margin=margin))
        if captions:
            strips.append(_captions(captions[some], tile, margin))
        strips.append(Image.new("RGB", (1, _GAP), "white"))
    if flagged.any():
        strips.append(_text(_FLAGGED, _TEXT_SIZE))
    _save(path, strips)


def comparison_sheet(
    path: Path | str,
    rows: dict[str, np.ndarray],
    *,
    title: str = "",
    columns: int = 8,
    zoom: int | None = None,
    truth_first: bool = True,
) -> None:
    """Draw one labelled row of images per entry: the truth first, then each attack's reconstruction of these images.

    Args:
        path: PNG to write.
        rows: maps a label to images (I, H, W, C) in [0, 1]; all images have one size.
        title: text above the sheet that says what it shows.
        columns: largest number of images that a row shows.
        zoom: every pixel becomes zoom x zoom; None takes a zoom at which small images can be judged.
        truth_first: whether the first row is the truth. If so, the PSNR in dB stands below every image of the other
            rows; it is computed after values outside [0, 1] are clipped, as in the image that is shown.
    """
    shown = {label: images[:columns] for label, images in rows.items()}
    first = next(iter(shown))
    said: dict[str, list[str]] = {label: [] for label in shown}
    if truth_first:
        for label in list(shown)[1:]:
            said[label] = [_psnr_text(*pair) for pair in zip(shown[first], shown[label], strict=True)]
    zoom = zoom or _zoom(shown[first], columns)
    # All tiles have one width, so that a reconstruction stands below its private image.
    tile = _tile(shown[first], zoom, [text for captions in said.values() for text in captions])
    strips = [_text(title, _TITLE_SIZE)] if title else []
    for label, images in shown.items():
        strips.append(_text(label, _TEXT_SIZE))
        strips.append(_strip(images, zoom, tile, np.zeros(len(images), bool)))
        if said[label]:
            strips.append(_captions(said[label], tile, 0))
        strips.append(Image.new("RGB", (1, _GAP // 2), "white"))
    _save(path, strips)


def _psnr_text(truth: np.ndarray, image: np.ndarray) -> str:
    """Return the caption with the PSNR of one image as it is shown: a number in dB, "exact" or "not finite"."""
    if not np.isfinite(image).all():
        return "not finite"
    psnr = float(metrics.psnr(truth[None], np.clip(image[None], 0, 1))[0])
    return f"{psnr:.1f} dB" if np.isfinite(psnr) else "exact"


def _zoom(images: np.ndarray, columns: int) -> int:
    """Choose how large a pixel is drawn: an image can be judged, and a full row is about as wide as a page."""
    height, width = images.shape[1:3]
    return max(1, -(-_LEAST_SIDE // max(height, width)), _ROW_WIDTH // (columns * width))


def _tile(images: np.ndarray, zoom: int, captions: Sequence[str]) -> int:
    """Return the pixels from one image to the next: the width of a framed image or of the widest caption."""
    return max(images.shape[2] * zoom + 2 * _FRAME, *(_size(text, _SMALL_SIZE)[0] + 4 for text in captions), 1)


def _strip(
    images: np.ndarray, zoom: int, tile: int, frames: np.ndarray, *, label: str = "", margin: int = 0
) -> Image.Image:
    """Draw a row of images, `tile` pixels apart, to the right of its label."""
    height, width = images.shape[1] * zoom + 2 * _FRAME, images.shape[2] * zoom + 2 * _FRAME
    strip = Image.new("RGB", (margin + tile * len(images), height), "white")
    if label:
        ImageDraw.Draw(strip).text((0, height // 2), label, fill="black", font=_font(_TEXT_SIZE), anchor="lm")
    for place, (image, framed) in enumerate(zip(images, frames, strict=True)):
        pixels = np.broadcast_to(np.clip(np.nan_to_num(image), 0, 1), (*image.shape[:2], 3))
        pixels = (pixels * 255).round().astype(np.uint8).repeat(zoom, axis=0).repeat(zoom, axis=1)
        left = margin + place * tile + (tile - width) // 2
        if framed:
            strip.paste(FLAG_COLOUR, (left, 0, left + width, height))
        strip.paste(Image.fromarray(pixels), (left + _FRAME, _FRAME))
    return strip


def _captions(captions: Sequence[str], tile: int, margin: int) -> Image.Image:
    height = max(_size(text, _SMALL_SIZE)[1] for text in captions) + 2
    strip = Image.new("RGB", (margin + tile * len(captions), height), "white")
    pen = ImageDraw.Draw(strip)
    for place, text in enumerate(captions):
        middle = margin + place * tile + tile / 2
        pen.multiline_text((middle, 0), text, fill="black", font=_font(_SMALL_SIZE), anchor="ma", align="center")
    return strip


def _text(text: str, size: int) -> Image.Image:
    width, height = _size(text, size)
    strip = Image.new("RGB", (width + 2, height + size // 2), "white")
    ImageDraw.Draw(strip).multiline_text((0, 0), text, fill="black", font=_font(size))
    return strip


def _size(text: str, size: int) -> tuple[int, int]:
    """Measure the width and height of a text in pixels."""
    box = ImageDraw.Draw(Image.new("RGB", (1, 1))).multiline_textbbox((0, 0), text, font=_font(size))
    return int(np.ceil(box[2])), int(np.ceil(box[3]))


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _save(path: Path | str, strips: Sequence[Image.Image]) -> None:
    """Stack the strips and write the sheet; `OSError` names the file that cannot be written."""
    width, height = max(strip.width for strip in strips), sum(strip.height for strip in strips)
    sheet = Image.new("RGB", (width + 2 * _MARGIN, height + 2 * _MARGIN), "white")
    top = _MARGIN
    for strip in strips:
        sheet.paste(strip, (_MARGIN, top))
        top += strip.height
    content = io.BytesIO()
    sheet.save(content, "png")
    write_bytes(Path(path), content.getvalue())
