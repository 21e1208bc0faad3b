"""Bytes of queue commands and results: round trips, golden files, and their document."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import SessionRef, read_prefix
from onelog.projections.errors import BadPayload, BadResult
from onelog.projections.queue.changes import acked_one
from onelog.projections.queue.commands import (
    OPERATIONS,
    QUEUE_OPERATIONS,
    Ack,
    Command,
    Extend,
    Lease,
    Nack,
    Purge,
    Redrive,
    decode_command,
    describe_queue_entry,
    encode_command,
)
from onelog.projections.queue.message import (
    LEASE_HEAD,
    LEASE_ROW,
    Enqueue,
    Leased,
    LeasedMessage,
    Message,
    ScheduleCreate,
    dead_headers,
    decode_cursor,
    decode_leased,
    decode_message,
    decode_verdicts,
)
from onelog.projections.queue.table import (
    DELIVERIES_SHIFT,
    HAS_DEAD,
    LEASED,
    Dead,
    Row,
    encode_dead,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied
from onelog.ual.entry import Draft, decode_entries, encode_group
from tests.formats.golden import golden_path, load_golden, parse_hex
from tests.projections.queue import queue_samples

DOCUMENT = Path(__file__).parents[3] / "docs" / "queue.md"
BLOCK = re.compile(r"^```hex (\S+)\n((?:.*\n)*?)^```$", re.MULTILINE)
NAMES = sorted(queue_samples.COMMANDS)

u64 = st.integers(0, 2**64 - 1)
keys = st.binary(max_size=128)
items = st.lists(st.tuples(u64, u64), min_size=1, max_size=4).map(tuple)
delays = st.none() | st.integers(0, 10**18)
lifetimes = st.none() | st.integers(1, 10**18)
header_names = st.binary(min_size=1, max_size=9).filter(lambda name: name[:4] != b"dlq.")
headers = st.lists(st.tuples(header_names, st.binary(max_size=9)), max_size=3).map(tuple)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        Enqueue,
        u64,
        st.binary(max_size=40),
        st.integers(0, 15),
        delays,
        st.none(),
        lifetimes,
        keys,
        keys,
        keys,
        headers,
    ),
    st.builds(Enqueue, u64, st.binary(max_size=9), at_ns=st.none() | u64),
    st.builds(
        ScheduleCreate,
        u64,
        st.binary(max_size=255),
        st.binary(max_size=9),
        st.integers(0, 15),
        lifetimes,
        keys,
        keys,
        headers,
    ),
    st.builds(Lease, u64, st.integers(1, 1_000), st.integers(0, 10**14)),
    st.builds(Ack, u64, items, st.booleans()),
    st.builds(Nack, u64, items, delays, st.binary(max_size=256), st.booleans()),
    st.builds(Extend, u64, items, st.integers(0, 10**14), st.booleans()),
    st.builds(Purge, u64, u64, u64, u64, st.integers(1, 10_000), st.booleans()),
    st.builds(Redrive, u64, u64, u64, u64, u64, u64, u64, st.integers(0, 2**32 - 1), keys),
    st.sampled_from(list(queue_samples.COMMANDS.values())),
)


def entry_of(draft: Draft) -> object:
    return decode_entries(encode_group([draft], term=1, first_index=5, timestamp_ns=1).data)[0]


@given(command=commands)
@settings(max_examples=300, deadline=None)
def test_a_command_comes_back_as_it_was(command: Command) -> None:
    draft = encode_command(command, "orders")
    prefix, reader = read_prefix(draft.payload)

    assert prefix.namespace == "orders"
    assert decode_command(draft.entry_type & 0xFF, reader) == command


@pytest.mark.parametrize("name", NAMES)
def test_our_code_writes_the_golden_bytes(name: str) -> None:
    """Entries like the golden ones are in logs: a changed byte needs a new payload version."""
    draft = queue_samples.samples()[name]

    assert draft.payload == load_golden(f"payloads/{name}")
    assert queue_samples.render(name, draft) == golden_path(f"payloads/{name}").read_text("ascii")


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_bytes_are_read_as_they_were_meant(name: str) -> None:
    command = queue_samples.COMMANDS[name]
    _, reader = read_prefix(load_golden(f"payloads/{name}"))

    assert decode_command(OPERATIONS[type(command)].number, reader) == command


def test_every_command_has_a_golden_file() -> None:
    found = {path.stem for path in golden_path("payloads/x").parent.glob("queue_*.hex")}

    assert found == set(NAMES)
    assert {type(command) for command in queue_samples.COMMANDS.values()} == set(OPERATIONS)


def test_the_document_names_every_operation_and_shows_golden_bytes() -> None:
    text = DOCUMENT.read_text("utf-8")
    blocks = BLOCK.findall(text)

    assert len(blocks) >= 3
    for name, shown in blocks:
        assert parse_hex(shown) == load_golden(name), name
    listed = re.findall(r"^\| 0x02([0-9a-f]{2}) \| (\w+) \|", text, re.MULTILINE)
    known = [(f"{each.number:02x}", snake_case(each.command.__name__)) for each in QUEUE_OPERATIONS]
    assert listed == known


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


def test_the_document_names_every_reason_of_queues() -> None:
    text = DOCUMENT.read_text("utf-8")

    for reason in Reason:
        if 110 <= reason < 150:
            assert reason.name in text


def test_a_message_is_read_from_the_entry_that_brought_it() -> None:
    for size in (5, 5_000):  # the larger one is compressed
        sent = Enqueue(7, b"x" * size, headers=((b"a", b"b"),))
        made = ScheduleCreate(7, b"* * * * *", b"x" * size, headers=((b"a", b"b"),))
        for command in (sent, made):
            entry = entry_of(encode_command(command, "default"))
            assert decode_message(entry) == Message(sent.headers, sent.body)  # type: ignore[arg-type]
    with pytest.raises(BadPayload):
        decode_message(entry_of(encode_command(Lease(7), "default")))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_described_in_one_line(name: str) -> None:
    line = describe_queue_entry(entry_of(queue_samples.samples()[name]))  # type: ignore[arg-type]

    assert line.startswith(f"{type(queue_samples.COMMANDS[name]).__name__} default: ")
    assert "\n" not in line


def test_an_unreadable_entry_is_described_too() -> None:
    line = describe_queue_entry(entry_of(Draft(0x0201, b"\x01")))  # type: ignore[arg-type]

    assert "PAYLOAD_TRUNCATED" in line


def encode_leased(token: int, deadline_ns: int, rows: list[Row]) -> bytes:
    """Encode the result of a lease, as docs/queue.md says it."""
    parts = [LEASE_HEAD.pack(token, deadline_ns, len(rows))]
    for row in rows:
        flags = HAS_DEAD if row.dead is not None else 0
        parts.append(
            LEASE_ROW.pack(row.id, row.body_index, row.deliveries << DELIVERIES_SHIFT | flags)
        )
        if row.dead is not None:
            parts.append(encode_dead(row.dead))
    return b"".join(parts)


def test_what_a_lease_got_comes_back() -> None:
    dead = Dead(3, 5, 77, b"timeout")
    rows = [
        Row(8, 1, LEASED, 2, 3, 50, 9),
        Row(7, 1, LEASED, 2, 1, 50, 9, body=4, dead=dead),
    ]
    result = Applied(2, encode_leased(9, 50, rows))
    messages = LeasedMessage(8, 8, 3), LeasedMessage(7, 4, 1, dead)

    assert decode_leased(result) == Leased(9, 50, messages)
    assert dead_headers(7, dead) == {
        "dlq.original_msg_id": "7",
        "dlq.retry_count": "5",
        "dlq.failure_reason": "timeout",
        "dlq.last_failure": "77",
    }
    assert decode_leased(Applied()) == Leased(0, 0, ())
    alive = Applied(1, encode_leased(9, 50, rows[:1]))
    assert decode_leased(alive) == Leased(9, 50, messages[:1])


def test_a_lease_that_lacks_how_a_message_died_is_no_result() -> None:
    dead = Dead(3, 5, 77, b"timeout")
    rows = [Row(7, 1, LEASED, 2, 1, 50, 9, dead=dead)]
    cut = encode_leased(9, 50, rows)[: LEASE_HEAD.size + LEASE_ROW.size]
    with pytest.raises(BadResult):
        decode_leased(Applied(1, cut))


@given(data=st.binary(max_size=60))
def test_bytes_that_are_no_result_are_said_to_be_none(data: bytes) -> None:
    for decode in (decode_leased, decode_cursor, lambda r: decode_verdicts(r, 3)):
        with suppress(BadResult):
            decode(Applied(0, data))


@given(
    namespace=st.text(max_size=20),
    session=st.none() | st.builds(SessionRef, *[st.integers(0, 2**64 - 1)] * 3),
    queue=st.integers(0, 2**64 - 1),
    items=st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), min_size=1, max_size=3),
    strict=st.booleans(),
)
def test_the_message_of_an_ack_is_found_without_its_command(
    namespace: str,
    session: SessionRef | None,
    queue: int,
    items: list[tuple[int, int]],
    strict: bool,  # noqa: FBT001
) -> None:
    draft = encode_command(Ack(queue, tuple(items), strict), namespace, session)
    expected = (queue, items[0][0]) if len(items) == 1 else None
    assert acked_one(draft.payload) == expected
