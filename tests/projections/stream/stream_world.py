"""A shard with streams and without files: a world whose entries can be read like a log."""

from collections.abc import Iterator, Sequence

from onelog.projections.codec import SessionRef
from onelog.projections.result import Result
from onelog.projections.shard_state import build_projections
from onelog.projections.stream.commands import Append, Command, Create, Retention, encode_command
from onelog.projections.stream.projection import Stream
from onelog.projections.stream.reads import Gap, Record
from onelog.ual.entry import Entry
from tests.projections.stream.stream_pages import read_page
from tests.projections.world import NAMESPACE, VoidNotes, World


class StreamNotes(VoidNotes):
    """Notes whose voids come in the order of the log."""

    def add_void(self, first_index: int, last_index: int) -> None:
        assert not self.voids or self.voids[-1][1] < first_index, "voids out of order"
        super().add_void(first_index, last_index)


class MemoryLog:
    """Entries as a log: what was dropped cannot be read any more."""

    def __init__(self, entries: Sequence[Entry], notes: StreamNotes, first_index: int = 1) -> None:
        self._entries = entries
        self._notes = notes
        self.first_index = first_index
        self.applied_index = len(entries)
        self.dropped: set[int] = set()

    def read(self, index: int) -> Entry:
        assert index >= self.first_index, f"{index} is before {self.first_index}"
        assert index not in self.dropped, f"{index} was dropped"
        return self._entries[index - 1]

    def scan_readable(
        self, first_index: int, last_index: int | None = None, *, stream_id: int | None = None
    ) -> Iterator[Entry]:
        return self.scan(first_index, last_index, stream_id=stream_id)

    def scan(
        self, first_index: int, last_index: int | None = None, *, stream_id: int | None = None
    ) -> Iterator[Entry]:
        assert first_index >= self.first_index, f"{first_index} is before {self.first_index}"
        last = len(self._entries) if last_index is None else last_index
        assert stream_id is not None, "only streams are scanned here"
        for index in self._notes.records.get(stream_id, []):
            if first_index <= index <= last and index not in self.dropped:
                yield self.read(index)

    def seek_time(self, timestamp_ns: int) -> int | None:
        for entry in self._entries:
            if entry.timestamp_ns >= timestamp_ns:
                return entry.index
        return None


class StreamWorld(World):
    """A world whose log knows records of streams."""

    def __init__(self, *, spill: bool = False) -> None:
        super().__init__(spill=spill)
        self.records = StreamNotes()
        self.notes = self.records
        self.state = build_projections(self.notes, self.spill)

    @property
    def stream(self) -> Stream:
        return self.state.stream

    @property
    def memory_log(self) -> MemoryLog:
        return MemoryLog(self.entries, self.records)

    def run(
        self, command: Command, namespace: str = NAMESPACE, session: SessionRef | None = None
    ) -> Result:
        return self.draft(encode_command(command, namespace, session))

    def create(
        self, name: str, partition_count: int = 1, retention: Retention | None = None
    ) -> int:
        """Create a stream and return its id."""
        self.run(Create(name, partition_count, retention or Retention()))
        return self.index

    def append(self, name: str, value: bytes = b"v", **options: object) -> int:
        """Append a record and return its offset."""
        self.run(Append(name, value, **options))  # type: ignore[arg-type]
        return self.index

    def read(self, name: str, partition: int = 0, offset: int | None = None) -> list[Record | Gap]:
        return list(read_page(self.stream, self.memory_log, name, partition, offset).items)

    def values(self, name: str, partition: int = 0, offset: int | None = None) -> list[bytes]:
        items = self.read(name, partition, offset)
        return [item.value for item in items if isinstance(item, Record)]

    def cursors(self, name: str, group: str) -> bytes | None:
        """Return what KV shows of a group."""
        return self.value(f"cg:{name}:{group}".encode())

    def reloaded(self, chunk_size: int = 1_000) -> "StreamWorld":
        """Return a world that starts from this one's snapshot, with the same log."""
        other = StreamWorld(spill=self.spill is not None)
        other.now_ns = self.now_ns
        other.entries = list(self.entries)
        other.log = bytearray(self.log)
        other.records.records = {key: list(rows) for key, rows in self.records.records.items()}
        other.records.voids = list(self.records.voids)
        sections = self.sections()
        other.state.router.load(
            {
                owner: [data[at : at + chunk_size] for at in range(0, len(data), chunk_size)]
                for owner, data in sections.items()
            }
        )
        return other


def replay(entries: Sequence[Entry]) -> StreamWorld:
    """Apply entries one by one to a fresh world."""
    world = StreamWorld()
    for entry in entries:
        world.state.router.apply(entry)
    world.entries = list(entries)
    return world
