"""Long reads of time series: prepared on the loop, carried out on a thread.

A query may read millions of points and blocks from the disk, and a pattern may be slow on purpose.
None of that happens on the loop. Such a read takes turns:

1. Matchers select series: beside the loop, over a cut through the tag index (``IndexCut``). Tags of
   a series never change and ids are not used again, so only series that came since have to be
   checked afterwards, and those that are gone are skipped.
2. On the loop, in one go: a cut through the columns of those series (``Plan``). This is the moment
   that the answer shows, and its applied index is the one in the header. Nothing is applied while
   it is taken, so it is never half of an entry.
3. Beside the loop: blocks are read and decoded, points folded, the answer made into bytes.

Invariant: whatever runs beside the loop sees cuts and entries of the log, never the state.

A block that the state lets go of after the cut (a delete, retention) may be dropped from the log
before it is read. Then the read begins again, with a state that does not name it; a block that is
still named and cannot be read is damage. A read waits for its repair, if a peer may have a copy,
and begins again; without a copy it fails, since a sum without some points is a wrong number.

One thread does all of it, one read after the other: the decoded blocks that it keeps need no lock.
They are bounded in bytes for all shards together; those of shards that were asked longest ago go
first. What waits for it is bounded (``READS_MAX``, TOO_MANY_QUERIES). Between
two columns a read checks its deadline, and whether its caller is still there.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from onelog.errors import DataLoss, OnelogError, ResourceExhausted, Unavailable
from onelog.node.context import NodeContext
from onelog.node.public_errors import NAME_SHOWN_MAX, error_of_refusal
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.timeseries.columns import CorruptBlock
from onelog.projections.timeseries.limits import CACHE_SIZE_MAX
from onelog.projections.timeseries.names import (
    CompiledMatcher,
    Matcher,
    Operator,
    compile_matchers,
    parse_series,
    passes_all,
)
from onelog.projections.timeseries.query import (
    Bounds,
    Found,
    Plan,
    Query,
    Reader,
    find_measurement,
    plan_query,
)
from onelog.projections.timeseries.store import Measurement
from onelog.ual.entry import Unreadable
from onelog.ual.errors import EntriesDamaged, IndexUnavailable
from onelog.v1 import common_pb2

if TYPE_CHECKING:
    from onelog.node.edge.shards import View

READS_MAX = 64  # under way in one process, most of them waiting for their turn
RETRY_S = 0.1
# What one query may cost. A series takes 0.5 µs of the loop, a value of the result 16 bytes of the
# answer.
BOUNDS = Bounds(series=20_000, points=10_000_000, values=500_000)
# Values of tags that are compared on the loop, where no pattern is among the matchers.
VALUES_INLINE_MAX = 1_000
# How often a read is begun whose blocks are dropped before it reads them.
ATTEMPTS_MAX = 5
# How many fields a refusal lists.
FIELDS_SHOWN_MAX = 10

ResultT = TypeVar("ResultT")
_PATTERNS = (Operator.MATCHES, Operator.MATCHES_NOT)


class SeriesReads:
    """See the module's text. One for each process."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="series-reads")
        self._readers: dict[int, Reader] = {}
        self.count = 0  # reads under way
        # The slowest tier of the blocks that the read on the thread had to open.
        self._tier: common_pb2.Tier = common_pb2.TIER_HOT
        self._is_closed = False

    def close(self) -> None:
        """End what is under way."""
        self._is_closed = True
        self.thread.shutdown(wait=False, cancel_futures=True)

    async def query(
        self, view: "View", namespace: str, query: Query, pack: Callable[[Found], ResultT]
    ) -> tuple[ResultT, "common_pb2.Tier", int]:
        """Return what ``pack`` makes of the result, beside the loop, the tier and the index."""
        with self._turn(view) as turn:
            attempts = 1
            while True:
                measurement, ids = await self._select(
                    turn, view, namespace, query.measurement, query.matchers
                )
                plan = plan_query(measurement, query, ids, BOUNDS)
                if isinstance(plan, Refused):
                    raise _not_planned(plan, measurement)
                index = view.projections.router.applied_index
                run = partial(self._run, self._reader(view), plan, turn.pause, pack)
                try:
                    return (*await turn.beside(run), index)
                except IndexUnavailable as error:
                    if view.held is not None:
                        raise  # the past may name what the present has let go of
                    if attempts == ATTEMPTS_MAX:
                        raise DataLoss(str(error), reason="BLOCK_MISSING") from error
                    attempts += 1
                except EntriesDamaged as error:
                    entries = (Unreadable(error.first_index, error.last_index),)
                    if not await view.edge.until_repaired(view.shard, entries, view.deadline_s):
                        raise
                except CorruptBlock as error:
                    raise DataLoss(str(error), reason="BLOCK_DAMAGED") from error

    async def series(
        self,
        view: "View",
        namespace: str,
        measurement: str,
        matchers: tuple[Matcher, ...],
        after: int,
        limit: int,
        pack: Callable[[list[bytes]], ResultT],
    ) -> tuple[ResultT, int | None, int]:
        """Return what ``pack`` makes of the names of a page, the last id unless done, the index."""
        with self._turn(view) as turn:
            found, ids = await self._select(turn, view, namespace, measurement, matchers)
            ids = [each for each in ids if each > after and each in found.series]
            page = ids[:limit]
            names = [found.series[each].name for each in page]
            index = view.projections.router.applied_index
            last = page[-1] if len(ids) > limit else None
            return await turn.beside(lambda: pack(names)), last, index

    async def _select(
        self,
        turn: "_Turn",
        view: "View",
        namespace: str,
        name: str,
        matchers: tuple[Matcher, ...],
    ) -> tuple[Measurement, list[int]]:
        """Return the ids of the series that the matchers mean now; some may be gone."""
        measurement = _find(view, namespace, name)
        has_patterns = any(each.operator in _PATTERNS for each in matchers)
        if not has_patterns:
            tests = compile_matchers(matchers)
            cut = measurement.index.cut(tests)
            if cut.effort <= VALUES_INLINE_MAX:
                return measurement, cut.select().tolist()
        else:
            tests = await turn.beside(lambda: compile_matchers(matchers))
            measurement = _find(view, namespace, name)
            cut = measurement.index.cut(tests)
        ids: list[int] = (await turn.beside(lambda: cut.select(turn.pause))).tolist()
        last_id = cut.last_id
        while True:
            # Others were served meanwhile: the measurement may be another, and series have come.
            measurement = _find(view, namespace, name)
            fresh = [
                (each, measurement.series[each].name) for each in measurement.index.after(last_id)
            ]
            if not fresh:
                return measurement, ids
            last_id = fresh[-1][0]
            ids += await turn.beside(partial(_passing, fresh, tests, turn.pause))

    def _reader(self, view: "View") -> Reader:
        reader = self._readers.pop(view.shard, None)
        if reader is None:
            edge, shard = view.edge, view.shard

            def read_block(index: int) -> bytes:
                log = edge.replica(shard).shard.log
                if index < log.ring.first_index:
                    self._tier = common_pb2.TIER_WARM
                return log.read(index).plain_payload()

            reader = Reader(read_block, CACHE_SIZE_MAX)
        self._readers[view.shard] = reader  # the last one that was used stands last
        return reader

    def _run(
        self,
        reader: Reader,
        plan: Plan,
        pause: Callable[[], None],
        pack: Callable[[Found], ResultT],
    ) -> tuple[ResultT, "common_pb2.Tier"]:
        """Beside the loop: return what a plan finds, and keep what all shards hold in bounds."""
        self._tier = common_pb2.TIER_HOT
        found = reader.run(plan, BOUNDS, pause)
        others = [each for each in tuple(self._readers.values()) if each is not reader]
        size = reader.cache.size + sum(each.cache.size for each in others)
        for each in others:
            if size <= CACHE_SIZE_MAX:
                break
            size -= each.cache.size
            each.cache.clear()
        if isinstance(found, Refused):
            raise _to_error(found)
        return pack(found), self._tier

    @contextmanager
    def _turn(self, view: "View") -> "Iterator[_Turn]":
        if self.count >= READS_MAX:
            raise ResourceExhausted(
                f"{READS_MAX} queries are under way, which is the limit",
                reason="TOO_MANY_QUERIES",
                metadata={"limit": str(READS_MAX)},
                retry_after_s=RETRY_S,
            )
        turn = _Turn(self, view.deadline_s)
        self.count += 1
        try:
            yield turn
        finally:
            self.count -= 1
            turn.is_wanted = False

    def check(self, deadline_s: float) -> None:
        """Raise if the read is late, or its caller has left."""
        if self._is_closed:
            raise Unavailable(
                "this node is shutting down", reason="STOPPING", retry_after_s=RETRY_S
            )
        if self._context.clock.now_s() >= deadline_s:
            raise TimeoutError


class _Turn:
    """One read on its way."""

    __slots__ = ("_deadline_s", "_reads", "is_wanted")

    def __init__(self, reads: SeriesReads, deadline_s: float) -> None:
        self._reads = reads
        self._deadline_s = deadline_s
        self.is_wanted = True  # until it is answered, or the client has gone

    def pause(self) -> None:
        """Between two steps beside the loop: raise if there is no reason for the next one."""
        if not self.is_wanted:
            raise TimeoutError  # which nobody hears
        self._reads.check(self._deadline_s)

    async def beside(self, work: Callable[[], ResultT]) -> ResultT:
        """Return what some work returns that may take long."""

        def run() -> ResultT:
            self.pause()
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._reads.thread, run)


def _find(view: "View", namespace: str, name: str) -> Measurement:
    found = find_measurement(view.projections.series, namespace, name)
    if isinstance(found, Refused):
        raise error_of_refusal(found)
    return found


def _passing(
    series: Iterable[tuple[int, bytes]], tests: list[CompiledMatcher], pause: Callable[[], None]
) -> list[int]:
    passing = []
    for series_id, name in series:
        pause()
        if passes_all(tests, parse_series(name).tags):
            passing.append(series_id)
    return passing


def _not_planned(refused: Refused, measurement: Measurement) -> OnelogError:
    """Return why a query was not begun: one of an unknown field says which ones there are."""
    error = _to_error(refused)
    if refused.reason is Reason.FIELD_UNKNOWN and measurement.fields:
        names = [f"{field.name:.{NAME_SHOWN_MAX}}" for field in measurement.fields]
        more = ", …" if len(names) > FIELDS_SHOWN_MAX else ""
        error.message += f"; it has {', '.join(names[:FIELDS_SHOWN_MAX])}{more}"
    return error


def _to_error(refused: Refused) -> OnelogError:
    """Return why a query was refused: one that is too large says what would be allowed."""
    error = error_of_refusal(refused)
    if refused.reason is Reason.QUERY_TOO_LARGE:
        error.message = (
            f"the query would touch {refused.detail} series, points or values; allowed: "
            f"{BOUNDS.series} series, {BOUNDS.points} points, {BOUNDS.values} values in the answer"
        )
    return error
