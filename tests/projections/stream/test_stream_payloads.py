"""Bytes of stream commands: round trips, golden files, the document, and bytes that are wrong."""

import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import Prefix, SessionRef, encode_prefix, read_prefix
from onelog.projections.errors import BadPayload, BadResult
from onelog.projections.result import Applied, Refused
from onelog.projections.stream.commands import (
    STREAM_OPERATIONS,
    Append,
    Cause,
    ProducerRef,
    decode_command,
    decode_record,
    encode_command,
    open_append,
)
from onelog.projections.stream.limits import HEADERS_MAX
from onelog.projections.stream.operations import decode_assignment, decode_claimed
from onelog.projections.system.commands import TYPE_EXPIRE, Expire
from onelog.projections.system.commands import encode_command as encode_system
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, OWNER_STREAM, Draft
from tests.formats.golden import golden_path, load_golden, parse_hex
from tests.projections.stream import stream_payload_samples as samples
from tests.projections.stream.stream_histories import NAMESPACE, draw_command, random_commands
from tests.projections.stream.stream_world import StreamWorld

DOCUMENT = Path(__file__).parents[3] / "docs" / "streams.md"
BLOCK = re.compile(r"^```hex (\S+)\n((?:.*\n)*?)^```$", re.MULTILINE)
NAMES = sorted(samples.samples())

u64 = st.integers(0, 2**64 - 1)
texts = st.text(max_size=30).filter(lambda text: len(text.encode()) <= 128)
appends = st.builds(
    Append,
    texts.filter(lambda name: bool(name) and ":" not in name),
    st.binary(max_size=60),
    st.none() | st.binary(min_size=1, max_size=40),
    st.lists(st.tuples(texts, st.binary(max_size=20)), max_size=HEADERS_MAX).map(tuple),
    st.none() | texts,
    st.none() | st.integers(0, 255),
    st.none() | st.builds(ProducerRef, u64, st.integers(0, 2**16 - 1), u64),
)


def busy_world(seed: int, steps: int = 60) -> StreamWorld:
    """Return a world in which there is something of everything."""
    world, rng = StreamWorld(), Random(seed)
    for _ in range(steps):
        world.group(random_commands(rng, world.stream))
    return world


@given(command=appends)
@settings(max_examples=200, deadline=None)
def test_an_append_comes_back_as_it_was(command: Append) -> None:
    draft = encode_command(command, "name")

    prefix, reader = read_prefix(draft.payload)

    assert prefix == Prefix("name", None)
    assert decode_command(draft.entry_type & 0xFF, reader) == command
    opened = (command.key, command.tag, command.headers, command.value)
    assert open_append(draft.payload) == opened
    in_session = encode_command(command, "name", SessionRef(1, 2, 3))
    assert open_append(in_session.payload) == opened


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_every_command_comes_back_as_it_was(seed: int) -> None:
    rng, world = Random(seed), busy_world(seed % 7, 20)
    for _ in range(20):
        command = draw_command(rng, world.stream)
        draft = encode_command(command, NAMESPACE)
        assert decode_command(draft.entry_type & 0xFF, read_prefix(draft.payload)[1]) == command


@pytest.mark.parametrize("name", NAMES)
def test_our_code_writes_the_golden_bytes_and_reads_them_as_meant(name: str) -> None:
    """Entries like the golden ones are in logs: a changed byte needs a new payload version."""
    draft = samples.samples()[name]
    golden = load_golden(f"payloads/{name}")

    assert draft.payload == golden
    assert samples.render(name, draft) == golden_path(f"payloads/{name}").read_text("ascii")
    _, reader = read_prefix(golden)
    assert decode_command(draft.entry_type & 0xFF, reader) == samples.STREAM[name]


def test_every_command_has_a_golden_file_and_every_file_a_sample() -> None:
    assert {type(command) for command in samples.STREAM.values()} == {
        each.command for each in STREAM_OPERATIONS
    }
    found = {path.stem for path in golden_path("payloads/x").parent.glob("stream_*.hex")}
    assert found == set(NAMES)


def test_the_document_has_the_golden_bytes_and_every_operation() -> None:
    text = DOCUMENT.read_text("utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) >= 2
    for name, block in blocks:
        assert parse_hex(block) == load_golden(name), name
    for operation in (each.number for each in STREAM_OPERATIONS):
        assert f"| 0x{OWNER_STREAM << 8 | operation:04x} |" in text
    for cause in Cause:
        assert f"| {int(cause)} | {cause.name} |" in text


def assert_harmless(world: StreamWorld, draft: Draft) -> None:
    """Apply a draft that may hold anything: a refusal leaves no trace but the void."""
    router = world.state.router
    before = router.state_hashes()
    noted = {key: len(rows) for key, rows in world.records.records.items()}
    voids, refused = len(world.notes.voids), router.counts()["refused"]

    result = world.draft(draft)

    if isinstance(result, Refused):
        assert router.state_hashes() == before
        assert {key: len(rows) for key, rows in world.records.records.items()} == noted
        assert len(world.notes.voids) == voids + 1
        assert router.counts()["refused"] == refused + 1
        assert result.message
    else:
        assert isinstance(result, Applied)
    router.check()


@given(
    operation=st.integers(0, 0x18),
    body=st.binary(max_size=60),
    prefix=st.sampled_from([b"", encode_prefix(NAMESPACE), encode_prefix("x")]),
    flags=st.sampled_from([0, 0, 0, FLAG_ZSTD, FLAG_CONDITIONAL]),
)
@settings(max_examples=150, deadline=None)
def test_random_bytes_never_raise(operation: int, body: bytes, prefix: bytes, flags: int) -> None:
    world = busy_world(1, 10)
    assert_harmless(world, Draft(OWNER_STREAM << 8 | operation, prefix + body, flags))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_valid_payload_with_any_change_never_raises(seed: int) -> None:
    rng = Random(seed)
    world = busy_world(seed % 5, 40)
    for _ in range(15):
        draft = encode_command(draw_command(rng, world.stream), NAMESPACE)
        payload = bytearray(draft.payload)
        for _ in range(rng.randint(0, 2)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        end = rng.choice((len(payload), rng.randint(0, len(payload))))
        changed = bytes(payload[:end]) + rng.randbytes(rng.choice((0, 0, 2)))
        assert_harmless(world, Draft(draft.entry_type, changed))


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_cut_at_any_byte_never_raises(name: str) -> None:
    world = busy_world(3, 30)
    draft = samples.samples()[name]
    for end in range(len(draft.payload)):
        assert_harmless(world, Draft(draft.entry_type, draft.payload[:end]))


@given(item=st.binary(max_size=12))
@settings(max_examples=60, deadline=None)
def test_an_expiry_of_anything_is_harmless(item: bytes) -> None:
    world = busy_world(2, 30)
    before = world.stream.state_hash()

    draft = encode_system(Expire(((OWNER_STREAM, item),)))
    assert draft.entry_type == TYPE_EXPIRE
    assert world.draft(draft) == Applied(0)
    assert world.stream.state_hash() == before


def test_what_is_no_record_or_no_result_says_so() -> None:
    world = StreamWorld()
    world.create("s")
    with pytest.raises(BadPayload):
        decode_record(world.entries[0])
    with pytest.raises(BadResult):
        decode_assignment(b"\0")
    with pytest.raises(BadResult):
        decode_claimed(b"\x01\0\0")
