"""A replica whose log is damaged where its start needs it, beside members that are whole."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import numpy as np
import pytest

from onelog.cluster.raft.messages import Chunk, Fetch, Message, Unavailable
from onelog.node.errors import ShardDamaged
from onelog.node.membership.peer_port import PeerPort
from onelog.node.replica.shard import Shard
from onelog.node.replica.start_repair import REPAIRS_MAX as REPAIRS_AT_START_MAX
from onelog.node.replica.start_repair import START_ERRORS, StartRepair, find_damage
from onelog.node.replicas import Replicas, ReplicasConfig
from onelog.ual.errors import CorruptFile, MissingSegment
from onelog.ual.segments.format import FOOTER_SIZE
from onelog.ual.segments.sealing import compact_segment
from tests.node.replica.group import LOG, SHARD, SHIPPING, STEP_S, Group, StepClock
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import make_directory, make_shard, seal_closed

STEPS_MAX = 2000
REPAIRS_MAX = 10


class Starting:
    """A replica of a group that was taken out of it, and starts again on its disk."""

    def __init__(self, group: Group, *, seals: bool = True) -> None:
        self.group = group
        others = [each for each in group.nodes.values() if each is not group.leader]
        for node in group.nodes.values() if seals else ():
            seal_closed(node.shard.log)
        node = others[0]
        del group.nodes[node.node_id]
        self.node_id: UUID = node.node_id
        self.disk = node.disk.crash(CrashPolicy.KEPT)
        self.paths = make_shard(self.disk)
        self.clock = StepClock(7)
        self.sent: list[Message] = []
        self.repair: StartRepair | None = None
        self.repairs = 0
        self.members = [each for each in group.founders.voters if each != self.node_id]
        group.filter = self._pass

    def files(self, suffix: str = ".flseg") -> list[Path]:
        """Return the sealed files, or those that are not."""
        names = [each for each in self.disk.list(self.paths.segments) if each.endswith(suffix)]
        return [self.paths.segments / each for each in sorted(names)]

    def contents(self) -> dict[Path, bytes]:
        """Return what there is of the log and of its vote."""
        paths = [*self.files(), *self.files(".tmp"), self.paths.hard_state]
        return {each: self.disk.contents(each) for each in paths}

    def open(self) -> Shard | StartRepair:
        try:
            return Shard(
                self.disk,
                self.paths,
                0,
                self.node_id,
                self.members,
                self.clock,
                self._send,
                config=SHARD,
                log_config=LOG,
                founders=self.group.founders,
                shipping=SHIPPING,
            )
        except START_ERRORS as error:
            found = find_damage(self.disk, self.paths, 0, LOG, error)
            if found is None:
                raise
            self.repairs += 1
            assert self.repairs < REPAIRS_MAX
            return StartRepair(
                self.disk,
                self.paths,
                0,
                found,
                self.members,
                lambda: self.members,
                SHIPPING,
                self._send,
                self.clock.now_s,
            )

    def start(self) -> Shard:
        """Repair what there is to repair, and return the shard."""
        while isinstance(opened := self.open(), StartRepair):
            self.repair = opened
            self.until_repaired(opened)
            self.repair = None
        return opened

    def until_repaired(self, repair: StartRepair) -> None:
        for _ in range(STEPS_MAX):
            if repair.is_done:
                return
            self.step(repair)
        raise AssertionError(repair.describe())

    def step(self, repair: StartRepair) -> None:
        self.clock.time_s += STEP_S
        repair.advance()
        job = repair.next_job()
        if job is not None:
            job.run()
            repair.finish(job)
        self.group.step()

    def _send(self, target: UUID, message: Message) -> None:
        self.sent.append(message)
        self.group.queue.append((self.node_id, target, message))

    def _pass(self, source: UUID, target: UUID, message: Message) -> Message | None:
        if target != self.node_id:
            return message
        if self.repair is not None:
            self.repair.on_message(source, message)
        return None


def settled(count: int) -> Group:
    group = Group()
    group.write(count)
    group.until(group.is_settled)
    return group


def written(*, with_snapshots: bool = False) -> Starting:
    group = settled(60)
    if with_snapshots:
        for node in group.nodes.values():
            group.snapshot(node)
    return Starting(group)


def damage(disk: SimDisk, path: Path, how: str) -> None:
    content = disk.contents(path)
    match how:
        case "body":
            disk.flip(path, 8 * 200)
        case "header":
            disk.flip(path, 8 * 9)
        case "footer":
            disk.flip(path, 8 * (len(content) - FOOTER_SIZE + 3))
        case "cut":
            disk.put(path, content[: len(content) // 2])
        case "lost":
            disk.remove(path)
            disk.sync_directory(path.parent)


def assert_whole(starting: Starting, shard: Shard) -> None:
    """Check the state, and that all entries can be read and are the leader's."""
    leader = starting.group.leader.shard
    last_index = shard.log.applied_index
    assert shard.router.state_hash() == starting.group.known[shard.router.applied_index]
    ours = list(shard.log.segments.scan(1, last_index))
    assert ours == list(leader.log.segments.scan(1, last_index))
    assert not shard.shipping.repair.damages


@pytest.mark.parametrize("how", ["body", "header", "footer", "cut", "lost"])
def test_what_is_damaged_is_replaced_by_the_same_bytes(how: str) -> None:
    starting = written()
    path = starting.files()[1]
    before = starting.disk.contents(path)
    damage(starting.disk, path, how)
    assert_whole(starting, starting.start())
    assert starting.disk.contents(path) == before


@pytest.mark.parametrize("at", [0, -1])
def test_the_first_and_the_last_sealed_file_may_be_the_damaged_one(at: int) -> None:
    """The first has no neighbour before it, and the last one that is not sealed behind it."""
    for how in ("body", "header", "footer", "cut"):
        starting = written()
        damage(starting.disk, starting.files()[at], how)
        assert_whole(starting, starting.start())


def test_files_whose_place_nothing_shows_are_repaired_one_after_the_other() -> None:
    starting = written()
    files = starting.files()
    for path, how in zip(files[1:5], ("header", "header", "lost", "cut"), strict=True):
        damage(starting.disk, path, how)
    assert_whole(starting, starting.start())
    assert starting.repairs > 1


@pytest.mark.parametrize("how", ["body", "header", "footer", "cut", "lost"])
def test_damage_that_a_snapshot_covers_is_in_nobodys_way(how: str) -> None:
    starting = written(with_snapshots=True)
    damage(starting.disk, starting.files()[1], how)
    assert isinstance(starting.open(), Shard)


def test_only_what_is_in_the_way_is_waited_for() -> None:
    """Both are covered by a snapshot; without the first one nobody knows the second one's place."""
    starting = written(with_snapshots=True)
    for path in starting.files()[1:3]:
        damage(starting.disk, path, "header")
    shard = starting.start()
    assert starting.repairs == 1
    assert len(shard.shipping.repair.damages) <= 1  # the other may wait until it serves


def test_a_replica_that_waits_takes_no_part_in_raft() -> None:
    """It would vote and ack for a log that it cannot read; its term and vote stay as they are."""
    starting = written()
    hard_state = starting.disk.contents(starting.paths.hard_state)
    damage(starting.disk, starting.files()[1], "body")
    leader = starting.group.leader.node_id
    repair = starting.open()
    assert isinstance(repair, StartRepair)
    starting.repair = repair
    starting.group.down.add(leader)  # the other one asks for its vote
    for _ in range(100):
        starting.step(repair)
    starting.group.down.discard(leader)
    starting.until_repaired(repair)
    assert starting.sent
    assert {type(each) for each in starting.sent} <= {Fetch, Chunk, Unavailable}
    assert {each.term for each in starting.sent} == {0}
    assert starting.disk.contents(starting.paths.hard_state) == hard_state


def test_a_lost_range_that_may_not_be_committed_is_not_made_up() -> None:
    """It may have been a file that was not sealed, with entries that this replica has acked."""
    starting = written()
    last = starting.files()[-1]
    shard = starting.start()
    entries = shard.log.segments.covering(int(last.name.partition(".")[0]))
    # Nothing on disk says any more that these were committed.
    manifest = starting.paths.manifest
    starting.disk.remove(manifest)
    starting.disk.sync_directory(manifest.parent)
    shard._hard_state.save_hint(entries.first_index - 1, shard.log.durable_index, 0)
    damage(starting.disk, last, "lost")
    with pytest.raises(MissingSegment, match=f"{entries.first_index} to {entries.last_index}"):
        starting.open()


def test_a_range_that_the_others_have_dropped_is_waited_for(
    waits: Callable[[Starting], StartRepair],
) -> None:
    """It neither starts with a hole nor takes part, and says what is to be done."""
    starting = written()
    path = starting.files()[1]
    damage(starting.disk, path, "body")
    starting.group.fall_behind(None)
    repair = waits(starting)
    assert "dropped there" in repair.describe()


def test_a_copy_that_lacks_entries_does_not_replace_a_file_that_the_replay_needs(
    waits: Callable[[Starting], StartRepair],
) -> None:
    """Not even if the file after it is damaged, too, and its number unknown before that copy."""
    starting = written()
    paths = starting.files()[1:3]
    for node in starting.group.nodes.values():
        log = node.shard.log
        segment = log.segments.covering(int(paths[0].name.partition(".")[0]))
        keep = np.arange(segment.first_index, segment.last_index, 2, dtype=np.uint64)
        compacted = compact_segment(node.disk, segment.path, keep)
        log.segments = log.segments.with_replaced(segment, compacted)
    for path in paths:
        damage(starting.disk, path, "header")
    repair = waits(starting)
    assert "compacted there" in repair.describe()


@pytest.fixture
def waits() -> Callable[[Starting], StartRepair]:
    def until_refused(starting: Starting) -> StartRepair:
        """Wait until all were asked, twice; nothing of it changes, nor does it speak of Raft."""
        before = starting.contents()
        repair = starting.open()
        assert isinstance(repair, StartRepair)
        starting.repair = repair
        for _ in range(2):
            (found,) = repair.repair.damages.values()
            asked = found.retry_at_s
            for _ in range(STEPS_MAX):
                if found.is_refused and found.retry_at_s > asked:
                    break
                starting.step(repair)
        assert found.is_refused
        assert not repair.is_done
        assert starting.contents() == before
        assert {type(each) for each in starting.sent} <= {Fetch, Chunk, Unavailable}
        return repair

    return until_refused


def partly_sealed() -> Starting:
    """Return a replica with sealed files, then some that are closed and not sealed."""
    group = settled(40)
    for node in group.nodes.values():
        seal_closed(node.shard.log)
    group.write(40)
    group.until(group.is_settled)
    return Starting(group, seals=False)


def test_a_lost_file_that_was_not_sealed_is_fetched_if_all_of_it_is_known_to_be_committed() -> None:
    starting = partly_sealed()
    damage(starting.disk, starting.files(".tmp")[0], "lost")
    assert_whole(starting, starting.start())


def test_a_lost_file_between_two_that_are_not_sealed_ends_the_start() -> None:
    starting = partly_sealed()
    damage(starting.disk, starting.files(".tmp")[1], "lost")
    before = starting.contents()
    with pytest.raises(CorruptFile, match="no file holds them"):
        starting.open()
    assert starting.contents() == before


def test_a_lost_file_behind_a_damaged_one_is_fetched_with_it() -> None:
    """The range of the damaged one reaches up to the next file that there is."""
    starting = partly_sealed()
    damage(starting.disk, starting.files()[-1], "header")
    damage(starting.disk, starting.files(".tmp")[0], "lost")
    assert_whole(starting, starting.start())


def test_the_last_file_is_not_replaced_if_it_is_lost() -> None:
    """It may have had what this replica has acked and nobody has committed."""
    starting = written()
    shard = starting.start()
    durable_index = shard.log.durable_index
    damage(starting.disk, starting.files(".tmp")[-1], "lost")
    before = starting.contents()
    with pytest.raises(MissingSegment, match=f"to {durable_index}"):
        starting.open()
    assert starting.contents() == before


def test_a_disk_that_damages_what_was_repaired_ends_the_start_in_words() -> None:
    starting = written()
    damage(starting.disk, starting.files()[1], "body")

    async def test() -> None:
        directory = make_directory(starting.disk, starting.paths.root.parent)
        config = ReplicasConfig(
            directory.system.cluster_id,
            starting.node_id,
            "n1",
            dict.fromkeys(starting.members, "127.0.0.1:1"),
            log=LOG,
        )
        port = PeerPort("127.0.0.1:0")
        replicas = Replicas(config, directory, port, starting.disk)
        for _ in range(REPAIRS_AT_START_MAX):
            assert isinstance(replicas._open_or_repair(0), StartRepair)
        with pytest.raises(ShardDamaged, match="damaged again: replace the disk") as raised:
            replicas._open_or_repair(0)
        assert str(starting.files()[1]) in str(raised.value)
        assert "remove this node from the cluster" in str(raised.value)

    asyncio.run(test())


class PowerLoss(Exception):
    """The power fails in the midst of a file operation."""


@pytest.mark.parametrize("policy", list(CrashPolicy))
@pytest.mark.parametrize("how", ["body", "lost"])
def test_a_crash_after_any_file_operation_of_the_repair_is_made_good_by_the_next_start(
    policy: CrashPolicy, how: str
) -> None:
    starting = written()
    damage(starting.disk, starting.files()[1], how)
    damage(starting.disk, starting.files()[2], how)
    before, point, is_over = starting.disk, 0, False
    while not is_over:
        point += 1
        left = point

        def fail_at_point(_description: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise PowerLoss

        starting.disk = before.crash(CrashPolicy.KEPT)
        starting.disk.after_operation = fail_at_point
        try:
            starting.start()
            is_over = True
        except PowerLoss:
            pass
        starting.disk = starting.disk.crash(policy, Random(point))
        starting.repairs = 0
        assert_whole(starting, starting.start())
    assert point > 10, "it writes, syncs and renames"
