"""Changes of who belongs to the groups, one shard at a time, where each is led.

A change is asked for until it is so: what is already as it should be counts as done. So a change
over all shards that failed in the middle is finished by asking for it again.
"""

import asyncio
from uuid import UUID

from onelog.cluster.errors import ClusterError
from onelog.cluster.raft.membership import Membership
from onelog.errors import FailedPrecondition, NotFound
from onelog.node.edge.forwarding import Elsewhere
from onelog.node.edge.shards import Edge
from onelog.node.edge.waits import own_task
from onelog.node.membership.balance import HOLD_S, transfer
from onelog.node.replica.driver import ShardDriver

# A learner that lacks more proposals than this would hold up commits as a voter.
LAG_PROPOSALS_MAX = 64


class Members:
    """Changes the members of shards."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def add(self, shard: int, node_id: UUID, address: str, deadline_s: float) -> None:
        """Make a node a learner of a shard."""
        driver = await self._leader(shard, deadline_s)
        membership = driver.shard.member.membership
        if node_id not in membership.members:
            await self._change(driver, _with_newcomer(membership, node_id, address), deadline_s)

    async def promote(self, shard: int, node_id: UUID, deadline_s: float) -> None:
        """Make a learner that has caught up a voter."""
        driver = await self._leader(shard, deadline_s)
        member = driver.shard.member
        if node_id in member.membership.voters:
            return
        if node_id not in member.membership.learners:
            raise NotFound(f"{node_id} is not a learner of shard {shard}", reason="MEMBER_UNKNOWN")
        behind = member.journal.last - member.match_of(node_id)
        if behind > LAG_PROPOSALS_MAX:
            raise FailedPrecondition(
                f"{node_id} lacks {behind} proposals of shard {shard}; wait until it has caught up",
                reason="LEARNER_BEHIND",
                metadata={"shard": str(shard), "proposals": str(behind)},
                retry_after_s=1.0,
            )
        await self._change(driver, member.membership.with_promoted(node_id), deadline_s)

    async def remove(self, shard: int, node_id: UUID, deadline_s: float) -> None:
        """Take a node out of a shard; a leader hands over first, and its successor does it."""
        driver = await self._leader(shard, deadline_s)
        member = driver.shard.member
        if node_id not in member.membership.members:
            return
        if node_id == member.self_id and len(member.membership.voters) > 1:
            await self._hand_over(shard, None, deadline_s, hold_s=0.0)
            raise Elsewhere(shard, self._edge.context.topology.leader_endpoint(shard))
        await self._change(driver, member.membership.without(node_id), deadline_s)

    async def transfer(self, shard: int, target: UUID | None, deadline_s: float) -> UUID:
        """Hand the leadership of a shard over, to stay there; return who has it then."""
        return await self._hand_over(shard, target, deadline_s, hold_s=HOLD_S)

    async def _hand_over(
        self, shard: int, target: UUID | None, deadline_s: float, *, hold_s: float
    ) -> UUID:
        driver = self._edge.leading(shard)
        member = driver.shard.member
        if target == member.self_id:
            balance = self._edge.context.balance
            if balance is not None:
                balance.hold(shard, hold_s)
            return target
        others = [each for each in member.membership.voters if each != member.self_id]
        if target is None:
            if not others:
                raise FailedPrecondition("there is nobody else", reason="TRANSFER_FAILED")
            target = max(others, key=member.match_of)
        left_s = max(0.0, deadline_s - self._edge.context.clock.now_s())
        await own_task()
        async with asyncio.timeout(left_s):
            error = await transfer(driver, target, hold_s=hold_s)
            if error is not None:
                raise self._edge.failure(shard, error)
            while member.leader_id in (None, member.self_id):  # noqa: ASYNC110 - it sets no event
                await asyncio.sleep(0.01)
        found = member.leader_id
        assert found is not None
        return found

    async def _leader(self, shard: int, deadline_s: float) -> ShardDriver:
        """Return who leads a shard here, as soon as it can change the members.

        One that was elected just now has to commit something first, which a read waits for.
        """
        driver = self._edge.leading(shard)
        if not driver.shard.member.has_applied_noop:
            error = await driver.read(deadline_s)
            if error is not None:
                raise self._edge.failure(shard, error)
        return driver

    async def _change(self, driver: ShardDriver, membership: Membership, deadline_s: float) -> None:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def finished(outcome: object) -> None:
            if not done.done():
                done.set_result(outcome)

        driver.shard.change_membership(membership, deadline_s, finished)
        outcome = await done
        if isinstance(outcome, ClusterError):
            raise self._edge.failure(driver.number, outcome)


def _with_newcomer(membership: Membership, node_id: UUID, address: str) -> Membership:
    """Return it with a learner. The address is for those who have not met the node yet."""
    return membership.with_learner(node_id).at({node_id: address})
