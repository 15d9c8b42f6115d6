"""One writer per folder: a lock of the operating system, which the death of its holder releases by itself."""

import errno
import fcntl
import json
import os
import socket
import sys
import weakref
from pathlib import Path

LOCK_FILE = ".lock"

#: What file systems without locks answer; runs on them are not protected from each other.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_held: "weakref.WeakValueDictionary[Path, FolderLock]" = weakref.WeakValueDictionary()


class FolderInUseError(OSError):
    """Another process is writing to the folder."""


class FolderLock:
    """The right to write to a folder, until this object is collected or the process ends, however it ends."""

    def __init__(self, folder: Path):
        """Use `lock_folder`, which shares one lock among all who ask within a process."""
        self._descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        weakref.finalize(self, os.close, self._descriptor)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(
                f"{folder} is in use by {self._holder()}; wait until it has finished, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            print(f"note: {folder} has no file locks; no other run may write to it meanwhile", file=sys.stderr)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def _holder(self) -> str:
        try:
            holder = json.loads(os.pread(self._descriptor, 4096, 0))
            return f"process {holder['pid']} on {holder['host']}"
        except (ValueError, KeyError, TypeError):  # it has the lock, and has not written its name yet
            return "another process"


def lock_folder(folder: Path) -> FolderLock:
    """Take, or share with the rest of this process, the lock of an existing folder.

    Raises:
        FolderInUseError: if another process holds it; the message names the folder, that process and its host.
        OSError: if the folder cannot be written.
    """
    folder = folder.resolve()
    lock = _held.get(folder)
    if lock is None:
        lock = _held[folder] = FolderLock(folder)
    return lock
