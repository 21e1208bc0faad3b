"""A replica whose log is damaged where its start needs it, beside members that are whole."""

from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from onelog.cluster.raft.messages import Chunk, Fetch, Message, Unavailable
from onelog.node.replica.shard import Shard
from onelog.node.replica.start_repair import START_ERRORS, StartRepair, find_damage
from onelog.ual.errors import MissingSegment
from onelog.ual.segments.format import FOOTER_SIZE
from tests.node.replica.group import LOG, SHARD, SHIPPING, STEP_S, Group, StepClock
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import make_shard, seal_closed

STEPS_MAX = 2000
REPAIRS_MAX = 10


class Starting:
    """A replica of a group that was taken out of it, and starts again on its disk."""

    def __init__(self, group: Group) -> None:
        self.group = group
        others = [each for each in group.nodes.values() if each is not group.leader]
        for node in group.nodes.values():
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

    def files(self) -> list[Path]:
        """Return the sealed files."""
        names = [each for each in self.disk.list(self.paths.segments) if each.endswith(".flseg")]
        return [self.paths.segments / each for each in sorted(names)]

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


def written(*, with_snapshots: bool = False) -> Starting:
    group = Group()
    group.write(60)
    group.until(group.is_settled)
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
