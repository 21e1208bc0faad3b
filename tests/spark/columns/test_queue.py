"""The view ``queue_operations`` against the decoder that applies entries."""

from collections.abc import Callable
from random import Random

import pyarrow as pa
import pytest

from onelog.projections.codec import encode_prefix
from onelog.projections.errors import BadPayload
from onelog.projections.queue.commands import (
    Ack,
    Cancel,
    Lease,
    QueueCreate,
    QueueDelete,
    encode_command,
)
from onelog.projections.queue.message import Enqueue, QueueConfig
from onelog.spark.columns import view as views
from onelog.spark.columns.operations import find_types
from onelog.spark.columns.queue import VIEW
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request
from onelog.ual.entry import Draft
from onelog.ual.errors import CorruptPayload
from tests.formats.golden import load_golden
from tests.projections.queue import queue_histories, queue_samples
from tests.projections.queue.queue_world import QueueWorld
from tests.spark.columns.queue_reference import QueueDraws, queue_rows
from tests.spark.columns.rows_of import (
    EVERYTHING,
    FIRST_INDEX,
    PAYLOADS,
    SHARD,
    TERM,
    TIME_NS,
    Row,
    batches_of,
    blocks_of,
    rows_of,
)

CHUNK = 5_000


def expected_rows(
    drafts: list[Draft], wanted: Callable[[Row], bool] = lambda row: True
) -> list[Row]:
    rows = (queue_rows(draft, FIRST_INDEX + at) for at, draft in enumerate(drafts))
    return [row for of_one in rows for row in of_one if wanted(row)]


@pytest.mark.parametrize("name", sorted(queue_samples.COMMANDS))
def test_a_golden_payload_has_the_rows_of_its_command(name: str) -> None:
    draft = Draft(queue_samples.samples()[name].entry_type, load_golden(f"payloads/{name}"))

    assert rows_of(VIEW, [draft]) == queue_rows(draft, FIRST_INDEX)


def test_random_payloads_have_the_rows_of_their_commands() -> None:
    draws = QueueDraws(Random(18))
    for first in range(0, PAYLOADS, CHUNK):
        drafts = [draws.draft() for _ in range(min(CHUNK, PAYLOADS - first))]
        assert rows_of(VIEW, drafts) == expected_rows(drafts)


def test_commands_of_a_history_have_the_rows_of_their_commands() -> None:
    rng, world = Random(18), QueueWorld()
    drafts: list[Draft] = []
    while len(drafts) < 1_000:
        new = queue_histories.random_commands(rng, world.state.queue)
        world.group(new)
        drafts += new

    assert rows_of(VIEW, drafts) == expected_rows(drafts)


def test_every_operation_of_queues_has_rows() -> None:
    assert VIEW.types == find_types("queue")


def test_rows_say_where_they_stand_in_the_log() -> None:
    drafts = [
        encode_command(Enqueue(7, b"a"), "default"),
        encode_command(Ack(7, ((5, 1), (6, 1))), "default"),
    ]
    (batch,) = batches_of(VIEW, drafts)
    table = pa.Table.from_batches([batch]).to_pydict()

    assert batch.schema == VIEW.schema
    assert table["shard"] == [SHARD] * 3
    assert table["term"] == [TERM] * 3
    assert table["timestamp_ns"] == [TIME_NS] * 3
    assert table["index"] == [FIRST_INDEX, FIRST_INDEX + 1, FIRST_INDEX + 1]
    assert table["position"] == [0, 0, 1]
    assert table["message_id"] == [FIRST_INDEX, 5, 6]


@pytest.mark.parametrize("name", sorted(queue_samples.COMMANDS))
def test_a_payload_that_ends_early_is_corrupt(name: str) -> None:
    """But for one cut in its body, which has no size: that is a payload with a shorter body."""
    draft = queue_samples.samples()[name]
    behind = encode_command(QueueDelete(7), "default")  # bytes that a wrong read would run into
    for size in range(len(draft.payload)):
        cut = Draft(draft.entry_type, draft.payload[:size])
        try:
            expected = queue_rows(cut, FIRST_INDEX)
        except BadPayload:
            with pytest.raises(CorruptPayload):
                rows_of(VIEW, [cut, behind])
        else:
            assert rows_of(VIEW, [cut, behind])[: len(expected)] == expected


@pytest.mark.parametrize("name", sorted(queue_samples.COMMANDS))
def test_a_payload_with_another_byte_is_corrupt_or_read_as_the_decoder_reads_it(name: str) -> None:
    draft = queue_samples.samples()[name]
    rng = Random(name)
    for place in range(len(draft.payload)):
        data = bytearray(draft.payload)
        data[place] = rng.randrange(256)
        changed = Draft(draft.entry_type, bytes(data))
        try:
            found = rows_of(VIEW, [changed])
        except CorruptPayload:
            with pytest.raises(BadPayload):
                queue_rows(changed, FIRST_INDEX)
            continue
        try:
            expected = queue_rows(changed, FIRST_INDEX)
        except BadPayload:
            continue  # a value out of its bounds, which apply refuses; the layout is sound
        assert found == expected


def test_bytes_behind_the_last_field_are_corrupt() -> None:
    draft = encode_command(Ack(7, ((5, 1),)), "default")

    with pytest.raises(CorruptPayload):
        rows_of(VIEW, [Draft(draft.entry_type, draft.payload + b"\0")])


@pytest.mark.parametrize(
    ("count", "said"), [(0, "not 1 to"), (65, "not 1 to"), (64, "headers cross")]
)
def test_headers_are_one_to_64_and_not_more_than_there_is_room_for(count: int, said: str) -> None:
    room = 900 if count == 65 else 90  # zeros are empty headers, of which 65 would fit
    draft = encode_command(Enqueue(7, bytes(room), headers=((b"a", b""),)), "default")
    data = bytearray(draft.payload)
    at = len(data) - room - 4 - 2
    assert data[at] == 1
    data[at] = count

    with pytest.raises(CorruptPayload, match=said):
        rows_of(VIEW, [Draft(draft.entry_type, bytes(data))])


@pytest.mark.parametrize(
    ("name", "place", "bit"),
    [("enqueue", 8, 7), ("schedule_create", 8, 0), ("ack", 8, 1), ("nack", 8, 2), ("purge", 8, 1)],
)
def test_an_option_that_is_not_known_is_corrupt(name: str, place: int, bit: int) -> None:
    """What it changes in the layout is not known either."""
    draft = queue_samples.samples()[f"queue_{name}"]
    data = bytearray(draft.payload)
    data[len(encode_prefix("default")) + place] |= 1 << bit

    with pytest.raises(CorruptPayload, match="option"):
        rows_of(VIEW, [Draft(draft.entry_type, bytes(data))])


def test_a_choice_of_namespaces_and_queues_leaves_the_rows_of_others_out() -> None:
    draws = QueueDraws(Random(19))
    drafts = [draws.draft() for _ in range(2_000)]
    created = FIRST_INDEX + next(
        at for at, draft in enumerate(drafts) if draft.entry_type == 0x0210
    )
    queues = frozenset((7, created))
    both = Selection(namespaces=frozenset((b"default", b"")), queues=queues)

    assert rows_of(VIEW, drafts, Request(Selection(queues=queues))) == expected_rows(
        drafts, lambda row: row["queue_id"] in queues
    )
    chosen = expected_rows(
        drafts, lambda row: row["queue_id"] in queues and row["namespace"] in {"default", ""}
    )
    assert len(chosen) > 50
    assert {len(row.get("headers", ())) for row in chosen} >= {0, 2}  # type: ignore[arg-type]
    assert rows_of(VIEW, drafts, Request(both)) == chosen
    assert rows_of(VIEW, drafts, Request(Selection(queues=frozenset()))) == []


def test_queues_have_the_names_that_are_known() -> None:
    drafts = [
        encode_command(command, "default")
        for command in (QueueCreate("jobs", QueueConfig()), Lease(5), Cancel(6, (1, 2)), Lease(9))
    ]
    found = rows_of(VIEW, drafts, Request(queue_names={5: "mail", 6: "dead"}))

    assert [row.get("queue") for row in found] == ["jobs", "mail", "dead", "dead", None]


@pytest.mark.parametrize("columns", [["headers"], ["body"], ["queue", "token"], ["index"], []])
def test_only_wanted_columns_are_made(columns: list[str]) -> None:
    draws = QueueDraws(Random(20))
    drafts = [draws.draft() for _ in range(500)]
    everything = pa.Table.from_batches(batches_of(VIEW, drafts))
    wanted = batches_of(VIEW, drafts, Request(columns=frozenset(columns)))

    assert sum(batch.num_rows for batch in wanted) == everything.num_rows
    if columns:
        shown = [name for name in VIEW.schema.names if name in columns]
        assert pa.Table.from_batches(wanted) == everything.select(shown)


def test_a_block_with_many_rows_is_cut_between_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = QueueDraws(Random(21))
    drafts = [draws.draft() for _ in range(300)]
    drafts[100] = encode_command(Ack(7, tuple((number, 1) for number in range(50))), "default")
    monkeypatch.setattr(views, "BATCH_ROWS_MAX", 20)
    batches = batches_of(VIEW, drafts)

    (block,) = blocks_of(drafts)
    assert VIEW.count is not None
    counts = VIEW.count(block).tolist()
    assert counts == [len(queue_rows(draft, 1)) for draft in drafts]
    sizes = [batch.num_rows for batch in batches]
    assert 50 in sizes
    assert max(size for size in sizes if size != 50) <= 20
    assert sum(sizes) == sum(counts)
    entries = [set(batch["index"].to_pylist()) for batch in batches]
    assert sum(len(each) for each in entries) == len(drafts)
    assert rows_of(VIEW, drafts) == expected_rows(drafts)


def test_a_block_without_entries_has_no_rows() -> None:
    (block,) = blocks_of([encode_command(Lease(7), "default")])

    nothing = Request(Selection(namespaces=frozenset((b"other",))))
    assert list(VIEW.batches(block, nothing)) == []
    assert len(list(VIEW.batches(block, EVERYTHING))) == 1
