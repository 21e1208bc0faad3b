"""What bench/spark.py compares with: a loop with the project's decoders, a snapshot, a server."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.spark_data import kv_drafts
from onelog.spark.columns.operations import OPERATIONS, OWNERS
from projections import kv_commands, queue_commands, stream_commands, ts_commands
from projections.payload import read_prefix
from projections.table import build_projections
from projections.ts_batch import WriteBatch
from projections.ts_names import parse_series
from projections.ts_types import TYPE_NAMES, value_of
from snapshot.format import SnapshotHeader
from snapshot.notes_section import CoveredNotes
from snapshot.state import write_state
from tests.system.ports import free_addresses
from ual.entry import Entry, decode_group, encode_group
from ual.files import DiskFiles
from ual.notes import ApplyNotes, SegmentNotes
from ual.sealed import SealedSegment

GROUP_ENTRIES = 256
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DECODERS: dict[int, Any] = {
    1: kv_commands.decode_command,
    2: queue_commands.decode_command,
    3: ts_commands.decode_command,
    4: stream_commands.decode_command,
}


def loop_over(path: Path, view: str, count: int) -> int:
    """Make a row of each entry, or of each point, one after the other; return how many.

    Rows have what a row of the view has: moments, names, and what the command says.
    """
    rows: list[tuple[object, ...]] = []
    for file in sorted(path.rglob("*.flseg")):
        segment = SealedSegment.open(DiskFiles(), file)
        for entry in segment.entries(segment.first_index, min(segment.last_index, count)):
            rows += _rows(view, entry)
        if segment.last_index >= count:
            break
    return len(rows)


def _rows(view: str, entry: Entry) -> Iterator[tuple[object, ...]]:
    operation = OPERATIONS[entry.entry_type]
    moment = _moment(entry.timestamp_ns)
    head = (0, entry.index, 0, entry.term, moment, entry.timestamp_ns, operation, None)
    payload = entry.plain_payload()
    prefix, reader = read_prefix(payload)
    command = DECODERS[entry.entry_type >> 8](entry.entry_type & 0xFF, reader)
    if isinstance(command, WriteBatch):
        yield from _points(head, prefix.namespace, command)
    elif view == "log":
        name = command.key
        facts = (entry.entry_type, OWNERS[entry.entry_type >> 8], entry.flags, entry.group_left)
        yield (*head, *facts, prefix.namespace, name, name.decode(errors="replace"), payload)
    else:
        yield (*head, prefix.namespace, *(getattr(command, each) for each in command.__slots__))


def _points(
    head: tuple[object, ...], namespace: str, batch: WriteBatch
) -> Iterator[tuple[object, ...]]:
    for run in range(len(batch.run_series)):
        series = batch.series[batch.run_series[run]]
        name = parse_series(series)
        field, kind = batch.fields[batch.run_fields[run]]
        start = int(batch.starts[run])
        end = start + int(batch.sizes[run])
        facts = (namespace, name.measurement, series.decode(), dict(name.tags), field)
        times, bits = batch.point_times[start:end].tolist(), batch.bits[start:end].tolist()
        for time_ns, value in zip(times, bits, strict=True):
            found = value_of(kind, value)
            yield (*head, *facts, _moment(time_ns), time_ns, TYPE_NAMES[kind], float(found))


def _moment(time_ns: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_ns // 1_000)


def write_keys(directory: Path, count: int) -> Path:
    """Write a snapshot of this many keys; return its path."""
    state = build_projections(ApplyNotes())
    group: list[Any] = []
    for number, draft in enumerate(kv_drafts(count), 1):
        group.append(draft)
        if len(group) == GROUP_ENTRIES or number == count:
            first = number - len(group) + 1
            encoded = encode_group(group, term=1, first_index=first, timestamp_ns=number)
            state.router.apply_group(decode_group(encoded))
            group = []
    directory.mkdir()
    header = SnapshotHeader(0, count, 1, 1, count)
    notes = CoveredNotes(count + 1, SegmentNotes())
    write_state(DiskFiles(), directory, header, 1, state.router, notes, free_bytes_min=0)
    (path,) = directory.glob("*.fsnap")
    return path


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Run a server with one shard, and return its endpoint."""
    api, peers, http = free_addresses(3)
    server = subprocess.Popen(
        [
            sys.executable, "-m", "onelog.cli.main", "serve", "--data-dir", str(directory),
            "--listen", api, "--peer-listen", peers, "--http-listen", http,
            "--shards", "1", "--logging-level", "error",
        ],
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    try:
        yield api
    finally:
        server.terminate()
        server.wait()
