"""The view of the log over random histories of all models, in real files.

What it says is compared with a reader that imports nothing of onelog and with the projections'
decoders: headers, payloads, names, transactions, voids, compaction.
"""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from onelog.projections.kv.commands import KV_OPERATIONS, Put, encode_command
from onelog.projections.queue import commands as queue_commands
from onelog.projections.stream import commands as stream_commands
from onelog.projections.system import commands as system_commands
from onelog.projections.timeseries import commands as ts_commands
from onelog.projections.timeseries.names import SeriesName, format_series, parse_series
from onelog.spark.columns import kv, log
from onelog.spark.columns.block import Block, Transactions, cut_blocks
from onelog.spark.columns.operations import OPERATIONS, OWNERS, TYPES, find_types
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request, View
from onelog.spark.columns.views import VIEWS
from onelog.ual.entry import Draft, Entry
from onelog.ual.files import DiskFiles
from onelog.ual.segments.sealing import compact_segment
from tests.formats.independent_reader import Entry as ReadEntry
from tests.formats.independent_shard import read_shard
from tests.spark.entries import Row, cut, encode, rows_of
from tests.spark.kv_rows import expected_rows, text_or_none
from tests.spark.written import OPAQUE, Written, plain, said_by, write_history

SEEDS = (1, 2)
STEPS = 1_000


@pytest.fixture(scope="module", params=SEEDS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_history(tmp_path_factory.mktemp("history"), request.param, STEPS)


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A shard of which compaction has dropped a third, batch entries among it."""
    made = write_history(tmp_path_factory.mktemp("compacted"), 3, STEPS)
    draw = Random(5)
    for segment in made.segments():
        indexes = range(segment.first_index, segment.last_index + 1)
        keep = [index for index in indexes if draw.random() < 0.66]
        compact_segment(DiskFiles(), segment.path, np.array(keep, np.uint64))
    return made


def blocks_of(
    written: Written, selection: Selection | None = None, draw: Random | None = None
) -> Iterator[Block]:
    """Yield blocks of the sealed segments; with ``draw``, in pieces cut at random entries."""
    transactions = Transactions()
    for segment in written.segments():
        columns = segment.columns(segment.first_index, segment.last_index)
        offsets = columns.payload_offset.astype(np.int64) - 40
        cuts = [] if draw is None else [draw.randrange(len(offsets) + 1) for _ in range(30)]
        for first, stop in pairwise(sorted({0, len(offsets), *cuts})):
            yield from cut_blocks(
                0,
                columns.buffer,
                offsets[first:stop],
                voids=segment.voids,
                selection=selection or Selection(),
                transactions=transactions,
            )


def expected_log(entries: list[ReadEntry]) -> list[Row]:
    """Return the rows that the log has, one entry at a time."""
    rows: list[Row] = []
    batch, batch_end = 0, 0
    names: dict[int, bytes] = queue_names(entries)
    for entry in entries:
        said = said_by(entry)
        if said.batch_size:
            batch, batch_end = entry.index, entry.index + said.batch_size
        owner = OWNERS[entry.entry_type >> 8]
        name = said.name if said.name is not None else names.get(said.queue)
        rows.append(
            {
                "shard": 0,
                "index": entry.index,
                "position": 0,
                "term": entry.term,
                "timestamp_ns": entry.timestamp_ns,
                "operation": OPERATIONS[entry.entry_type],
                "transaction": batch if entry.index <= batch_end else None,
                "type": entry.entry_type,
                "owner": owner,
                "flags": entry.flags,
                "group_left": entry.group_left,
                "namespace": said.namespace,
                "name": name,
                "name_text": text_or_none(name),
                "payload": plain(entry),
            }
        )
    return rows


def queue_names(entries: list[ReadEntry]) -> dict[int, bytes]:
    created = (entry for entry in entries if entry.entry_type == TYPES["queue", "queue_create"])
    return {entry.index: said_by(entry).name or b"" for entry in created}


def request_for(entries: list[ReadEntry], selection: Selection | None = None) -> Request:
    names = {number: name.decode() for number, name in queue_names(entries).items()}
    return Request(selection or Selection(), queue_names=names)


def found_rows(view: View, blocks: Iterator[Block], request: Request) -> list[Row]:
    rows = rows_of(view, blocks, request)
    for row in rows:
        moment = row.pop("timestamp")
        assert int(moment.timestamp()) == row["timestamp_ns"] // 1_000_000_000
        assert moment.microsecond == row["timestamp_ns"] // 1_000 % 1_000_000
    return rows


def test_the_log_is_what_an_independent_reader_reads(written: Written) -> None:
    entries = written.read()
    expected = expected_log(entries)
    request = request_for(entries)
    assert found_rows(log.VIEW, blocks_of(written), request) == expected
    assert found_rows(log.VIEW, blocks_of(written, draw=Random(4)), request) == expected
    # The history has what the comparison is about.
    assert {row["owner"] for row in expected} == set(OWNERS)
    assert any(row["transaction"] for row in expected)
    assert any(row["flags"] & 1 for row in expected)
    assert len(entries) < sum(len(segment.entries) for segment in read_shard(written.path)[1])
    assert len(written.segments()) > 2


def test_operations_on_keys_are_those_of_an_independent_reader(written: Written) -> None:
    entries = written.read()
    expected = []
    for entry, row in zip(entries, expected_log(entries), strict=True):
        if row["owner"] == "kv":
            header = {name: row[name] for name in ("shard", "index", "term", "timestamp_ns")}
            header["transaction"] = row["transaction"]
            expected += [header | each for each in expected_rows(Entry(*entry))]
    selection = Selection(types=kv.VIEW.narrowed(Selection()))
    request = Request(selection)
    assert found_rows(kv.VIEW, blocks_of(written, selection), request) == expected
    assert found_rows(kv.VIEW, blocks_of(written, selection, Random(6)), request) == expected
    assert found_rows(kv.VIEW, blocks_of(written), request) == expected
    assert {row["operation"] for row in expected} >= {"put", "put_many", "transaction", "get"}


def test_a_compacted_log_shows_what_is_left(compacted: Written) -> None:
    """An entry whose batch entry was dropped is no part of a transaction, nor of another one."""
    entries = compacted.read()
    expected = expected_log(entries)
    found = found_rows(log.VIEW, blocks_of(compacted, draw=Random(7)), request_for(entries))
    assert found == expected
    orphans = [row for row in expected if row["flags"] & 2 and row["transaction"] is None]
    assert orphans


def test_selected_headers_are_those_of_all_entries(written: Written) -> None:
    entries = written.read()
    expected = expected_log(entries)
    times = sorted({row["timestamp_ns"] for row in expected})
    early, late = times[len(times) // 3], times[len(times) // 2]
    selection = Selection(owners=frozenset((1, 4)), from_time_ns=early, to_time_ns=late)
    found = found_rows(log.VIEW, blocks_of(written, selection), request_for(entries, selection))
    assert found == [
        row
        for row in expected
        if row["owner"] in ("kv", "stream") and early <= row["timestamp_ns"] <= late
    ]


def rows_selected(written: Written, selection: Selection) -> list[int]:
    request = Request(selection, columns=frozenset(("index",)))
    return [row["index"] for row in rows_of(log.VIEW, blocks_of(written, selection), request)]


def test_names_select_what_is_about_them(written: Written) -> None:
    entries = written.read()
    said = {entry.index: (entry.entry_type >> 8, said_by(entry)) for entry in entries}
    namespace = frozenset((b"orders", b""))
    assert rows_selected(written, Selection(namespaces=namespace)) == [
        index for index, (_, each) in said.items() if each.namespace in ("orders", "")
    ]
    names = [each.name for owner, each in said.values() if owner == 4 and each.name]
    stream = frozenset(names[:1])
    assert rows_selected(written, Selection(streams=stream)) == [
        index for index, (owner, each) in said.items() if owner == 4 and each.name in stream
    ]
    queues = frozenset([each.queue for _, each in said.values() if each.queue][:1])
    assert rows_selected(written, Selection(queues=queues)) == [
        index for index, (_, each) in said.items() if each.queue in queues
    ]
    prefix = b"key-1"
    kept = rows_selected(written, Selection(key_prefix=prefix))
    request = Request(Selection(key_prefix=prefix), columns=frozenset(("index",)))
    operations = rows_of(kv.VIEW, blocks_of(written), request)
    assert kept == sorted({row["index"] for row in operations})
    types = {entry.index: OPERATIONS[entry.entry_type] for entry in entries}
    assert {"put", "put_many", "transaction", "delete_range"} <= {types[index] for index in kept}


def test_measurements_select_the_points_of_their_series() -> None:
    r"""A name with characters of its own has backslashes in the name of a series."""
    names = ["m", "m2", "a{b", r"c\d"]
    drafts = [
        ts_commands.encode_command(
            ts_commands.Write(series_of(name, tags), 5, (("f", 1),)), "default"
        )
        for name in names
        for tags in ((), (("t", "m{"),))
    ]
    drafts += [
        ts_commands.encode_command(ts_commands.DropMeasurement(name), "default") for name in names
    ]
    drafts.append(encode_command(Put(b"m{", b"a key, not a series"), "default"))
    (block,) = cut(*encode(drafts))
    for number, name in enumerate(names):
        request = Request(Selection(measurements=frozenset((name.encode(),))))
        found = [row["index"] - 1 for row in rows_of(log.VIEW, [block], request)]
        assert found == [2 * number, 2 * number + 1, 8 + number]


def series_of(measurement: str, tags: tuple[tuple[str, str], ...]) -> bytes:
    made = format_series(SeriesName(measurement, tags))
    assert parse_series(made).measurement == measurement
    return made


def test_names_are_not_read_unless_somebody_wants_them() -> None:
    """Headers and payloads of entries that this version cannot read are shown all the same."""
    drafts = [Draft(0x0101, b"\xff\xff"), Draft(0x0F77, b"later")]
    blocks = list(cut(*encode(drafts)))
    wanted = frozenset(log.VIEW.schema.names) - {"namespace", "name", "name_text"}
    rows = rows_of(log.VIEW, blocks, Request(columns=wanted))
    assert [row["payload"] for row in rows] == [b"\xff\xff", b"later"]
    assert [row["operation"] for row in rows] == ["put", None]
    assert [row["owner"] for row in rows] == ["kv", None]


def test_opaque_payloads_have_no_namespace() -> None:
    blocks = cut(*encode([Draft(number, b"\xff") for number in OPAQUE]))
    rows = rows_of(log.VIEW, blocks)
    assert [(row["namespace"], row["name"]) for row in rows] == [(None, None)] * 2


def test_operations_have_the_numbers_of_the_projections() -> None:
    """Each decoder knows the operations that the views name, and no other."""
    for owner, operations in (
        ("kv", KV_OPERATIONS),
        ("queue", queue_commands.QUEUE_OPERATIONS),
        ("timeseries", ts_commands.TS_OPERATIONS),
        ("stream", stream_commands.STREAM_OPERATIONS),
    ):
        numbers = {each.number for each in operations if each.is_entry}
        assert numbers == {number & 0xFF for number in find_types(owner)}
    system = {each.number for each in system_commands.SYSTEM_OPERATIONS}
    assert system | set(OPAQUE) == find_types("system")
    assert OPERATIONS[TYPES["stream", "ack"]] == OPERATIONS[TYPES["queue", "ack"]] == "ack"


def test_views_are_found_by_their_names() -> None:
    assert VIEWS["log"] is log.VIEW
    assert VIEWS["kv_operations"] is kv.VIEW
    assert all(name == view.name for name, view in VIEWS.items())


def test_a_view_narrows_the_types_of_a_selection() -> None:
    wanted = Selection(types=frozenset((0x0101, 0x0401)))
    assert kv.VIEW.narrowed(wanted) == frozenset((0x0101,))
    assert kv.VIEW.narrowed(Selection()) == find_types("kv")
    assert log.VIEW.narrowed(wanted) == wanted.types
    assert log.VIEW.narrowed(Selection()) is None
