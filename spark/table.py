"""A loaded table: its origin, its cut, and its ranges and rows.

A read, an export and a stream begin with ``load_table``. It takes the cut, checks the options
against it, and finds the ids of the queues that the options name. The result pickles and travels to
tasks: whatever happens to the log afterwards, all queries of the table see the same entries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from onelog.errors import NotFound, OutOfRange
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request, View
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.faults import REASON_DROPPED
from onelog.spark.options import ReadOptions
from onelog.spark.origin import SPLIT_BYTES, Cut, Origin, QueueNames, Range, ShardCut, Split

# Views that show the names of queues or select by them.
_VIEWS_WITH_QUEUES = ("log", "queue_operations")


@dataclass(frozen=True)
class Table:
    """What all queries of one read see."""

    options: ReadOptions
    origin: Origin
    cut: Cut
    ranges: tuple[Range, ...]
    queue_names: QueueNames = field(default_factory=dict)

    @property
    def view(self) -> View:
        """The view that is read."""
        return self.options.view

    def selection(self, shard: int | None = None) -> Selection:
        """Return the selection for a shard; None: for any, without queues, as ids are per shard."""
        read = self.options
        wanted = Selection(
            types=read.types,
            owners=read.owners,
            from_time_ns=read.from_time_ns,
            to_time_ns=read.to_time_ns,
            namespaces=read.namespaces,
            key_prefix=read.key_prefix,
            streams=read.streams,
            queues=None
            if read.queues is None or shard is None
            else frozenset(self._wanted_queues(shard)),
            measurements=read.measurements,
        )
        types = read.view.narrowed(wanted)
        return replace(wanted, types=types)

    def splits(self, size_bytes: int = SPLIT_BYTES) -> list[Split]:
        """Return the parts that tasks read."""
        return self.origin.splits(self.ranges, self.selection(), size_bytes)

    def request(self, shard: int, columns: frozenset[str] | None) -> Request:
        """Return what tasks request from the view."""
        return Request(self.selection(shard), columns, self.queue_names.get(shard, {}))

    def batches(self, split: Split, columns: frozenset[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, with these columns in the order of the view."""
        request = self.request(split.shard, columns)
        for block in self.origin.blocks(split, request.selection):
            yield from self.view.batches(block, request)

    def _wanted_queues(self, shard: int) -> list[int]:
        wanted = set(self.options.queues or ())
        return [
            number for number, name in self.queue_names.get(shard, {}).items() if name in wanted
        ]


def open_origin(options: ReadOptions) -> Origin:
    """Return where the entries of a read come from."""
    if options.path is not None:
        return DirectoryOrigin(options.path)
    from onelog.spark.endpoint import EndpointOrigin

    return EndpointOrigin(
        options.endpoints,
        security=dict(options.security),
        bytes_per_second_max=options.bytes_per_second_max,
    )


def load_table(options: ReadOptions) -> Table:
    """Take the cut and check the options against it."""
    origin = open_origin(options)
    cut = origin.cut(options.shards)
    ranges = tuple(find_ranges(options, origin, cut))
    return Table(options, origin, cut, ranges, find_named_queues(options, origin, cut))


def find_named_queues(options: ReadOptions, origin: Origin, cut: Cut) -> QueueNames:
    """Return the queues of a read by id; refuse a name that no queue has."""
    names = find_queue_names(options, origin, cut)
    for name in options.queues or ():
        if not any(name in found.values() for found in names.values()):
            raise NotFound(
                f"option queues: there is no queue {name!r} in {origin.name}",
                reason="QUEUE_UNKNOWN",
                metadata={"option": "queues"},
            )
    return names


def find_queue_names(options: ReadOptions, origin: Origin, cut: Cut) -> QueueNames:
    """Return the queues that a view can show or select by name."""
    if options.view.name not in _VIEWS_WITH_QUEUES:
        return {}
    namespaces = None
    if options.namespaces is not None:
        namespaces = sorted(name.decode() for name in options.namespaces)
    return origin.queue_names(cut, options.queues, namespaces)


def find_ranges(options: ReadOptions, origin: Origin, cut: Cut) -> Iterator[Range]:
    """Yield the range of each shard; refuse bounds outside the log."""
    there = {part.shard for part in cut.shards}
    for name, bound in (("from_index", options.from_index), ("to_index", options.to_index)):
        for shard in bound if isinstance(bound, dict) else ():
            if shard not in there:
                raise NotFound(
                    f"option {name} names shard {shard}; there are {_listed(there)}",
                    reason="SHARD_UNKNOWN",
                    metadata={"option": name},
                )
    _refuse_other_times(options, cut)
    behind: dict[int, int] = {}
    if options.since is not None:
        from onelog.spark.since import find_first_indexes

        behind = find_first_indexes(options.since, options.view.name, origin, cut)
    for part in cut.shards:
        if part.shard in behind:
            yield _range_behind(options, part, behind[part.shard])
            continue
        first = options.bound(options.from_index, part.shard)
        last = options.bound(options.to_index, part.shard)
        for name, index in (("from_index", first), ("to_index", last)):
            if index is not None:
                _refuse_outside(name, index, part)
        yield Range(
            part.shard,
            part.first_index if first is None else first,
            part.last_index if last is None else last,
        )


def _range_behind(options: ReadOptions, part: ShardCut, first: int) -> Range:
    """Return the range from an index on, which may be empty."""
    if first < part.first_index:
        raise OutOfRange(
            f"option since continues at entry {first} of shard {part.shard}; entries {first} to "
            f"{part.first_index - 1} are not kept any more",
            reason=REASON_DROPPED,
            metadata={"option": "since", "first_index": str(part.first_index)},
        )
    last = options.bound(options.to_index, part.shard)
    if last is not None:
        _refuse_outside("to_index", last, part)
    return Range(part.shard, first, part.last_index if last is None else last)


def _refuse_outside(name: str, index: int, part: ShardCut) -> None:
    kept = f"shard {part.shard} has entries {part.first_index} to {part.last_index}"
    if part.last_index < part.first_index:
        kept = f"shard {part.shard} has no entries"
    if index < part.first_index:
        reason = REASON_DROPPED
    elif index > part.last_index:
        reason = "INDEX_IN_FUTURE"
    else:
        return
    raise OutOfRange(
        f"option {name} is {index}, and {kept}",
        reason=reason,
        metadata={
            "option": name,
            "shard": str(part.shard),
            "first_index": str(part.first_index),
            "last_index": str(part.last_index),
        },
    )


def _refuse_other_times(options: ReadOptions, cut: Cut) -> None:
    """Refuse a time after the last entry, or before the first one if older ones were dropped."""
    last = max((part.timestamp_ns for part in cut.shards), default=0)
    if options.from_time_ns > last:
        raise OutOfRange(
            f"option from_time is {options.from_time_ns} ns, and the last entry has {last} ns",
            reason="TIME_IN_FUTURE",
            metadata={"option": "from_time", "last_timestamp_ns": str(last)},
        )
    for part in cut.shards:
        if part.first_index > 1 and 0 < options.from_time_ns < part.first_timestamp_ns:
            raise OutOfRange(
                f"option from_time is {options.from_time_ns} ns, and shard {part.shard} begins at "
                f"entry {part.first_index} with {part.first_timestamp_ns} ns; what was before is "
                "no longer kept",
                reason=REASON_DROPPED,
                metadata={
                    "option": "from_time",
                    "first_timestamp_ns": str(part.first_timestamp_ns),
                },
            )


def _listed(shards: set[int]) -> str:
    return "shards " + ", ".join(map(str, sorted(shards))) if shards else "no shards"
