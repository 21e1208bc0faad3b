"""Operations on keys as rows: equal to the projections' decoder, whatever the bytes."""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from onelog.projections.codec import SessionRef
from onelog.projections.conditions import Condition, Target
from onelog.projections.errors import BadPayload
from onelog.projections.kv.commands import (
    Command,
    Delete,
    DeleteRange,
    Get,
    JsonDelete,
    LeaseGrant,
    Put,
    PutMany,
    Transaction,
    encode_body,
    encode_command,
    prefix_end,
    put_bodies,
)
from onelog.projections.reasons import Reason
from onelog.spark.columns import kv, view
from onelog.spark.columns.block import Block
from onelog.spark.columns.kv import VIEW, entries_with_prefix
from onelog.spark.columns.operations import OPERATIONS, find_types
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request
from onelog.ual.entry import Draft, Entry, decode_entry
from onelog.ual.errors import CorruptPayload
from tests.formats.golden import FORMATS, load_golden
from tests.projections import payload_samples
from tests.spark.entries import SHARD, Row, cut, encode, payload_block, rows_of
from tests.spark.kv_rows import NAMES, Commands, expected_rows

# Random payloads that are compared; make spark-test sets more.
PAYLOADS = int(os.environ.get("SPARK_PAYLOADS", "12000"))
CHUNK = 4_000
GOLDEN = sorted(path.stem for path in (FORMATS / "payloads").glob("kv_*.hex"))


def entries_of(data: bytes, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[Entry]:
    ends = [*offsets[1:].tolist(), len(data)]
    return [
        decode_entry(data[start:end]) for start, end in zip(offsets.tolist(), ends, strict=True)
    ]


def chunks(seed: int, count: int) -> Iterator[list[Draft]]:
    commands = Commands(seed)
    for first in range(0, count, CHUNK):
        yield [commands.draft() for _ in range(min(CHUNK, count - first))]


def full_rows(entry: Entry) -> list[Row]:
    header = {
        "shard": SHARD,
        "index": entry.index,
        "term": entry.term,
        "timestamp_ns": entry.timestamp_ns,
        "transaction": None,
    }
    return [row | header for row in expected_rows(entry)]


def without_time(rows: list[Row]) -> list[Row]:
    return [{name: row[name] for name in row if name != "timestamp"} for row in rows]


def test_random_operations_are_as_the_projections_decode_them() -> None:
    """Every kind, with options, sessions, nested lists, packed payloads and keys of any bytes."""
    seen: Counter[str] = Counter()
    seed = int(os.environ.get("SPARK_SEED", "18"))
    for drafts in chunks(seed, PAYLOADS):
        data, offsets = encode(drafts)
        found = without_time(rows_of(VIEW, cut(data, offsets)))
        expected = [row for entry in entries_of(data, offsets) for row in full_rows(entry)]
        assert found == expected
        seen.update(row["operation"] for row in found)
    assert seen.keys() == set(NAMES.values())


def test_golden_payloads_are_as_the_projections_decode_them() -> None:
    assert len(GOLDEN) == len(payload_samples.KV) + 1
    types = {name: draft.entry_type for name, draft in payload_samples.samples().items()}
    drafts = [Draft(types[name], load_golden(f"payloads/{name}")) for name in GOLDEN]
    data, offsets = encode(drafts)
    found = without_time(rows_of(VIEW, cut(data, offsets)))
    assert found == [row for entry in entries_of(data, offsets) for row in full_rows(entry)]
    assert {row["operation"] for row in found} == set(NAMES.values())


def test_every_operation_of_the_owner_has_a_reader() -> None:
    assert {OPERATIONS[number] for number in VIEW.types or ()} == set(NAMES.values()) - {"get"}
    assert VIEW.types == find_types("kv")


def outcome(payload: bytes, entry_type: int, filler: bytes) -> list[Row] | None:
    """Return the rows of one payload among others; None where it is damaged."""
    whole = encode_command(Put(b"k", b"v"), "default").payload
    block = payload_block([whole, payload, whole], [0x0101, entry_type, 0x0101], filler)
    try:
        return rows_of(VIEW, [block])
    except CorruptPayload:
        return None


@pytest.mark.parametrize("name", GOLDEN)
def test_a_payload_cut_at_any_byte_is_refused_or_read_without_its_neighbours(name: str) -> None:
    """What the projections cannot read, either; and nothing of the bytes around it shows."""
    entry_type = payload_samples.samples()[name].entry_type
    payload = load_golden(f"payloads/{name}")
    for size in range(len(payload)):
        found = outcome(payload[:size], entry_type, b"\x01" * 32)
        assert found == outcome(payload[:size], entry_type, b"\xff" * 32), size
        entry = Entry(entry_type, 0, 0, 2, 0, 0, payload[:size])
        try:
            expected = expected_rows(entry)
        except BadPayload as error:
            reason = error.reason
        else:
            assert found is not None, size
            inner = [row for row in found if row["index"] == 2]
            assert [{name: row[name] for name in expected[0]} for row in inner] == expected
            continue
        # A value that is not allowed was refused and is void: only the layout matters.
        assert found is None or reason in (Reason.KEY_SIZE_INVALID, Reason.RANGE_INVALID), size


@pytest.mark.parametrize("name", GOLDEN)
def test_a_changed_byte_is_refused_or_read_without_its_neighbours(name: str) -> None:
    """Sizes and counts of any value never lead outside of the payload."""
    entry_type = payload_samples.samples()[name].entry_type
    payload = load_golden(f"payloads/{name}")
    for at in range(len(payload)):
        for value in (0, 2, 0x7F, 0xFF):
            changed = payload[:at] + bytes((value,)) + payload[at + 1 :]
            found = outcome(changed, entry_type, b"\x01" * 32)
            assert found == outcome(changed, entry_type, b"\xfe" * 32), (at, value)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("kv_put", 10, 0x08),  # an unknown option
        ("kv_delete", 10, 0x01),  # an option that only puts have
        ("kv_touch", 10, 0x02),
        ("kv_put_many", 20 + 4, 0x04),  # expected, in a put of many
        ("kv_json_set", 10, 0x02),
        ("kv_json_set", 17, 0x04),  # a step of an unknown kind
        ("kv_transaction", 12, 0x05),  # a condition's target
        ("kv_transaction", 13, 0x07),  # its comparison
    ],
)
def test_flags_without_a_meaning_are_damage(name: str, at: int, value: int) -> None:
    entry_type = payload_samples.samples()[name].entry_type
    payload = bytearray(load_golden(f"payloads/{name}"))
    assert outcome(bytes(payload), entry_type, b"") is not None
    payload[at] = value
    assert outcome(bytes(payload), entry_type, b"") is None


def test_bytes_behind_the_last_field_are_damage() -> None:
    for name in GOLDEN:
        draft = payload_samples.samples()[name]
        found = outcome(draft.payload + b"\0", draft.entry_type, b"")
        operation = OPERATIONS[draft.entry_type]
        # The others end in bytes that reach to the end of the payload.
        ends = {"delete", "touch", "json_delete", "transaction", "put_many"}
        assert (found is None) == (operation in ends or operation.startswith("lease")), name


def many(count: int, value: bytes = b"v") -> Command:
    keys = [b"key-%04d" % number for number in range(count)]
    return PutMany(put_bodies(keys, [value] * count, None))


def test_the_longest_lists_are_read_and_longer_ones_are_damage() -> None:
    longest = Transaction(
        tuple(Condition(b"c%d" % number, Target.EXISTS) for number in range(1_000)),
        tuple(Put(b"a%d" % number, b"") for number in range(1_000)),
        tuple(Get(b"b%d" % number) for number in range(1_000)),
    )
    drafts = [
        encode_command(command, "default") for command in (longest, Put(b"x", b""), many(1_000))
    ]
    data, offsets = encode(drafts)
    found = without_time(rows_of(VIEW, cut(data, offsets)))
    assert found == [row for entry in entries_of(data, offsets) for row in full_rows(entry)]
    for command in (
        many(1_001),
        Transaction((), (*longest.then, Delete(b"d"))),
        Transaction((), (), (*longest.then, Delete(b"d"))),
        Transaction((*longest.conditions, Condition(b"x", Target.MISSING)), ()),
    ):
        draft = encode_command(command, "default")
        assert outcome(draft.payload, draft.entry_type, b"") is None


@pytest.mark.parametrize("options", [{"lease": 5}, {"expected": 5}])
def test_a_put_of_many_depends_on_nothing(options: dict[str, int]) -> None:
    bodies = (encode_body(Put(b"a", b"1")), encode_body(Put(b"b", b"2", **options)))
    draft = encode_command(PutMany(bodies), "default")
    assert outcome(draft.payload, draft.entry_type, b"") is None


def test_the_longest_path_is_read_and_a_longer_one_is_damage() -> None:
    for count in (64, 65):
        draft = encode_command(JsonDelete(b"key", (None,) * count), "default")
        found = outcome(draft.payload, draft.entry_type, b"")
        assert (found is None) == (count == 65)


@pytest.mark.parametrize("kind", [0x0A, 0x0D, 0x0F, 0x10, 0x21])
def test_a_transaction_holds_no_lease_transaction_or_unknown_operation(kind: int) -> None:
    draft = encode_command(Transaction((), (Get(b"key"),)), "default")
    at = draft.payload.index(b"\x20\x03\0\0\0key")
    changed = draft.payload[:at] + bytes((kind,)) + draft.payload[at + 1 :]
    assert outcome(changed, draft.entry_type, b"") is None


def test_entries_of_other_owners_and_unknown_operations_have_no_rows() -> None:
    drafts = [
        Draft(0x0001, b""),
        encode_command(Put(b"a", b"1"), "default"),
        Draft(0x0110, b"of a later version"),
        Draft(0x0201, b"?"),
    ]
    assert [row["key"] for row in rows_of(VIEW, cut(*encode(drafts)))] == [b"a"]


def test_batches_are_bounded_and_lose_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is cut between entries; one entry with more rows than a batch has stays whole."""
    commands = Commands(7)
    drafts = [commands.draft() for _ in range(300)]
    drafts[100:100] = [encode_command(many(50), "default")]
    blocks = list(cut(*encode(drafts)))
    whole = rows_of(VIEW, blocks)
    monkeypatch.setattr(view, "BATCH_ROWS_MAX", 20)
    batches = [batch for block in blocks for batch in VIEW.batches(block, Request())]
    sizes = [batch.num_rows for batch in batches]
    assert [row for batch in batches for row in batch.to_pylist()] == whole
    assert max(sizes) == 50
    # As few as the bound allows: what follows a batch did not fit into it.
    counts = Counter(row["index"] for row in whole)
    for before, after in pairwise(batches):
        first = after.column("index")[0].as_py()
        assert before.num_rows + counts[first] > 20
    assert sum(size > 20 for size in sizes) == sum(count > 20 for count in counts.values())


def test_counts_are_the_rows_that_are_decoded() -> None:
    commands = Commands(8)
    (block,) = cut(*encode([commands.draft() for _ in range(2_000)]))
    counts = kv._count(block)
    found = Counter(row["index"] for row in rows_of(VIEW, [block]))
    assert counts.tolist() == [found[index] for index in block.headers["index"].tolist()]


def with_prefix(rows: list[Row], prefix: bytes) -> list[tuple[int, int]]:
    """Return which rows a prefix keeps, by the rule in the view's docstring, one by one."""
    kept: set[tuple[int, int]] = set()
    for row in rows:
        key, place = row["key"], (row["index"], row["position"])
        is_about = key is not None and key.startswith(prefix)
        if row["operation"] == "delete_range":
            last, first_behind = row["end_key"], prefix_end(prefix)
            is_about = (first_behind is None or key < first_behind) and (
                last is None or last > prefix
            )
        if any(each["key"].startswith(prefix) for each in row["conditions"] or ()):
            is_about = True
        if is_about:
            kept.add(place)
            if row["branch"] is not None:
                kept.add((row["index"], 0))
    return sorted(kept)


@pytest.mark.parametrize(
    "prefix", [b"", b"u", b"user:1", b"user:12", b"\xff", b"k" * 300, b"z", b"user:5\x00"]
)
def test_a_prefix_keeps_the_rows_about_such_keys(prefix: bytes) -> None:
    commands = Commands(9)
    (block,) = cut(*encode([commands.draft() for _ in range(2_500)]))
    rows = rows_of(VIEW, [block])
    expected = with_prefix(rows, prefix)
    request = Request(Selection(key_prefix=prefix))
    found = rows_of(VIEW, [block], request)
    assert [(row["index"], row["position"]) for row in found] == expected
    by_place = {(row["index"], row["position"]): row for row in rows}
    assert found == [by_place[place] for place in expected]
    mask = entries_with_prefix(block, prefix)
    assert set(block.headers["index"][mask].tolist()) == {index for index, _ in expected}


@pytest.mark.parametrize(
    ("start", "end", "is_kept"),
    [
        (b"a", b"b", True),  # holds all keys with the prefix
        (b"aa", None, True),
        (b"ab", b"abc", True),
        (b"abc", b"abd", True),
        (b"", b"ab", False),  # ends before the first of them
        (b"", b"ab\0", True),
        (b"ac", None, False),
        (b"aaz", b"abzz", True),
        (b"b", b"c", False),
    ],
)
def test_a_range_is_kept_if_it_can_hold_a_key_with_the_prefix(
    start: bytes, end: bytes | None, *, is_kept: bool
) -> None:
    (block,) = cut(*encode([encode_command(DeleteRange(start, end, 5), "default")]))
    assert entries_with_prefix(block, b"ab").tolist() == [is_kept]


def test_namespaces_are_selected_before_anything_is_expanded() -> None:
    commands = Commands(10)
    (block,) = cut(*encode([commands.draft() for _ in range(1_000)]))
    wanted = {"d", "ä" * 20}
    selection = Selection(namespaces=frozenset(name.encode() for name in wanted))
    rows = rows_of(VIEW, [block])
    found = rows_of(VIEW, [block], Request(selection))
    assert found == [row for row in rows if row["namespace"] in wanted]
    assert 0 < len(found) < len(rows)


def test_each_column_alone_is_the_same_as_among_all() -> None:
    commands = Commands(11)
    blocks = list(cut(*encode([commands.draft() for _ in range(500)])))
    rows = rows_of(VIEW, blocks)
    for name in VIEW.schema.names:
        alone = rows_of(VIEW, blocks, Request(columns=frozenset((name,))))
        assert alone == [{name: row[name]} for row in rows]
    counted = [
        batch.num_rows
        for block in blocks
        for batch in VIEW.batches(block, Request(columns=frozenset()))
    ]
    assert sum(counted) == len(rows)


def test_a_batch_has_the_view_s_types() -> None:
    commands = Commands(12)
    for block in cut(*encode([commands.draft() for _ in range(500)])):
        for batch in VIEW.batches(block, Request()):
            assert batch.schema == VIEW.schema
            batch.validate(full=True)
    lonely = encode([encode_command(LeaseGrant(1), "default", SessionRef(1, 2, 1))])
    for block in cut(*lonely):
        (batch,) = VIEW.batches(block, Request())
        assert batch.schema == VIEW.schema
        batch.validate(full=True)


def test_a_block_without_wanted_rows_has_no_batch() -> None:
    (block,) = cut(*encode([Draft(0x0001, b"")]))
    assert isinstance(block, Block)
    assert list(VIEW.batches(block, Request())) == []
