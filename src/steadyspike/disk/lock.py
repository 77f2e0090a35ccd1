"""Locks open files between processes; the system releases a lock when its process ends, for whatever reason."""

from __future__ import annotations

import os
import sys
import time
from typing import IO, Any

_LOCKED_BYTE, _PAUSE = (1 << 31) - 2, 0.05


def lock_file(file: IO[Any], *, wait: bool = False, shared: bool = False) -> bool:
    """Locks ``file`` until it is closed; returns False if another process holds it.

    wait: wait until it is free
    shared: other shared locks may exist at the same time (not on Windows)


    Raises OSError if the disk does not support locks.
    """
    if sys.platform == "win32":
        import msvcrt

        # On Windows other processes can neither read nor write locked bytes, so a byte far after the end is locked.
        position = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        while True:
            os.lseek(file.fileno(), _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
                return True
            except PermissionError:
                if not wait:
                    return False
            finally:
                os.lseek(file.fileno(), position, os.SEEK_SET)
            time.sleep(_PAUSE)
    else:
        import fcntl

        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True
