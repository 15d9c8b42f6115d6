"""Fill the numbers of README and docs from stored results, for `python -m experiments.numbers`."""

import functools
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- (?P<file>\S+\.jsonl?) (?P<keys>.+?) (?P<format>\S+) -->(?P<shown>.*?)<!-- / -->", re.DOTALL)
#: Text that needs no source: numbers marked as stored or given, code, targets of links, and texts of images.
_SOURCED = re.compile(r"<!-- (?:given|\S+\.jsonl?) .*?<!-- / -->|```.*?```|`[^`]*`|\]\([^)]*\)|!\[[^\]]*\]", re.DOTALL)
_NUMBER = r"(?<![\w.])\d*\.?\d+"
#: Text that looks like a measurement: dB, a spread, a share such as .97. In a table, any decimal number (`_CELL`) does.
_MEASURED = re.compile(rf"{_NUMBER}\s+dB\b|{_NUMBER}\**\s*\+-\s*\d*\.?\d+|(?<![\w.])\.\d\d\b")
_CELL = re.compile(r"(?<![\w.,-])-?\d+\.\d+\b")


def fill_pages(*, check: bool) -> list[Path]:
    """Fill all pages, or print which are out of date; returns the pages that were out of date.

    Args:
        check: whether to only print the pages and write nothing.
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
        root: the folder to which file names in markers are relative.

    Raises:
        ValueError: if a marker names a file, key or format that does not exist, or a value that is no number.
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
    """Texts of a page that look like measurements but come from no stored result.

    Authors mark other numbers, such as thresholds, as given: `<!-- given -->20 dB<!-- / -->`.
    """
    left = _SOURCED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found = [match[0] for match in _MEASURED.finditer(left)]
    return found + [match[0] for line in left.splitlines() if line.startswith("|") for match in _CELL.finditer(line)]


def lookup(path: Path, keys: str) -> float:
    """The number that `keys` name in a JSON file or in an entry of a ledger.

    Raises:
        OSError: if the file cannot be read.
        LookupError: if a key does not exist.
        ValueError: if the file is no JSON, or the value is no number.
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
    """A file's JSON, or a ledger's entries by CELL@VARIANT or CELL@VARIANT@NAME; `changed` is when it last changed."""
    del changed  # only a key of the cache: a changed file is read again
    if path.suffix != ".jsonl":
        return json.loads(path.read_text())
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {"@".join(filter(None, (e["cell"], e["variant"], e.get("name")))): e for e in entries}


def cell_of(cells: list[dict[str, Any]], identity: str) -> dict[str, Any]:
    """The cell with this id in a stored run."""
    for cell in cells:
        if cell["id"] == identity:
            return cell
    raise KeyError(identity)
