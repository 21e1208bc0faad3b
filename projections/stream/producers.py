"""Idempotent producers of one stream: what each of them wrote last.

A producer numbers its records from 0 in each epoch. The next number is taken, a number that was
taken is answered with the offset that it got then, a number beyond the next is a gap, and an
epoch below the known one is a producer that was replaced. Per producer the last PRODUCER_WINDOW
offsets are kept; per stream PRODUCERS_MAX producers, and beyond that those that wrote longest ago
are forgotten: if one of them comes back it is told so and begins again.
"""

import struct
from heapq import nsmallest
from typing import NamedTuple

from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.state_hash import item_hash
from onelog.projections.stream.books import Books, Rows
from onelog.projections.stream.limits import PRODUCER_WINDOW, PRODUCERS_FORGOTTEN, PRODUCERS_MAX
from onelog.projections.stream.record import ProducerRef

PRODUCER_SIZE = 500  # bytes per producer: table slot, two tuples, numbers
KIND_PRODUCER = 0x02

# Kind, stream, producer, epoch, sequence and the offsets, by how many there are.
_ITEMS = [struct.Struct(f"<BQQHQ{count}Q") for count in range(PRODUCER_WINDOW + 1)]


class Producer(NamedTuple):
    """The newest sequence of a producer, and the offsets of the last ones, ascending."""

    epoch: int
    sequence: int
    offsets: tuple[int, ...]


class Producers(Rows[int, Producer]):
    """All producers of one stream by id."""

    __slots__ = ("_stream_id",)

    def __init__(self, books: Books, stream_id: int) -> None:
        super().__init__(books, self._hash)
        self._stream_id = stream_id

    def admit(self, ref: ProducerRef) -> Refused | int | None:
        """Judge a record: None takes it, a number is the offset that it got before."""
        known = self.rows.get(ref.producer)
        if known is None or ref.epoch > known.epoch:
            if ref.sequence:
                reason = Reason.PRODUCER_UNKNOWN if known is None else Reason.PRODUCER_SEQUENCE_GAP
                return Refused(reason)
            return None
        if ref.epoch < known.epoch:
            return Refused(Reason.PRODUCER_FENCED, known.epoch)
        back = known.sequence - ref.sequence
        if back == -1:
            return None
        if back < 0:
            return Refused(Reason.PRODUCER_SEQUENCE_GAP, known.sequence + 1)
        if back < len(known.offsets):
            return known.offsets[-1 - back]
        oldest = known.sequence - len(known.offsets) + 1
        return Refused(Reason.PRODUCER_SEQUENCE_FORGOTTEN, oldest)

    def record(self, ref: ProducerRef, offset: int) -> None:
        """Note a record that was admitted."""
        known = self.rows.get(ref.producer)
        offsets: tuple[int, ...] = ()
        if known is not None and known.epoch == ref.epoch:
            offsets = known.offsets[1 - PRODUCER_WINDOW :]
        elif known is None and len(self.rows) >= PRODUCERS_MAX:
            self._forget()
        self.set(ref.producer, Producer(ref.epoch, ref.sequence, (*offsets, offset)))

    def memory(self) -> int:
        """Return the bytes held."""
        return len(self.rows) * PRODUCER_SIZE

    def check(self) -> None:
        """Assert the invariants of this file."""
        super().check()
        assert len(self.rows) <= PRODUCERS_MAX
        for producer in self.rows.values():
            assert 1 <= len(producer.offsets) <= min(PRODUCER_WINDOW, producer.sequence + 1)
            assert list(producer.offsets) == sorted(set(producer.offsets))

    def _forget(self) -> None:
        # Last offsets differ between producers, so which ones are oldest has one answer.
        oldest = nsmallest(
            PRODUCERS_FORGOTTEN, self.rows.items(), key=lambda item: item[1].offsets[-1]
        )
        for producer, _ in oldest:
            self.set(producer, None)

    def _hash(self, producer: int, value: Producer) -> int:
        epoch, sequence, offsets = value
        pack = _ITEMS[len(offsets)].pack
        return item_hash(
            pack(KIND_PRODUCER, self._stream_id, producer, epoch, sequence, *offsets), 0
        )
