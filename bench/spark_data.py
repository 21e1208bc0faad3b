"""Data directories and snapshots for bench/spark.py, written by the log itself.

Nothing is applied: a table without state needs the entries alone, and sealing needs to know only
that they count.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np

from onelog.projections.kv import commands as kv_commands
from onelog.projections.kv.commands import Put
from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.message import Enqueue
from onelog.projections.stream import commands as stream_commands
from onelog.projections.stream.commands import TYPE_APPEND, Append
from onelog.projections.timeseries import commands as ts_commands
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.types import FieldType
from onelog.ual.entry import Draft
from onelog.ual.files import DiskFile, DiskFiles, File
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import open_hard_state, open_log
from tests.ual.shards import close_active, make_shard, seal_closed

NAMESPACE = "default"
GROUP_ENTRIES = 256
SEAL_GROUPS = 64
POINTS = 1_000  # of a batch: 10 series, one field, 100 times
SERIES = 10
START_NS = 1_790_000_000_000_000_000
STEP_NS = 1_000_000
STREAM_ID = 1

Drafts = Callable[[int], Iterator[Draft]]


def kv_drafts(rows: int) -> Iterator[Draft]:
    """Yield puts: 16-byte keys, values of 64 to 128 bytes that do not compress."""
    draw = Random(1)
    for number in range(rows):
        value = draw.randbytes(draw.randint(64, 128))
        yield kv_commands.encode_command(Put(b"%016d" % number, value), NAMESPACE)


def queue_drafts(rows: int) -> Iterator[Draft]:
    """Yield messages of one queue with a header."""
    draw = Random(2)
    for _ in range(rows):
        message = Enqueue(1, draw.randbytes(draw.randint(64, 128)), headers=((b"kind", b"job"),))
        yield queue_commands.encode_command(message, NAMESPACE)


def stream_drafts(rows: int) -> Iterator[Draft]:
    """Yield records with a key."""
    draw = Random(3)
    for number in range(rows):
        record = Append("events", draw.randbytes(draw.randint(64, 128)), b"%08d" % number)
        yield stream_commands.encode_command(record, NAMESPACE)


def series_drafts(rows: int) -> Iterator[Draft]:
    """Yield batches of points: one row for each point."""
    each = POINTS // SERIES
    draw = np.random.default_rng(4)
    names = [series_name("cpu", {"host": f"h{number}"}) for number in range(SERIES)]
    for first in range(0, rows // SERIES, each):
        times = np.arange(first, first + each) * 1_000_000_000 + START_NS
        runs = [Run(name, "load", FieldType.F64, times, draw.random(each)) for name in names]
        yield ts_commands.encode_write_batch(encode_batch(runs), NAMESPACE)


DRAFTS: dict[str, Drafts] = {
    "log": kv_drafts,
    "kv_operations": kv_drafts,
    "queue_operations": queue_drafts,
    "stream": stream_drafts,
    "timeseries_operations": series_drafts,
}


class _UnsyncedFile(DiskFile):
    def sync(self) -> None:
        """Do nothing."""


class UnsyncedFiles(DiskFiles):
    """Files that are never synced: ten thousand of them take minutes otherwise."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Return a file, a new one if it is to be created."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return _UnsyncedFile(os.open(path, flags, 0o644))

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""


def write_directory(path: Path, drafts: Iterator[Draft]) -> Path:
    """Write a data directory with one shard, all of it sealed; return its path."""
    return write_groups(path, cut_groups(drafts))


def cut_groups(drafts: Iterator[Draft]) -> Iterator[list[Draft]]:
    """Yield drafts as a leader would group them."""
    while group := list(islice(drafts, GROUP_ENTRIES)):
        yield group


def write_groups(path: Path, groups: Iterable[list[Draft]]) -> Path:
    """Write groups to a new data directory, all of it sealed; return its path."""
    log = _open(UnsyncedFiles(), path)
    for number, group in enumerate(groups, 1):
        _append(log, group)
        if number % SEAL_GROUPS == 0:
            _seal(log)
    close_active(log)
    _seal(log)
    log.close()
    return path


def write_many_segments(path: Path, count: int) -> Path:
    """Write a directory of this many sealed files, with a put each."""
    log = _open(UnsyncedFiles(), path)
    for draft in kv_drafts(count):
        _append(log, [draft])
        close_active(log)
        _seal(log)
    log.close()
    return path


def _open(files: DiskFiles, path: Path) -> Log:
    paths = make_shard(files, path)
    config = LogConfig(free_bytes_min=0)
    log, _ = open_log(files, paths, open_hard_state(files, paths), shard=0, config=config)
    return log


def _append(log: Log, group: list[Draft]) -> None:
    first = log.last_index + 1
    log.append(group, term=1, timestamp_ns=max(log.last_timestamp_ns, START_NS) + STEP_NS)
    for index, draft in enumerate(group, first):
        if draft.entry_type == TYPE_APPEND:
            log.notes.add_record(STREAM_ID, index)  # apply would: sealed files say what they have


def _seal(log: Log) -> None:
    log.sync()
    log.mark_committed(log.last_index)
    log.mark_applied(log.last_index)
    while seal_closed(log):
        pass
