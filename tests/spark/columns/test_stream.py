"""The views ``stream`` and ``stream_operations`` against the decoder that applies entries."""

from collections.abc import Callable
from random import Random

import pyarrow as pa
import pytest

from onelog.projections.codec import encode_prefix
from onelog.projections.errors import BadPayload
from onelog.projections.stream.commands import Ack, Append, DeadLetter, Delete, encode_command
from onelog.spark.columns import stream, stream_operations
from onelog.spark.columns import view as views
from onelog.spark.columns.operations import find_types
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request, View
from onelog.ual.entry import Draft
from onelog.ual.errors import CorruptPayload
from tests.formats.golden import load_golden
from tests.projections.stream import stream_histories, stream_payload_samples
from tests.projections.stream.stream_world import StreamWorld
from tests.spark.columns.rows_of import (
    FIRST_INDEX,
    PAYLOADS,
    Row,
    batches_of,
    blocks_of,
    rows_of,
)
from tests.spark.columns.stream_reference import NAMES, StreamDraws, is_record, stream_rows

RECORDS, OPERATIONS = stream.VIEW, stream_operations.VIEW
CHUNK = 5_000
OTHERS = tuple(kind for kind in NAMES if kind not in {Append, DeadLetter})


def view_of(draft: Draft) -> View:
    return RECORDS if is_record(draft) else OPERATIONS


def expected_rows(
    view: View, drafts: list[Draft], wanted: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    return [
        row
        for at, draft in enumerate(drafts)
        if view_of(draft) is view
        for row in stream_rows(draft, FIRST_INDEX + at)
        if wanted(row)
    ]


@pytest.mark.parametrize("name", sorted(stream_payload_samples.STREAM))
def test_a_golden_payload_has_the_rows_of_its_command(name: str) -> None:
    sample = stream_payload_samples.samples()[name]
    draft = Draft(sample.entry_type, load_golden(f"payloads/{name}"))

    assert rows_of(view_of(draft), [draft]) == stream_rows(draft, FIRST_INDEX)


@pytest.mark.parametrize("view", [RECORDS, OPERATIONS], ids=["records", "operations"])
def test_random_payloads_have_the_rows_of_their_commands(view: View) -> None:
    kinds = (Append, Append, Append, DeadLetter) if view is RECORDS else OTHERS
    draws = StreamDraws(Random(18), kinds)
    for first in range(0, PAYLOADS, CHUNK):
        drafts = [draws.draft() for _ in range(min(CHUNK, PAYLOADS - first))]
        assert rows_of(view, drafts) == expected_rows(view, drafts)


def test_commands_of_a_history_have_the_rows_of_their_commands() -> None:
    rng, world = Random(18), StreamWorld()
    drafts: list[Draft] = []
    while len(drafts) < 1_000:
        new = stream_histories.random_commands(rng, world.stream)
        world.group(new)
        drafts += new

    for view in (RECORDS, OPERATIONS):
        assert rows_of(view, drafts) == expected_rows(view, drafts)


def test_every_operation_of_streams_has_rows_in_one_of_the_views() -> None:
    assert RECORDS.types is not None
    assert OPERATIONS.types is not None
    assert RECORDS.types | OPERATIONS.types == find_types("stream")
    assert not RECORDS.types & OPERATIONS.types


@pytest.mark.parametrize("name", sorted(stream_payload_samples.STREAM))
def test_a_payload_that_ends_early_is_corrupt(name: str) -> None:
    """But for one cut in its value, which has no size: that is a record with a shorter value."""
    draft = stream_payload_samples.samples()[name]
    view = view_of(draft)
    # Bytes that a wrong read would run into.
    behind = encode_command(Append("s", b"") if view is RECORDS else Delete("s"), "default")
    for size in range(len(draft.payload)):
        cut = Draft(draft.entry_type, draft.payload[:size])
        try:
            expected = stream_rows(cut, FIRST_INDEX)
        except BadPayload:
            with pytest.raises(CorruptPayload):
                rows_of(view, [cut, behind])
        else:
            assert rows_of(view, [cut, behind])[: len(expected)] == expected


@pytest.mark.parametrize("name", sorted(stream_payload_samples.STREAM))
def test_a_payload_with_another_byte_is_corrupt_or_read_as_the_decoder_reads_it(name: str) -> None:
    draft = stream_payload_samples.samples()[name]
    rng = Random(name)
    for place in range(len(draft.payload)):
        data = bytearray(draft.payload)
        data[place] = rng.randrange(256)
        changed = Draft(draft.entry_type, bytes(data))
        try:
            found = rows_of(view_of(changed), [changed])
        except CorruptPayload:
            with pytest.raises(BadPayload):
                stream_rows(changed, FIRST_INDEX)
            continue
        try:
            expected = stream_rows(changed, FIRST_INDEX)
        except BadPayload:
            continue  # a value out of its bounds, which apply refuses; the layout is sound
        assert found == expected


@pytest.mark.parametrize(
    ("name", "place"), [("append", 0), ("trim", 10), ("configure", 31), ("group_configure", 15)]
)
def test_an_option_that_is_not_known_is_corrupt(name: str, place: int) -> None:
    """What it changes in the layout is not known either."""
    draft = stream_payload_samples.samples()[f"stream_{name}"]
    data = bytearray(draft.payload)
    data[len(encode_prefix("default")) + place] |= 0x20

    with pytest.raises(CorruptPayload, match="option"):
        rows_of(view_of(draft), [Draft(draft.entry_type, bytes(data))])


def test_a_choice_of_names_leaves_the_rows_of_others_out() -> None:
    draws = StreamDraws(Random(19), (Append, Append, *NAMES))
    drafts = [draws.draft() for _ in range(3_000)]
    namespaces = frozenset((b"default", "é".encode()))
    selection = Selection(namespaces=namespaces, streams=frozenset((b"events", b"n" * 128)))
    for view in (RECORDS, OPERATIONS):
        chosen = expected_rows(
            view,
            drafts,
            lambda row: (
                row["namespace"] in {"default", "é"} and row.get("stream") in {"events", "n" * 128}
            ),
        )
        assert len(chosen) > 50
        assert rows_of(view, drafts, Request(selection)) == chosen
        assert rows_of(view, drafts, Request(Selection(streams=frozenset()))) == []


@pytest.mark.parametrize("prefix", [b"user:", b"user:2", b"", b"\xff", b"nobody"])
def test_a_choice_by_key_leaves_records_with_another_or_none_out(prefix: bytes) -> None:
    draws = StreamDraws(Random(20), (Append, DeadLetter))
    drafts = [draws.draft() for _ in range(1_000)]

    def is_wanted(row: Row) -> bool:
        key = row.get("key")
        return isinstance(key, bytes) and key.startswith(prefix)

    request = Request(Selection(key_prefix=prefix))
    assert rows_of(RECORDS, drafts, request) == expected_rows(RECORDS, drafts, is_wanted)


@pytest.mark.parametrize("columns", [["headers"], ["value"], ["key_text", "partition"], []])
def test_only_wanted_columns_are_made(columns: list[str]) -> None:
    draws = StreamDraws(Random(24), (Append, DeadLetter))
    drafts = [draws.draft() for _ in range(500)]
    everything = pa.Table.from_batches(batches_of(RECORDS, drafts))
    wanted = batches_of(RECORDS, drafts, Request(columns=frozenset(columns)))

    assert everything.schema == RECORDS.schema
    assert sum(batch.num_rows for batch in wanted) == everything.num_rows
    if columns:
        shown = [name for name in RECORDS.schema.names if name in columns]
        assert pa.Table.from_batches(wanted) == everything.select(shown)


def test_a_block_with_many_rows_is_cut_between_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = StreamDraws(Random(25), OTHERS)
    drafts = [draws.draft() for _ in range(300)]
    places = tuple((0, offset) for offset in range(50))
    drafts[100] = encode_command(Ack("orders", "g", 1, places), "default")
    (block,) = blocks_of(drafts)
    assert OPERATIONS.count is not None
    counts = OPERATIONS.count(block).tolist()
    assert counts == [len(stream_rows(draft, 1)) for draft in drafts]

    monkeypatch.setattr(views, "BATCH_ROWS_MAX", 45)
    sizes = [batch.num_rows for batch in batches_of(OPERATIONS, drafts)]
    assert 50 in sizes
    assert max(size for size in sizes if size != 50) <= 45
    assert rows_of(OPERATIONS, drafts) == expected_rows(OPERATIONS, drafts)
