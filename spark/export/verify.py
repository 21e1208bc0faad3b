"""Compares an export with its receipts, and with the log as far as the log still has it.

It answers three questions:

* Are the files those of the receipts? Every byte is read. A file that is missing, was added, was
  changed, or has the content of another file is named.
* Do the receipts follow each other without a gap?
* Was every entry of the log exported, and no others? Headers are enough: the mix of the entries in
  each file's range, and in each range of a receipt, is computed again. Payloads are neither
  expanded nor decoded, but their bytes are read: the checksum of a header covers its payload, and
  without it the header would be unverified. Seeking from header to header would be slower for small
  entries and faster for large ones.
  A file whose range the log no longer keeps completely is not compared, and the report says so.
  Neither is a state, since its rows do not belong to single entries.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from onelog.errors import FailedPrecondition, NotFound
from onelog.spark.columns.selection import Selection
from onelog.spark.export.job import read_receipts
from onelog.spark.export.journal import Journal
from onelog.spark.export.mix import MIX_MODULUS, mix_entries
from onelog.spark.export.receipt import FileFacts, RangeFacts, Receipt, receipt_name
from onelog.spark.export.target import TEMPORARY_SUFFIX, Target
from onelog.spark.origin import Cut, Origin, Range
from onelog.spark.state import STATE_VIEWS

# How much of the log is read at a time; only its headers are kept in memory.
SPLIT_BYTES = 64 << 20

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a receipt and the files or the log."""

    kind: str  # MISSING, ADDED, CHANGED, EXCHANGED, GAP, LOG_DIFFERS
    name: str  # of the file or the receipt
    message: str


@dataclass(slots=True)
class Report:
    """What verifying found."""

    receipts: int = 0
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    differences: list[Difference] = field(default_factory=list)
    log_compared: int = 0  # files whose entries were compared with the log
    log_not_compared: list[str] = field(default_factory=list)  # what was not compared, and why
    notes: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether there is no difference in anything that could be compared."""
        return not self.differences


def verify_export(
    target: Target, origin: Origin | None = None, advance: Advance | None = None
) -> Report:
    """Compare an export; ``advance`` is called with the bytes that were read."""
    receipts = read_receipts(target)
    if not receipts:
        raise NotFound(
            f"{target.name} has no receipt: no export of it was completed", reason="NO_RECEIPT"
        )
    report = Report(
        receipts=len(receipts),
        files=sum(len(each.files) for each in receipts),
        rows=sum(each.rows for each in receipts),
        size_bytes=sum(each.size_bytes for each in receipts),
    )
    _compare_files(target, receipts, report, advance or (lambda _: None))
    _compare_receipts(receipts, report)
    if origin is None:
        report.log_not_compared.append("everything: no --endpoint and no --data was given")
    else:
        _compare_log(origin, receipts, report)
    return report


# Files -------------------------------------------------------------------------------------------


def _compare_files(
    target: Target, receipts: Sequence[Receipt], report: Report, advance: Advance
) -> None:
    wanted = {each.name: each for receipt in receipts for each in receipt.files}
    by_content = {(each.size_bytes, each.crc32c): each for each in wanted.values()}
    view = receipts[0].contents.view
    # Readers of tables ignore names with an underscore, such as the log of a Delta table.
    present = {
        name
        for name in target.names(view)
        if not name.removeprefix(f"{view}/").startswith("_") or name.endswith(TEMPORARY_SUFFIX)
    }
    unfinished = _unfinished(target, receipts, report)
    for name, facts in sorted(wanted.items()):
        if name not in present:
            report.differences.append(Difference("MISSING", name, "the file is not there"))
            continue
        size, checksum = _read(target, name, advance)
        if (size, checksum) != (facts.size_bytes, facts.crc32c):
            report.differences.append(_changed(facts, size, checksum, by_content))
    for name in sorted(present - set(wanted)):
        if name.endswith(TEMPORARY_SUFFIX):
            report.notes.append(f"{name} was left by a task; the next export removes it")
        elif not unfinished(name):
            message = "the file is in no receipt"
            report.differences.append(Difference("ADDED", name, message))


def _read(target: Target, name: str, advance: Advance) -> tuple[int, int]:
    size = checksum = 0
    for data in target.chunks(name):
        checksum = crc32c(data, checksum)
        size += len(data)
        advance(len(data))
    return size, checksum


def _changed(
    facts: FileFacts, size: int, checksum: int, by_content: dict[tuple[int, int], FileFacts]
) -> Difference:
    other = by_content.get((size, checksum))
    if other is not None and other.name != facts.name:
        return Difference("EXCHANGED", facts.name, f"it is the file {other.name}")
    if size != facts.size_bytes:
        message = f"it has {size} bytes, and had {facts.size_bytes}"
    else:
        message = f"its crc32c is {checksum:08x}, and was {facts.crc32c:08x}"
    return Difference("CHANGED", facts.name, message)


def _unfinished(
    target: Target, receipts: Sequence[Receipt], report: Report
) -> Callable[[str], bool]:
    """Return a function that tells which names belong to an unfinished export."""
    journal = Journal.find(target, len(receipts) + 1, repair=False)
    if journal is None:
        return lambda _: False
    report.notes.append(f"export {journal.plan.number} is not finished; its files are not compared")
    stems = tuple(
        f"/{each.shard:05d}-{each.first_index:010d}-{each.last_index:010d}."
        for each in journal.plan.splits
    )
    known = set(stems)
    return lambda name: f"/{name.rpartition('/')[2].partition('.')[0]}." in known


def _compare_receipts(receipts: Sequence[Receipt], report: Report) -> None:
    for before, after in itertools.pairwise(receipts):
        name = receipt_name(after.number)
        if after.contents != before.contents:
            report.differences.append(
                Difference("GAP", name, "it is of another export than the one before it")
            )
            continue
        ends = {each.shard: each.last_index for each in before.ranges}
        lost = {(each.shard, each.first_index) for each in after.missing}
        for each in after.ranges:
            expected = ends.get(each.shard, 0) + 1
            if each.first_index != expected and (each.shard, expected) not in lost:
                message = f"shard {each.shard} begins at {each.first_index}, and not at {expected}"
                report.differences.append(Difference("GAP", name, message))
    for receipt in receipts:
        report.notes += [
            f"{receipt_name(receipt.number)}: shard {each.shard} lacks entries {each.first_index} "
            f"to {each.last_index}, which were not kept when it was exported"
            for each in receipt.missing
        ]


# The log -----------------------------------------------------------------------------------------


def _compare_log(origin: Origin, receipts: Sequence[Receipt], report: Report) -> None:
    shards = sorted({each.shard for receipt in receipts for each in receipt.ranges})
    cut = origin.cut(shards)
    expected = receipts[0].contents.cluster_id
    if cut.cluster_id != expected:
        raise FailedPrecondition(
            f"the receipt is of cluster {expected}, and {origin.name} of cluster {cut.cluster_id}",
            reason="RECEIPT_OF_ANOTHER_CLUSTER",
        )
    if receipts[0].contents.view in STATE_VIEWS:
        report.log_not_compared += [
            f"{receipt_name(receipt.number)}: the state of shard {each.shard} at {each.last_index}:"
            " it has no entries of its own"
            for receipt in receipts
            for each in receipt.ranges
        ]
        return
    for receipt in receipts:
        selection = _by_headers(receipt.contents.selection)
        for each in receipt.ranges:
            _compare_range(origin, cut, receipt, each, selection, report)


def _by_headers(selection: Selection) -> Selection:
    """Return the part of a selection that headers decide; the mix is over the entries it keeps."""
    return Selection(
        types=selection.types,
        owners=selection.owners,
        from_time_ns=selection.from_time_ns,
        to_time_ns=selection.to_time_ns,
    )


def _compare_range(
    origin: Origin,
    cut: Cut,
    receipt: Receipt,
    wanted: RangeFacts,
    selection: Selection,
    report: Report,
) -> None:
    """Compare one receipt's range of one shard with the log."""
    part = next(each for each in cut.shards if each.shard == wanted.shard)
    name = receipt_name(receipt.number)
    files = sorted(
        (each for each in receipt.files if each.shard == wanted.shard),
        key=lambda each: each.first_index,
    )
    first = max(wanted.first_index, part.first_index)
    last = min(wanted.last_index, part.last_index)
    if first > wanted.first_index and wanted.first_index <= wanted.last_index:
        gone = min(first - 1, wanted.last_index)
        report.log_not_compared.append(
            f"{name}: entries {wanted.first_index} to {gone} of shard {wanted.shard}: the log "
            f"begins at {part.first_index}"
        )
    if last < wanted.last_index:
        report.log_not_compared.append(
            f"{name}: entries {max(last + 1, first)} to {wanted.last_index} of shard "
            f"{wanted.shard}: what can be read of the log ends at {part.last_index}"
        )
    kept = [each for each in files if first <= each.first_index and each.last_index <= last]
    sums = _Sums(kept)
    for indexes, mixes in _mixes(origin, Range(wanted.shard, first, last), selection):
        sums.add(indexes, mixes)
    report.log_compared += len(kept)
    report.differences += sums.differences()
    is_whole = (first, last) == (wanted.first_index, wanted.last_index)
    if is_whole and (sums.entries, sums.mix) != (wanted.entries, wanted.mix):
        message = (
            f"shard {wanted.shard}, entries {first} to {last}: the log has {sums.entries} entries "
            f"with mix {sums.mix:016x}, and the receipt {wanted.entries} with {wanted.mix:016x}"
        )
        report.differences.append(Difference("LOG_DIFFERS", name, message))


class _Sums:
    """Adds up the entries of the log by file."""

    def __init__(self, files: Sequence[FileFacts]) -> None:
        self._files = files
        self._first = np.array([each.first_index for each in files], np.uint64)
        self._last = np.array([each.last_index for each in files], np.uint64)
        self._entries = np.zeros(len(files), np.int64)
        self._mix = np.zeros(len(files), np.uint64)
        self.entries = 0
        self.mix = 0

    def add(self, indexes: NDArray[np.uint64], mixes: NDArray[np.uint64]) -> None:
        """Add some entries of the log."""
        self.entries += len(indexes)
        self.mix = (self.mix + int(np.sum(mixes, dtype=np.uint64))) % MIX_MODULUS
        if not len(self._files):
            return
        at = np.searchsorted(self._first, indexes, "right").astype(np.int64) - 1
        inside = at >= 0
        inside[inside] &= indexes[inside] <= self._last[at[inside]]
        np.add.at(self._entries, at[inside], 1)
        np.add.at(self._mix, at[inside], mixes[inside])

    def differences(self) -> Iterator[Difference]:
        """Yield the files whose entries differ from those of the log."""
        sums = zip(self._files, self._entries.tolist(), self._mix.tolist(), strict=True)
        for facts, entries, mix in sums:
            if (entries, mix) != (facts.entries, facts.mix):
                message = (
                    f"the log has {entries} entries with mix {mix:016x} in its range, and the "
                    f"receipt {facts.entries} with {facts.mix:016x}"
                )
                yield Difference("LOG_DIFFERS", facts.name, message)


def _mixes(
    origin: Origin, wanted: Range, selection: Selection
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield the indexes and mixed bits of the entries of a range, without refused ones."""
    if wanted.last_index < wanted.first_index:
        return
    for split in origin.splits([wanted], selection, SPLIT_BYTES):
        for block in origin.blocks(split, selection):
            yield block.headers["index"].astype(np.uint64), mix_entries(block.headers)
