"""The leader's part: which entries should be proposed now.

Blocks for full buffers, trims for measurements with a retention, rollups for rules whose next
window is closed. All of it follows from the state alone, so a new leader goes on where the old one
stopped, and asking twice gives the same entries. Compressing a block costs 0.2 ms: one that was
made is kept until its column moves on, and one call makes a bounded number.

Rollups read blocks. Without ``read_block`` (a replica that serves nothing) there are none.
"""

from contextlib import suppress
from heapq import nsmallest

from onelog.projections.timeseries.blocks import CorruptBlock, make_block
from onelog.projections.timeseries.commands import Trim, encode_chore
from onelog.projections.timeseries.entities import Measurement
from onelog.projections.timeseries.limits import BLOCKS_PER_CHORE_MAX
from onelog.projections.timeseries.progress import trim_allowed_ns, trim_due_ns
from onelog.projections.timeseries.read import BlockCache
from onelog.projections.timeseries.rollups import make_begin, make_rollup, rollup_due_ns
from onelog.projections.timeseries.store import Store
from onelog.ual.entry import Draft

_Mark = tuple[int, int, int]  # base, points, settings: a block is good as long as they stand


class Chores:
    """What a leader should propose for a store."""

    __slots__ = ("_made", "_store", "cache")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: dict[tuple[int, int], tuple[_Mark, Draft]] = {}
        self.cache: BlockCache | None = None

    def next_deadline(self) -> int | None:
        """Return when there is something to do: 0 for at once."""
        if self._store.full:
            return 0
        deadlines: list[int] = []
        for measurement in self._store.timed.values():
            due_ns = trim_due_ns(measurement)
            if due_ns is not None:
                deadlines.append(max(0, due_ns))
            deadlines += self._rule_deadlines(measurement)
        return min(deadlines, default=None)

    def _rule_deadlines(self, measurement: Measurement) -> list[int]:
        if self.cache is None or not measurement.rules:
            return []
        dues = [rollup_due_ns(measurement, *rule) for rule in measurement.rules.values()]
        return [max(0, due_ns) for due_ns in dues if due_ns is not None]

    def drafts(self, now_ns: int, limit: int) -> list[Draft]:
        """Return up to ``limit`` entries to propose."""
        drafts = self._blocks(min(limit, BLOCKS_PER_CHORE_MAX))
        for key in sorted(self._store.timed):
            if len(drafts) >= limit:
                break
            measurement = self._store.timed[key]
            drafts += self._measurement_drafts(measurement, now_ns)[: limit - len(drafts)]
        return drafts

    def _blocks(self, limit: int) -> list[Draft]:
        full = self._store.full
        if not full:
            self._made.clear()
            return []
        made: dict[tuple[int, int], tuple[_Mark, Draft]] = {}
        for key in nsmallest(limit, full):
            column = full[key]
            measurement = self._store.by_id[column.series_id].measurement
            mark = (column.base, len(column), measurement.config_index)
            kept = self._made.get(key)
            if kept is None or kept[0] != mark:
                block = make_block(column, measurement.config.policy, measurement.config_index)
                kept = (mark, encode_chore(block, measurement.room.namespace))
            made[key] = kept
        self._made = made
        return [draft for _, draft in made.values()]

    def _measurement_drafts(self, measurement: Measurement, now_ns: int) -> list[Draft]:
        drafts: list[Draft] = []
        namespace = measurement.room.namespace
        for name in sorted(measurement.rules) if self.cache is not None else ():
            rule, progress = measurement.rules[name]
            due_ns = rollup_due_ns(measurement, rule, progress)
            if due_ns is None or due_ns > now_ns:
                continue
            if not progress.slice_index:
                begin = make_begin(measurement, rule, progress, now_ns)
                drafts.append(encode_chore(begin, namespace))
                continue
            assert self.cache is not None
            # A block that cannot be read is repaired some day; other chores do not wait for it.
            with suppress(CorruptBlock):
                rollup = make_rollup(measurement, rule, progress, self.cache)
                drafts.append(encode_chore(rollup, namespace))
        due_ns = trim_due_ns(measurement)
        if due_ns is not None and due_ns <= now_ns:
            trim = Trim(
                measurement.name,
                measurement.created_index,
                trim_allowed_ns(measurement, now_ns),
                measurement.sweep_after,
            )
            drafts.append(encode_chore(trim, namespace))
        return drafts
