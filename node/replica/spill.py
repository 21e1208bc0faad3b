"""The spill store: values that memory has no room for, in an LMDB file beside the shard.

It holds copies of what follows from the log, for as long as the process lives. So nothing of it is
ever synced, it is deleted when the shard opens, and when it cannot return what was put into it the
replica stops (``SpillLost``) and rebuilds its state: never a wrong value.

No server opens one yet: it is for memory budgets, where values that do not fit go to disk.

How it is kept:

* Key: the value's id, u64 big-endian. Value: crc32c (u32, little-endian) of key and value, then the
  value. The key is under the checksum, so another value's bytes are not taken for this one's.
* Changes wait in memory, at most ``PENDING_BYTES_MAX``, and go to the file in one transaction: 4 µs
  a value instead of 16. Until then they are read from memory.
* Pages in use are bounded by ``size_max``. Changing a page means writing a copy of it, also for a
  delete, so the map may grow beyond that by a quarter, which puts never fill: room can always be
  made. The map starts small and doubles; LMDB cannot grow it inside of a transaction, so one that
  met the end is dropped and done again.
* At the limit, and when the file cannot be written, the put that met it is refused (``SpillFull``)
  and everything before it stays readable.

One thread uses it. LMDB's own locks are off: there is no other process, and no reader that outlives
a call. A page that the disk cannot read ends the process, as with every mapped file.
"""

import shutil
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import lmdb
from crc32c import crc32c

from onelog.projections.errors import ProjectionError, SpillLost
from onelog.ual.files import DIRECTORY_MODE, FILE_MODE

MAP_SIZE_MIN = 16 << 20
SIZE_MAX = 64 << 30
PENDING_BYTES_MAX = 1 << 20
PENDING_COUNT_MAX = 4_096
_VALUE_OVERHEAD = 128  # of a waiting value in memory: two objects and their slots

_KEY = struct.Struct(">Q")
_CRC = struct.Struct("<I")


# The file is not what LMDB wrote; everything else that it reports is a change that did not happen.
_DAMAGED = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


class SpillFull(ProjectionError):
    """The spill store cannot take a value now: its limit, or its disk; the value stays in place."""

    reason = "SPILL_FULL"


class LmdbSpill:
    """A spill store in a directory of its own; see the module."""

    def __init__(self, path: Path, *, size_max: int = SIZE_MAX) -> None:
        """Make an empty store; whatever the directory held is derived data of an earlier run."""
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(DIRECTORY_MODE, parents=True)
        self._path = path
        self._size_max = size_max
        self._map_size_max = size_max + max(size_max // 4, MAP_SIZE_MIN)
        self._map_size = MAP_SIZE_MIN
        self._environment = lmdb.open(
            str(path),
            map_size=self._map_size,
            mode=FILE_MODE,
            sync=False,
            metasync=False,
            lock=False,
            readahead=False,  # reads are of single values, anywhere
            meminit=False,
        )
        self._pending: dict[int, bytes | None] = {}  # None: to be deleted
        self._pending_size = 0

    def put(self, value_id: int, value: bytes) -> None:
        """See ``SpillStore.put``; raises ``SpillFull`` with nothing changed."""
        self._pending[value_id] = value
        self._pending_size += len(value) + _VALUE_OVERHEAD
        if self._pending_size > PENDING_BYTES_MAX or len(self._pending) > PENDING_COUNT_MAX:
            try:
                self.flush()
            except SpillFull:
                del self._pending[value_id]
                self._pending_size -= len(value) + _VALUE_OVERHEAD
                raise

    def get(self, value_id: int) -> bytes:
        """See ``SpillStore.get``."""
        if value_id in self._pending:
            value = self._pending[value_id]
            if value is None:
                raise SpillLost(value_id, "was deleted")
            return value
        key = _KEY.pack(value_id)
        try:
            with self._environment.begin() as transaction:
                stored = transaction.get(key)
        except lmdb.Error as error:
            raise SpillLost(value_id, str(error)) from error
        if stored is None:
            raise SpillLost(value_id, "is not there")
        value = stored[_CRC.size :]
        if len(stored) < _CRC.size or _CRC.unpack_from(stored)[0] != crc32c(value, crc32c(key)):
            raise SpillLost(value_id, "checksum")
        return value

    def delete(self, value_id: int) -> None:
        """See ``SpillStore.delete``."""
        waiting = self._pending.pop(value_id, None)
        if waiting is not None:
            self._pending_size -= len(waiting) + _VALUE_OVERHEAD
            return
        self._pending[value_id] = None
        self._pending_size += _VALUE_OVERHEAD
        if len(self._pending) > PENDING_COUNT_MAX:
            # What cannot be written now waits; a delete has nothing to refuse.
            with suppress(SpillFull):
                self.flush()

    def flush(self) -> None:
        """Write what waits in memory; raises ``SpillFull`` with the puts still waiting."""
        deleted = [value_id for value_id, value in self._pending.items() if value is None]
        if deleted:
            self._write(dict.fromkeys(deleted))
        if not self._pending:
            return
        if self.used_bytes() + self._pending_size > self._size_max:
            raise SpillFull(f"{self._path}: at its limit of {self._size_max} bytes")
        self._write(self._pending)

    def used_bytes(self) -> int:
        """Return the size of the pages that hold values."""
        stat = self._environment.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * stat["psize"]

    def size_bytes(self) -> int:
        """Return the size of the file's pages, those that are free to be reused included."""
        pages = self._environment.info()["last_pgno"] + 1
        return pages * self._environment.stat()["psize"]

    def pending_bytes(self) -> int:
        """Return how much memory waits to be written."""
        return self._pending_size

    def close(self) -> None:
        """Close the file, whose content is of no use afterwards."""
        self._pending.clear()
        self._pending_size = 0
        self._environment.close()

    def _write(self, changes: Mapping[int, bytes | None]) -> None:
        """Make changes that are waiting, all of them or none."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for value_id, value in changes.items():
                        key = _KEY.pack(value_id)
                        if value is None:
                            transaction.delete(key)
                        else:
                            crc = crc32c(value, crc32c(key))
                            transaction.put(key, _CRC.pack(crc) + value)
                break
            except lmdb.MapFullError as error:
                if self._map_size >= self._map_size_max:
                    raise SpillFull(f"{self._path}: {error}") from error
                self._map_size = min(2 * self._map_size, self._map_size_max)
                self._environment.set_mapsize(self._map_size)
            except _DAMAGED as error:
                raise SpillLost(next(iter(changes)), str(error)) from error
            except lmdb.Error as error:
                raise SpillFull(f"{self._path}: {error}; check the disk's space") from error
        for value_id in list(changes):
            size = len(self._pending.pop(value_id) or b"")
            self._pending_size -= size + _VALUE_OVERHEAD
