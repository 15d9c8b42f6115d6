"""Fill the numbers of README and docs from stored results.

    python -m experiments.numbers            # write the stored numbers into the pages
    python -m experiments.numbers --check    # say which pages are out of date; exit status 1 if any is

A page marks a number by two comments, which readers of the rendered page do not see:

    <!-- docs/results/sixteen.json metrics.psnr .1f -->30.5<!-- / -->

The first comment names a JSON file of this repository, the keys that lead to a number, and a format of Python's
`format`. Keys are separated by dots; a whole number picks from a list. For a ledger (.jsonl) the first key is the
identity of an entry, CELL@VARIANT or CELL@VARIANT@NAME, and the second a field: `table3/cafe/mnist@printed value`.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxleak.study import run_command

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- (?P<file>\S+\.jsonl?) (?P<keys>.+?) (?P<format>\S+) -->(?P<shown>.*?)<!-- / -->", re.DOTALL)


@dataclass(frozen=True)
class Args:
    """What to do with the pages."""

    check: bool = False
    """Write nothing and name the pages whose numbers are not those that are stored."""


def main(args: Args) -> list[Path]:
    """Fill or check all pages; returns those whose numbers were out of date."""
    stale = []
    for page in pages():
        text = page.read_text()
        filled = fill(text, ROOT)
        if filled != text:
            stale.append(page)
            if not args.check:
                page.write_text(filled)
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is out of date' if args.check else 'was written'}")
    if stale and args.check:
        sys.exit(1)
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


def lookup(path: Path, keys: str) -> float:
    """The number in a JSON file, or in an entry of a ledger, to which `keys` lead.

    Raises:
        OSError: if the file cannot be read.
        LookupError: if a key does not exist.
        ValueError: if the file is no JSON, or what stands there is no number.
    """
    if path.suffix == ".jsonl":
        identity, _, keys = keys.rpartition(" ")
        found: Any = entry_of(path, identity)
    else:
        found = json.loads(path.read_text())
    for key in keys.split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"{keys} is {found!r}, not a number")
    return found


def entry_of(path: Path, identity: str) -> dict[str, Any]:
    """The entry CELL@VARIANT or CELL@VARIANT@NAME of a ledger."""
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if identity == "@".join(filter(None, (entry["cell"], entry["variant"], entry.get("name")))):
            return entry
    raise KeyError(identity)


if __name__ == "__main__":
    run_command(main, Args, __doc__)
