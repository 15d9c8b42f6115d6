"""Files that are replaced in one step: whoever reads sees all of the old one or all of the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside a file, to write to; at the end of the block it becomes the file.

    If the process is killed, the old file stays, if there was one. On an error the new path is removed, and the old
    file stays.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
