"""An export from its beginning to its receipt, on the driver.

The order of steps makes it safe to interrupt an export at any moment and to run it again:

1. Take the target's lock, and check what the target holds.
2. Write the plan, with cut and splits, as the first line of the journal.
3. Run tasks, which write files. A file gets its final name when it is complete. Completed splits
   are noted in the journal.
4. Write the receipt, then remove the journal.

A rerun finds the journal and completes the same plan: files and receipt are the same as without the
interruption. If the target already has a receipt of the same request, nothing is done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c

from onelog.errors import DataLoss, FailedPrecondition, InvalidArgument
from onelog.spark.export.delta import check_format, register_delta
from onelog.spark.export.files import SplitTask, file_schema
from onelog.spark.export.iceberg import check_iceberg, register_iceberg
from onelog.spark.export.journal import Journal, Plan, SplitFacts, journal_name
from onelog.spark.export.mix import add_mixes
from onelog.spark.export.plan import (
    ExportRequest,
    check_kind,
    describe_asked,
    gone,
    has_same_ranges,
    make_contents,
    make_plan,
    open_table,
    take_cut,
)
from onelog.spark.export.receipt import (
    FILES_MAX,
    FORMATS,
    Contents,
    RangeFacts,
    Receipt,
    Since,
    decode_receipt,
    receipt_name,
)
from onelog.spark.export.target import TEMPORARY_SUFFIX, Target, target_error
from onelog.spark.origin import Cut, Range, Split
from onelog.spark.since import refuse_other_entries

TABLES = ("delta", "iceberg")
RECEIPTS_MAX = 1_000_000  # of one target

Numbered = tuple[int, Split]
Task = Callable[[int, Split], SplitFacts]
# Runs a task for each split, anywhere and in any order, and passes on results as they arrive.
Runner = Callable[[Sequence[Numbered], Task, Callable[[Sequence[SplitFacts]], None]], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an export."""

    receipt: Receipt
    receipt_name: str
    is_new: bool  # False: it was already complete
    note: str = ""  # what a user should know about the cut
    table: str = ""  # where the files are registered


class Progress:
    """Receives the progress of an export; this one ignores it."""

    def plan(self, plan: Plan, done: Sequence[SplitFacts], note: str) -> None:
        """Called once, before the first task."""

    def advance(self, done: Sequence[SplitFacts]) -> None:
        """Called with splits that are done."""


def run_export(request: ExportRequest, runner: Runner, progress: Progress | None = None) -> Outcome:
    """Export; see the module's docstring."""
    _check_request(request)
    try:
        return _run_locked(request, runner, progress or Progress())
    except OSError as error:  # of the target: those of the log are already errors of the API
        raise target_error(error) from error


def _run_locked(request: ExportRequest, runner: Runner, progress: Progress) -> Outcome:
    lock = request.target.lock()
    try:
        receipts = read_receipts(request.target)
        cut = take_cut(request)
        finished = _find_finished(request, receipts, cut)
        if finished is not None:
            _remove_journals(request.target, len(receipts))
            outcome = Outcome(finished, receipt_name(finished.number), is_new=False)
        else:
            export = _Export(request, len(receipts) + 1, progress)
            export.open_journal(receipts, cut)
            export.run(runner)
            lock.check()
            outcome = export.finish()
            receipts.append(outcome.receipt)
        return replace(outcome, table=_register(request, receipts))
    finally:
        lock.release()


def has_news(request: ExportRequest) -> bool:
    """Tell whether the log has entries behind the receipt that an export continues."""
    assert request.since is not None
    before = {each.shard: each.last_index for each in request.since[0].ranges}
    cut = request.origin.cut(request.options.shards or tuple(before))
    return any(each.last_index > before.get(each.shard, 0) for each in cut.shards)


def read_receipts(target: Target) -> list[Receipt]:
    """Return all receipts of a target, in order."""
    found: list[Receipt] = []
    while len(found) < RECEIPTS_MAX:
        name = receipt_name(len(found) + 1)
        data = target.read(name)
        if data is None:
            break
        receipt = decode_receipt(name, data)
        if receipt.number != len(found) + 1:
            raise DataLoss(
                f"{name} is number {receipt.number}; take an untouched copy of it",
                reason="RECEIPT_EDITED",
            )
        found.append(receipt)
    return found


def read_since(name: str, data: bytes) -> tuple[Receipt, Since]:
    """Return the receipt that an export continues, and a reference to it."""
    receipt = decode_receipt(name, data)
    return receipt, Since(receipt.number, crc32c(data))


def _register(request: ExportRequest, receipts: Sequence[Receipt]) -> str:
    """Register the files of all receipts as a table, if requested; return its location."""
    if request.as_table is None:
        return ""
    register = register_delta if request.as_table == "delta" else register_iceberg
    return register(request.target, request.view, receipts)


def _check_request(request: ExportRequest) -> None:
    check_kind(request)
    if request.format not in FORMATS:
        raise InvalidArgument(
            f"format {request.format!r} is not one of {', '.join(FORMATS)}", reason="FORMAT_UNKNOWN"
        )
    if not len(file_schema(request.view, request.options.columns)):
        raise InvalidArgument(
            "the columns shard and date are in the names of the files; export another column, too",
            reason="COLUMNS_EMPTY",
        )
    if request.as_table is not None:
        if request.as_table not in TABLES:
            raise InvalidArgument(
                f"table {request.as_table!r} is not one of {', '.join(TABLES)}",
                reason="TABLE_UNKNOWN",
            )
        check_format(request.format)
        if request.as_table == "iceberg":
            check_iceberg(request.target)


def _find_finished(request: ExportRequest, receipts: Sequence[Receipt], cut: Cut) -> Receipt | None:
    """Return the receipt of this request, if it exists; refuse a target of something else."""
    since = None if request.since is None else request.since[1]
    for receipt in receipts:
        if receipt.since == since:
            contents = make_contents(request, cut)
            if receipt.contents != contents:
                raise _other_export(request, receipt.contents, contents)
            if not has_same_ranges(request, receipt, cut):
                raise _other_ranges(request, "an export")
            return receipt
    if not receipts:
        return None
    if request.since is None:
        raise _other_ranges(request, "the continuation of an export")
    last = receipts[-1]
    if last != request.since[0]:
        raise FailedPrecondition(
            f"{request.target.name} is continued behind its last receipt, "
            f"{receipt_name(last.number)}, and not behind the one that was given",
            reason="RECEIPT_NOT_THE_LAST",
        )
    return None


def _other_export(request: ExportRequest, found: Contents, wanted: Contents) -> FailedPrecondition:
    there, asked = found.encode(), wanted.encode()
    different = ", ".join(name for name in there if there[name] != asked[name])
    return FailedPrecondition(
        f"{request.target.name} holds another export: {different} differ; use another target",
        reason="TARGET_HAS_ANOTHER_EXPORT",
    )


def _other_ranges(request: ExportRequest, what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{request.target.name} holds {what} of other ranges; run its command again, or use "
        "another target",
        reason="TARGET_HAS_ANOTHER_EXPORT",
    )


def _remove_journals(target: Target, number_max: int) -> None:
    """Remove journals of exports that have a receipt: a crash may have left one."""
    if number_max:
        target.log(journal_name(number_max)).remove()


def _remove_temporaries(target: Target, view: str) -> None:
    """Remove the temporary files of killed tasks."""
    for name in target.names(view):
        if name.endswith(TEMPORARY_SUFFIX):
            target.remove(name)


class _Export:
    """One run; the caller holds the target's lock."""

    def __init__(self, request: ExportRequest, number: int, progress: Progress) -> None:
        self._request = request
        self._target = request.target
        self._number = number
        self._progress = progress
        self._journal: Journal | None = None
        self._note = ""

    def open_journal(self, receipts: Sequence[Receipt], cut: Cut) -> None:
        """Find the plan of an interrupted run, or make one."""
        request = self._request
        _remove_journals(self._target, self._number - 1)
        self._note = cut.note
        contents = make_contents(request, cut)
        self._refuse_others(contents, receipts)
        journal = Journal.find(self._target, self._number)
        if journal is None:
            plan = make_plan(request, self._number, contents, cut)
            journal = Journal.begin(self._target, plan)
        else:
            self._refuse_other_plan(journal.plan, contents)
            if not request.view.shows_state:  # a snapshot may have a state without the log
                self._refuse_gone(journal, cut)
                self._refuse_restored(journal.plan, cut)
        self._journal = journal

    def run(self, runner: Runner) -> None:
        """Run the tasks that are left."""
        journal = self._journal
        assert journal is not None
        plan, request = journal.plan, self._request
        _remove_temporaries(self._target, plan.contents.view)
        done = [each for each in journal.done.values() if self._is_there(each)]
        self._progress.plan(plan, done, self._note)
        finished = {each.split for each in done}
        left = [each for each in enumerate(plan.splits) if each[0] not in finished]
        columns = tuple(name for name, _ in plan.contents.columns)
        task = SplitTask(open_table(request, plan), self._target, plan.contents.format, columns)
        if left:
            runner(left, task, self._note_done)
        lacking = set(range(len(plan.splits))) - set(journal.done)
        assert not lacking, f"splits {sorted(lacking)[:5]} were not done"

    def finish(self) -> Outcome:
        """Write the receipt."""
        journal = self._journal
        assert journal is not None
        _remove_temporaries(self._target, journal.plan.contents.view)
        receipt = _make_receipt(journal)
        name = receipt_name(receipt.number)
        self._target.write(name, receipt.encode())
        journal.remove()
        return Outcome(receipt, name, is_new=True, note=self._note)

    # Inside

    def _refuse_others(self, contents: Contents, receipts: Sequence[Receipt]) -> None:
        """Refuse to continue a receipt, or a target, of something else."""
        if self._request.since is not None:
            before = self._request.since[0].contents
            if before.cluster_id != contents.cluster_id:
                raise FailedPrecondition(
                    f"the receipt is of cluster {before.cluster_id}, and "
                    f"{self._request.origin.name} of cluster {contents.cluster_id}",
                    reason="RECEIPT_OF_ANOTHER_CLUSTER",
                )
            if before.view != contents.view:
                raise FailedPrecondition(
                    f"the receipt is of the view {before.view}, and not of {contents.view}",
                    reason="RECEIPT_OF_ANOTHER_VIEW",
                )
        if receipts and receipts[-1].contents != contents:
            raise _other_export(self._request, receipts[-1].contents, contents)

    def _refuse_other_plan(self, plan: Plan, contents: Contents) -> None:
        since = None if self._request.since is None else self._request.since[1]
        if plan.contents != contents:
            raise _other_export(self._request, plan.contents, contents)
        if plan.since != since or plan.asked != describe_asked(self._request):
            raise _other_ranges(self._request, "an unfinished export")

    def _refuse_gone(self, journal: Journal, cut: Cut) -> None:
        """Refuse to resume if the log has dropped wanted entries since the plan was made."""
        kept = {each.shard: each.first_index for each in cut.shards}
        dropped = [
            Range(each.shard, each.first_index, min(each.last_index, kept[each.shard] - 1))
            for number, each in enumerate(journal.plan.splits)
            if number not in journal.done and each.first_index < kept[each.shard]
        ]
        if dropped:
            raise gone(self._request.origin.name, dropped, "export into another target")

    def _refuse_restored(self, plan: Plan, cut: Cut) -> None:
        """Refuse to resume with another log than the plan was made for."""
        ends = {each.shard: each.last_index for each in cut.shards}
        for each in plan.ranges:
            if each.last_index > ends[each.shard]:
                raise FailedPrecondition(
                    f"the unfinished export reads shard {each.shard} up to {each.last_index}, and "
                    f"{self._request.origin.name} ends at {ends[each.shard]}: it is behind, or "
                    "was restored; export into another target",
                    reason="EXPORT_AHEAD_OF_LOG",
                )
        refuse_other_entries(
            self._request.origin, plan.last_checksums, "the unfinished export", "EXPORT_DIFFERS"
        )

    def _is_there(self, facts: SplitFacts) -> bool:
        """Tell whether the files of a split are as large as the journal says."""
        return all(self._target.size(each.name) == each.size_bytes for each in facts.files)

    def _note_done(self, done: Sequence[SplitFacts]) -> None:
        assert self._journal is not None
        if done:
            self._journal.add(done)
            self._progress.advance(done)


def _make_receipt(journal: Journal) -> Receipt:
    plan = journal.plan
    done = [journal.done[number] for number in range(len(plan.splits))]
    files = tuple(each for facts in done for each in facts.files)
    if len(files) > FILES_MAX:
        raise FailedPrecondition(
            f"{len(files)} files, limit {FILES_MAX}; export a part with --to-index, then continue "
            "with --since",
            reason="EXPORT_TOO_LARGE",
        )
    entries = dict.fromkeys((each.shard for each in plan.ranges), 0)
    mixes = dict(entries)
    for split, facts in zip(plan.splits, done, strict=True):
        entries[split.shard] += facts.entries
        mixes[split.shard] = add_mixes(mixes[split.shard], facts.mix)
    ranges = tuple(
        RangeFacts(
            each.shard,
            each.first_index,
            each.last_index,
            entries[each.shard],
            mixes[each.shard],
            plan.last_checksums.get((each.shard, each.last_index)),
        )
        for each in plan.ranges
    )
    return Receipt(plan.number, plan.contents, plan.since, plan.cut, ranges, plan.missing, files)
