"""Segments for tests: random groups with what apply noted about them, written and sealed.

``SegmentModel`` is the dumb twin: plain lists of entries, records and void indexes, against which
the tests compare what the files say.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hypothesis import strategies as st

from onelog.ual.entry import FLAG_CONDITIONAL, Entry, Group, decode_entries, encode_group
from onelog.ual.errors import UalError
from onelog.ual.files import Files
from onelog.ual.segments.format import ENTRIES_OFFSET, SegmentHeader, unsealed_name
from onelog.ual.segments.notes import ApplyNotes, SegmentNotes
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import seal_segment
from tests.simulation.disk import CrashPolicy, SimDisk

DIRECTORY = Path("/segs")
SECOND_NS = 1_000_000_000
TYPES = (0x0001, 0x0101, 0x0201, 0x0401, 0x0F02)


@dataclass(frozen=True, slots=True)
class SegmentModel:
    """What a segment is made of."""

    header: SegmentHeader
    groups: list[Group]
    records: dict[int, list[int]]
    void_indexes: list[int]

    @property
    def entries(self) -> list[Entry]:
        return [entry for group in self.groups for entry in decode_entries(group.data)]

    @property
    def last_index(self) -> int:
        return self.groups[-1].last_index

    @property
    def data(self) -> bytes:
        """The unsealed file."""
        return self.header.encode() + b"".join(group.data for group in self.groups)

    def offsets(self) -> list[int]:
        found: list[int] = []
        position = ENTRIES_OFFSET
        for group in self.groups:
            found += [position + offset for offset in group.offsets]
            position += len(group.data)
        return found

    def notes(self) -> SegmentNotes:
        noted = ApplyNotes()
        for stream_id, indexes in self.records.items():
            for index in indexes:
                noted.add_record(stream_id, index)
        for index in self.void_indexes:
            noted.add_void(index, index)
        return noted.select(self.header.first_index, self.last_index)

    def unsealed_path(self, directory: Path = DIRECTORY) -> Path:
        return directory / unsealed_name(self.header.first_index)


def put_unsealed(disk: SimDisk, model: SegmentModel) -> Path:
    """Put the unsealed file on the disk, durable."""
    path = model.unsealed_path()
    disk.put(path, model.data)
    return path


def seal(files: Files, model: SegmentModel, path: Path) -> Path:
    """Seal the unsealed file at ``path``."""
    return seal_segment(files, path, model.header, model.offsets(), len(model.data), model.notes())


def sealed_bytes(model: SegmentModel) -> bytes:
    """Return the sealed file."""
    disk = SimDisk()
    return disk.contents(seal(disk, model, put_unsealed(disk, model)))


def open_sealed(model: SegmentModel) -> SealedSegment:
    """Seal the model on a disk of its own and open it."""
    disk = SimDisk()
    return SealedSegment.open(disk, seal(disk, model, put_unsealed(disk, model)))


def make_model(
    rng: Random,
    *,
    group_sizes: list[int],
    first_index: int = 1,
    first_proposal: int = 1,
    gaps_ns: tuple[int, ...] = (0, 1, SECOND_NS // 3, SECOND_NS, 90 * SECOND_NS),
    payload_size_max: int = 12,
    stream_count: int = 3,
) -> SegmentModel:
    """Make a segment whose groups have the given sizes and everything else is random."""
    groups: list[Group] = []
    index, timestamp_ns, term = first_index, rng.randrange(SECOND_NS), 1
    for size in group_sizes:
        drafts = [
            (
                rng.choice(TYPES),
                rng.randbytes(rng.randrange(payload_size_max + 1)),
                rng.choice((0, FLAG_CONDITIONAL)),
            )
            for _ in range(size)
        ]
        groups.append(encode_group(drafts, term=term, first_index=index, timestamp_ns=timestamp_ns))
        index += size
        timestamp_ns += rng.choice(gaps_ns)
        term += rng.choice((0, 0, 1))
    records: dict[int, list[int]] = {}
    for number in range(stream_count):
        chance = rng.choice((0.0, 0.1, 0.9))
        chosen = [at for at in range(first_index, index) if rng.random() < chance]
        if chosen:
            records[rng.randrange(1 << rng.choice((3, 40, 64))) | number] = chosen
    void_chance = rng.choice((0.0, 0.05, 0.5))
    voids = [at for at in range(first_index, index) if rng.random() < void_chance]
    header = SegmentHeader(rng.randrange(4), rng.randrange(1 << 32), first_index, first_proposal)
    return SegmentModel(header, groups, records, voids)


@st.composite
def segment_models(draw: st.DrawFn) -> SegmentModel:
    """Any segment: from one entry to several sparse rows, indexes low and near the end of u64."""
    sizes = draw(st.lists(st.integers(1, 5) | st.integers(1, 300), min_size=1, max_size=8))
    first_index = draw(st.sampled_from((1, 2, 10**10 + 7, (1 << 64) - 5000)))
    return make_model(
        Random(draw(st.integers(0, 2**32))),
        group_sizes=sizes,
        first_index=first_index,
        first_proposal=draw(st.integers(1, 1 << 40)),
        stream_count=draw(st.integers(0, 5)),
    )


def ranges_of(indexes: list[int]) -> list[list[int]]:
    """Return ascending indexes as inclusive ranges that do not touch."""
    ranges: list[list[int]] = []
    for index in indexes:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges


def naive_seek(entries: list[Entry], timestamp_ns: int) -> int | None:
    """Return what ``seek_time`` must return, by looking at every entry."""
    return next((entry.index for entry in entries if entry.timestamp_ns >= timestamp_ns), None)


def interesting_times(entries: list[Entry]) -> Iterator[int]:
    """Yield times at, just before and just after some entries, and beyond all."""
    yield from (0, (1 << 64) - 1)
    for entry in entries[:: max(1, len(entries) // 40)]:
        yield from (max(entry.timestamp_ns - 1, 0), entry.timestamp_ns, entry.timestamp_ns + 1)


class CrashRecorder:
    """Forks a disk at each operation as crashes of many kinds would leave it."""

    def __init__(self, disk: SimDisk, seed: int, *, random_count: int = 10) -> None:
        self._disk = disk
        self._rng = Random(seed)
        self._random_count = random_count
        self._crashed: list[tuple[str, SimDisk]] = []
        self.record("before the first operation")

    def record(self, operation: str) -> None:
        """Take note of what a crash right after the operation may leave."""
        policies = [CrashPolicy.LOST, CrashPolicy.KEPT, *[CrashPolicy.RANDOM] * self._random_count]
        self._crashed += [
            (f"crash after: {operation}, {policy}", self._disk.crash(policy, self._rng))
            for policy in policies
        ]

    def check(self, check: Callable[[SimDisk], str]) -> set[str]:
        """Run a check on each disk; return all that it returned."""
        found: set[str] = set()
        for description, disk in self._crashed:
            try:
                found.add(check(disk))
            except (AssertionError, UalError, OSError) as error:
                error.add_note(description)
                raise
        return found
