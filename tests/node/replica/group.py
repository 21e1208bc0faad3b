"""Some real shards on simulated disks, driven step by step; messages may be changed on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.member import LEADER
from onelog.cluster.raft.membership import Membership
from onelog.cluster.raft.messages import Message
from onelog.node.replica.requests import Outcome, ShardConfig
from onelog.node.replica.shard import Shard
from onelog.projections.shard_state import build_projections
from onelog.snapshot.build import Capture, build_in_process, plan_build
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import SnapshotRecord
from tests.cluster.raft.lone_shard import put
from tests.simulation.disk import SimDisk
from tests.snapshot.live import accept
from tests.ual.shards import make_shard, seal_closed

LOG = LogConfig(
    ring_bytes=4096, segment_bytes_max=1500, unsynced_bytes_max=8 << 10, free_bytes_min=0
)
SHARD = ShardConfig(group_bytes_max=1 << 10, request_bytes_max=4 << 10)
SHIPPING = ShippingConfig(
    chunk_bytes=400, window_chunks=2, retry_s=0.2, give_up_s=6.0, pause_s=0.1, scrub_pause_s=0.5
)
STEP_S = 0.03
IDS = [UUID(int=each) for each in range(1, 10)]
Filter = Callable[[UUID, UUID, Message], Message | None]


class StepClock:
    """One clock for all, with chance of its own for each."""

    def __init__(self, number: int) -> None:
        self.time_s = 1000.0
        self._state = number

    def now_s(self) -> float:
        return self.time_s

    def wall_ns(self) -> int:
        return int(self.time_s * 1e9)

    def random(self) -> float:
        self._state = (self._state * 1103515245 + 12345) % (1 << 31)
        return self._state / (1 << 31)


def trim(shard: Shard) -> int:
    """Trim a log as far as it may be; return the number of dropped segments."""
    job = shard.trim_begin()
    if job is None:
        return 0
    job.run()
    shard.log.manifest_file.finish(job)
    return len(job.segments)


@dataclass
class Node:
    """A shard and what it stands on."""

    node_id: UUID
    disk: SimDisk
    clock: StepClock
    shard: Shard


class Group:
    """Shards 1 … n, all founders; ``join`` adds one with an empty disk that is no member yet."""

    def __init__(self, count: int = 3, config: ShardConfig = SHARD) -> None:
        self.config = config
        self.founders = Membership.of(IDS[:count])
        self.queue: list[tuple[UUID, UUID, Message]] = []
        self.down: set[UUID] = set()
        self.filter: Filter = lambda _source, _target, message: message
        self.nodes: dict[UUID, Node] = {}
        self.outcomes: list[Outcome] = []
        self.created_s = 1_700_000_000
        self.known: dict[int, int] = {}  # the state hash at each index, the same for everybody
        for node_id in IDS[:count]:
            self.start(node_id, SimDisk())

    def start(self, node_id: UUID, disk: SimDisk) -> Node:
        clock = StepClock(node_id.int)
        if self.nodes:
            clock.time_s = max(each.clock.time_s for each in self.nodes.values())
        shard = Shard(
            disk,
            make_shard(disk),
            0,
            node_id,
            [each for each in self.founders.voters if each != node_id],
            clock,
            lambda target, message: self.queue.append((node_id, target, message)),
            config=self.config,
            log_config=LOG,
            founders=self.founders,
            shipping=SHIPPING,
        )
        apply = shard.apply

        def watched(number: int, data: bytes) -> None:
            apply(number, data)
            self._look(shard)

        shard.apply = watched  # type: ignore[method-assign]
        self._look(shard)
        self.nodes[node_id] = Node(node_id, disk, clock, shard)
        return self.nodes[node_id]

    def _look(self, shard: Shard) -> None:
        index, state_hash = shard.router.applied_index, shard.router.state_hash()
        assert self.known.setdefault(index, state_hash) == state_hash, index

    @property
    def leader(self) -> Node:
        up = [each for each in self.nodes.values() if each.node_id not in self.down]
        return next(each for each in up if each.shard.member.has_applied_noop)

    def step(self) -> None:
        """Move the clocks of all nodes that are up by a step, and tick them."""
        for node in list(self.nodes.values()):
            node.clock.time_s += STEP_S
            if node.node_id not in self.down:
                node.shard.tick()
                self.work(node)
        queue, self.queue = self.queue, []
        for source, target, message in queue:
            changed = self.filter(source, target, message)
            if changed is None or source in self.down or target in self.down:
                continue
            if target in self.nodes:
                self.nodes[target].shard.on_message(source, changed)
                self.work(self.nodes[target])

    def work(self, node: Node) -> None:
        """Start what waits, run the jobs that a shard has, and call back."""
        node.shard.start_waiting()
        sync = node.shard.sync_begin()
        if sync is not None:
            sync.run()
            node.shard.on_synced(sync)
        job = node.shard.ship_begin()
        if job is not None:
            job.run()
            node.shard.on_shipped(job)
        node.shard.deliver()

    def until(self, condition: Callable[[], bool], steps: int = 2000) -> None:
        for _ in range(steps):
            if condition():
                return
            self.step()
        raise AssertionError("it did not come to pass")

    def elect(self) -> Node:
        self.until(
            lambda: any(
                each.shard.member.has_applied_noop
                for each in self.nodes.values()
                if each.node_id not in self.down
            )
        )
        return self.leader

    def write(self, count: int, size: int = 60) -> None:
        """Put keys, each in a group of its own, until they are applied by the leader."""
        leader = self.elect()
        for number in range(count):
            before = len(self.outcomes)
            key = b"key-%d" % (leader.shard.log.last_index % 17)
            value = bytes([number % 256]) * size
            deadline_s = leader.clock.time_s + 60.0
            leader.shard.propose([put(key, value)], deadline_s, self.outcomes.append)
            self.until(lambda before=before: len(self.outcomes) > before)  # type: ignore[misc]
            assert isinstance(self.outcomes[-1], list), self.outcomes[-1]

    def build(self, node: Node) -> tuple[SnapshotRecord, str]:
        """Seal what can be sealed and build a snapshot; return it and the hash of the state."""
        shard = node.shard
        seal_closed(shard.log)
        self.created_s += 1
        capture = Capture.of(shard.router)
        request = plan_build(
            capture,
            shard.log,
            shard.snapshots,
            data_dir=Path("/data"),
            shard=0,
            created_s=self.created_s,
        )
        result = build_in_process(node.disk, request, build_projections)
        return result.record, capture.state_hash

    def snapshot(self, node: Node) -> None:
        """Seal what can be sealed and keep a snapshot."""
        accept(node.shard.log, node.shard.snapshots, *self.build(node))

    def fall_behind(self, away: UUID | None, groups: int = 40) -> None:
        """Write, take snapshots and trim, so that the logs begin behind what ``away`` has."""
        if away is not None:
            self.down.add(away)
        for _ in range(3):
            self.write(groups)
            for node in self.nodes.values():
                if node.node_id not in self.down:
                    self.snapshot(node)
                    trim(node.shard)
        assert self.leader.shard.log.first_index > 1

    def join(self, node_id: UUID) -> Node:
        """Start a replica with an empty disk and add it as a learner."""
        node = self.start(node_id, SimDisk())
        leader = self.leader.shard
        membership = leader.member.membership.with_learner(node_id)
        leader.change_membership(membership, self.leader.clock.time_s + 60, self.outcomes.append)
        return node

    def is_settled(self) -> bool:
        """Whether everybody who is up stands where the leader stands."""
        up = [each for each in self.nodes.values() if each.node_id not in self.down]
        leaders = [each for each in up if each.shard.member.state == LEADER]
        if not leaders:
            return False
        last = max(leaders, key=lambda each: each.shard.member.term).shard.member.journal.last
        return all(each.shard.member.applied == last for each in up)

    def hashes(self) -> set[int]:
        return {
            each.shard.router.state_hash()
            for each in self.nodes.values()
            if each.node_id not in self.down
        }
