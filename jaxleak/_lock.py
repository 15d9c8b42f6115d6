"""One writer per folder: a lock of the operating system, which is released when its holder ends or is killed."""

import contextlib
import errno
import json
import os
import socket
import sys
import weakref
from pathlib import Path

import filelock

LOCK_FILE = ".lock"
#: The file that names the holder. The lock file cannot name it, since Windows lets nobody else read a locked file.
HOLDER_FILE = ".lock.holder"

#: Errors of file systems without locks; runs on them are not protected from each other.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

#: Seconds to keep asking for the lock. A holder that ends removes its file, and whoever asks at that moment must ask
#: again.
_PATIENCE = 0.1

_held: "weakref.WeakValueDictionary[Path, FolderLock]" = weakref.WeakValueDictionary()


class FolderInUseError(OSError):
    """Another process is writing to the folder."""


class FolderLock:
    """The right to write to a folder, until this object is collected or the process ends, however it ends."""

    def __init__(self, folder: Path):
        """Use `lock_folder`, which shares one lock among all who ask within a process."""
        lock = filelock.FileLock(folder / LOCK_FILE, timeout=_PATIENCE, thread_local=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise FolderInUseError(
                f"{folder} is in use by {_holder(folder)}; wait until it has finished, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            print(f"note: {folder} has no file locks; no other run may write to it meanwhile", file=sys.stderr)
        weakref.finalize(self, _give_back, lock, folder, os.getpid())
        (folder / HOLDER_FILE).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / HOLDER_FILE).read_bytes())
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # the holder has not written its name yet
        return "another process"


def _give_back(lock: filelock.BaseFileLock, folder: Path, owner: int) -> None:
    if os.getpid() != owner:  # a forked child shares the lock, and must leave it to its parent
        return
    # The files are removed while the lock is held: whoever waits for a removed file asks for a new one.
    for name in (HOLDER_FILE, LOCK_FILE):
        with contextlib.suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    lock.release()


def lock_folder(folder: Path) -> FolderLock:
    """Take the lock of an existing folder, or share the lock that this process has.

    Raises:
        FolderInUseError: if another process holds the lock; the message names the folder, that process and its host.
        OSError: if the folder cannot be written.
    """
    folder = folder.resolve()
    lock = _held.get(folder)
    if lock is None:
        lock = _held[folder] = FolderLock(folder)
    return lock
