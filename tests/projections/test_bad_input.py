"""Whatever an entry holds, it is refused or applied, never an exception, and never half."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import encode_prefix
from onelog.projections.kv.commands import Command, Put, encode_command
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused
from onelog.projections.system.commands import TYPE_EXPIRE, TYPE_RAFT_CONFIG
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, TYPE_NOOP, Draft
from tests.projections.strategies import commands
from tests.projections.world import NAMESPACE, World

KV_TYPES = [0x0100 | operation for operation in range(0x30)]
SYSTEM_TYPES = list(range(0x10))
OTHER_TYPES = [0x0201, 0x0301, 0x0401, 0x0F01]
PREFIX = encode_prefix(NAMESPACE)


def assert_harmless(world: World, draft: Draft) -> None:
    """Apply a draft that may hold anything: a refusal leaves no trace but the void."""
    router = world.state.router
    before, voids = router.state_hashes(), len(world.notes.voids)
    refused = router.counts()["refused"]

    result = world.draft(draft)

    if isinstance(result, Refused):
        assert router.state_hashes() == before
        assert len(world.notes.voids) == voids + 1
        assert router.counts()["refused"] == refused + 1
        assert result.message
    else:
        assert isinstance(result, Applied)
    router.check()


@given(
    entry_type=st.sampled_from(KV_TYPES + SYSTEM_TYPES + OTHER_TYPES),
    body=st.binary(max_size=60),
    prefix=st.sampled_from([b"", PREFIX, encode_prefix(""), PREFIX[:-1]]),
    flags=st.sampled_from([0, 0, 0, FLAG_ZSTD, FLAG_CONDITIONAL]),
)
@settings(max_examples=250, deadline=None)
def test_random_bytes_never_raise(entry_type: int, body: bytes, prefix: bytes, flags: int) -> None:
    world = World()
    world.put(b"a", b"1")
    assert_harmless(world, Draft(entry_type, prefix + body, flags))


@given(command=commands, data=st.data())
@settings(max_examples=250, deadline=None)
def test_a_valid_payload_with_any_change_never_raises(
    command: Command, data: st.DataObject
) -> None:
    world = World()
    for key in (b"a", b"ab", b"n1"):
        world.put(key, b"1")
    draft = encode_command(command, NAMESPACE)
    payload = bytearray(draft.payload)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(payload)))
    extra = data.draw(st.binary(max_size=3))

    assert_harmless(world, Draft(draft.entry_type, bytes(payload[:end]) + extra))


@given(command=commands)
@settings(max_examples=25, deadline=None)
def test_a_payload_cut_at_any_byte_never_raises(command: Command) -> None:
    draft = encode_command(command, NAMESPACE)
    world = World()
    for end in range(len(draft.payload)):
        assert_harmless(world, Draft(draft.entry_type, draft.payload[:end]))


@pytest.mark.parametrize(
    ("entry_type", "payload", "flags", "refused"),
    [
        (0x0101, b"", 0, Refused(Reason.PAYLOAD_TRUNCATED)),
        (0x0101, b"\x02\x00\x00", 0, Refused(Reason.PAYLOAD_VERSION_UNKNOWN, 2)),
        (0x0101, b"\x01\x02\x00", 0, Refused(Reason.PAYLOAD_FIELD_INVALID, 2)),
        (0x0101, b"\x01\x00\x02\xff\xff\x00\x01\x00k", 0, Refused(Reason.PAYLOAD_NOT_UTF8)),
        (0x0101, PREFIX + b"\x80\x01\x00k", 0, Refused(Reason.PAYLOAD_FIELD_INVALID, 0x80)),
        (0x0102, PREFIX + b"\x00\x01\x00kk", 0, Refused(Reason.PAYLOAD_TRAILING_BYTES, 1)),
        (0x010D, PREFIX + b"\xff\xff", 0, Refused(Reason.PAYLOAD_COUNT_TOO_LARGE, 65_535)),
        (0x0120, PREFIX + b"k", 0, Refused(Reason.OPERATION_UNKNOWN, 0x20)),
        (0x01FF, PREFIX, 0, Refused(Reason.OPERATION_UNKNOWN, 0xFF)),
        (0x00FF, PREFIX, 0, Refused(Reason.OPERATION_UNKNOWN, 0xFF)),
        (0x0F01, PREFIX, 0, Refused(Reason.OWNER_UNKNOWN, 15)),
        (0x0101, b"not zstd", FLAG_ZSTD, Refused(Reason.PAYLOAD_CORRUPT)),
        (
            0x0101,
            b"\x28\xb5\x2f\xfd\xa0\x00\x00\x00\x10",
            FLAG_ZSTD,
            Refused(Reason.PAYLOAD_TOO_LARGE, 0x1000_0000),
        ),
        (TYPE_EXPIRE, encode_prefix("x") + b"\0\0", 0, Refused(Reason.PAYLOAD_FIELD_INVALID, 1)),
        (
            TYPE_EXPIRE,
            encode_prefix("") + b"\xff\xff",
            0,
            Refused(Reason.PAYLOAD_COUNT_TOO_LARGE, 65_535),
        ),
    ],
)
def test_each_way_to_be_wrong_has_its_reason(
    entry_type: int, payload: bytes, flags: int, refused: Refused
) -> None:
    world = World()

    assert world.draft(Draft(entry_type, payload, flags)) == refused
    assert world.notes.voids == [(1, 1)]
    assert world.state.router.refused_counts == {refused.reason: 1}


def test_the_shard_goes_on_after_a_bad_entry() -> None:
    world = World()
    world.draft(Draft(0x0101, b"\xff" * 40))

    assert world.put(b"k", b"v") == 2
    assert world.value(b"k") == b"v"


def test_what_the_log_owns_is_taken_as_it_is() -> None:
    """A no-op may hold anything: the first entry of a log is older than this format."""
    world = World()

    assert world.draft(Draft(TYPE_NOOP, b"\xff\xff")) == Applied()
    assert world.draft(Draft(TYPE_RAFT_CONFIG, b"\xff\xff")) == Applied()
    assert world.state.system.raft_config == b"\xff\xff"


def test_a_compressed_put_is_the_same_put() -> None:
    """Values of a kibibyte and more arrive compressed, by another path than small ones."""
    plain, packed = World(), World()
    value = b"onelog " * 300
    plain.kv(Put(b"k", value))
    assert plain.entries[0].flags & FLAG_ZSTD
    entry = plain.entries[0]
    packed.state.router.apply(entry._replace(flags=0, payload=entry.plain_payload()))

    assert packed.value(b"k") == plain.value(b"k") == value
    assert packed.state.router.state_hash() == plain.state.router.state_hash()
