"""Messages of every kind, drawn at random, as a member would send them."""

from uuid import UUID

from hypothesis import strategies as st

from onelog.cluster.raft.messages import (
    Ack,
    Append,
    Chunk,
    Fetch,
    Message,
    Offer,
    Stale,
    StateReport,
    StateRow,
    TimeoutNow,
    Unavailable,
    Vote,
    VoteRequest,
)
from onelog.cluster.transport.wire import NUMBER_MAX, PROMISE_MS_MAX, TIME_NS_MAX
from onelog.ual.entry import TYPE_NOOP, Draft, encode_group

numbers = st.integers(1, NUMBER_MAX)
SHARDS = 4


def group_of(term: int, size: int = 0) -> bytes:
    # Bytes that zstd cannot make smaller, so that a large group stays large.
    payload = bytes(at * 7919 >> 3 & 0xFF for at in range(min(size, 64))) if size < 1024 else b""
    draft = Draft(TYPE_NOOP, payload)
    group = encode_group([draft], term=term, first_index=1, timestamp_ns=0).data
    return group if size < 1024 else group + bytes(size)  # the rest is checked by the log


@st.composite
def appends(draw: st.DrawFn) -> Append:
    term = draw(numbers)
    terms = sorted(draw(st.lists(st.integers(0, term), max_size=4)))
    previous_term = draw(st.integers(0, terms[0] if terms else term))
    groups = tuple(group_of(each, draw(st.integers(0, 64))) for each in terms)
    position = (term, draw(numbers), draw(numbers), previous_term, groups, draw(numbers))
    return Append(*position, draw(st.integers(0, NUMBER_MAX)), draw(st.integers(0, TIME_NS_MAX)))


@st.composite
def vote_requests(draw: st.DrawFn) -> VoteRequest:
    term = draw(numbers)
    position = (term, draw(numbers), draw(st.integers(0, term)))
    return VoteRequest(*position, draw(st.booleans()), draw(st.booleans()))


acks = st.builds(
    lambda term, round_, following, received, stamp, kind, promise_ms: Ack(
        term, round_, following, kind == 1, kind == 2, received, stamp, promise_ms
    ),
    numbers,
    numbers,
    numbers,
    st.integers(0, NUMBER_MAX),
    st.integers(0, NUMBER_MAX),
    st.integers(0, 2),
    st.integers(0, PROMISE_MS_MAX),
)


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    term, index = draw(numbers), draw(numbers)
    proposal, snapshot_term = draw(st.integers(1, index)), draw(st.integers(0, term))
    size, state_hash = draw(st.integers(1, 1 << 40)), draw(st.integers(0, (1 << 64) - 1))
    log_bytes = draw(st.integers(0, 1 << 40))
    return Offer(
        term, draw(numbers), index, proposal, snapshot_term, size, state_hash, log_bytes,
        draw(numbers),
    )  # fmt: skip


@st.composite
def fetches(draw: st.DrawFn) -> Fetch:
    first = draw(numbers)
    last, proposal = draw(st.integers(first, NUMBER_MAX)), draw(st.integers(1, first))
    offset, length = draw(st.integers(0, 1 << 40)), draw(st.integers(1, 200_000))
    return Fetch(draw(numbers), draw(st.booleans()), first, last, proposal, offset, length)


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    first = draw(st.integers(1, NUMBER_MAX // 2))
    last, data = draw(st.integers(first, NUMBER_MAX // 2)), draw(st.binary(max_size=300))
    offset = draw(st.integers(0, 1 << 40)) if data else 0
    size = offset + len(data) + draw(st.integers(0, 1 << 40)) if data else 0
    tag = draw(st.integers(0, (1 << 32) - 1))
    return Chunk(
        draw(numbers), draw(st.booleans()), first, last, offset, first, last, size, tag, data
    )


unavailable = st.builds(
    lambda term, is_snapshot, first, reason: Unavailable(term, is_snapshot, first, first, reason),
    numbers,
    st.booleans(),
    numbers,
    st.text("no such range 0123456789", max_size=40),
)
state_rows = st.lists(
    st.builds(
        lambda node, hashes: StateRow(UUID(int=node), tuple(sorted(hashes.items()))),
        st.integers(0, 2**128 - 1),
        st.dictionaries(st.integers(0, 255), st.integers(0, 2**64 - 1), max_size=5),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda row: row.node_id,
).map(tuple)

BY_KIND: dict[type, st.SearchStrategy[Message]] = {
    Append: appends(),
    VoteRequest: vote_requests(),
    Vote: st.builds(Vote, numbers, st.booleans()),
    Ack: acks,
    Stale: st.builds(Stale, numbers),
    TimeoutNow: st.builds(TimeoutNow, numbers, st.integers(0, 2**32 - 1)),
    Offer: offers(),
    Fetch: fetches(),
    Chunk: chunks(),
    Unavailable: unavailable,
    StateReport: st.builds(StateReport, numbers, numbers, state_rows),
}
messages: st.SearchStrategy[Message] = st.one_of(*BY_KIND.values())
shards = st.integers(0, SHARDS - 1)
