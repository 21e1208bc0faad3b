"""Holds in the Admin service: set, list and release them, in every shard where it is led.

A new hold is tried on all shards before it is set in the first: an index that one of them does not
have refuses the call before anything is written. Moves need no trial, because repeating one is
harmless. What a hold is to keep stays while its entry is on the way (node/replica/holds.py).
"""

from onelog.errors import AlreadyExists, NotFound, OnelogError
from onelog.node.edge.calls import Call
from onelog.node.edge.operation import applied, put_header
from onelog.node.edge.shards import Edge, invalid
from onelog.node.public_errors import error_of_reason, error_of_refusal
from onelog.node.replica.holds import BYTES_MAX_DEFAULT, RESERVE_BYTES, TTL_MS_DEFAULT, is_short
from onelog.node.replica.shard import Shard
from onelog.node.services.admin_status import put_hold
from onelog.node.services.every_shard import every_shard
from onelog.projections.limits import HOLD_NAME_SIZE_MAX, TTL_NS_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.system.commands import HoldRelease, HoldSet, encode_command
from onelog.ual.errors import DiskFull, IndexDropped, IndexInFuture
from onelog.v1 import admin_pb2, common_pb2

_NO_OPTIONS = common_pb2.WriteOptions()
_READ = common_pb2.ReadOptions()
_NS_PER_MS = 1_000_000


class AdminHolds:
    """See the module's text and ``admin.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def set_hold(
        self, request: admin_pb2.SetHoldRequest, call: Call
    ) -> admin_pb2.SetHoldResponse:
        """Create a hold in every shard, or move it."""
        self._check(request)
        is_whole = call.only_shard is None and self._edge.shards > 1
        if is_whole and not request.move and not request.validate_only:
            trial = admin_pb2.SetHoldRequest()
            trial.CopyFrom(request)
            trial.validate_only = True
            await self._set(trial, call)
        return await self._set(request, call)

    async def list_holds(
        self, request: admin_pb2.ListHoldsRequest, call: Call
    ) -> admin_pb2.ListHoldsResponse:
        """List the holds of every shard, by name."""

        async def part(shard: int) -> admin_pb2.ListHoldsResponse:
            view = await self._edge.read(shard, _READ, call)
            replica = self._edge.leading(shard).shard
            answer = admin_pb2.ListHoldsResponse()
            for hold in view.projections.system.holds:
                put_hold(answer.holds.add(), shard, replica, hold)
            return answer

        found: list[admin_pb2.Hold] = []
        for each in await self._edge.parts(request, call, range(self._edge.shards), part):
            found.extend(each.holds)
        found.sort(key=lambda hold: (hold.name, hold.shard))
        return admin_pb2.ListHoldsResponse(holds=found)

    async def release_hold(
        self, request: admin_pb2.ReleaseHoldRequest, call: Call
    ) -> admin_pb2.ReleaseHoldResponse:
        """End a hold in every shard."""
        drafts = [encode_command(HoldRelease(_name_of(request.name)))]

        async def part(shard: int) -> admin_pb2.ReleaseHoldResponse:
            written = await self._edge.write(shard, drafts, _NO_OPTIONS, call)
            applied(written.results[0])
            one = admin_pb2.ReleaseHoldResponse()
            put_header(one.headers.add(), shard, written.first_index, written.results[0])
            return one

        answer = admin_pb2.ReleaseHoldResponse()
        outcomes = await every_shard(self._edge, request, call, part, NotFound)
        for each in outcomes.values():
            if not isinstance(each, OnelogError):
                answer.headers.extend(each.headers)
        return answer

    async def _set(
        self, request: admin_pb2.SetHoldRequest, call: Call
    ) -> admin_pb2.SetHoldResponse:
        async def part(shard: int) -> admin_pb2.SetHoldResponse:
            return await self._set_in(shard, request, call)

        done = None if request.move else AlreadyExists
        answer = admin_pb2.SetHoldResponse()
        outcomes = await every_shard(self._edge, request, call, part, done)
        for shard, each in outcomes.items():
            if isinstance(each, OnelogError):
                answer.indexes[shard] = int(each.metadata["detail"])
            else:
                answer.headers.extend(each.headers)
                answer.indexes.update(each.indexes)
        return answer

    async def _set_in(
        self, shard: int, request: admin_pb2.SetHoldRequest, call: Call
    ) -> admin_pb2.SetHoldResponse:
        edge, answer = self._edge, admin_pb2.SetHoldResponse()
        if request.validate_only:
            await edge.read(shard, _READ, call)  # so that what is judged is what is so
        replica = edge.leading(shard).shard
        command = _command_of(shard, request, replica)
        if request.validate_only:
            answer.indexes[shard] = _judged(command, replica)
            return answer
        log = replica.log
        with edge.context.holding.asking(shard, command.index or log.last_index + 1):
            written = await edge.write(shard, [encode_command(command)], _NO_OPTIONS, call)
        answer.indexes[shard] = applied(written.results[0]).number
        put_header(answer.headers.add(), shard, written.first_index, written.results[0])
        return answer

    def _check(self, request: admin_pb2.SetHoldRequest) -> None:
        """Refuse what no shard could take."""
        _name_of(request.name)
        for shard, index in request.indexes.items():
            self._edge.check_shard(shard)
            if not index:
                raise invalid("HOLD_INDEX_INVALID", "the first entry of a log has index 1")
        if request.move and request.from_start:
            raise invalid("FROM_START_INVALID", "from_start is for a new hold; name an index")
        ttl_ns = request.ttl_ms * _NS_PER_MS
        if ttl_ns > TTL_NS_MAX:
            raise error_of_reason(Reason.HOLD_LIMIT_INVALID, ttl_ns)


def _command_of(shard: int, request: admin_pb2.SetHoldRequest, replica: Shard) -> HoldSet:
    """Return the command for a shard; refuse what its log or its disk does not allow."""
    log, index = replica.log, request.indexes.get(shard, 0)
    ttl_ms, bytes_max = request.ttl_ms, request.bytes_max
    if index > log.last_index + 1:
        raise IndexInFuture(index, log.first_index, log.last_index)
    if not request.move:
        # A hold that moves goes on where its reader is: that may be a replica that keeps more.
        if index and index < log.first_index:
            raise IndexDropped(index, log.first_index, log.commit_index)
        if is_short(replica):
            raise DiskFull(
                f"shard {shard}: a hold needs a disk with {RESERVE_BYTES} bytes more than "
                "log.free_bytes_min; free some space"
            )
        if request.from_start:
            index = index or log.first_index
        ttl_ms, bytes_max = ttl_ms or TTL_MS_DEFAULT, bytes_max or BYTES_MAX_DEFAULT
    return HoldSet(request.name, request.move, index, ttl_ms * _NS_PER_MS, bytes_max)


def _judged(command: HoldSet, replica: Shard) -> int:
    """Return where a hold would stand; refuse what apply would refuse now."""
    holds, at = replica.projections.system.holds, (replica.log.last_index + 1, 0)
    judge = holds.moved if command.is_move else holds.created
    made = judge(command.name, command.index, command.ttl_ns, command.bytes_max, at)
    if isinstance(made, Refused):
        raise error_of_refusal(made)
    return made.index


def _name_of(name: str) -> str:
    size = len(name.encode())
    if not 1 <= size <= HOLD_NAME_SIZE_MAX:
        raise error_of_reason(Reason.HOLD_NAME_INVALID, size)
    if not name.isprintable():
        raise invalid("HOLD_NAME_INVALID", "a name is of characters that can be shown")
    return name
