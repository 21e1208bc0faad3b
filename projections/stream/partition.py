"""Partitions: how many records there are, from where on they are kept, and what may be trimmed.

A record leaves no trace of its own here. A partition counts records and bytes, and notes a *mark*
at the start of each run of records: its offset, its time, and the counts before it. The first
record after a run has reached 1/32 of what the policy keeps (of age, bytes or count; without a
policy 1,024 records, 1 MiB or a minute) begins the next run. There are at most MARKS_MAX marks;
when they are used up every second one is dropped, so old runs become long and recent ones stay
short.

By age, bytes and count a policy trims at marks only, to the last one that leaves at least what the
policy keeps, the open run not counted. So a record that the policy covers is never trimmed, one
that it does not cover stays for at most two runs, and whether there is something to trim changes
when a run begins, not with each record. A trim by request is exact: the leader has counted what it
leaves, and the first mark moves to the first record that stays.

Invariants: marks ascend in offset and never descend in the rest; the first one covers
``first_offset`` (or is the first record after it); counters are those of all records ever.
"""

import struct
from array import array
from bisect import bisect_right
from functools import partial
from typing import NamedTuple

from onelog.projections.limits import U64_MAX
from onelog.projections.state_hash import item_hash
from onelog.projections.stream.commands import Cause, Retention, TrimCut
from onelog.projections.stream.limits import (
    MARK_NS,
    MARK_RECORDS,
    MARK_SIZE,
    MARKS_MAX,
    MARKS_PER_LIMIT,
    PARTITION_SHIFT,
    STREAM_ID_END,
    TRIMS_MAX,
    partition_id,
)
from onelog.projections.stream.tables import StreamIndexes

PARTITION_SIZE = 640  # bytes per partition: object, arrays, numbers, table slots
MARK_ROW = 4  # numbers per mark: offset, time, records before, bytes before
KIND_PARTITION = 0x01

_HEAD = struct.Struct("<BQQQQQQ")  # kind, id, first, last, last_ns, count, size
_TRIM = struct.Struct("<QBQ")  # before, cause, when


class TrimRecord(NamedTuple):
    """A trim at ``when_ns`` of the records below ``before``, down to the previous trim."""

    before: int
    cause: Cause
    when_ns: int


class Partition:
    """Counters, marks and trims of one partition."""

    __slots__ = (
        "_indexes",
        "attached",
        "close_count",
        "close_ns",
        "close_size",
        "count",
        "digest",
        "dirty",
        "first_offset",
        "id",
        "last_ns",
        "last_offset",
        "marks",
        "retention",
        "size",
        "trims",
    )

    def __init__(
        self, indexes: StreamIndexes, stream_id: int, number: int, retention: Retention
    ) -> None:
        self._indexes = indexes
        self.id = partition_id(stream_id, number)
        self.retention = retention
        self.first_offset = stream_id + 1  # nothing before it can be a record
        self.last_offset = 0
        self.last_ns = 0
        self.count = 0
        self.size = 0
        self.marks = array("Q")  # rows of four; replaced as a whole, never changed in place
        self.trims: tuple[TrimRecord, ...] = ()
        self.close_count = self.close_size = self.close_ns = 0
        self.dirty = self.attached = False
        self.digest = 0

    @property
    def number(self) -> int:
        """Its number in the stream."""
        return self.id >> PARTITION_SHIFT

    @property
    def stream_id(self) -> int:
        """The stream that it belongs to."""
        return self.id & (STREAM_ID_END - 1)

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return max(self.last_offset + 1, self.first_offset)

    @property
    def kept(self) -> tuple[int, int]:
        """The records and bytes kept.

        Upper bounds if the last trim was one by offset of an older server: then the first run
        counts from its start.
        """
        if not self.marks:
            return 0, 0
        return self.count - self.marks[2], self.size - self.marks[3]

    @property
    def first_record(self) -> int:
        """The offset of the first record kept; without one that from which on there may be one."""
        return max(self.first_offset, self.marks[0]) if self.marks else self.first_offset

    def estimate_after(self, offset: int) -> int:
        """Return about how many records have this offset or a later one.

        Records of a run are taken as evenly spread over its offsets; at the end it is exactly 0.
        """
        marks = self.marks
        if offset >= self.end_offset or not marks:
            return 0
        if offset <= marks[0]:
            return self.count - marks[2]
        at = MARK_ROW * bisect_right(self._runs(), offset, key=marks.__getitem__)
        begin, before = marks[at], marks[at + 2]
        at += MARK_ROW
        is_last = at == len(marks)
        end, after = (self.end_offset, self.count) if is_last else (marks[at], marks[at + 2])
        passed = (offset - begin) * (after - before) // (end - begin)
        return min(max(1, self.count - before - passed), self.end_offset - offset)

    # Changing

    def add(self, offset: int, timestamp_ns: int, size: int) -> bool:
        """Count a record; return whether it began a run."""
        if self._indexes.undo.active:
            self.note_undo()
        began = (
            self.count >= self.close_count
            or self.size >= self.close_size
            or timestamp_ns >= self.close_ns
        )
        if began:
            self._begin_run(offset, timestamp_ns)
        self.last_offset = offset
        self.last_ns = timestamp_ns
        self.count += 1
        self.size += size
        if not self.dirty:
            self.touch()
        return began

    def admits(self, cut: TrimCut) -> bool:
        """Return whether the numbers of an exact trim can be right."""
        marks, at = self.marks, self._gone(cut.before)
        if at == len(marks) or marks[at] >= cut.before:
            return True  # whole runs go, or all: the numbers are not needed
        after = at + MARK_ROW
        if after < len(marks):
            last = marks[after : after + MARK_ROW]
        else:
            last = array("Q", (self.last_offset, 0, self.count - 1, self.size))
        return (
            cut.first <= last[0]
            and marks[at + 2] <= cut.records <= last[2]
            and marks[at + 3] <= cut.size <= last[3]
        )

    def trim(
        self, before: int, cause: Cause, timestamp_ns: int, exact: TrimCut | None = None
    ) -> bool:
        """Trim everything below ``before``; return whether that changed anything.

        ``exact`` is what the proposer has counted, if it has.
        """
        before = min(before, self.end_offset)
        if before <= self.first_offset:
            return False
        self.note_undo()
        self.first_offset = before
        trims = self.trims
        if trims and trims[-1].cause == cause:
            trims = trims[:-1]
        trims += (TrimRecord(before, cause, timestamp_ns),)
        if len(trims) > TRIMS_MAX:
            second = trims[1]
            trims = (TrimRecord(second.before, Cause.SEVERAL, second.when_ns), *trims[2:])
        self.trims = trims
        gone = self._gone(before if exact is None else max(before, exact.first))
        marks = self.marks[gone:]
        if exact is not None and marks and marks[0] < before:
            first = array("Q", (exact.first, marks[1], exact.records, exact.size))
            marks = first + marks[MARK_ROW:]
        if marks != self.marks:
            self.marks = marks
            self.set_limits(self.retention)
        self.touch()
        return True

    def set_limits(self, retention: Retention) -> None:
        """Apply a policy; it decides when the open run is closed."""
        self.retention = retention
        if not self.marks:
            self.close_count = self.close_size = self.close_ns = 0
            return
        count_step, size_step, ns_step = steps(retention)
        _, start_ns, count, size = self.marks[-MARK_ROW:]
        self.close_count = count + count_step
        self.close_size = size + size_step
        self.close_ns = start_ns + ns_step

    def note_undo(self) -> None:
        """Note the whole partition for a rollback."""
        undo = self._indexes.undo
        if undo.active:
            undo.note(
                partial(
                    self.restore,
                    self.first_offset,
                    self.last_offset,
                    self.last_ns,
                    (self.count, self.size),
                    self.marks,
                    self.trims,
                )
            )

    def restore(
        self,
        first_offset: int,
        last_offset: int,
        last_ns: int,
        counters: tuple[int, int],
        marks: "array[int]",
        trims: tuple[TrimRecord, ...],
    ) -> None:
        """Set everything: in a rollback, or from a snapshot."""
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.last_ns = last_ns
        self.count, self.size = counters
        self.marks = marks
        self.trims = trims
        self.set_limits(self.retention)
        self.touch()

    def touch(self) -> None:
        """Mark the partition as dirty: it is hashed before the next state hash."""
        if not self.dirty:
            self.dirty = True
            self._indexes.dirty.append(self)

    def attach(self) -> None:
        """Count in the hash: the stream exists."""
        assert not self.attached, f"partition {self.id} is attached"
        self.attached = True
        self._indexes.partitions[self.id] = self
        self.touch()

    def detach(self) -> None:
        """Stop counting in the hash: the stream is deleted."""
        self.attached = False
        del self._indexes.partitions[self.id]
        self._indexes.total -= self.digest
        self.digest = 0

    # What may be trimmed

    def cut(self, cause: Cause, operand: int, timestamp_ns: int) -> int:
        """Return the offset below which one rule allows a trim; ``first_offset`` if it allows none.

        ``operand`` is what to keep: nanoseconds, bytes or records.
        """
        marks = self.marks
        if not marks:
            return self.first_offset
        if cause == Cause.AGE:
            # A run ends where the next one begins: all of its records are at least as old as that.
            horizon_ns = timestamp_ns - operand
            if self.last_ns <= horizon_ns:
                return self.end_offset
            fitting = [at for at in self._runs() if marks[at + 1] <= horizon_ns]
        elif cause == Cause.SIZE:
            fitting = [at for at in self._runs() if marks[-1] - marks[at + 3] >= operand]
        else:
            fitting = [at for at in self._runs() if marks[-2] - marks[at + 2] >= operand]
        return max(marks[fitting[-1]], self.first_offset) if fitting else self.first_offset

    def policy_cuts(self, timestamp_ns: int) -> list[tuple[int, Cause]]:
        """Return (offset, cause) of each rule of the policy that allows a trim."""
        retention = self.retention
        rules = (
            (Cause.AGE, retention.age_ns),
            (Cause.SIZE, retention.size_max),
            (Cause.COUNT, retention.count_max),
        )
        cuts = [
            (self.cut(cause, operand, timestamp_ns), cause) for cause, operand in rules if operand
        ]
        return [each for each in cuts if each[0] > self.first_offset]

    def hold_at(self, before: int, floor: int) -> int:
        """Return the last mark to trim at, up to ``before``, that keeps records from ``floor`` on.

        Without marks, each step of a consumer would cause another trim.
        """
        if before <= floor:
            return before
        fitting = [at for at in self._runs() if self.marks[at] <= floor]
        return max(self.marks[fitting[-1]], self.first_offset) if fitting else self.first_offset

    def due_ns(self, floor: int) -> int | None:
        """Return the log time from which on the policy allows a trim; None if it does not.

        ``floor`` is the offset from which on a consumer group still needs everything.
        """
        retention = self.retention
        marks = self.marks
        if not marks:
            return None
        rules = ((Cause.SIZE, retention.size_max), (Cause.COUNT, retention.count_max))
        for cause, operand in rules:
            if operand and self.hold_at(self.cut(cause, operand, 0), floor) > self.first_offset:
                return 0
        if not retention.age_ns:
            return None
        if len(marks) > MARK_ROW:
            return marks[MARK_ROW + 1] + retention.age_ns if marks[MARK_ROW] <= floor else None
        return self.last_ns + retention.age_ns if self.end_offset <= floor else None

    # Hash and checks

    def item(self) -> int:
        """Return the hash of the logical content."""
        head = _HEAD.pack(
            KIND_PARTITION,
            self.id,
            self.first_offset,
            self.last_offset,
            self.last_ns,
            self.count,
            self.size,
        )
        marks = struct.pack(f"<{len(self.marks)}Q", *self.marks)
        return item_hash(head + b"".join(_TRIM.pack(*trim) for trim in self.trims) + marks, 0)

    def memory(self) -> int:
        """Return the bytes held."""
        return PARTITION_SIZE + 8 * len(self.marks) + 160 * len(self.trims)

    def check(self) -> None:
        """Assert the invariants of this file."""
        marks = self.marks
        assert len(marks) <= MARKS_MAX * MARK_ROW, "too many marks"
        for at in self._runs():
            before = marks[at - MARK_ROW : at]
            assert marks[at] > before[0], f"marks of {self.id} do not ascend"
            assert all(b <= a for a, b in zip(marks[at : at + MARK_ROW], before, strict=True))
        assert self.attached, f"partition {self.id} is not attached"
        if marks:
            assert self._run_end(0) > self.first_offset, f"a mark of {self.id} covers nothing"
            assert marks[-MARK_ROW] <= self.last_offset
            assert marks[-2] < self.count
        else:
            assert self.last_offset < self.first_offset, f"records of {self.id} without a mark"
        befores = [trim.before for trim in self.trims]
        assert befores == sorted(set(befores)), "trims do not ascend"
        assert len(befores) <= TRIMS_MAX
        assert self.first_offset == (befores[-1] if befores else self.stream_id + 1)
        limits = (self.close_count, self.close_size, self.close_ns)
        self.set_limits(self.retention)
        assert limits == (self.close_count, self.close_size, self.close_ns)
        assert self.dirty or self.digest == self.item(), f"partition {self.id} is hashed wrong"

    def _runs(self) -> range:
        """Return the positions of the marks that have a run before them."""
        return range(MARK_ROW, len(self.marks), MARK_ROW)

    def _run_end(self, at: int) -> int:
        """Return the offset after the run whose mark is at position ``at``."""
        after = at + MARK_ROW
        return self.marks[after] if after < len(self.marks) else self.end_offset

    def _gone(self, before: int) -> int:
        """Return the position of the first mark of which a trim below ``before`` leaves a part."""
        gone = 0
        while gone < len(self.marks) and self._run_end(gone) <= before:
            gone += MARK_ROW
        return gone

    def _begin_run(self, offset: int, timestamp_ns: int) -> None:
        marks = self.marks
        if len(marks) == MARKS_MAX * MARK_ROW:
            thinned = array("Q")
            for at in range(0, len(marks), 2 * MARK_ROW):
                thinned += marks[at : at + MARK_ROW]
            marks = thinned
        self.marks = marks + array("Q", (offset, timestamp_ns, self.count, self.size))
        self.set_limits(self.retention)


def steps(retention: Retention) -> tuple[int, int, int]:
    """Return the records, bytes and nanoseconds after which a run is closed."""
    if not (retention.age_ns or retention.size_max or retention.count_max):
        return MARK_RECORDS, MARK_SIZE, MARK_NS
    return (
        -(-retention.count_max // MARKS_PER_LIMIT) or U64_MAX,
        -(-retention.size_max // MARKS_PER_LIMIT) or U64_MAX,
        -(-retention.age_ns // MARKS_PER_LIMIT) or U64_MAX,
    )
