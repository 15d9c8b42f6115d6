"""`jaxleak compare`: shows the verdicts of several audits side by side, and what else differs between the audits."""

import argparse
import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxleak.study.files import read_json, write_text
from jaxleak.study.rows import show_table

#: Settings that a defender changes on purpose between two audits, so that a difference needs no remark.
_OF_A_DEFENSE = ("defense", "strength", "clip", "noise_multiplier")
#: Scores against the truth that a table shows, with their headings and formats.
_SCORES = {"psnr": ("PSNR (dB)", "{:.1f}"), "ssim": ("SSIM", "{:.2f}"), "label_accuracy": ("labels right", "{:.0%}")}


class Audited(NamedTuple):
    """The entries of one audit's results.json that a comparison reads."""

    folder: str
    headline: str
    metrics: dict[str, Any]
    config: dict[str, Any]  # the audit's options, with the digest of the file of weights


def compare(options: argparse.Namespace) -> int:
    """Print the table, and write it to the file that `--csv` names.

    Raises:
        ValueError: if a folder is named twice, or if its results.json does not come from an audit.
        OSError: if a file cannot be read or written.
    """
    audits = [read_audit(folder) for folder in options.folders]
    if len({folder.resolve() for folder in options.folders}) < len(audits):
        raise ValueError("the folders of the audits must be different ones")
    show_table(*table(audits))
    for remark in remarks(audits):
        print(remark)
    if options.csv is not None:
        write_text(options.csv, as_csv(audits))
        print(f"The table with all numbers is {options.csv}.")
    return 0


def read_audit(folder: Path) -> Audited:
    """Read a folder's results.json.

    Raises:
        FileNotFoundError: if the folder has no results.json.
        ValueError: if no audit wrote the file, or if a version of jaxleak wrote it that did not store the options.
    """
    file = folder / "results.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no results.json: name the --out folder of a finished `jaxleak audit`")

    def read(content: Any) -> Audited:
        if content["experiment"] != "audit":
            raise ValueError(f"it is of the study {content['experiment']!r}, and no audit")
        if "config" not in content:
            raise ValueError("a version of jaxleak wrote it that did not note what was asked; audit again")
        return Audited(str(folder), str(content["headline"]), dict(content["metrics"]), dict(content["config"]))

    return read_json(file, read)


def table(audits: Sequence[Audited]) -> tuple[list[str], list[list[str]]]:
    """Make the header and one row per audit, in words; columns of scores exist if any audit had a truth."""
    scored = {name: shown for name, shown in _SCORES.items() if any(name in audit.metrics for audit in audits)}
    rows = []
    for audit in audits:
        metrics, known = audit.metrics, audit.metrics["verdict"] != "inputs inconsistent"
        row = [
            audit.folder,
            _defense(audit.config),
            audit.headline,
            f"{metrics['images_certified']} of {audit.config['samples']}" if known else "-",
            f"{metrics['label_count']}" if known else "-",
        ]
        rows.append(
            row + [form.format(metrics[name]) if name in metrics else "-" for name, (_, form) in scored.items()]
        )
    header = ["audit", "defense", "verdict", "images certified", "labels proven"]
    return header + [heading for heading, _ in scored.values()], rows


def remarks(audits: Sequence[Audited]) -> list[str]:
    """Write sentences that a reader must know before comparing the verdicts."""
    names = dict.fromkeys(name for audit in audits for name in audit.config if name not in _OF_A_DEFENSE)
    differ = []
    for name in names:
        values = list(dict.fromkeys(_text(audit.config.get(name)) for audit in audits))
        if len(values) > 1:
            digests = any(len(value) == 64 for value in values)
            differ.append(name if digests else f"{name} ({', '.join(values)})")
    found = []
    if differ:
        found.append(
            f"Besides the defense, the audits differ in {', '.join(differ)}. A difference between their verdicts may "
            "come from these."
        )
    if not all(audit.metrics["attacked"] for audit in audits):
        found.append("Where no attack on images came to its end, nothing is known of the images: give more --minutes.")
    found.append(
        "A row is one update. Compare several updates under each defense before you choose one; a verdict that is not "
        "`leaks` proves no safety."
    )
    return found


def as_csv(audits: Sequence[Audited]) -> str:
    """Write one line for each audit: folder, verdict, options, and every metric that is a single value."""
    rows = [
        {"audit": audit.folder, "headline": audit.headline}
        | {name: _text(value) for name, value in audit.config.items()}
        | {name: value for name, value in audit.metrics.items() if not isinstance(value, list | dict)}
        for audit in audits
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _defense(config: dict[str, Any]) -> str:
    """Write the stated defense with its numbers, such as "gaussian, strength 0.01"."""
    parts = [f"{name.replace('_', ' ')} {config[name]:g}" for name in _OF_A_DEFENSE[1:] if config.get(name) is not None]
    return ", ".join([config.get("defense") or "none", *parts])


def _text(value: Any) -> str:
    return "not stated" if value is None else value if isinstance(value, str) else json.dumps(value)
