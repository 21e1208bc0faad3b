"""The log in a directory: of a running server, of a stopped one, or a copy of segments.

Nothing is locked, mapped or written. A shard can be read as far as the files alone tell which
entries count: up to its last sealed entry, or up to its newest snapshot if that is later. A running
server may have more; ``Cut.note`` says so.

* Planning reads the headers and footers of sealed files, 276 bytes each, and prunes by range, owner
  and time. If only records of some streams are wanted, it also prunes by the streams tables.
* A split is several small files, one file, or a part of a large file. It begins and ends where
  groups do. The header of one entry is enough to find such a boundary: it counts the entries left
  in its group.
* A task lists the files again, so that a file that was sealed, compacted or renamed after planning
  is read under its new name. If entries were dropped, the task fails and names their indexes.
* Entries of queues hold ids, not names. The names come from the entries that create queues, and,
  where the log begins later, from the newest snapshot. A name that was used again stands for all
  queues that had it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from onelog.errors import FailedPrecondition, NotFound
from onelog.spark.columns.block import TYPE_BATCH, Block, Transactions, cut_blocks
from onelog.spark.columns.log import VIEW
from onelog.spark.columns.operations import find_types
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request
from onelog.spark.faults import reported
from onelog.spark.origin import (
    SPLIT_BYTES,
    Checksums,
    Cut,
    Origin,
    QueueNames,
    Range,
    Split,
    join_splits,
)
from onelog.spark.pieces import Piece, open_sealed
from onelog.spark.places import Places, find_places
from onelog.spark.shard_files import LISTINGS_MAX, Facts, Listing, Part, ShardFiles
from onelog.ual.directory import ShardPaths
from onelog.ual.entry import FLAG_CONDITIONAL, HEADER, HEADER_SIZE
from onelog.ual.errors import CorruptFile, IndexDropped, MissingSegment
from onelog.ual.files import DiskFiles, Files
from onelog.ual.offline.reader import ReadOnlyFiles
from onelog.ual.segments.tables import Indexes


def find_created(
    origin: Origin, wanted: Range, namespaces: Sequence[str] | None
) -> Iterator[tuple[int, str]]:
    """Yield the id and name of each queue that the entries of a range create."""
    spaces = None if namespaces is None else frozenset(name.encode() for name in namespaces)
    selection = Selection(types=find_types("queue", "queue_create"), namespaces=spaces)
    request = Request(selection, frozenset(("index", "name_text")))
    for split in origin.splits([wanted], selection):
        for block in origin.blocks(split, selection):
            for batch in VIEW.batches(block, request):
                ids, names = batch.column("index"), batch.column("name_text")
                yield from zip(ids.to_pylist(), names.to_pylist(), strict=True)


def find_in_snapshot(
    files: ShardFiles, names: Sequence[str], namespaces: Sequence[str] | None
) -> Iterator[tuple[int, str]]:
    """Yield the id and name of the queues with these names in the newest readable snapshot."""
    # Imported here: only a read of queues from a log whose beginning is gone needs the state.
    from onelog.snapshot.loading import load_newest
    from onelog.snapshot.offline import fresh_projections
    from onelog.ual.segments.notes import ApplyNotes

    loaded, _ = load_newest(
        files.reader,
        files.paths.snapshots,
        files.shard,
        files.list().snapshots,
        fresh_projections,
        ApplyNotes(),
    )
    if loaded is None:
        return
    state = loaded.state
    spaces = [each.name for each in state.system.namespaces] if namespaces is None else namespaces
    for namespace in spaces:
        for name in names:
            # The list is sorted: of all names with this prefix, the name itself comes first.
            first = state.queue.list_queues(namespace, limit=1, prefix=name)
            if isinstance(first, list) and first and first[0][0] == name:
                yield first[0][1], name


NOTE = (
    "read from files: each shard ends at its last sealed entry, or at its newest snapshot where "
    "that is later; a running server may have more"
)
# Entries of one transaction at most: how far to look back for the start of an open one.
BATCH_ENTRIES_MAX = 1_000
# A file is cut into parts if it is larger than a split by this factor.
SPLIT_SLACK = 1.5

_INDEX_FIELD, _GROUP_FIELD = 4, 7  # of an unpacked header of an entry


class DirectoryOrigin:
    """Entries of the files in a directory; see ``onelog.spark.origin``."""

    def __init__(self, path: str, *, cluster_id: str = "") -> None:
        """Name a directory; ``cluster_id``: refuse a directory of any other cluster."""
        self.name = path
        # A relative path is relative to the driver: executors run in other directories.
        self._path = Path(path).absolute()
        self._cluster_id = cluster_id

    # The port

    def cut(self, shards: Sequence[int] | None = None) -> Cut:
        """See ``Origin.cut``."""
        with reported():
            places = self._find()
            self._cluster_id = places.cluster_id
            wanted = sorted(places.shards if shards is None else set(shards))
            found = tuple(self._shard(places, shard).cut() for shard in wanted)
        return Cut(places.cluster_id, places.shard_count, found, NOTE)

    def splits(
        self, ranges: Sequence[Range], selection: Selection, size_bytes: int = SPLIT_BYTES
    ) -> list[Split]:
        """See ``Origin.splits``."""
        with reported():
            places = self._find()
            found: list[Split] = []
            for each in ranges:
                plan = _Plan(self._shard(places, each.shard), each, selection, size_bytes)
                found += plan.splits()
            return found

    def blocks(self, split: Split, selection: Selection) -> Iterator[Block]:
        """See ``Origin.blocks``."""
        with reported():
            files = self._shard(self._find(), split.shard)
            pieces = files.pieces(split.first_index, split.last_index)
            yield from cut_pieces(split.shard, pieces, selection, partial(_look_back, files))

    def group_end(self, shard: int, index: int, last_index: int) -> int:
        """See ``Origin.group_end``."""
        with reported():
            files = self._shard(self._find(), shard)
            # If compaction has dropped the entry, the group of the next one that is left will do.
            for last in (index, last_index):
                for piece, _ in files.pieces(index, last):
                    if len(piece.headers):
                        return min(find_group_end(piece), last_index)
        return last_index

    def checksums(self, places: Sequence[tuple[int, int]]) -> Checksums:
        """See ``Origin.checksums``."""
        found: Checksums = {}
        with reported():
            there = self._find()
            for shard, index in places:
                with suppress(IndexDropped):
                    for piece, _ in self._shard(there, shard).pieces(index, index):
                        found[shard, index] = int(piece.headers["crc"][0])
        return found

    def queue_names(
        self,
        cut: Cut,
        wanted: Sequence[str] | None,
        namespaces: Sequence[str] | None = None,
    ) -> QueueNames:
        """See ``Origin.queue_names``: only wanted names, since finding them reads queue entries."""
        found: QueueNames = {}
        if wanted is None:
            return found
        for part in cut.shards:
            everything = Range(part.shard, part.first_index, part.last_index)
            names = dict(find_created(self, everything, namespaces))
            if part.first_index > 1:
                with reported():
                    files = self._shard(self._find(), part.shard)
                    names = {**dict(find_in_snapshot(files, wanted, namespaces)), **names}
            found[part.shard] = names
        return found

    def find_shard(self, shard: int) -> ShardPaths:
        """Return where the files of a shard are."""
        with reported():
            return self.find_files(shard).paths

    def find_files(self, shard: int) -> ShardFiles:
        """Return the files of a shard, to be listed and read."""
        return self._shard(self._find(), shard)

    # Inside

    def _files(self) -> Files:
        return DiskFiles()

    def _find(self) -> Places:
        places = find_places(ReadOnlyFiles(self._files()), self._path)
        if self._cluster_id and places.cluster_id and places.cluster_id != self._cluster_id:
            raise FailedPrecondition(
                f"{self._path} belongs to cluster {places.cluster_id}, and the table was loaded "
                f"from cluster {self._cluster_id}",
                reason="OTHER_CLUSTER",
            )
        return places

    def _shard(self, places: Places, shard: int) -> ShardFiles:
        paths = places.shards.get(shard)
        if paths is None:
            there = ", ".join(map(str, sorted(places.shards)))
            raise NotFound(
                f"shard {shard} is not in {self._path}, which has {there}", reason="SHARD_UNKNOWN"
            )
        return ShardFiles(self._files(), paths, shard)


def find_group_end(piece: Piece) -> int:
    """Return the last index of the first entry's group."""
    first = piece.headers[0]
    return int(first["index"]) + int(first["group_left"])


def cut_pieces(
    shard: int,
    pieces: Iterable[tuple[Piece, Indexes]],
    selection: Selection,
    look_back: Callable[[int, Transactions], None],
) -> Iterator[Block]:
    """Yield the blocks of the pieces of a split.

    ``look_back`` learns which transaction is open before the index of the first entry.
    """
    transactions = Transactions()
    for number, (piece, voids) in enumerate(pieces):
        if not number and _needs_look_back(piece):
            look_back(int(piece.headers["index"][0]), transactions)
        yield from _cut_piece(shard, piece, voids, selection, transactions)


def _cut_piece(
    shard: int, piece: Piece, voids: Indexes, selection: Selection, transactions: Transactions
) -> Iterator[Block]:
    return cut_blocks(
        shard,
        piece.data,
        piece.offsets,
        voids=voids,
        selection=selection,
        transactions=transactions,
        headers=piece.headers,
    )


def _needs_look_back(piece: Piece) -> bool:
    """Tell whether the first entry may belong to a transaction that began before it."""
    if not len(piece.headers):
        return False
    first = piece.headers[0]
    return bool(first["flags"] & FLAG_CONDITIONAL) and first["entry_type"] != TYPE_BATCH


def _look_back(files: ShardFiles, index: int, transactions: Transactions) -> None:
    """Find the transaction that is open before an index; it lies in one file."""
    listing = files.list()
    at = listing.find(index)
    first_in_file = listing.parts[at].first_index if at is not None else index
    first = max(first_in_file, listing.first_index, index - BATCH_ENTRIES_MAX)
    if first < index:
        for piece, voids in files.pieces(first, index - 1):
            learn_transactions(files.shard, piece, voids, transactions)


def learn_transactions(
    shard: int, piece: Piece, voids: Indexes, transactions: Transactions
) -> None:
    """Note the transactions of entries that are not wanted themselves."""
    nothing = Selection(types=frozenset())
    for _ in _cut_piece(shard, piece, voids, nothing, transactions):
        raise AssertionError("an entry of no type")


class _Plan:
    """Makes the splits of one range."""

    def __init__(
        self, files: ShardFiles, wanted: Range, selection: Selection, size_bytes: int
    ) -> None:
        self._files = files
        self._wanted = wanted
        self._selection = selection
        self._size_bytes = size_bytes
        # Known streams that are not wanted. A stream that the snapshot does not know may be wanted.
        self._others: frozenset[int] = frozenset()
        if selection.only_records and selection.streams is not None:
            known = files.stream_names().items()
            self._others = frozenset(at for at, name in known if name not in selection.streams)

    def splits(self) -> list[Split]:
        """Return the splits that can hold wanted entries; raise if part of the range is gone."""
        if self._wanted.last_index < self._wanted.first_index:
            return []
        for attempt in range(LISTINGS_MAX):
            try:
                return join_splits(self._parts(self._files.list()), self._size_bytes)
            except (FileNotFoundError, MissingSegment):
                # A file was sealed, replaced or dropped after it was listed: list again.
                if attempt + 1 == LISTINGS_MAX:
                    raise
        raise AssertionError("unreachable")

    def _parts(self, listing: Listing) -> Iterator[Split]:
        """Yield the wanted parts of files, in order."""
        wanted, files = self._wanted, self._files
        next_index = wanted.first_index
        if next_index < listing.first_index:
            error = IndexDropped(next_index, listing.first_index, wanted.last_index)
            gone = min(wanted.last_index, listing.first_index - 1)
            error.args = (
                f"entries {next_index} to {gone} of shard {wanted.shard} are not kept any more: "
                f"the log begins at {listing.first_index}",
            )
            raise error
        at = listing.find(next_index)
        assert at is not None
        while next_index <= wanted.last_index:
            part = listing.parts[at] if at < len(listing.parts) else None
            if part is None or part.first_index > next_index:
                last = wanted.last_index if part is None else part.first_index - 1
                directory = str(files.paths.segments)
                raise MissingSegment(directory, next_index, min(last, wanted.last_index))
            at += 1
            if part.is_sealed:
                facts = files.facts(part)
                last = min(facts.header.last_index, wanted.last_index)
                if last >= next_index and self._can_hold(part, facts):
                    yield from self._cut(part, facts, next_index, last)
            else:
                behind = listing.parts[at].first_index - 1 if at < len(listing.parts) else None
                last = wanted.last_index if behind is None else min(behind, wanted.last_index)
                size = part.path.stat().st_size
                yield Split(wanted.shard, next_index, last, size)
            next_index = max(next_index, last + 1)

    def _can_hold(self, part: Part, facts: Facts) -> bool:
        """Tell by header, footer and streams table whether a file can have wanted entries."""
        selection, header = self._selection, facts.header
        times = header.first_timestamp_ns, header.last_timestamp_ns
        if not selection.can_be_within(*times, facts.footer.owner_counts):
            return False
        if selection.only_records and not facts.footer.streams.count:
            return False
        return not self._others or not self._files.stream_ids(part, facts) <= self._others

    def _cut(self, part: Part, facts: Facts, first_index: int, last_index: int) -> Iterator[Split]:
        """Yield the parts of a file: one, unless it is large."""
        shard, header = self._wanted.shard, facts.header
        span = header.last_index - header.first_index + 1
        share = (last_index - first_index + 1) / span
        size = int((facts.footer.entries_end - HEADER_SIZE) * share)
        if size > self._size_bytes * SPLIT_SLACK:
            count = -(-size // self._size_bytes)
            ends = self._boundaries(part, first_index, last_index, count)
        else:
            ends = []
        firsts = [first_index, *(end + 1 for end in ends)]
        for first, last in zip(firsts, [*ends, last_index], strict=True):
            yield Split(shard, first, last, size // len(firsts))

    def _boundaries(self, part: Part, first_index: int, last_index: int, count: int) -> list[int]:
        """Return the last indexes of all parts but the last: about equal, each ends a group."""
        segment, file = open_sealed(ReadOnlyFiles(DiskFiles()), part.path)
        indexes, offsets = segment.sparse_rows
        inside = np.flatnonzero((indexes > first_index) & (indexes < last_index))
        if not len(inside):
            return []
        begin, end = int(offsets[inside[0]]), int(offsets[inside[-1]])
        targets = begin + (end - begin) * np.arange(1, count) // count
        rows = np.unique(np.searchsorted(offsets, targets).clip(inside[0], inside[-1]))
        ends: list[int] = []
        for row in rows.tolist():
            index = int(indexes[row])
            fields = HEADER.unpack(file.read(HEADER_SIZE, int(offsets[row])))
            if fields[_INDEX_FIELD] != index:
                rule = f"entry {index}: the sparse table differs from the entry"
                raise CorruptFile(str(part.path), rule, int(offsets[row]))
            # The end of its group, even if compaction has dropped the group's last entry.
            boundary = index + fields[_GROUP_FIELD]
            if (ends[-1] if ends else first_index - 1) < boundary < last_index:
                ends.append(boundary)
        return ends
