"""What bench/spark.py compares with: a loop with the project's decoders, a snapshot, a server."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from bench.client import wait_until_up
from bench.spark_data import START_NS, kv_drafts
from onelog import Client
from onelog.errors import ResourceExhausted
from onelog.projections.codec import read_prefix
from onelog.projections.kv import commands as kv_commands
from onelog.projections.queue import commands as queue_commands
from onelog.projections.shard_state import build_projections
from onelog.projections.stream import commands as stream_commands
from onelog.projections.timeseries import commands as ts_commands
from onelog.projections.timeseries.names import parse_series
from onelog.projections.timeseries.point_batch import WriteBatch
from onelog.projections.timeseries.types import TYPE_NAMES, bits_to_value
from onelog.snapshot.format import SnapshotHeader
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.state import write_state
from onelog.spark.columns.operations import OPERATIONS, OWNERS
from onelog.spark.options import ReadOptions
from onelog.spark.state import STATE_VIEWS, load_state_table
from onelog.ual.entry import Entry, decode_entries, encode_group
from onelog.ual.files import DiskFiles
from onelog.ual.segments.notes import ApplyNotes, SegmentNotes
from onelog.ual.segments.sealed import SealedSegment
from tests.system.ports import free_addresses

GROUP_ENTRIES = 256
SERIES = 10
WRITE_POINTS = 10_000
BLOCKS_SHARE = 0.9
BLOCKS_S_MAX = 300.0
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
            found = bits_to_value(kind, value)
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
            state.router.apply_group(decode_entries(encoded.data))
            group = []
    directory.mkdir()
    header = SnapshotHeader(0, count, 1, 1, count)
    notes = CoveredNotes(count + 1, SegmentNotes())
    write_state(DiskFiles(), directory, header, 1, state.router, notes, free_bytes_min=0)
    (path,) = directory.glob("*.fsnap")
    return path


def write_series(directory: Path, points: int) -> Path:
    """Write points to a server until they are in blocks, and take a snapshot; return its data."""
    draw = np.random.default_rng(5)
    each = points // SERIES
    with serving(directory) as endpoint, Client(endpoint) as client:
        for first in range(0, each, WRITE_POINTS):
            count = min(WRITE_POINTS, each - first)
            times = np.arange(first, first + count) * 1_000_000_000 + START_NS
            for number in range(SERIES):
                fields = {"load": np.round(np.cumsum(draw.normal(size=count)), 2)}
                _write_points(client, times, fields, {"host": f"h{number}"})
        read = ReadOptions.parse({"view": "series", "endpoint": endpoint}, STATE_VIEWS)
        deadline = time.monotonic() + BLOCKS_S_MAX
        while _in_blocks(read) < BLOCKS_SHARE * points:
            assert time.monotonic() < deadline, "the server makes no blocks"
            time.sleep(0.5)
        client.admin.take_snapshot(0)
    return directory


def _write_points(client: Client, times: Any, fields: dict[str, Any], tags: dict[str, str]) -> None:
    """Write points of a series, as fast as the server makes blocks of them."""
    deadline = time.monotonic() + BLOCKS_S_MAX
    while True:
        try:
            client.ts.write("cpu", times, fields, tags=tags)
        except ResourceExhausted:
            assert time.monotonic() < deadline, "the server makes no blocks"
            time.sleep(0.1)
        else:
            return


def _in_blocks(read: ReadOptions) -> int:
    """Return how many points are in blocks."""
    table = load_state_table(read, {})
    batches = [batch for part in table.parts for batch in table.batches(part, None)]
    return sum(int(pc.sum(batch.column("block_points")).as_py() or 0) for batch in batches)


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
        wait_until_up(api)
        yield api
    finally:
        server.terminate()
        server.wait()
