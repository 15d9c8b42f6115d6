"""Fill the numbers of README and docs from stored results.

    python -m experiments.numbers            # write the stored numbers into the pages
    python -m experiments.numbers --check    # say which pages are out of date; exit status 1 if any is

A page marks a number by two comments, which readers of the rendered page do not see:

    <!-- docs/results/sixteen.json metrics.psnr .1f -->30.5<!-- / -->

The first comment names a JSON file of this repository, the keys that lead to a number, and a format of Python's
`format`. Keys are separated by dots; a whole number picks from a list, and `ID@` in front a cell by its id. For
a ledger (.jsonl) an entry, CELL@VARIANT or CELL@VARIANT@NAME, goes before a field: `table3/cafe/mnist@printed value`.
A number that was not measured, such as a threshold, is marked as given: `<!-- given -->20 dB<!-- / -->`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from experiments._by_path import module_at
from jaxleak.study import run_command


@dataclass(frozen=True)
class Args:
    """What to do with the pages."""

    check: bool = False
    """Write nothing and name the pages whose numbers are not those that are stored."""


def main(args: Args) -> list[Path]:
    """Fill or check all pages; returns those whose numbers were out of date."""
    stale = module_at("docs/_numbers.py").fill_pages(check=args.check)
    if stale and args.check:
        sys.exit(1)
    return stale


if __name__ == "__main__":
    run_command(main, Args, __doc__)
