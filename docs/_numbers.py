"""Numbers of README and docs, filled from stored results: what `python -m experiments.numbers` does."""

import functools
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- (?P<file>\S+\.jsonl?) (?P<keys>.+?) (?P<format>\S+) -->(?P<shown>.*?)<!-- / -->", re.DOTALL)
#: What needs no source: marked numbers (those marked as given, too), code, the targets of links, and texts of images.
_SOURCED = re.compile(r"<!-- (?:given|\S+\.jsonl?) .*?<!-- / -->|```.*?```|`[^`]*`|\]\([^)]*\)|!\[[^\]]*\]", re.DOTALL)
_NUMBER = r"(?<![\w.])\d*\.?\d+"
#: What looks like a measurement: dB, a spread, a share such as .97; and in a table any decimal number.
_MEASURED = re.compile(rf"{_NUMBER}\s+dB\b|{_NUMBER}\**\s*\+-\s*\d*\.?\d+|(?<![\w.])\.\d\d\b")
_CELL = re.compile(r"(?<![\w.,-])-?\d+\.\d+\b")


def fill_pages(*, check: bool) -> list[Path]:
    """Fill all pages, or say which are out of date; returns those whose numbers were.

    Args:
        check: write nothing.
    """
    stale = []
    for page in pages():
        text = page.read_text()
        filled = fill(text, ROOT)
        if filled != text:
            stale.append(page)
            if not check:
                page.write_text(filled)
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is out of date' if check else 'was written'}")
    return stale


def pages() -> list[Path]:
    """README and all pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fill(text: str, root: Path) -> str:
    """`text` with every marked number replaced by the stored one.

    Args:
        text: a page in Markdown.
        root: the folder that file names start from.

    Raises:
        ValueError: naming a marker whose file, key or format does not exist, or whose value is no number.
    """

    def stored(match: re.Match[str]) -> str:
        head = match[0][: match[0].index("-->") + 3]
        try:
            value = lookup(root / match["file"], match["keys"])
            shown = format(value, match["format"])
        except (OSError, LookupError, ValueError, TypeError) as error:
            raise ValueError(f"the marker {head} cannot be filled: {error}") from error
        return f"{head}{shown}<!-- / -->"

    return MARKED.sub(stored, text)


def unsourced(text: str) -> list[str]:
    """What looks like a measurement in a page and comes from no stored result.

    A number that is no measurement, such as a threshold, is marked as given: `<!-- given -->20 dB<!-- / -->`.
    """
    left = _SOURCED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found = [match[0] for match in _MEASURED.finditer(left)]
    return found + [match[0] for line in left.splitlines() if line.startswith("|") for match in _CELL.finditer(line)]


def lookup(path: Path, keys: str) -> float:
    """The number in a JSON file, or in an entry of a ledger, to which `keys` lead.

    Raises:
        OSError: if the file cannot be read.
        LookupError: if a key does not exist.
        ValueError: if the file is no JSON, or what stands there is no number.
    """
    stored = _stored(path, path.stat().st_mtime_ns)
    if path.suffix == ".jsonl":
        identity, _, keys = keys.rpartition(" ")
        found: Any = stored[identity]
    else:
        found = stored
        if "@" in keys:
            identity, _, keys = keys.partition("@")
            found = cell_of(found["cells"], identity)
    for key in keys.split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"{keys} is {found!r}, not a number")
    return found


@functools.lru_cache(maxsize=512)  # a page names the same few files hundreds of times
def _stored(path: Path, changed: int) -> Any:
    """JSON of a file that was last changed then, or a ledger's entries by CELL@VARIANT or CELL@VARIANT@NAME."""
    del changed  # a file that was written anew is read anew
    if path.suffix != ".jsonl":
        return json.loads(path.read_text())
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {"@".join(filter(None, (e["cell"], e["variant"], e.get("name")))): e for e in entries}


def cell_of(cells: list[dict[str, Any]], identity: str) -> dict[str, Any]:
    """The cell of this id among those of a stored run."""
    for cell in cells:
        if cell["id"] == identity:
            return cell
    raise KeyError(identity)
