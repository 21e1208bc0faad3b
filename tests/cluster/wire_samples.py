"""Messages of every kind, drawn at random, as a member would send them."""

from hypothesis import strategies as st

from cluster.messages import Ack, Append, Message, Stale, TimeoutNow, Vote, VoteRequest
from cluster.wire import NUMBER_MAX
from ual.entry import TYPE_NOOP, Draft, encode_group

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
    echo = draw(st.integers(0, NUMBER_MAX))
    return Append(term, draw(numbers), draw(numbers), previous_term, groups, draw(numbers), echo)


@st.composite
def vote_requests(draw: st.DrawFn) -> VoteRequest:
    term = draw(numbers)
    return VoteRequest(term, draw(numbers), draw(st.integers(0, term)), draw(st.booleans()))


acks = st.builds(
    lambda term, round_, following, received, stamp, kind: Ack(
        term, round_, following, kind == 1, kind == 2, received=received, stamp=stamp
    ),
    numbers,
    numbers,
    numbers,
    st.integers(0, NUMBER_MAX),
    st.integers(0, NUMBER_MAX),
    st.integers(0, 2),
)

BY_KIND: dict[type, st.SearchStrategy[Message]] = {
    Append: appends(),
    VoteRequest: vote_requests(),
    Vote: st.builds(Vote, numbers, st.booleans()),
    Ack: acks,
    Stale: st.builds(Stale, numbers),
    TimeoutNow: st.builds(TimeoutNow, numbers),
}
messages: st.SearchStrategy[Message] = st.one_of(*BY_KIND.values())
shards = st.integers(0, SHARDS - 1)
