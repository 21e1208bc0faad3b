"""The path of every request: from names to shards, into the log, and to the state.

Services decide what to write and read; ``Edge`` decides in which shard and when, and turns the
outcome into an answer or an error. Invariants:

* Nothing is proposed before the request was found to be sound: names and sizes here, all else where
  its entries are made (node/edge/operation.py).
* A write or a linearizable read happens where its shard is led. Otherwise ``Elsewhere`` is raised,
  before anything was done, and the call is forwarded (node/edge/calls.py). Stale reads happen here.
* An answer says where it stands: the index of what was written, the applied index that was read.

A call over several shards is done in parts, one for each shard, and each part where it belongs
(``parts``): the same call is sent on with the number of the one shard that is meant.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from crc32c import crc32c
from google.protobuf.message import Message  # type: ignore[import-untyped]

from onelog.cluster.errors import ClusterError, NotLeader
from onelog.cluster.raft.member import LEADER
from onelog.errors import InvalidArgument, NotFound, OutOfRange
from onelog.node.context import NodeContext
from onelog.node.edge.calls import Call, Calls, Elsewhere, add_cost, gather
from onelog.node.edge.timeseries_reads import SeriesReads
from onelog.node.edge.waits import Timeouts, Waits
from onelog.node.public_errors import error_of_cluster, error_of_reason, too_large
from onelog.node.replica.driver import ShardDriver
from onelog.node.replica.requests import Drafts, Durability, Received, Results
from onelog.node.replica.stale_reads import Level
from onelog.node.snapshots.past import Past
from onelog.node.tracing import COMMIT, READ
from onelog.projections.codec import SessionRef
from onelog.projections.limits import NAMESPACE_DEFAULT, NAMESPACE_SIZE_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Result
from onelog.projections.shard_state import Projections
from onelog.routing import find_shard, routing_key, routing_keys
from onelog.ual.entry import HEADER_SIZE, Entry, Unreadable, decode_entries, decode_entry
from onelog.ual.errors import EntriesDamaged
from onelog.ual.log import Log
from onelog.v1 import common_pb2

# Longer waits for an index or tolerance of age than this are a mistake of units.
STALENESS_MS_MAX = 366 * 86_400_000
# What an entry takes besides what its request brought, at most: header, prefix, session, options.
ENTRY_OVERHEAD_MAX = 256
# Threads that read the log for watchers and for ReadLog.
READERS = 2
# How long a call waits for the repair of what it is to read, if its deadline allows.
REPAIR_S_MAX = 5.0
REPAIR_MARGIN_S = 0.25  # it is answered this long before its deadline
# Characters of a name in a message.
SHOWN_MAX = 40
_NO_WRITE_OPTIONS = common_pb2.WriteOptions()
_NO_READ_OPTIONS = common_pb2.ReadOptions()
_LEVELS = frozenset(common_pb2.ReadLevel.values())
_LED_LEVELS = {
    common_pb2.READ_LEVEL_UNSPECIFIED: Level.LINEARIZABLE,
    common_pb2.READ_LEVEL_LINEARIZABLE: Level.LINEARIZABLE,
    common_pb2.READ_LEVEL_LEASE: Level.LEASE,
}
_SYNC, _ASYNC = Durability.SYNC, Durability.ASYNC

BoundT = TypeVar("BoundT")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write; ``results`` has one result for each entry."""

    shard: int
    first_index: int
    results: Sequence[Result]
    cost: common_pb2.Cost | None = None


@dataclass(slots=True)  # frozen, it would take four times as long to make one for each read
class View:
    """The state of a shard, to be read without waiting in between, and never changed."""

    shard: int
    projections: Projections
    applied_index: int
    # Set where the live state is asked about the past: lookups have to name this index. A state of
    # the past needs no index.
    as_of: int | None
    with_cost: bool
    # For reads that continue off the loop: where, and until when.
    edge: "Edge"
    deadline_s: float
    # A state of the past stays as it is while this is there; the live one changes with each wait.
    held: Past | None = None
    round_ns: int = 0  # what a read round took, if there was one and it is asked for

    def for_read(self, as_of: int | None, *, with_cost: bool) -> "View":
        """Return the same state for one of several reads of it."""
        if as_of == self.as_of and with_cost == self.with_cost:
            return self
        return replace(self, as_of=as_of, with_cost=with_cost)

    def header(self, target: common_pb2.ReadHeader, scanned: int = 0) -> None:
        """Fill in the header of an answer."""
        target.shard = self.shard
        target.applied_index = self.applied_index
        if self.with_cost:
            target.cost.scanned = scanned
            target.cost.tier = common_pb2.TIER_HOT
            target.cost.round_ns = self.round_ns


class Edge:
    """See the module's text. One for each process."""

    def __init__(self, calls: Calls) -> None:
        context = calls.context
        self.calls = calls
        self.context = context
        self._topology = context.topology
        # Reading the log may wait for a disk.
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="log-reads")
        self._clock = context.clock
        self.request_bytes_max = context.config.shard.request_bytes_max
        self._waits: dict[int, Waits] = {}
        self.sources: dict[int, Any] = {}  # see node/watch/feeds.py
        self.presents: dict[int, Any] = {}  # see node/watch/present.py
        self.timeouts = Timeouts()  # of those who follow something
        self.series_reads = SeriesReads(context)

    # Where

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return self._topology.shards

    def find_shard(self, name: bytes) -> int:
        """Return the shard of a key, a name or a routing key."""
        topology = self._topology
        return find_shard(name, topology.partitions, topology.shards)

    def find_shards(
        self, named: Sequence[Sequence[bytes]], nouns: str = "names", *, by_shard: bool = False
    ) -> list[int]:
        """Return the shard of each of these; all names of one must have the same tag.

        With ``by_shard`` it is enough that they are in the same shard. With one shard all are.
        """
        topology = self._topology
        shards, partitions = topology.shards, topology.partitions
        if shards == 1:
            return [0] * len(named)
        if set(map(len, named)) != {1}:
            find = self._find_common_shard if by_shard else find_common_tag
            return [self.find_shard(find(names, nouns)) if names else 0 for names in named]
        (names,) = zip(*named, strict=True)
        if b"{" in b"".join(names):  # one search in place of one for each name
            names = tuple(map(routing_key, names))
        return [checksum % partitions % shards for checksum in map(crc32c, names)]

    def _find_common_shard(self, names: Sequence[bytes], nouns: str) -> bytes:
        """Return one of names that are all in one shard."""
        keys = routing_keys(names)
        shards = {self.find_shard(name) for name in keys}
        if len(shards) > 1:
            raise InvalidArgument(
                f"the {nouns} belong to several shards; send those of each shard apart",
                reason="SEVERAL_SHARDS",
                metadata={"shards": ",".join(map(str, sorted(shards)))},
            )
        return keys.pop()

    def check_shard(self, shard: int) -> int:
        """Return a shard's number that a client gave."""
        if shard >= self.shards:
            raise InvalidArgument(
                f"there is no shard {shard}; they are 0 to {self.shards - 1}",
                reason="SHARD_UNKNOWN",
                metadata={"shard": str(shard), "limit": str(self.shards)},
            )
        return shard

    def replica(self, shard: int) -> ShardDriver:
        """Return the replica of a shard in this process."""
        driver = self.context.drivers.get(shard)
        if driver is None:
            topology = self._topology
            if shard in self.context.repairs:  # the leader has what this node will have
                raise Elsewhere(shard, self._leader_endpoint(shard))
            raise Elsewhere(shard, topology.endpoint(shard, topology.self_id))
        return driver

    def leading(self, shard: int) -> ShardDriver:
        """Return the replica of a shard in this process, if it leads."""
        driver = self.context.drivers.get(shard)
        if driver is None or driver.shard.member.state != LEADER:
            raise Elsewhere(shard, self._leader_endpoint(shard))
        return driver

    def waits(self, shard: int) -> Waits:
        """Return where calls wait for what a shard of this process will apply."""
        waits = self._waits.get(shard)
        if waits is None:
            waits = self._waits[shard] = Waits(self.replica(shard), self.context.stopping)
        return waits

    def _leader_endpoint(self, shard: int) -> str | None:
        topology = self._topology
        if topology.leader(shard).leader_id == topology.self_id and topology.is_local(shard):
            return None  # it does not lead any more, and nobody else does yet
        return topology.leader_endpoint(shard)

    # Writing and reading

    async def write(
        self, shard: int, drafts: Drafts, options: common_pb2.WriteOptions, call: Call
    ) -> Written:
        """Replicate the entries of one request and return their results."""
        driver = self.leading(shard)
        if not drafts:
            return Written(shard, 0, ())
        self.check_size(drafts)
        future = driver.propose(drafts, call.deadline_s, parse_durability(options))
        span = call.span
        outcome = await (future if span is None else span.wait(COMMIT, shard, future))
        if isinstance(outcome, Results):
            cost = None
            if options.with_cost or call.cost is not None:
                cost = self.measure_cost(driver, outcome, call)
                if call.cost is not None:
                    add_cost(call.cost, cost)
            return Written(shard, outcome.first_index, outcome, cost)
        if isinstance(outcome, Received):
            return Written(shard, outcome.first_index, [APPLIED] * len(drafts))
        raise self.failure(shard, outcome)

    async def read(self, shard: int, options: common_pb2.ReadOptions, call: Call) -> View:
        """Return the state of a shard when it is as fresh as the caller wants it, or as old.

        The caller looks before it waits for anything else.
        """
        view = await self.read_live(shard, options, call)
        return view if view.as_of is None else await self.past(view, view.as_of, call)

    async def look(
        self,
        shard: int,
        options: common_pb2.ReadOptions,
        call: Call,
        look: Callable[[View], Found],
    ) -> Found:
        """Return what ``look`` finds: in the live state, which keeps versions, else in the past."""
        view = await self.read_live(shard, options, call)
        if view.as_of is None:
            return look(view)
        try:
            return look(view)
        except OutOfRange as error:
            if error.reason != Reason.COMPACTED.name:
                raise
        return look(await self.past(view, view.as_of, call))

    async def past(self, view: View, index: int, call: Call) -> View:
        """Return the state of a view's shard right after an index."""
        held = await self.past_at(view.shard, index, call.deadline_s)
        return replace(view, projections=held.projections, as_of=None, held=held)

    async def past_at(
        self, shard: int, index: int, deadline_s: float, told_from: int | None = None
    ) -> Past:
        """Return a state of the past; wait for the repair of what leads to it."""
        while True:
            try:
                return await self.context.past.at(shard, index, deadline_s, told_from)
            except EntriesDamaged as error:
                entries = (Unreadable(error.first_index, error.last_index),)
                if not await self.until_repaired(shard, entries, deadline_s):
                    raise

    async def read_live(self, shard: int, options: common_pb2.ReadOptions, call: Call) -> View:
        """Return the live state of a shard, also if an index of the past is requested."""
        check_read(options)
        began_s, has_round = self._clock.now_s(), False
        if options.level == common_pb2.READ_LEVEL_STALE:
            driver = self.replica(shard)
            staleness_ms = options.max_staleness_ms
            future = driver.read(
                call.deadline_s,
                level=Level.STALE,
                max_staleness_s=staleness_ms / 1000 if staleness_ms else None,
                min_index=options.min_index,
            )
        else:
            driver = self.leading(shard)
            level = _LED_LEVELS[options.level]
            has_round = (
                level is Level.LINEARIZABLE and len(driver.shard.member.membership.voters) > 1
            )
            future = driver.read(call.deadline_s, level=level, min_index=options.min_index)
        span = call.span
        error = await (future if span is None else span.wait(READ, shard, future))
        if error is not None:
            raise self.failure(shard, error)
        round_ns = 0
        if options.with_cost or call.cost is not None:
            round_ns = int((self._clock.now_s() - began_s) * 1e9) if has_round else 0
            if call.cost is not None:
                add_cost(call.cost, common_pb2.Cost(round_ns=round_ns, tier=common_pb2.TIER_HOT))
        return View(
            shard,
            driver.shard.projections,
            driver.shard.router.applied_index,
            options.as_of_index or None,
            options.with_cost,
            self,
            call.deadline_s,
            round_ns=round_ns,
        )

    async def bind(
        self, shard: int, call: Call, make: Callable[[Projections, bool], BoundT]
    ) -> BoundT:
        """Return what ``make`` makes of the state of a shard that is led here, for a write.

        A leader that has applied an entry of its own term knows all that was ever acknowledged,
        unless it has been deposed without knowing: then what it writes comes to nothing. Only that
        something is *not* there is checked again behind a read, which makes certain that it still
        leads; ``make`` is given whether it is certain.
        """
        driver = self.leading(shard)
        if driver.shard.member.has_applied_noop:
            try:
                return make(driver.shard.projections, False)
            except NotFound:
                pass
        future = driver.read(call.deadline_s)
        span = call.span
        error = await (future if span is None else span.wait(READ, shard, future))
        if error is not None:
            raise self.failure(shard, error)
        return make(driver.shard.projections, True)

    async def entries(
        self, shard: int, indexes: Sequence[int], size_max: int
    ) -> tuple[Sequence[Entry | None], Sequence[Unreadable]]:
        """Return entries of the log in the order of ``indexes``, from memory or from a thread.

        They end behind the first that goes beyond ``size_max`` bytes. Those that cannot be read are
        None, and returned by themselves as well.
        """
        log = self.replica(shard).shard.log
        found = _hot_entries(log, indexes, size_max)
        if found is not None:
            return found, ()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.readers, _read_entries, log, indexes, size_max)

    async def until_repaired(
        self, shard: int, entries: Sequence[Unreadable], deadline_s: float
    ) -> bool:
        """Wait for a peer's copy of entries that could not be read; tell whether it is worth
        another attempt to read them.

        Ends at once if every member was asked before, after ``REPAIR_S_MAX`` at the latest, and
        early enough for an answer before the deadline.
        """
        repair, now_s = self.replica(shard).shard.shipping.repair, self._clock.now_s()
        repair.take_met()  # what the reader has just left
        if repair.is_pending(entries):
            wait_s = min(deadline_s - REPAIR_MARGIN_S - now_s, REPAIR_S_MAX)
            await self.waits(shard).until(lambda: not repair.is_pending(entries), wait_s)
        return not repair.holds(entries)

    def check_size(self, drafts: Drafts, of_message: int | None = None) -> int:
        """Return the size of entries; refuse more than a group can hold.

        0 if the message that they came in is so small that they need no check.
        """
        limit = self.request_bytes_max
        if of_message is not None and 2 * of_message + len(drafts) * ENTRY_OVERHEAD_MAX <= limit:
            return 0
        size = sum(HEADER_SIZE + len(draft[1]) for draft in drafts)
        if size > limit:
            raise too_large(size, limit)
        return size

    def failure(self, shard: int, error: ClusterError) -> Exception:
        """Return what to raise for an outcome that is an error."""
        if isinstance(error, NotLeader):
            return Elsewhere(shard, self._leader_endpoint(shard))
        return error_of_cluster(error)

    def measure_cost(self, driver: ShardDriver, results: Results, call: Call) -> common_pb2.Cost:
        """Return what a write has cost that was just answered."""
        now_s = self._clock.now_s()
        return common_pb2.Cost(
            wait_ns=max(0, int((results.proposed_s - call.arrived_s) * 1e9)),
            raft_ns=max(0, int((now_s - results.proposed_s) * 1e9)),
            fsync_ns=int(driver.syncs.last_s * 1e9),
            tier=common_pb2.TIER_HOT,
        )

    async def close(self) -> None:
        """Close what was opened to serve calls."""
        await self.calls.close()
        self.readers.shutdown(wait=False, cancel_futures=True)
        self.series_reads.close()

    # Several shards

    async def parts(
        self,
        request: Message,
        call: Call,
        shards: Iterable[int],
        part: Callable[[int], Awaitable[Any]],
    ) -> list[Any]:
        """Return an answer for each of the shards, in their order, from wherever each is led.

        Asked for one shard by another node, it is only that one.
        """
        if call.only_shard is not None:
            shards = (call.only_shard,)

        async def forward(shard: int, elsewhere: Elsewhere) -> Any:
            data = await self.calls.forward(call, elsewhere, request, shard)
            return call.response.FromString(data)

        async def one(shard: int) -> Any:
            return await self.calls.run_on_leader(
                call, partial(part, shard), partial(forward, shard)
            )

        return await gather(*map(one, shards))


def find_common_tag(names: Sequence[bytes], nouns: str) -> bytes:
    """Return the routing key that all names have; refuse names that have several.

    Even if these happen to be in one shard: whether a request works must not depend on a hash.
    """
    keys = routing_keys(names)
    if len(keys) == 1:
        return keys.pop()
    first = names[0]
    tag = routing_key(first)
    second = next(name for name in names if routing_key(name) != tag)
    if b"{" in tag or b"}" in tag or len(tag) > SHOWN_MAX:
        tag = b"tag"
    raise InvalidArgument(
        f"the {nouns} {_show(first)} and {_show(second)} may be in different shards; only names "
        f"with the same tag in braces share one, such as {_show(_tagged(first, tag))} and "
        f"{_show(_tagged(second, tag))}",
        reason="SEVERAL_SHARDS",
        metadata={"names": str(len(set(names))), "tags": str(len(keys))},
    )


def _tagged(name: bytes, tag: bytes) -> bytes:
    """Return a name with this tag: as it is if it has it, else with another one cut off."""
    if routing_key(name) == tag:
        return name
    base = name.replace(b"{%b}" % routing_key(name), b"")
    return b"%b{%b}" % (base, tag)


def _show(name: bytes) -> str:
    text = name.decode(errors="backslashreplace")
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _hot_entries(log: Log, indexes: Sequence[int], size_max: int) -> list[Entry] | None:
    """Return entries that are all in memory, else None."""
    ring = log.ring
    first, last = indexes[0], indexes[-1]
    if last - first == len(indexes) - 1 and list(indexes) == list(range(first, last + 1)):
        data = ring.read_range(first, last)
        if data is not None and len(data) <= size_max:
            return decode_entries(data)
    entries = []
    for index in indexes:
        data = ring.read(index)
        if data is None:
            return None
        entries.append(decode_entry(data))
        size_max -= len(data)
        if size_max < 0:
            break
    return entries


def fill_log_read(cost: common_pb2.Cost, log: Log, scanned: int, lowest: int) -> None:
    """Record how many entries were read, and from which tier the oldest came."""
    cost.scanned = scanned
    if lowest < log.ring.first_index:
        cost.tier = common_pb2.TIER_WARM


def _read_entries(
    log: Log, indexes: Sequence[int], size_max: int
) -> tuple[list[Entry | None], list[Unreadable]]:
    """Return entries from wherever they are; in a thread, since that may be a disk."""
    entries, unreadable = list[Entry | None](), list[Unreadable]()
    for index in indexes:
        try:
            entry = log.read(index)
        except EntriesDamaged as error:
            entries.append(None)
            unreadable.append(Unreadable(error.first_index, error.last_index))
            continue
        entries.append(entry)
        size_max -= len(entry.payload)
        if size_max < 0:
            break
    return entries, unreadable


def get_edge(context: NodeContext) -> Edge:
    """Return the edge of a process, which all of its services share."""
    if context.edge is None:
        context.edge = Edge(Calls(context))
    return context.edge


def write_options(request: Any) -> common_pb2.WriteOptions:
    """Return the options of a write, or none; reading them off costs nothing where none are set."""
    return request.options if request.HasField("options") else _NO_WRITE_OPTIONS


def read_options(request: Any) -> common_pb2.ReadOptions:
    """Return the options of a read, or none."""
    return request.options if request.HasField("options") else _NO_READ_OPTIONS


def check_read(options: common_pb2.ReadOptions) -> None:
    """Refuse options of a read that are wrong whatever the state."""
    level, staleness_ms = options.level, options.max_staleness_ms
    if level not in _LEVELS:
        raise invalid("LEVEL_INVALID", f"there is no level {level}; they are 0 to {max(_LEVELS)}")
    if staleness_ms and level != common_pb2.READ_LEVEL_STALE:
        raise invalid("STALENESS_INVALID", "max_staleness_ms needs the level READ_LEVEL_STALE")
    if staleness_ms > STALENESS_MS_MAX:
        raise invalid(
            "STALENESS_INVALID",
            f"max_staleness_ms is {staleness_ms}; allowed: 0 to {STALENESS_MS_MAX}",
        )


def one_shard_only(options: common_pb2.ReadOptions) -> None:
    """Refuse options that speak of an index where several shards are read: each has its own."""
    if options.as_of_index or options.min_index:
        raise invalid(
            "SEVERAL_SHARDS", "as_of_index and min_index are of one shard; give a routing_key of it"
        )


def parse_durability(options: common_pb2.WriteOptions) -> Durability:
    """Return when a write is answered."""
    match options.durability:
        case common_pb2.DURABILITY_UNSPECIFIED | common_pb2.DURABILITY_SYNC:
            return _SYNC
        case common_pb2.DURABILITY_ASYNC:
            return _ASYNC
        case other:
            raise invalid("DURABILITY_INVALID", f"there is no durability {other}; they are 0 to 2")


def parse_session(options: common_pb2.WriteOptions) -> SessionRef | None:
    """Return the session of a write, checked as far as that goes without the state."""
    return check_session(options.session) if options.HasField("session") else None


def check_session(session: common_pb2.Session) -> SessionRef:
    """Return the session of a request; refuse one that is malformed."""
    sequence, first = session.sequence, session.first_unacknowledged
    if not session.session_id:
        raise invalid("SESSION_INVALID", "session_id is 0; OpenSession gives one")
    if not sequence:
        message = "sequence is 0; sequences begin with 1"
        raise error_of_reason(Reason.SEQUENCE_INVALID, first, message)
    if first > sequence:
        message = f"sequence is {sequence}, which is below first_unacknowledged, {first}"
        raise error_of_reason(Reason.SEQUENCE_INVALID, first, message)
    return SessionRef(session.session_id, sequence, first)


def parse_namespace(name: str) -> str:
    """Return a namespace as the log has it: the default one has a name there."""
    if not name:
        return NAMESPACE_DEFAULT
    if len(name) > NAMESPACE_SIZE_MAX or len(name.encode()) > NAMESPACE_SIZE_MAX:
        raise invalid(
            "NAMESPACE_NAME_INVALID",
            f"a namespace's name of {len(name.encode())} bytes; limit {NAMESPACE_SIZE_MAX}",
        )
    return name


def invalid(reason: str, message: str) -> InvalidArgument:
    """Return the error for input that is wrong whatever the state."""
    return InvalidArgument(message, reason=reason)
