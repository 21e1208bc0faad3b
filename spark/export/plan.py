"""Plans an export: its contents, ranges and splits, for each kind of view.

=================  =========================  ==============================================
kind of view       a range                    a split
=================  =========================  ==============================================
entries            the entries of a shard     about 64 MiB of them
changes            the entries of a shard     those between two snapshots: each is replayed
state              one index of a shard       the state right after that index
=================  =========================  ==============================================
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from onelog.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange
from onelog.spark.changes import CHANGE_VIEWS, ChangesTable, cut_changes, plan_changes
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import View
from onelog.spark.columns.views import VIEWS
from onelog.spark.export.files import ExportedTable, file_schema
from onelog.spark.export.journal import Plan
from onelog.spark.export.receipt import Contents, Receipt, Since
from onelog.spark.export.target import Target
from onelog.spark.faults import REASON_DROPPED
from onelog.spark.options import ReadOptions, bad
from onelog.spark.origin import (
    SPLIT_BYTES,
    Checksums,
    Cut,
    Origin,
    QueueNames,
    Range,
    ShardCut,
    Split,
)
from onelog.spark.since import last_checksums, refuse_other_entries
from onelog.spark.state import STATE_VIEWS, AsOf, StatePart, StateTable, find_parts
from onelog.spark.table import Table, find_named_queues, find_ranges

EXPORTED_VIEWS: dict[str, View] = {**VIEWS, **STATE_VIEWS, **CHANGE_VIEWS}


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What a user wants to export."""

    options: ReadOptions  # without ``since``
    origin: Origin
    target: Target
    format: str = "parquet"
    since: tuple[Receipt, Since] | None = None
    from_kept: bool = False  # skip entries that are no longer kept instead of refusing
    as_table: str | None = None  # one of TABLES: register the files as such a table
    split_bytes: int = SPLIT_BYTES
    as_of: AsOf = field(default_factory=AsOf)  # of a view with state

    @property
    def view(self) -> View:
        """The view that is exported."""
        return self.options.view


def check_kind(request: ExportRequest) -> None:
    """Refuse options that this kind of view does not have."""
    view = request.view
    if view.shows_state:
        if request.since is not None:
            raise not_continued(view)
        if request.from_kept:
            raise bad("OPTION_UNCONCERNED", "from_kept", "true", "only for a view of entries")
    elif request.as_of != AsOf():
        name = "as_of_index" if request.as_of.time_ns is None else "as_of_time"
        raise bad("OPTION_UNCONCERNED", name, "given", "only for a view of the state")


def not_continued(view: View) -> InvalidArgument:
    """Return the error for a view of the state that should continue a receipt."""
    return InvalidArgument(
        f"{view.name} is a view of the state, which is exported whole: it is not continued behind "
        "a receipt; export it into another target, or a view of changes",
        reason="VIEW_NOT_CONTINUED",
    )


def take_cut(request: ExportRequest) -> Cut:
    """Return how far the log can be exported now; a continuation has the same shards."""
    shards = request.options.shards
    if request.since is not None and shards is None:
        shards = tuple(each.shard for each in request.since[0].ranges)
    if request.view.is_replayed:
        return cut_changes(request.origin, shards)
    return request.origin.cut(shards)


def make_contents(request: ExportRequest, cut: Cut) -> Contents:
    """Return what the export contains."""
    schema = file_schema(request.view, request.options.columns)
    return Contents(
        cluster_id=cut.cluster_id,
        shard_count=cut.shard_count,
        view=request.view.name,
        columns=tuple((each.name, str(each.type)) for each in schema),
        format=request.format,
        selection=_selection(request, cut),
        queues=request.options.queues,
    )


def _selection(request: ExportRequest, cut: Cut) -> Selection:
    selection = Table(request.options, request.origin, cut, ()).selection()
    if not request.view.shows_state:
        return selection
    # Entries have no rows in a state; only the time of the state counts.
    time_ns = selection.to_time_ns if request.as_of.time_ns is None else request.as_of.time_ns
    return replace(selection, types=None, to_time_ns=time_ns)


def describe_asked(request: ExportRequest) -> str:
    """Return the ranges as requested, to recognise a rerun."""
    options, as_of = request.options, request.as_of
    bounds = [options.from_index, options.to_index, options.shards, request.from_kept, as_of.index]
    return json.dumps(bounds)


def make_plan(request: ExportRequest, number: int, contents: Contents, cut: Cut) -> Plan:
    """Return the plan; refuse ranges that the log does not have."""
    names: QueueNames = {}
    missing: Sequence[Range] = ()
    checksums: Checksums = {}
    if request.view.shows_state:
        parts = find_parts(request.options, request.as_of, request.origin, cut)
        _refuse_inside(request, cut, parts)
        ranges = tuple(map(_range_of_state, parts))
        splits = [Split(each.shard, each.index, each.index, 0) for each in parts if each.index]
    else:
        ranges, missing = plan_ranges(request, cut)
        if missing and not request.from_kept:
            raise gone(request.origin.name, missing, "begin with what is kept: --from-kept")
        checksums = _find_last_checksums(request, ranges)
        wanted = [each for each in ranges if each.first_index <= each.last_index]
        if request.view.is_replayed:
            changes = plan_changes(request.origin, cut, wanted)
            splits = [Split(each.shard, each.first_index, each.last_index, 0) for each in changes]
        else:
            names = find_named_queues(request.options, request.origin, cut)
            selection = contents.selection
            splits = request.origin.splits(wanted, selection, request.split_bytes)
    return Plan(
        number=number,
        contents=contents,
        since=None if request.since is None else request.since[1],
        asked=describe_asked(request),
        queue_names=tuple(
            (shard, number, name)
            for shard, found in sorted(names.items())
            for number, name in sorted(found.items())
        ),
        cut=cut.shards,
        ranges=ranges,
        missing=tuple(missing),
        splits=tuple(splits),
        last_checksums=checksums,
    )


def _find_last_checksums(request: ExportRequest, ranges: Sequence[Range]) -> Checksums:
    """Return checksums of the last entries for the receipt; refuse to continue another log."""
    places = [(each.shard, each.last_index) for each in ranges if each.last_index]
    before: Checksums = {}
    if request.since is not None:
        before = last_checksums(request.since[0], {each.shard for each in ranges})
        refuse_other_entries(request.origin, before, "the receipt", "RECEIPT_DIFFERS")
    found = request.origin.checksums([each for each in places if each not in before])
    known = before | found
    return {place: known[place] for place in places if place in known}


def open_table(request: ExportRequest, plan: Plan) -> ExportedTable:
    """Return the table that the tasks of a plan read."""
    options, origin = request.options, request.origin
    cut = Cut(plan.contents.cluster_id, plan.contents.shard_count, plan.cut)
    if request.view.shows_state:
        return StateTable(options, origin, cut, ())
    if request.view.is_replayed:
        return ChangesTable(options, origin, cut, ())
    names: QueueNames = {}
    for shard, number, name in plan.queue_names:
        names.setdefault(shard, {})[number] = name
    return Table(options, origin, cut, plan.ranges, names)


def has_same_ranges(request: ExportRequest, receipt: Receipt, cut: Cut) -> bool:
    """Tell whether a receipt has the requested ranges, as its own cut resolves them."""
    then = Cut(cut.cluster_id, cut.shard_count, receipt.cut)
    if {each.shard for each in then.shards} != {each.shard for each in cut.shards}:
        return False
    if request.view.shows_state and request.as_of.time_ns is not None:
        return True  # the contents say the time
    asked = replace(request, from_kept=True)
    missing: Sequence[Range] = ()
    try:
        if request.view.shows_state:
            parts = find_parts(request.options, request.as_of, request.origin, then)
            ranges = tuple(map(_range_of_state, parts))
        else:
            ranges, missing = plan_ranges(asked, then)
    except (NotFound, OutOfRange):
        return False
    there = tuple(Range(each.shard, each.first_index, each.last_index) for each in receipt.ranges)
    return (ranges, tuple(missing)) == (there, receipt.missing)


# States ------------------------------------------------------------------------------------------


def _range_of_state(part: StatePart) -> Range:
    """Return the one index of a state as a range; the empty state has an empty range."""
    return Range(part.shard, part.index or 1, part.index)


def _refuse_inside(request: ExportRequest, cut: Cut, parts: Sequence[StatePart]) -> None:
    """Refuse an index inside a transaction before a plan binds the target to it.

    If the log no longer keeps the entry, the task refuses it.
    """
    for shard, part in zip(cut.shards, parts, strict=True):
        if shard.first_index <= part.index < shard.last_index:
            transactions = dict(_transactions(request.origin, shard, part.index))
            found = transactions.get(part.index, 0)
            if found and transactions.get(part.index + 1) == found:
                raise OutOfRange(
                    f"index {part.index} of shard {part.shard} is inside a transaction, where "
                    "there is no state; ask for the index of its last entry, or for one before it",
                    reason="AS_OF_INSIDE_TRANSACTION",
                    metadata={"shard": str(part.shard), "index": str(part.index)},
                )


def _transactions(origin: Origin, shard: ShardCut, index: int) -> Iterator[tuple[int, int]]:
    """Yield the entry at an index and the next one, each with its transaction, unless refused."""
    pair = Range(shard.shard, index, index + 1)
    for split in origin.splits([pair], Selection()):
        for block in origin.blocks(split, Selection()):
            indexes = block.headers["index"].tolist()
            yield from zip(indexes, block.transaction.tolist(), strict=True)


# Ranges ------------------------------------------------------------------------------------------


def plan_ranges(request: ExportRequest, cut: Cut) -> tuple[tuple[Range, ...], list[Range]]:
    """Return the range of each shard to export, and the ranges that are no longer kept."""
    options = request.options
    wanted = _first_indexes(request, cut)
    kept = {each.shard: each for each in cut.shards}
    # Dropped entries are reported by the caller, for all shards at once; find_ranges refuses the
    # rest.
    bounds = None
    if request.since is None and options.from_index is not None:
        bounds = {
            shard: max(first, kept[shard].first_index) if shard in kept else first
            for shard, first in wanted.items()
        }
    checked = replace(options, from_index=bounds)
    if request.from_kept:
        checked = replace(checked, from_time_ns=0)
    ranges, missing = [], []
    for found in find_ranges(checked, request.origin, cut):
        first = wanted.get(found.shard, found.first_index)
        begin = max(first, kept[found.shard].first_index)
        last = max(found.last_index, begin - 1)
        if first < begin:
            missing.append(Range(found.shard, first, begin - 1))
        ranges.append(Range(found.shard, begin, last))
    return tuple(ranges), missing


def _first_indexes(request: ExportRequest, cut: Cut) -> dict[int, int]:
    """Return the requested first index by shard; other shards begin with what is kept."""
    options = request.options
    if request.since is None:
        if isinstance(options.from_index, dict):
            return dict(options.from_index)
        if options.from_index is None:
            return {}
        return {each.shard: options.from_index for each in cut.shards}
    before = {each.shard: each.last_index for each in request.since[0].ranges}
    for part in cut.shards:
        if part.shard not in before:
            raise FailedPrecondition(
                f"the receipt has nothing of shard {part.shard}; continue with the same shards",
                reason="RECEIPT_OF_OTHER_SHARDS",
            )
        if before[part.shard] > part.last_index:
            raise FailedPrecondition(
                f"the receipt ends shard {part.shard} at {before[part.shard]}, and "
                f"{request.origin.name} at {part.last_index}: it is behind, or was restored",
                reason="RECEIPT_AHEAD_OF_LOG",
            )
    return {part.shard: before[part.shard] + 1 for part in cut.shards}


def gone(origin: str, missing: Sequence[Range], advice: str) -> OutOfRange:
    """Return the error for ranges that are no longer kept."""
    shown = "; ".join(
        f"shard {each.shard}: entries {each.first_index} to {each.last_index}"
        for each in missing[:20]
    )
    more = f" and {len(missing) - 20} more ranges" if len(missing) > 20 else ""
    return OutOfRange(f"{origin} no longer keeps {shown}{more}; {advice}", reason=REASON_DROPPED)
