"""A line about any entry: what it asks for, whatever it holds, fit for a terminal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import encode_prefix
from onelog.projections.describe import DESCRIPTION_SIZE_MAX, describe_command, describe_entry
from onelog.projections.kv.commands import Put, Touch, Transaction, encode_command
from onelog.projections.queue.commands import describe_queue_entry
from onelog.ual.entry import FLAG_ZSTD, Draft, Entry
from tests.projections import payload_samples
from tests.projections.queue import queue_samples
from tests.projections.stream import stream_payload_samples
from tests.projections.timeseries import ts_samples

PREFIX = encode_prefix("default")
SAMPLES = {
    **payload_samples.samples(),
    **queue_samples.samples(),
    **stream_payload_samples.samples(),
    **ts_samples.samples(),
    "noop": Draft(0x0001, b""),
    "raft_config": Draft(0x0002, b"anything"),
}


def entry_of(draft: Draft) -> Entry:
    return Entry(draft.entry_type, draft.flags, 1, 5, 1_000, 0, draft.payload)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_kind_of_entry_is_described(name: str) -> None:
    entry = entry_of(SAMPLES[name])
    line = describe_command(entry)
    assert line is not None
    assert line == describe_entry(entry)
    assert line.isprintable()
    assert 8 <= len(line) <= DESCRIPTION_SIZE_MAX


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("kv_put", "default: put user:1 = Ada"),
        ("kv_put_in_session", "default: put user:1 = Ada [session 7 request 3]"),
        ("noop", "no operation"),
        ("raft_config", "members of the Raft group, 8 bytes"),
    ],
)
def test_a_line_says_what_is_asked_for(name: str, line: str) -> None:
    assert describe_entry(entry_of(SAMPLES[name])) == line


def test_keys_and_values_are_text_or_hex_and_are_cut() -> None:
    def line(command: Put | Touch | Transaction) -> str:
        return describe_entry(entry_of(encode_command(command, "ns")))

    assert line(Put(b"\xff\x00", b"\x1b[2J")) == r"ns: put 0xff00 = \x1b[2J"
    assert line(Put(b"k", b"x" * 61)) == f"ns: put k = {'x' * 60}…"
    # Two bytes each, so the cut goes through the last one.
    assert line(Put(b"k", b"y" + "ä".encode() * 40)) == f"ns: put k = y{'ä' * 29}…"
    assert line(Put(b"k", b"v", 1_500_000_000, 7, 9)) == (
        "ns: put k = v (ttl 1.5 s, lease 7, expected 9)"
    )
    assert line(Touch(b"k", 0)) == "ns: let k live on"
    many = Transaction((), tuple(Put(b"k%d" % n, b"v") for n in range(6)))
    assert line(many).endswith("put k3 = v, and 2 more]")


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_cut_short_or_not_compressed_is_no_command_and_says_why(name: str) -> None:
    draft = SAMPLES[name]
    packed = entry_of(draft)._replace(flags=FLAG_ZSTD)
    assert describe_command(packed) is None
    assert describe_entry(packed).startswith("not a command: ")
    if draft.entry_type > 0x0002:
        cut = entry_of(draft)._replace(payload=draft.payload[:4])
        assert describe_command(cut) is None
        assert "PAYLOAD_TRUNCATED" in describe_entry(cut)
    if draft.entry_type > 0x0100 and name != "kv_put_in_session":
        without_body = entry_of(draft)._replace(payload=draft.payload[: len(PREFIX)])
        assert describe_command(without_body) is None


def test_the_queue_s_own_line_is_total_as_well() -> None:
    broken = entry_of(queue_samples.samples()["queue_enqueue"])._replace(flags=FLAG_ZSTD)
    assert describe_queue_entry(broken).startswith("unreadable: ")


def test_an_owner_that_nobody_has_is_said() -> None:
    assert describe_entry(entry_of(Draft(0x0901, b"x"))) == (
        "not a command: no projection has owner 0x09"
    )


TYPES = sorted({draft.entry_type for draft in SAMPLES.values()})
PREFIXES = sorted({draft.payload[:11] for draft in SAMPLES.values()})


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(TYPES) | st.integers(0, 0x0FFF),
    st.binary(max_size=60)
    | st.builds(bytes.__add__, st.sampled_from(PREFIXES), st.binary(max_size=80)),
    st.sampled_from((0, FLAG_ZSTD)),
)
def test_any_bytes_give_one_short_printable_line(
    entry_type: int, payload: bytes, flags: int
) -> None:
    line = describe_entry(Entry(entry_type, flags, 1, 5, 1_000, 0, payload))
    assert line.isprintable()
    assert 1 <= len(line) <= DESCRIPTION_SIZE_MAX


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), st.integers(0, 200), st.integers(1, 255))
def test_one_wrong_byte_in_a_command_gives_one_line(name: str, place: int, change: int) -> None:
    draft = SAMPLES[name]
    payload = bytearray(draft.payload or b"\0")
    payload[place % len(payload)] ^= change
    line = describe_entry(entry_of(draft)._replace(payload=bytes(payload)))
    assert line.isprintable()
    assert 1 <= len(line) <= DESCRIPTION_SIZE_MAX
