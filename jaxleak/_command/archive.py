"""`jaxleak archive`."""

import argparse

from jaxleak import data


def archive(options: argparse.Namespace) -> int:
    """Write the archive of a data set from its published files."""
    path = data.archive(options.name, options.files, options.out, options.samples)
    print(f"wrote {path}")
    return 0
