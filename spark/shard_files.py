"""The files of one shard, listed without opening them, and read in the order of the log.

Which files count is decided as in recovery (``ual/recovery.py``): by tombstones and interrupted
drops, cuts and installs. A listing is a moment's view, while a server continues to seal, compact
and drop files. If a file is gone when it is opened, the directory is listed again, at most
``LISTINGS_MAX`` times for one place in the log.

An unsealed file does not tell which of its entries were refused. Only the server knows, and the
notes section of a snapshot that covers the range. So a shard can be read up to its last sealed
entry, or up to the index of its newest snapshot if that is higher.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onelog.spark.origin import ShardCut
from onelog.spark.pieces import Piece, open_sealed, sealed_pieces, unsealed_pieces
from onelog.ual.directory import ShardPaths
from onelog.ual.entry import GROUP_SIZE_MAX
from onelog.ual.errors import CorruptFile, DataError, IndexDropped, MissingSegment
from onelog.ual.files import Files
from onelog.ual.manifest import Manifest, SnapshotRecord
from onelog.ual.manifest import load as load_manifest
from onelog.ual.offline.reader import ReadOnlyFiles
from onelog.ual.recovery import combine_known, finish_deletions, sort_names
from onelog.ual.segments.format import FOOTER_SIZE, HEADER_SIZE, Footer, SegmentHeader, SegmentKind
from onelog.ual.segments.notes import clip_voids
from onelog.ual.segments.tables import Indexes, StreamTable, Table

STREAM_ID_MAX = (1 << 56) - 1
# How often the names are listed for one place in the log before its file counts as missing.
LISTINGS_MAX = 5


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the log, as its name describes it."""

    path: Path
    first_index: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What the header and footer of a sealed file say."""

    header: SegmentHeader
    footer: Footer
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a shard at one moment."""

    parts: tuple[Part, ...]  # in the order of the log
    first_index: int  # the first entry that is kept
    snapshots: tuple[SnapshotRecord, ...]  # oldest first

    def find(self, index: int) -> int | None:
        """Return the position of the part that should hold an index."""
        at = bisect_right(self.parts, index, key=lambda part: part.first_index) - 1
        return at if at >= 0 else None

    @property
    def last_sealed(self) -> Part | None:
        """The newest sealed file."""
        return next((part for part in reversed(self.parts) if part.is_sealed), None)


@dataclass(frozen=True, slots=True, eq=False)
class Notes:
    """The void ranges that a snapshot knows among the entries from first to last index."""

    first_index: int
    last_index: int
    timestamp_ns: int  # log time of the last entry
    voids: Indexes


class ShardFiles:
    """Reads the files of one shard; holds none open."""

    def __init__(self, files: Files, paths: ShardPaths, shard: int) -> None:
        self.shard = shard
        self.paths = paths
        self.reader = ReadOnlyFiles(files)

    def list(self) -> Listing:
        """List the files that the log consists of now."""
        manifest = load_manifest(self.reader, self.paths.manifest, durable=False)
        known = combine_known(manifest, None, GROUP_SIZE_MAX)
        directory = self.paths.segments
        names, _ = sort_names(self.reader, directory)
        dropped = {action.path for action in finish_deletions(directory, names, known)}
        parts = [
            Part(directory / name, first, kind is SegmentKind.SEALED)
            for kind in (SegmentKind.SEALED, SegmentKind.UNSEALED, SegmentKind.SUCCESSOR)
            for first, name in names[kind].items()
            if directory / name not in dropped
        ]
        parts.sort(key=lambda part: part.first_index)
        first_index = parts[0].first_index if parts else known.first_index or 1
        return Listing(tuple(parts), first_index, _snapshots(manifest))

    def facts(self, part: Part) -> Facts:
        """Read and verify only the header and footer of a sealed file."""
        name = str(part.path)
        file = self.reader.open_read(part.path)
        size = file.size()
        header_data = file.read(HEADER_SIZE, 0)
        footer_at = max(size - FOOTER_SIZE, HEADER_SIZE)
        footer = Footer.decode(name, file.read(FOOTER_SIZE, footer_at), footer_at)
        header = SegmentHeader.decode(name, header_data)
        footer.check(name, header, header_data, size)
        self._refuse_other(name, header, part.first_index)
        return Facts(header, footer, size)

    def stream_ids(self, part: Part, facts: Facts) -> frozenset[int]:
        """Return the streams that have records in a sealed file, by its streams table."""
        span, name = facts.footer.streams, str(part.path)
        data = self.reader.open_read(part.path).read(span.size, span.position)
        found = StreamTable(Table(name, "streams", span, data), facts.header).stream_ids
        # The higher bits hold the partition.
        return frozenset((found & np.uint64(STREAM_ID_MAX)).tolist())

    def stream_names(self) -> dict[int, bytes]:
        """Return the streams that the newest snapshot knows, by id; none without a snapshot."""
        from onelog.snapshot.errors import SnapshotError
        from onelog.snapshot.reader import SnapshotReader
        from onelog.spark.columns.sections import SECTION_TABLES

        table = SECTION_TABLES["streams"]
        for record in reversed(self.list().snapshots):
            try:
                reader = SnapshotReader.open(self.reader, self.paths.snapshots / record.file)
                # Read it all before using a row: the checksum is compared at the end.
                batches = list(table.rows(list(reader.chunks(table.section_type))))
            except (DataError, SnapshotError, OSError):
                continue
            return {
                number: name.encode()
                for batch in batches
                for number, name in zip(
                    batch.column("stream_id").to_pylist(),
                    batch.column("stream").to_pylist(),
                    strict=True,
                )
            }
        return {}

    def cut(self) -> ShardCut:
        """Return how far the shard can be read; see the module's docstring."""
        for _ in range(LISTINGS_MAX):
            listing = self.list()
            first_index = listing.first_index
            last_index, timestamp_ns, first_time_ns = first_index - 1, 0, 0
            last = listing.last_sealed
            if last is not None:
                try:
                    header = self.facts(last).header
                    first_time_ns = self.facts(listing.parts[0]).header.first_timestamp_ns
                except FileNotFoundError:
                    continue  # dropped or replaced since it was listed
                last_index, timestamp_ns = header.last_index, header.last_timestamp_ns
            sealed = ShardCut(self.shard, first_index, last_index, timestamp_ns, first_time_ns)
            tail = listing.find(last_index + 1)
            if tail is None or listing.parts[tail].is_sealed:
                return sealed
            above = [record for record in listing.snapshots if record.index > last_index]
            for record in reversed(above):
                notes = self._notes(record)
                if notes is not None and notes.first_index <= last_index + 1:
                    return replace(
                        sealed, last_index=notes.last_index, timestamp_ns=notes.timestamp_ns
                    )
            if not above:
                return sealed
        # No snapshot is readable and covers these files.
        return sealed

    def pieces(self, first_index: int, last_index: int) -> Iterator[tuple[Piece, Indexes]]:
        """Yield the verified entries of a range and the void ranges among them, in order.

        A range that is no longer kept raises ``IndexDropped``, which names the exact indexes.
        """
        next_index, tries = first_index, 0
        listing = self.list()
        while next_index <= last_index:
            try:
                for piece, voids, reached in self._read_part(listing, next_index, last_index):
                    next_index, tries = reached + 1, 0
                    if piece is not None:
                        yield piece, voids
            except (FileNotFoundError, _NotCovered) as error:
                tries += 1
                if tries >= LISTINGS_MAX:
                    raise self._missing(next_index, last_index, error) from error
                listing = self.list()

    def _missing(self, first_index: int, last_index: int, error: Exception) -> Exception:
        if isinstance(error, _NotCovered):
            return CorruptFile(
                str(self.paths.segments),
                f"entries {first_index} to {last_index} are not sealed, and no readable snapshot "
                "tells which of them were refused",
            )
        return MissingSegment(str(self.paths.segments), first_index, last_index)

    def _read_part(
        self, listing: Listing, first_index: int, last_index: int
    ) -> Iterator[tuple[Piece | None, Indexes, int]]:
        """Yield the part of a range that is in the file of its first index, and where it ends."""
        at = listing.find(first_index)
        if at is None or first_index < listing.first_index:
            raise self._dropped(listing, first_index, last_index)
        part = listing.parts[at]
        following = listing.parts[at + 1].first_index if at + 1 < len(listing.parts) else None
        if not part.is_sealed:
            last = last_index if following is None else min(last_index, following - 1)
            yield from self._read_unsealed(listing, part, first_index, last)
            return
        segment, file = open_sealed(self.reader, part.path)
        self._refuse_other(str(part.path), segment.header, part.first_index)
        if first_index > segment.last_index:
            # The next file may have been listed under its old name and be gone by now.
            raise FileNotFoundError(part.path)
        last = min(last_index, segment.last_index)
        voids = clip_voids(segment.voids, first_index, last)
        for piece in sealed_pieces(segment, file, first_index, last):
            yield piece, voids, int(piece.headers["index"][-1])
        yield None, voids, last  # entries that compaction dropped count as read

    def _read_unsealed(
        self, listing: Listing, part: Part, first_index: int, last_index: int
    ) -> Iterator[tuple[Piece | None, Indexes, int]]:
        notes = self._covering(listing, first_index, last_index)
        if notes is None:
            raise _NotCovered
        file = self.reader.open_read(part.path)
        header = SegmentHeader.decode_identity(str(part.path), file.read(HEADER_SIZE, 0))
        self._refuse_other(str(part.path), header, part.first_index)
        voids = clip_voids(notes.voids, first_index, last_index)
        reached = first_index - 1
        for piece in unsealed_pieces(file, part.path, first_index, last_index):
            reached = int(piece.headers["index"][-1])
            yield piece, voids, reached
        if reached < last_index:
            raise FileNotFoundError(part.path)

    def _covering(self, listing: Listing, first_index: int, last_index: int) -> Notes | None:
        """Return the notes of a snapshot that cover a whole range; None if there is none."""
        for record in reversed(listing.snapshots):
            if record.index < last_index:
                break
            notes = self._notes(record)
            if notes is not None and notes.first_index <= first_index:
                return notes
        return None

    def _notes(self, record: SnapshotRecord) -> Notes | None:
        """Read the notes of a snapshot; None if they are gone or cannot be read."""
        # Imported here: only a read of unsealed files needs more than the log.
        from onelog.snapshot.errors import SnapshotError
        from onelog.snapshot.format import SECTION_NOTES
        from onelog.snapshot.notes import decode_notes
        from onelog.snapshot.reader import SnapshotReader

        try:
            reader = SnapshotReader.open(self.reader, self.paths.snapshots / record.file)
            if (reader.header.shard, reader.header.index) != (self.shard, record.index):
                return None
            # Read it all before using a field: the checksum is compared at the end.
            covered = decode_notes(list(reader.chunks(SECTION_NOTES)), record.index)
        except (DataError, SnapshotError, OSError):
            return None
        return Notes(
            covered.first_index, record.index, reader.header.timestamp_ns, covered.notes.voids
        )

    def _dropped(self, listing: Listing, first_index: int, last_index: int) -> IndexDropped:
        error = IndexDropped(first_index, listing.first_index, last_index)
        gone = min(last_index, listing.first_index - 1)
        error.args = (
            f"entries {first_index} to {gone} of shard {self.shard} are not kept any more: the log "
            f"in {self.paths.segments} begins at {listing.first_index}",
        )
        return error

    def _refuse_other(self, path: str, header: SegmentHeader, first_index: int) -> None:
        if header.shard != self.shard:
            raise CorruptFile(path, f"belongs to shard {header.shard}, not to {self.shard}", 0)
        if header.first_index != first_index:
            raise CorruptFile(path, f"the header says first index {header.first_index}", 0)


class _NotCovered(Exception):
    """No snapshot covers some entries that are not sealed."""


def _snapshots(manifest: Manifest | None) -> tuple[SnapshotRecord, ...]:
    return manifest.snapshots if manifest is not None else ()
