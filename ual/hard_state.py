"""RAFT: the term and the vote of one replica, and hints that need no sync.

One file of three slots. A slot fills 4096 bytes, so that two slots never share a page or a disk
sector: a write that is cut short damages the slot in flight and no other. Little-endian::

    slots 0 and 1, hard state (at 0 and 4096)    slot 2, hint (at 8192)
    0    8  magic "FLORAFT\\0"                    0    8  magic "FLOHINT\\0"
    8    2  version = 1                          8    2  version = 1
    10   2  flags; bit 0: there is a vote        10   2  reserved, zero
    12   4  reserved, zero                       12   4  reserved, zero
    16   8  sequence, from 1, +1 a save          16   8  commit_index
    24   8  term                                 24   8  durable_index
    32  16  vote: UUID, zeros for none           32   8  generation
    48   4  crc32c of bytes 0..48                40   4  crc32c of bytes 0..40
    52      zeros up to 4096                     44      zeros up to 4096

Invariants:

* The term never decreases, and within a term a vote is given once.
* When ``save`` returned, *both* slots hold the new state, synced one after the other. Alternating
  between the slots would survive a torn write too, but one rotten slot would then bring back the
  state before, and the replica would vote a second time in a term. A lost vote is a lost write.
* Whatever ``open`` returns is durable in both slots as well: a state that was read from the page
  cache after a kill could otherwise be acted on and then lost with the power.

After a crash the file holds the old state or the new one. One bad slot is rewritten from the
other. Two bad slots are ``CorruptFile``: there is no safe guess. A crash cannot cause that, not
even at creation, because the file is created under another name. The hint is written
without a sync and may be torn at any time, so a bad one is no hint and never an error.
"""

import errno
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from uuid import UUID

from crc32c import crc32c

from onelog.ual.errors import CorruptFile, DiskFull, LogFailed, UnknownVersion
from onelog.ual.files import File, Files, replace_file

VERSION = 1
SLOT_SIZE = 4096
STATE_OFFSETS = (0, SLOT_SIZE)
HINT_OFFSET = 2 * SLOT_SIZE
FILE_SIZE = 3 * SLOT_SIZE

STATE_MAGIC = b"FLORAFT\0"
HINT_MAGIC = b"FLOHINT\0"
FLAG_VOTE = 0x0001

STATE = struct.Struct(
    "<"  # little-endian, no implicit padding
    "8s"  # magic
    "H"  # version
    "H"  # flags
    "I"  # reserved
    "Q"  # sequence
    "Q"  # term
    "16s"  # vote
)
HINT = struct.Struct(
    "<"
    "8s"  # magic
    "H"  # version
    "H"  # reserved
    "I"  # reserved
    "Q"  # commit_index
    "Q"  # durable_index
    "Q"  # generation
)
_CRC = struct.Struct("<I")
assert STATE.size + _CRC.size == 52  # files and the table above depend on it
assert HINT.size + _CRC.size == 44

_NO_VOTE = bytes(16)
_EMPTY_SLOT = bytes(SLOT_SIZE)
_STATE_PADDING = bytes(SLOT_SIZE - STATE.size - _CRC.size)
_HINT_PADDING = bytes(SLOT_SIZE - HINT.size - _CRC.size)
_ADVICE = (
    "this replica no longer knows whom it voted for and could vote twice in one term; "
    "remove this node from the cluster and add it as a new one with an empty directory"
)


@dataclass(frozen=True, slots=True)
class HardState:
    """Term and vote, which Raft must never lose; ``sequence`` counts the saves."""

    sequence: int
    term: int
    vote: UUID | None


@dataclass(frozen=True, slots=True)
class Hint:
    """Lower bounds that were true when they were written, if they reached the disk at all."""

    commit_index: int
    durable_index: int
    generation: int


@dataclass(frozen=True, slots=True)
class StateSlot:
    """One slot of hard state: ``state`` if its record is good, ``problem`` if anything is not."""

    state: HardState | None
    problem: str | None
    version_newer: int | None = None


@dataclass(frozen=True, slots=True)
class HintSlot:
    """The hint slot; never written (all zeros) is neither a hint nor a problem."""

    hint: Hint | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class HardStateReport:
    """What a RAFT file holds, slot by slot. ``problems`` is empty for an undamaged file."""

    slots: tuple[StateSlot, StateSlot]
    hint: HintSlot
    problems: tuple[str, ...]


class HardStateFile:
    """The open RAFT file of one replica. Only the thread that runs Raft uses it."""

    __slots__ = ("_failed", "_file", "_path", "_sequence", "hint", "repaired", "term", "vote")

    def __init__(
        self, path: Path, file: File, state: HardState, hint: Hint | None, repaired: tuple[str, ...]
    ) -> None:
        self.term = state.term
        self.vote = state.vote
        self.hint = hint
        self.repaired = repaired  # what ``open`` found damaged or behind, and wrote again
        self._path = path
        self._file = file
        self._sequence = state.sequence
        self._failed = False

    @staticmethod
    def create(files: Files, path: Path) -> None:
        """Make the file of a new shard, with term 0 and no vote, durably; an existing one stays."""
        if files.exists(path):
            files.sync_directory(path.parent)
        else:
            replace_file(files, path, _NEW)

    @staticmethod
    def is_new(files: Files, path: Path) -> bool:
        """Whether the file is as ``create`` makes it."""
        return files.open_read(path).read(FILE_SIZE, 0) == b"".join(_NEW)

    @classmethod
    def open(cls, files: Files, path: Path) -> "HardStateFile":
        """Open the file and repair a slot that a crash or the disk damaged.

        A missing file is a forgotten vote: a shard has one from its creation.
        """
        if not files.exists(path):
            raise CorruptFile(str(path), f"missing; {_ADVICE}")
        file = files.open(path)
        data = file.read(FILE_SIZE, 0)
        report = inspect_hard_state(data)
        state = _newest_state(str(path), report)
        area = _state_area(state)
        stale = {
            offset: f"slot {number}: {slot.problem or 'behind, an interrupted save'}"
            for number, (offset, slot) in enumerate(zip(STATE_OFFSETS, report.slots, strict=True))
            if data[offset : offset + SLOT_SIZE] != area
        }
        opened = cls(path, file, state, report.hint.hint, tuple(stale.values()))
        with opened._fatal_errors():
            # First make durable what was read, name and content: after a kill it may be in the page
            # cache only, and writing the other slot before that would put both at risk at once.
            files.sync_directory(path.parent)
            file.sync()
            opened._write_slots(area, stale)
        return opened

    def save(self, term: int, vote: UUID | None) -> None:
        """Make term and vote durable; when this returns, no single damage can undo it.

        After ``LogFailed`` the disk may hold either state, and only a reopen can tell.
        """
        assert 0 <= term < 1 << 64, term
        assert term >= self.term, f"term {term} after {self.term}"
        assert vote is None or vote.int != 0, "zeros in the file mean that there is no vote"
        if term == self.term:
            assert self.vote is None or vote == self.vote, f"{vote} after {self.vote} in {term}"
        self._refuse_if_failed()
        if term == self.term and vote == self.vote:
            return
        state = HardState(self._sequence + 1, term, vote)
        with self._fatal_errors():
            self._write_slots(_state_area(state), STATE_OFFSETS)
        self._sequence = state.sequence
        self.term = term
        self.vote = vote

    def save_hint(self, commit_index: int, durable_index: int, generation: int) -> None:
        """Write the hint without a sync; the kernel decides when it reaches the disk."""
        self._refuse_if_failed()
        hint = Hint(commit_index, durable_index, generation)
        try:
            self._file.write(_hint_area(hint), HINT_OFFSET)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                self._fail(error)
            # Where a file system copies on write, even this can meet a full disk. Nobody relies on
            # a hint, so the file stays usable.
            raise DiskFull(f"{self._path}: no space left for a hint; free some") from error
        self.hint = hint

    def _write_slots(self, area: bytes, offsets: Iterable[int]) -> None:
        """Write ``area`` at each offset, each durable before the next is touched."""
        for offset in offsets:
            self._file.write(area, offset)
            self._file.sync()

    @contextmanager
    def _fatal_errors(self) -> Iterator[None]:
        """Fail on any error, ENOSPC as well: part of a slot may be written."""
        try:
            yield
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        """Refuse further writes after a failed write or sync.

        A sync that failed once may succeed the next time without having written anything. Only a
        reopen can tell what is on disk.
        """
        self._failed = True
        raise LogFailed(
            f"{self._path}: {error}; what the disk holds is unknown, restart this node"
        ) from error

    def _refuse_if_failed(self) -> None:
        if self._failed:
            raise LogFailed(f"{self._path}: an earlier write failed; restart this node")


def inspect_hard_state(data: bytes) -> HardStateReport:
    """Check every byte of a RAFT file and report each slot; pure, for recovery and verify."""
    first, second = (_inspect_state(data[at : at + SLOT_SIZE]) for at in STATE_OFFSETS)
    hint = _inspect_hint(data[HINT_OFFSET:FILE_SIZE])
    found = (first.problem, second.problem, hint.problem)
    problems = [f"slot {number}: {problem}" for number, problem in enumerate(found) if problem]
    if first.state and second.state and first.state != second.state:
        older, newer = sorted((first.state.sequence, second.state.sequence))
        problems.append(
            f"slots 0 and 1 differ: sequence {older} and {newer}, an interrupted save"
            if older != newer
            else f"slots 0 and 1 differ in the same sequence {older}"
        )
    if len(data) != FILE_SIZE:
        problems.append(f"file: {len(data)} bytes where {FILE_SIZE} belong")
    return HardStateReport((first, second), hint, tuple(problems))


def _newest_state(path: str, report: HardStateReport) -> HardState:
    for slot in report.slots:
        if slot.version_newer is not None:
            raise UnknownVersion(path, slot.version_newer, VERSION)
    first, second = (slot.state for slot in report.slots)
    if first is None and second is None:
        raise CorruptFile(path, f"no valid slot ({'; '.join(report.problems)}): {_ADVICE}")
    if first is None or second is None:
        state = first or second
        assert state is not None
        return state
    if first.sequence == second.sequence and first != second:
        # No crash does this: every save has a sequence of its own.
        raise CorruptFile(path, f"{'; '.join(report.problems)}: {_ADVICE}")
    return first if first.sequence >= second.sequence else second


def _inspect_state(area: bytes) -> StateSlot:
    if len(area) < STATE.size + _CRC.size:
        return StateSlot(None, "the file ends in the slot")
    magic, version, flags, reserved, sequence, term, vote = STATE.unpack_from(area)
    if magic != STATE_MAGIC:
        return StateSlot(None, "magic")
    if _CRC.unpack_from(area, STATE.size)[0] != crc32c(area[: STATE.size]):
        return StateSlot(None, "checksum")
    if version > VERSION:
        return StateSlot(None, f"version {version}", version)
    if version == 0 or flags & ~FLAG_VOTE or reserved or sequence == 0:
        return StateSlot(None, f"version {version}, flags {flags}, sequence {sequence}, {reserved}")
    if (vote != _NO_VOTE) != bool(flags & FLAG_VOTE):
        return StateSlot(None, "the flag and the vote disagree")
    state = HardState(sequence, term, UUID(bytes=vote) if flags & FLAG_VOTE else None)
    return StateSlot(state, _padding_problem(area, _STATE_PADDING))


def _inspect_hint(area: bytes) -> HintSlot:
    if area == _EMPTY_SLOT:
        return HintSlot(None, None)
    if len(area) < HINT.size + _CRC.size:
        return HintSlot(None, "the file ends in the slot")
    magic, version, flags, reserved, commit_index, durable_index, generation = HINT.unpack_from(
        area
    )
    if magic != HINT_MAGIC:
        return HintSlot(None, "magic")
    if _CRC.unpack_from(area, HINT.size)[0] != crc32c(area[: HINT.size]):
        return HintSlot(None, "checksum")
    if version != VERSION or flags or reserved:
        return HintSlot(None, f"version {version}, reserved {flags} and {reserved}")
    hint = Hint(commit_index, durable_index, generation)
    return HintSlot(hint, _padding_problem(area, _HINT_PADDING))


def _padding_problem(area: bytes, zeros: bytes) -> str | None:
    if len(area) < SLOT_SIZE:
        return "the file ends in the padding"
    return None if area.endswith(zeros) else "padding that is not zero"


def _state_area(state: HardState) -> bytes:
    """Return all bytes of a slot. Writing the padding too heals what rotted there."""
    flags = 0 if state.vote is None else FLAG_VOTE
    vote = _NO_VOTE if state.vote is None else state.vote.bytes
    record = STATE.pack(STATE_MAGIC, VERSION, flags, 0, state.sequence, state.term, vote)
    return (record + _CRC.pack(crc32c(record))).ljust(SLOT_SIZE, b"\0")


def _hint_area(hint: Hint) -> bytes:
    indexes = (hint.commit_index, hint.durable_index, hint.generation)
    record = HINT.pack(HINT_MAGIC, VERSION, 0, 0, *indexes)
    return (record + _CRC.pack(crc32c(record))).ljust(SLOT_SIZE, b"\0")


_FIRST_AREA = _state_area(HardState(1, 0, None))
_NEW = (_FIRST_AREA, _FIRST_AREA, _EMPTY_SLOT)
