"""A cluster whose nodes are exchanged one by one while it serves, by the calls operators use."""

from functools import partial
from pathlib import Path

from onelog import Client
from onelog.errors import FailedPrecondition, NotFound, OnelogError
from onelog.ual.directory import read_node
from onelog.ual.files import DiskFiles
from tests.node.membership.test_formation import SMALL, newcomer
from tests.system.nodes import ServeProcess, nodes, until

KEYS = 60


def _write(client: Client, part: str) -> None:
    client.kv.put_many({f"{part}-{number}": f"{part} {number}" for number in range(KEYS)})


def _done(change: partial[None]) -> bool | None:
    """Try a change that may still have to wait for something."""
    try:
        change()
    except (FailedPrecondition, NotFound, TimeoutError):
        return None
    return True


def _hashes(client: Client, node: ServeProcess) -> list[tuple[int, int]] | None:
    try:
        found = [client.admin.state_hash(each, endpoint=node.flags["listen"]) for each in (0, 1)]
    except OnelogError:
        return None
    return [(each.index, each.state_hash) for each in found]


def test_a_node_is_replaced_by_another_and_no_write_is_lost(tmp_path: Path) -> None:
    """B3: a learner is added, catches up, votes; then the founder goes and the newcomer leads."""
    with nodes(tmp_path, "n1", **SMALL) as cluster:
        founder = cluster["n1"].start()
        founder.until_ready()
        other = newcomer(tmp_path, "n2", founder).start()
        try:
            other.until_report(stage="electing")
            ids = {
                each.name: str(read_node(DiskFiles(), each.directory / "data").node_id)
                for each in (founder, other)
            }
            with Client([founder.flags["listen"], other.flags["listen"]]) as client:
                _write(client, "before")
                client.admin.add_member(ids["n2"], "n2", other.flags["peer-listen"])
                _write(client, "learning")
                until(lambda: _done(partial(client.admin.promote_member, ids["n2"])))
                for shard in client.admin.members().shards:
                    assert {each.node_id for each in shard.members} == set(ids.values())
                    assert not any(each.is_learner for each in shard.members)
                _write(client, "both")
                other.until_ready()
                until(lambda: _hashes(client, founder) == _hashes(client, other) or None)

                until(lambda: _done(partial(client.admin.remove_member, ids["n1"])))
                for shard in client.admin.members().shards:
                    assert [each.node_id for each in shard.members] == [ids["n2"]]
                founder.kill()
                _write(client, "after")
                for part in ("before", "learning", "both", "after"):
                    assert sum(1 for _ in client.kv.scan(f"{part}-")) == KEYS
        finally:
            other.kill()
