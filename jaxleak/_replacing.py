"""Files that are replaced in one step: whoever reads sees all of the old one or all of the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside a file, to be written to; at the end it becomes the file.

    A kill leaves the old file, or none. On an error what was written is removed, and the old file stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
