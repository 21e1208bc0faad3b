"""A shard without a log: drafts go in, get an index and a time, and are applied."""

from collections.abc import Iterable, Sequence
from typing import Self

from onelog.projections.codec import SessionRef
from onelog.projections.errors import SpillLost
from onelog.projections.kv import commands as kv_commands
from onelog.projections.kv.reads import KeyValue
from onelog.projections.result import Result
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.system import commands as system_commands
from onelog.ual.entry import Draft, Entry, decode_entries, encode_group

NAMESPACE = "default"
SECOND = 1_000_000_000
ROUNDS_MAX = 20


class VoidNotes:
    """Keeps the void ranges and the records that projections report."""

    def __init__(self) -> None:
        self.voids: list[tuple[int, int]] = []
        self.records: dict[int, list[int]] = {}

    def add_record(self, stream_id: int, index: int) -> None:
        records = self.records.setdefault(stream_id, [])
        assert not records or records[-1] < index, f"record {index} of {stream_id} out of order"
        records.append(index)

    def add_void(self, first_index: int, last_index: int) -> None:
        assert first_index <= last_index
        self.voids.append((first_index, last_index))


class MemorySpill:
    """A spill store that never forgets by itself and can be told to fail."""

    def __init__(self) -> None:
        self.values: dict[int, bytes] = {}
        self.puts_left: int | None = None

    def put(self, value_id: int, value: bytes) -> None:
        if self.puts_left is not None:
            if self.puts_left == 0:
                raise OSError("no space left")
            self.puts_left -= 1
        assert value_id not in self.values, f"id {value_id} used twice"
        self.values[value_id] = value

    def get(self, value_id: int) -> bytes:
        if value_id not in self.values:
            raise SpillLost(value_id, "not there")
        return self.values[value_id]

    def delete(self, value_id: int) -> None:
        del self.values[value_id]


class World:
    """Projections, the entries they were given, and the clock that stamps them."""

    def __init__(self, *, spill: bool = True) -> None:
        self.notes = VoidNotes()
        self.spill = MemorySpill() if spill else None
        self.state: Projections = build_projections(self.notes, self.spill)
        self.entries: list[Entry] = []
        self.log = bytearray()  # the same entries, as groups of bytes
        self.now_ns = 1_000 * SECOND

    @property
    def index(self) -> int:
        return self.state.router.applied_index

    def group(self, drafts: Sequence[Draft]) -> list[Result]:
        """Apply drafts as one group, through the bytes of the log."""
        group = encode_group(drafts, term=1, first_index=self.index + 1, timestamp_ns=self.now_ns)
        entries = decode_entries(group.data)
        self.entries += entries
        self.log += group.data
        return self.state.router.apply_group(entries)

    def draft(self, draft: Draft) -> Result:
        return self.group([draft])[0]

    def kv(
        self,
        command: kv_commands.Command,
        namespace: str = NAMESPACE,
        session: SessionRef | None = None,
    ) -> Result:
        return self.draft(kv_commands.encode_command(command, namespace, session))

    def system(
        self,
        command: system_commands.Command,
        namespace: str = "",
        session: SessionRef | None = None,
    ) -> Result:
        return self.draft(system_commands.encode_command(command, namespace, session))

    def put(self, key: bytes, value: bytes, namespace: str = NAMESPACE) -> int:
        """Put a value and return its version."""
        self.kv(kv_commands.Put(key, value), namespace)
        return self.index

    def value(
        self, key: bytes, namespace: str = NAMESPACE, as_of: int | None = None
    ) -> bytes | None:
        item = self.state.kv.get(namespace, key, as_of)
        if item is None:
            return None
        assert isinstance(item, KeyValue), item
        return item.value

    def pass_time(self, duration_ns: int) -> list[Result]:
        """Move the clock, and apply whatever is due then."""
        self.now_ns += duration_ns
        results: list[Result] = []
        for _ in range(ROUNDS_MAX):
            drafts = self.state.router.due(self.now_ns, 1_000)
            if not drafts:
                return results
            results += map(self.draft, drafts)
        raise AssertionError("what is due does not go away")

    def sections(self) -> dict[int, bytes]:
        return {owner: b"".join(chunks) for owner, chunks in self.state.router.dump().items()}

    def reloaded(self, chunk_size: int = 1_000) -> Self:
        """Return a world that starts from this one's snapshot."""
        other = type(self)(spill=self.spill is not None)
        other.now_ns = self.now_ns
        other.entries = list(self.entries)
        other.notes.voids += self.notes.voids
        other.notes.records |= {each: list(found) for each, found in self.notes.records.items()}
        other.state.router.load(
            {owner: cut(data, chunk_size) for owner, data in self.sections().items()}
        )
        return other


def cut(data: bytes, chunk_size: int) -> Iterable[bytes]:
    return (data[start : start + chunk_size] for start in range(0, len(data), chunk_size))


def replay(entries: Sequence[Entry]) -> World:
    """Apply entries one by one to a fresh world."""
    world = World()
    for entry in entries:
        world.state.router.apply(entry)
    world.entries = list(entries)
    return world
