"""Random histories of all models in a real data directory, and what they say without the columns.

A history is applied twice: in memory while it is drawn, and entry by entry through a real log,
whose notes say what is void. ``read`` reads the files with the reader that docs/formats.md is
enough for.
"""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import zstandard

from onelog.projections.codec import read_prefix
from onelog.projections.kv import commands as kv_commands
from onelog.projections.queue import commands as queue_commands
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.stream import commands as stream_commands
from onelog.projections.system import commands as system_commands
from onelog.projections.timeseries import commands as ts_commands
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, Draft, Entry
from onelog.ual.files import DiskFiles
from onelog.ual.log_config import LogConfig
from onelog.ual.segments.sealed import SealedSegment
from tests.formats.independent_reader import Entry as ReadEntry
from tests.formats.independent_reader import Segment
from tests.formats.independent_shard import read_shard
from tests.projections.histories import Writer
from tests.snapshot.live import LiveShard
from tests.ual.shards import seal_closed

CONFIG = LogConfig(ring_bytes=1 << 20, segment_bytes_max=30_000, free_bytes_min=0)
SYNC_GROUPS = 100
OPAQUE = (0x0001, 0x0002)
DECODERS = {
    1: kv_commands.decode_command,
    2: queue_commands.decode_command,
    3: ts_commands.decode_command,
    4: stream_commands.decode_command,
}


@dataclass(frozen=True, slots=True)
class Said:
    """What an entry says, by the projections' decoders."""

    namespace: str | None
    name: bytes | None
    queue: int  # 0: about none
    batch_size: int  # entries that a batch entry announces


@dataclass(frozen=True, slots=True)
class Written:
    """A shard on disk, closed."""

    path: Path  # of the shard

    def segments(self) -> list[SealedSegment]:
        """Return the sealed segments, opened and verified."""
        files = sorted(self.path.glob("segs/*.flseg"))
        found = [SealedSegment.open(DiskFiles(), file) for file in files]
        for segment in found:
            segment.check_file()
        return found

    def read(self) -> list[ReadEntry]:
        """Return the entries of sealed files that are not void, by the independent reader."""
        _, segments = read_shard(self.path)
        last_index = self.segments()[-1].last_index
        entries = (entry for segment in segments for entry in visible(segment))
        return [entry for entry in entries if entry.index <= last_index]


def visible(segment: Segment) -> list[ReadEntry]:
    """Return the entries of a sealed segment that were not refused."""
    hidden = {index for first, last in segment.voids for index in range(first, last + 1)}
    return [entry for entry in segment.entries if entry.index not in hidden]


def write_history(path: Path, seed: int, steps: int, *, snapshots: int = 0) -> Written:
    """Write a random history to a new directory; all but the last segment is sealed.

    ``snapshots``: as many, at equal distances; the newest two are kept.
    """
    world = Writer(seed).write(steps)
    live: LiveShard[Projections] = LiveShard(
        DiskFiles(), build_projections, data_dir=path / "data", config=CONFIG
    )
    groups = groupby(world.entries, lambda entry: entry.index + entry.group_left)
    distance = world.index // (snapshots + 1)
    for number, (last, group) in enumerate(groups, 1):
        entries = list(group)
        drafts = [_draft(entry) for entry in entries]
        live.log.append(drafts, term=1, timestamp_ns=entries[0].timestamp_ns)
        if number % SYNC_GROUPS == 0:
            live.log.sync()
            live.commit()
        if snapshots and last >= distance:
            live.log.sync()
            live.commit()
            live.snapshot()
            snapshots, distance = snapshots - 1, distance + world.index // (snapshots + 1)
    live.log.sync()
    live.commit()
    seal_closed(live.log)
    live.log.close()
    return Written(live.paths.segments.parent)


def _draft(entry: Entry) -> Draft:
    return Draft(entry.entry_type, entry.plain_payload(), entry.flags & FLAG_CONDITIONAL)


def plain(entry: ReadEntry) -> bytes:
    """Return the plain payload of an entry."""
    if entry.flags & FLAG_ZSTD:
        return zstandard.ZstdDecompressor().decompress(entry.payload)
    found: bytes = entry.payload
    return found


def said_by(entry: ReadEntry) -> Said:
    """Decode an entry."""
    if entry.entry_type in OPAQUE:
        return Said(None, None, 0, 0)
    prefix, reader = read_prefix(plain(entry))
    owner, operation = divmod(entry.entry_type, 256)
    if not owner:
        command = system_commands.decode_command(entry.entry_type, reader)
        size = command.entry_count if isinstance(command, system_commands.Batch) else 0
        return Said(prefix.namespace, None, 0, size)
    found: object = DECODERS[owner](operation, reader)
    queue = getattr(found, "queue", 0)
    if isinstance(found, queue_commands.QueueCreate):
        return Said(prefix.namespace, found.name.encode(), entry.index, 0)
    fields = ("key",) if owner == 1 else ("stream", "target", "measurement", "series")
    name = next((getattr(found, field) for field in fields if hasattr(found, field)), None)
    if isinstance(name, str):
        name = name.encode()
    return Said(prefix.namespace, name if isinstance(name, bytes) else None, queue, 0)
