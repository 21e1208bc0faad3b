"""A reader that stops or breaks anywhere sees every event once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.client.watch import ResumePoint
from onelog.errors import InvalidArgument
from onelog.v1 import common_pb2

Log = list[tuple[int, int]]  # (shard, number of the event in its shard), as it happened


def answers_from(log: Log, cursor: common_pb2.Cursor, cuts: list[int]) -> list[tuple[Log, object]]:
    """What a server sends from a cursor on, in answers of the given lengths."""
    seen = {each.shard: each.index for each in cursor.positions}
    left = [event for event in log if event[1] > seen.get(event[0], 0)]
    answers: list[tuple[Log, object]] = []
    for cut in [*cuts, len(log)]:
        part, left = left[:cut], left[cut:]
        seen |= dict(part)
        positions = [common_pb2.Position(shard=s, index=i) for s, i in sorted(seen.items())]
        answers.append((part, common_pb2.Cursor(positions=positions)))
    return answers


@given(st.lists(st.integers(0, 2), max_size=30), st.data())
def test_every_event_comes_once_however_often_it_breaks_off(
    shards: list[int], data: st.DataObject
) -> None:
    counts = {0: 0, 1: 0, 2: 0}
    log: Log = []
    for shard in shards:
        counts[shard] += 1
        log.append((shard, counts[shard]))
    token = ResumePoint().token()
    taken: Log = []
    for _ in range(4):
        is_last = len(taken) == len(log)
        point = ResumePoint(token)
        request = common_pb2.Cursor()
        point.reopen(request)
        cuts = data.draw(st.lists(st.integers(0, 5), max_size=8))
        budget = data.draw(st.integers(0, 12)) if not is_last else 0
        for events, cursor in answers_from(log, request, cuts):
            page = [event for event in events if not point.is_repeated(event[0])]
            for event in page[:budget]:
                point.take(event[0])
                taken.append(event)
                budget -= 1
                token = point.token()
            if not budget:
                break
            point.arrive(cursor)  # type: ignore[arg-type]
            token = point.token()

    for shard in range(3):
        numbers = [number for each, number in taken if each == shard]
        assert numbers == list(range(1, len(numbers) + 1))


def test_bytes_that_are_no_cursor_are_refused() -> None:
    for junk in (b"", b"\x01", b"\x02\x00\x00", b"\x01\xff\xff", b"\x01\x00\x00\xff\xff\xff"):
        with pytest.raises(InvalidArgument, match="CURSOR_INVALID"):
            ResumePoint(junk)
