"""Leaderships spread evenly over the nodes, in the background.

Every shard has one node that should lead it, the same in the eyes of all: its number picks one of
the voters, in the order of their ids. So neighbouring shards have different leaders, on one worker
and over all of them, and no two nodes pull in different directions. While that node is away the
next choice is made among those that are connected. A leader that is not the chosen one hands over,
if the chosen one is connected and has nearly everything: then the pause for clients is short.

At most one hand-over in ``cluster.balance_period_s``, none of a leadership that is younger than two
of those (the one that had it before may be about to stop). A hand-over that fails changes nothing;
the next period tries again.

A leadership that somebody has moved on purpose stays for ``HOLD_S``. Whoever would move it back is
the new leader, so the message that hands it over says so, and the balance of the new leader holds
it, for the one term that it was given. A leader that is chosen because that one went is not bound.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from uuid import UUID

from onelog.cluster.errors import ClusterError
from onelog.cluster.raft.member import LEADER
from onelog.node.metrics import Metrics
from onelog.node.replica.driver import ShardDriver

# A target that lacks more proposals than this would make clients wait.
LAG_PROPOSALS_MAX = 64
# How long a leadership stays where somebody has put it on purpose.
HOLD_S = 600.0

_log = logging.getLogger("onelog.node.balance")


def chosen_leader(shard: int, voters: Sequence[UUID], reachable: Collection[UUID]) -> UUID | None:
    """Return who should lead a shard; ``voters`` in the order of their ids."""
    if not voters:
        return None
    first = voters[shard % len(voters)]
    if first in reachable:
        return first
    # The shards of the one that is away are shared by the others.
    rest = [each for each in voters if each in reachable]
    return rest[(shard // len(voters)) % len(rest)] if rest else None


class LeaderBalance:
    """Hands leaderships over until each is where it should be."""

    def __init__(
        self,
        self_id: UUID,
        drivers: Mapping[int, ShardDriver],
        connected: Callable[[], Collection[UUID]],
        metrics: Metrics,
        period_s: float,
    ) -> None:
        self._self_id = self_id
        self._drivers = drivers
        self._connected = connected
        self._metrics = metrics
        self._period_s = period_s
        self._held: dict[int, tuple[int, float]] = {}  # in which term and until when, by shard
        self._led_since: dict[int, tuple[int, float]] = {}  # term and time, by shard

    def hold(self, shard: int, for_s: float = HOLD_S) -> None:
        """Leave the leadership of a shard, which this node has, where it is for a while."""
        shard_here = self._drivers[shard].shard
        until_s = shard_here.clock.now_s() + min(for_s, HOLD_S)
        self._held[shard] = shard_here.member.term, until_s

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await asyncio.sleep(self._period_s)
            found = self.next_move()
            if found is not None:
                await self._move(*found)

    def next_move(self) -> tuple[int, UUID] | None:
        """Return a shard that this node leads and another one should."""
        reachable = {*self._connected(), self._self_id}
        for number, driver in self._drivers.items():
            member = driver.shard.member
            if member.state != LEADER or not member.has_applied_noop:
                continue
            now_s = driver.shard.clock.now_s()
            term, since_s = self._led_since.get(number, (0, now_s))
            if term != member.term:
                self._led_since[number] = (member.term, now_s)
                handed = member.handed
                if handed is not None and handed.hold_ms and handed.term + 1 == member.term:
                    self.hold(number, handed.hold_ms / 1000)
                continue
            if now_s - since_s < 2 * self._period_s or self._is_held(number, member.term, now_s):
                continue
            target = chosen_leader(number, member.membership.voters, reachable)
            if target is None or target == self._self_id:
                continue
            if member.journal.last - member.find_match(target) <= LAG_PROPOSALS_MAX:
                return number, target
        return None

    def _is_held(self, shard: int, term: int, now_s: float) -> bool:
        held_term, until_s = self._held.get(shard, (0, 0.0))
        return held_term == term and now_s < until_s

    async def leave(self, within_s: float) -> None:
        """Hand over everything that this node leads, as far as that goes in a bounded time."""
        until_s = asyncio.get_running_loop().time() + within_s
        moves = [self._leave_one(number, until_s) for number in self._drivers]
        await asyncio.gather(*moves)

    async def _leave_one(self, number: int, until_s: float) -> None:
        """Try the voters that have most, one after the other."""
        member = self._drivers[number].shard.member
        connected = self._connected()
        targets = [each for each in member.membership.voters if each in connected]
        for target in sorted(targets, key=member.find_match, reverse=True):
            if member.state != LEADER or asyncio.get_running_loop().time() >= until_s:
                return
            try:
                async with asyncio.timeout_at(until_s):
                    await self._move(number, target)
            except TimeoutError:
                return

    async def _move(self, shard: int, target: UUID) -> None:
        error = await transfer(self._drivers[shard], target)
        self._metrics.transfers.labels("done" if error is None else "failed").inc()
        if error is None:
            _log.info("handed the leadership of shard %d to %s", shard, target)
        else:
            _log.info("the leadership of shard %d stays here: %s", shard, error)


async def transfer(
    driver: ShardDriver, target: UUID, *, hold_s: float = 0.0
) -> ClusterError | None:
    """Hand a leadership over, to stay there; None when it is done, otherwise why it stayed."""
    done: asyncio.Future[ClusterError | None] = asyncio.get_running_loop().create_future()

    def finished(error: ClusterError | None) -> None:
        if not done.done():
            done.set_result(error)

    driver.shard.transfer(target, finished, int(hold_s * 1000))
    return await done
