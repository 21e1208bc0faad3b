"""The leader's book of shipments, and the fetching of one piece: pure rules."""

from random import Random
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.catch_up import (
    RESTARTS_MAX,
    ChunkOutcome,
    Offered,
    PieceFetch,
    Shipments,
    Wanted,
)
from onelog.cluster.raft.messages import Chunk, Fetch

PEER = UUID(int=2)
CONFIG = ShippingConfig(chunk_bytes=10, window_chunks=3, retry_s=1.0, give_up_s=5.0)
OFFERED = Offered(index=100, proposal=50, term=3, size=40, state_hash=1, log_bytes=60)
WANTED = Wanted(False, 5, 9, 2)


def fetch(offset: int, *, snapshot: bool = True, first: int = 100) -> Fetch:
    return Fetch(3, snapshot, first, 100, 1, offset, 10)


def open_book() -> Shipments:
    book = Shipments(CONFIG)
    book.begin(PEER, OFFERED, 7, 0.0)
    book.fetched(PEER, fetch(0), 0.0)
    return book


def test_an_open_shipment_pins_the_log_and_its_snapshot_until_it_is_confirmed() -> None:
    book = open_book()
    assert book.floor == 7
    assert book.pinned(PEER) == OFFERED

    book.advance(1.0, lambda _peer: 50, 80)
    assert book.pinned(PEER) is None, "the next time it is behind, the newest is offered"
    assert book.floor == 101, "Raft goes on from there"
    book.advance(2.0, lambda _peer: 79, 90)
    assert book.floor == 101
    book.advance(3.0, lambda _peer: 80, 90)
    assert book.floor is None


def test_a_shipment_without_progress_is_given_up() -> None:
    book = open_book()
    book.fetched(PEER, fetch(10), 4.0)
    book.fetched(PEER, fetch(10), 8.0)  # the same place again
    book.advance(9.0, lambda _peer: 0, 80)
    assert book.floor == 7
    book.advance(9.1, lambda _peer: 0, 80)
    assert book.floor is None
    assert book.given_up == 1


def test_beginning_again_counts_as_progress_a_few_times_only() -> None:
    book = open_book()
    now_s = 0.0
    for _ in range(RESTARTS_MAX + 3):
        now_s += 4.0
        book.fetched(PEER, fetch(0), now_s)
        book.advance(now_s, lambda _peer: 0, 80)
    assert book.floor is None


def test_a_peer_that_confirmed_and_stands_still_is_given_up_as_well() -> None:
    book = open_book()
    book.advance(1.0, lambda _peer: 60, 80)
    book.advance(6.1, lambda _peer: 60, 80)
    assert book.floor is None


def serve(data: bytes, asked: Fetch, tag: int = 1) -> Chunk:
    part = data[asked.offset : asked.offset + asked.length]
    place = (asked.is_snapshot, asked.first_index, asked.last_index, asked.offset)
    return Chunk(3, *place, 5, 9, len(data), tag, part)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(0, 10**6), st.floats(0, 0.6), st.floats(0, 0.6))
def test_a_piece_arrives_whatever_is_lost_repeated_or_late(
    size: int, seed: int, loss: float, repeat: float
) -> None:
    rng = Random(seed)
    data = rng.randbytes(size)
    piece = PieceFetch(WANTED, CONFIG, 0.0)
    written: dict[int, bytes] = {}
    wire: list[Chunk] = []
    now_s = 0.0
    while not piece.is_complete:
        now_s += 0.3
        assert now_s < 10_000, "it never ends"
        asked = piece.due(3, now_s, 0)
        wire += [serve(data, each) for each in asked if rng.random() >= loss]
        rng.shuffle(wire)
        for chunk in wire[: rng.randint(0, 3)]:
            wire.remove(chunk)
            if rng.random() < repeat:
                wire.append(chunk)
            if piece.take(chunk, now_s) is ChunkOutcome.KEPT:
                assert chunk.offset not in written
                written[chunk.offset] = chunk.data
    assert b"".join(written[at] for at in sorted(written)) == data


def test_no_more_is_asked_for_than_the_window_holds() -> None:
    data = bytes(1000)
    piece = PieceFetch(WANTED, CONFIG, 0.0)
    [first] = piece.due(3, 0.0, 0)
    assert piece.due(3, 0.1, 0) == []
    assert piece.take(serve(data, first), 0.2) is ChunkOutcome.KEPT
    assert len(piece.due(3, 0.2, 1)) == 2, "one is not written yet"
    assert piece.due(3, 0.3, 1) == []
    assert len(piece.due(3, 1.3, 0)) == 3, "two again, and one more"


def test_another_file_of_the_sender_is_noticed() -> None:
    piece = PieceFetch(WANTED, CONFIG, 0.0)
    [first] = piece.due(3, 0.0, 0)
    assert piece.take(serve(bytes(50), first), 0.1) is ChunkOutcome.KEPT
    second = piece.due(3, 0.1, 0)[0]
    assert piece.take(serve(bytes(50), second, tag=2), 0.2) is ChunkOutcome.CHANGED
    assert piece.take(serve(bytes(60), second), 0.2) is ChunkOutcome.CHANGED


def test_what_was_not_asked_for_is_dropped() -> None:
    piece = PieceFetch(WANTED, CONFIG, 0.0)
    [first] = piece.due(3, 0.0, 0)
    chunk = serve(bytes(50), first)
    assert (
        piece.take(serve(bytes(50), Fetch(3, False, 5, 9, 2, 20, 10)), 0.1) is ChunkOutcome.DROPPED
    )
    assert piece.take(serve(bytes(50), Fetch(3, True, 5, 9, 2, 0, 10)), 0.1) is ChunkOutcome.DROPPED
    assert piece.take(chunk, 0.1) is ChunkOutcome.KEPT
    assert piece.take(chunk, 0.1) is ChunkOutcome.DROPPED
