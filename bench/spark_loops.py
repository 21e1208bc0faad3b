"""What bench/spark.py compares with: a loop with the project's decoders, a snapshot, a server."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.spark_data import kv_drafts
from node.settings import free_addresses
from projections import kv_commands, queue_commands, stream_commands, ts_commands
from projections.payload import read_prefix
from projections.table import build_projections
from projections.ts_batch import WriteBatch
from snapshot.format import SnapshotHeader
from snapshot.notes_section import CoveredNotes
from snapshot.state import write_state
from ual.entry import decode_group, encode_group
from ual.files import DiskFiles
from ual.notes import ApplyNotes, SegmentNotes
from ual.sealed import SealedSegment

GROUP_ENTRIES = 256
DECODERS: dict[str, Any] = {
    "kv_operations": kv_commands.decode_command,
    "queue_operations": queue_commands.decode_command,
    "stream": stream_commands.decode_command,
    "timeseries_operations": ts_commands.decode_command,
}


def loop_over(path: Path, view: str, count: int) -> int:
    """Make a row of each entry, or of each point, one after the other; return how many."""
    rows: list[tuple[object, ...]] = []
    for file in sorted(path.rglob("*.flseg")):
        segment = SealedSegment.open(DiskFiles(), file)
        for entry in segment.scan(segment.first_index, min(segment.last_index, count)):
            head = (0, entry.index, entry.term, entry.timestamp_ns, entry.entry_type)
            payload = entry.plain_payload()
            if view == "log":
                rows.append((*head, entry.flags, entry.group_left, payload))
                continue
            prefix, reader = read_prefix(payload)
            command = DECODERS[view](entry.entry_type & 0xFF, reader)
            if isinstance(command, WriteBatch):
                rows += _points(head, command)
            else:
                rows.append((*head, prefix.namespace, command))
        if segment.last_index >= count:
            break
    return len(rows)


def _points(head: tuple[object, ...], batch: WriteBatch) -> Iterator[tuple[object, ...]]:
    for run in range(len(batch.run_series)):
        series = batch.series[batch.run_series[run]]
        name, kind = batch.fields[batch.run_fields[run]]
        start = int(batch.starts[run])
        end = start + int(batch.sizes[run])
        times, bits = batch.point_times[start:end].tolist(), batch.bits[start:end].tolist()
        for time_ns, value in zip(times, bits, strict=True):
            yield (*head, series, name, kind, time_ns, value)


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
