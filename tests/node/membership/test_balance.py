"""Leaders are spread by themselves, and stay where somebody puts them on purpose."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from onelog.node.config.schema import ClusterSettings
from onelog.node.membership.balance import chosen_leader, transfer
from onelog.node.services import admin as members
from onelog.v1 import admin_pb2 as admin
from tests.node.services.nodes import Node, cluster, eventually, run, until

SHARDS = 3
BALANCED = ClusterSettings(shards=SHARDS, partitions=16, balance_leaders=True, balance_period_s=0.1)


def leader(nodes: Sequence[Node], shard: int) -> Node | None:
    return next((node for node in nodes if node.leads(shard)), None)


def node_id(node: Node) -> UUID:
    found = node.context.topology.self_id
    assert found is not None
    return found


def chosen(nodes: Sequence[Node], shard: int) -> Node:
    """Return the node that should lead a shard."""
    ids = sorted(node_id(node) for node in nodes)
    found = chosen_leader(shard, ids, ids)
    return next(node for node in nodes if node_id(node) == found)


def term_of(node: Node, shard: int) -> int:
    return int(node.context.drivers[shard].shard.member.term)


def is_handed_on(nodes: Sequence[Node], shard: int, term: int) -> bool:
    """Tell whether the leader of a term handed over; an election by chance is something else."""
    handed = [node.context.drivers[shard].shard.member.handed for node in nodes]
    return any(each is not None and each.term == term for each in handed)


async def until_spread(nodes: Sequence[Node]) -> None:
    await until(
        lambda: all(leader(nodes, shard) is chosen(nodes, shard) for shard in range(SHARDS))
    )


async def move(nodes: Sequence[Node], shard: int, to: Node) -> None:
    """Move a leadership as an operator does."""
    request = admin.TransferLeadershipRequest(shard=shard, node_id=str(node_id(to)))
    await eventually(lambda: nodes[0].admin.TransferLeadership(request, timeout=5))


def test_a_leadership_that_was_moved_on_purpose_is_not_moved_back(tmp_path: Path) -> None:
    """What was moved otherwise is, later, by the same node: it has looked at both."""

    async def test() -> None:
        async with cluster(tmp_path, cluster=BALANCED) as nodes:
            await until_spread(nodes)
            home = chosen(nodes, 0)
            other = next(node for node in nodes if node not in (home, chosen(nodes, 1)))
            await move(nodes, 0, other)
            await until(lambda: leader(nodes, 0) is other)
            term = term_of(other, 0)
            driver = chosen(nodes, 1).context.drivers[1]
            assert await transfer(driver, node_id(other)) is None
            await until(lambda: leader(nodes, 1) is chosen(nodes, 1))
            assert not is_handed_on(nodes, 0, term)

    run(test())


def test_it_goes_back_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "HOLD_S", 0.5)

    async def test() -> None:
        async with cluster(tmp_path, cluster=BALANCED) as nodes:
            await until_spread(nodes)
            other = next(node for node in nodes if node is not chosen(nodes, 0))
            await move(nodes, 0, other)
            await until(lambda: leader(nodes, 0) is other)
            await until_spread(nodes)

    run(test())


def test_a_leadership_that_is_wanted_where_it_is_stays_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, cluster=BALANCED) as nodes:
            await until_spread(nodes)
            home, driver = chosen(nodes, 0), chosen(nodes, 0).context.drivers[0]
            other = next(node for node in nodes if node not in (home, chosen(nodes, 1)))
            assert await transfer(driver, node_id(other)) is None
            await until(lambda: leader(nodes, 0) is other)
            await move(nodes, 0, other)
            await until(lambda: leader(nodes, 0) is other)
            term = term_of(other, 0)
            assert await transfer(chosen(nodes, 1).context.drivers[1], node_id(other)) is None
            await until(lambda: leader(nodes, 1) is chosen(nodes, 1))
            assert not is_handed_on(nodes, 0, term)

    run(test())
