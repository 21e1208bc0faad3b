"""Payload bytes: round trips, golden files, and the document that describes them."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import (
    U8,
    U16,
    U64,
    Prefix,
    Reader,
    SessionRef,
    encode_prefix,
    read_prefix,
)
from onelog.projections.errors import BadPayload
from onelog.projections.kv import commands as kv_commands
from onelog.projections.kv.commands import Command, encode_command
from onelog.projections.limits import U64_MAX
from onelog.projections.projection import Operation
from onelog.projections.reasons import Reason
from onelog.projections.stream import commands as stream_commands
from onelog.projections.system import commands as system_commands
from onelog.projections.system.commands import TYPES_OPAQUE
from onelog.projections.timeseries import commands as ts_commands
from onelog.ual.entry import OWNER_KV, OWNER_STREAM, OWNER_SYSTEM, OWNER_TIMESERIES
from tests.formats.golden import golden_path, load_golden, parse_hex
from tests.projections import payload_samples
from tests.projections.queue import queue_samples
from tests.projections.strategies import any_i64, any_key, any_ttl, any_u64, commands
from tests.projections.stream import stream_payload_samples
from tests.projections.timeseries import ts_samples

DOCUMENT = Path(__file__).parents[2] / "docs" / "payloads.md"
BLOCK = re.compile(r"^```hex (\S+)\n((?:.*\n)*?)^```$", re.MULTILINE)
NAMES = sorted(payload_samples.samples())

sessions = st.one_of(st.none(), st.builds(SessionRef, any_u64, any_u64, any_u64))
names = st.text(max_size=30).filter(lambda name: len(name.encode()) <= 128)
wide = st.one_of(
    st.builds(
        kv_commands.Put,
        any_key,
        st.binary(max_size=50),
        ttl_ns=st.one_of(st.none(), any_ttl),
        lease=st.one_of(st.none(), any_u64),
        expected=st.one_of(st.none(), any_u64),
    ),
    st.builds(kv_commands.Delete, any_key, st.one_of(st.none(), any_u64)),
    st.builds(kv_commands.Touch, any_key, any_ttl, st.one_of(st.none(), any_u64)),
    st.builds(kv_commands.Increment, any_key, any_i64),
    st.builds(kv_commands.LeaseRevoke, any_u64),
)


@given(command=st.one_of(commands, wide), namespace=names, session=sessions)
@settings(max_examples=300, deadline=None)
def test_a_command_comes_back_as_it_was(
    command: Command, namespace: str, session: SessionRef | None
) -> None:
    draft = encode_command(command, namespace, session)

    prefix, reader = read_prefix(draft.payload)

    assert prefix == Prefix(namespace, session)
    assert kv_commands.decode_command(draft.entry_type & 0xFF, reader) == command


@pytest.mark.parametrize("name", sorted(payload_samples.SYSTEM))
def test_a_system_command_comes_back_as_it_was(name: str) -> None:
    command, namespace = payload_samples.SYSTEM[name]
    draft = system_commands.encode_command(command, namespace)

    prefix, reader = read_prefix(draft.payload)

    assert prefix.namespace == namespace
    assert system_commands.decode_command(draft.entry_type, reader) == command


@pytest.mark.parametrize("name", NAMES)
def test_our_code_writes_the_golden_bytes(name: str) -> None:
    """Entries like the golden ones are in logs: a changed byte needs a new payload version."""
    draft = payload_samples.samples()[name]

    assert draft.payload == load_golden(f"payloads/{name}")
    assert payload_samples.render(name, draft) == golden_path(f"payloads/{name}").read_text("ascii")


@pytest.mark.parametrize("name", sorted(payload_samples.KV))
def test_the_golden_bytes_are_read_as_they_were_meant(name: str) -> None:
    command = payload_samples.KV[name]
    _, reader = read_prefix(load_golden(f"payloads/{name}"))

    assert (
        kv_commands.decode_command(kv_commands.OPERATIONS[type(command)].number, reader) == command
    )


def test_every_golden_payload_has_a_sample() -> None:
    found = {path.stem for path in golden_path("payloads/x").parent.glob("*.hex")}

    others = (queue_samples, stream_payload_samples, ts_samples)
    assert found == set(NAMES).union(*(each.samples() for each in others))


def test_every_command_has_a_golden_file() -> None:
    types = {type(command) for command in payload_samples.KV.values()}

    assert types == set(kv_commands.OPERATIONS) - {kv_commands.Get}


def test_the_examples_of_the_document_are_the_golden_bytes() -> None:
    blocks = BLOCK.findall(DOCUMENT.read_text("utf-8"))

    assert len(blocks) >= 3
    for name, text in blocks:
        assert parse_hex(text) == load_golden(name), name


@pytest.mark.parametrize(
    ("document", "registries"),
    [
        (
            "payloads.md",
            {
                OWNER_SYSTEM: system_commands.SYSTEM_OPERATIONS,
                OWNER_KV: kv_commands.KV_OPERATIONS,
            },
        ),
        ("streams.md", {OWNER_STREAM: stream_commands.STREAM_OPERATIONS}),
        ("timeseries.md", {OWNER_TIMESERIES: ts_commands.TS_OPERATIONS}),
    ],
)
def test_the_documents_name_every_operation_and_no_other(
    document: str, registries: dict[int, tuple[Operation, ...]]
) -> None:
    text = (DOCUMENT.parent / document).read_text("utf-8")
    documented = [int(number, 16) for number in re.findall(r"^\| 0x(\w{4}) \|", text, re.MULTILINE)]
    registered = [
        owner << 8 | each.number
        for owner, operations in registries.items()
        for each in operations
        if each.is_entry
    ]
    if OWNER_SYSTEM in registries:
        registered += TYPES_OPAQUE
    assert documented == sorted(registered)


@pytest.mark.parametrize(
    "operations",
    [
        system_commands.SYSTEM_OPERATIONS,
        kv_commands.KV_OPERATIONS,
        stream_commands.STREAM_OPERATIONS,
        ts_commands.TS_OPERATIONS,
    ],
)
def test_no_number_and_no_command_is_registered_twice(operations: tuple[Operation, ...]) -> None:
    assert len({each.number for each in operations}) == len(operations)
    assert len({each.command for each in operations}) == len(operations)


def test_every_reason_has_words() -> None:
    for reason in Reason:
        assert 0 < reason < 256
        for detail in (0, 1, 2**64):
            words = reason.message(detail, "KEY_NOT_FOUND")
            assert words
            assert not {"{", "}"} & set(words), reason


def test_a_reader_never_passes_the_end() -> None:
    reader = Reader(b"\x05\x00ab")

    with pytest.raises(BadPayload) as caught:
        reader.sized(U16)
    assert caught.value.reason is Reason.PAYLOAD_TRUNCATED
    assert reader.take(2) == b"ab"
    reader.finish()
    with pytest.raises(BadPayload):
        reader.number(U8)
    with pytest.raises(BadPayload):
        reader.number(U64)


@given(data=st.binary(max_size=40))
def test_any_bytes_are_a_prefix_or_a_named_mistake(data: bytes) -> None:
    reason: Reason | None = None
    try:
        prefix, reader = read_prefix(data)
    except BadPayload as error:
        reason = error.reason
    if reason is None:
        assert encode_prefix(prefix.namespace, prefix.session) == data[: reader.position]
    else:
        assert reason in {
            Reason.PAYLOAD_TRUNCATED,
            Reason.PAYLOAD_VERSION_UNKNOWN,
            Reason.PAYLOAD_FIELD_INVALID,
            Reason.PAYLOAD_NOT_UTF8,
        }


def test_a_session_of_the_largest_numbers_fits() -> None:
    session = SessionRef(U64_MAX, U64_MAX, U64_MAX)

    assert read_prefix(encode_prefix("é", session))[0] == Prefix("é", session)
