"""Everything that can go wrong in a run, by name. All chance comes from the run's own source."""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

from onelog.cluster.errors import ClusterError
from onelog.cluster.raft.member import FOLLOWER, LEADER
from onelog.cluster.raft.membership import Membership
from onelog.node.replica.shard import Shard
from onelog.ual.segments.format import HEADER_SIZE
from onelog.ual.segments.sealed import SealedSegment
from tests.simulation.disk import CrashPolicy, Operation
from tests.simulation.network import Network
from tests.simulation.profile import Profile
from tests.simulation.replica import Replica
from tests.simulation.schedule import Schedule

# With these gone a replica fails, and must be well again after a restart.
FAILING: list[Operation] = ["write", "sync", "truncate", "rename", "remove", "sync_directory"]
REPLICAS_MAX = 9  # of one run, those that left included
WHEN_S_MAX = 1.5
LOOK_S = 0.001
ASKS_SOON_S = 0.02
LITTLE_ROOM = 1000  # bytes: less than the largest group
ANSWERS_S = 0.01  # by then a leader has heard what others synced, and has answered


class Faults:
    """The misfortunes of one run."""

    def __init__(
        self,
        profile: Profile,
        schedule: Schedule,
        network: Network,
        rng: Random,
        replicas: list[Replica],
        add_replica: Callable[[], Replica],
        note: Callable[[str], None],
    ) -> None:
        self._profile = profile
        self._schedule = schedule
        self._network = network
        self._rng = rng
        self._replicas = replicas
        self._add_replica = add_replica
        self._note = note
        self._names = sorted(profile.weights)
        self._weights = [profile.weights[name] for name in self._names]
        self.is_over = False

    def begin(self) -> None:
        """Set the first weather, and schedule the faults."""
        self.weather()
        for replica in self._replicas:
            replica.slow_sync = self._rng.choice(self._profile.slow_sync)
        self._schedule.after(1.0, self._strike)

    def _strike(self) -> None:
        if self.is_over:
            return
        name = self._rng.choices(self._names, self._weights)[0]
        getattr(self, name)()
        self._schedule.after(self._rng.expovariate(1.0 / self._profile.between_s), self._strike)

    def end(self) -> None:
        """Make everything well again."""
        self._note("the faults end")
        self.is_over = True
        self._network.mend()
        self._network.loss = self._network.repeat = self._network.slow = 0.0
        for replica in self._replicas:
            replica.slow_sync = 0.0
            replica.disk.heal()
            replica.disk.capacity = None
            replica.disk.after_operation = None
            self._start(replica)

    # Processes and power

    def crash(self) -> None:
        """Lose a process or its power, now."""
        self._crash(self._some())

    def crash_leader(self) -> None:
        """Lose somebody who leads."""
        for replica in self._leading():
            self._crash(replica)

    def crash_all(self) -> None:
        """Lose the power of everybody at once."""
        self._note("all crash")
        for replica in self._replicas:
            self._crash(replica)

    def crash_in_operation(self) -> None:
        """Lose power in the midst of whatever a replica is doing to its files soon."""
        self._some().lose_power_after(self._rng.randint(1, 30))

    def crash_in_recovery(self) -> None:
        """Lose power, and again while the replica recovers from that."""
        replica = self._some()
        if replica.shard is not None:
            self._note(f"crash {replica.name} twice")
            replica.crash(self._policy())
            replica.start(power_loss_after=self._rng.randint(1, 12))

    def pause(self) -> None:
        """Stop a process for a while without ending it."""
        replica, seconds = self._some(), self._rng.uniform(0.2, 3.0)
        self._note(f"pause {replica.name} for {seconds:.2f} s")
        replica.pause(seconds)

    def went_down(self, replica: Replica) -> None:
        """Start a replica again that ended by itself."""
        replica.disk.heal()
        self._schedule.after(self._rng.uniform(0.0, 1.0), lambda: self._start(replica))

    def _crash(self, replica: Replica) -> None:
        policy = self._policy()
        self._note(f"crash {replica.name} {policy.value}")
        was_up = replica.shard is not None or replica.repairing is not None
        replica.crash(policy)
        if was_up:
            down_s = self._rng.uniform(0.0, self._profile.down_s_max)
            self._schedule.after(down_s, lambda: self._start(replica))

    def _policy(self) -> CrashPolicy:
        if not self._profile.power_fails:
            return CrashPolicy.KEPT
        if self._rng.random() < self._profile.lost:
            return CrashPolicy.LOST
        return self._rng.choice([CrashPolicy.RANDOM, CrashPolicy.KEPT])

    def _start(self, replica: Replica) -> None:
        if replica.shard is None and replica.repairing is None:
            self._note(f"start {replica.name}")
            replica.start()

    # Network

    def cut_off(self) -> None:
        """Cut a replica off from all others, or only what it sends, or only what it hears."""
        self._cut(self._some(), self._rng.choice(["both ways", "both ways", "sending", "hearing"]))

    def cut_off_leader(self) -> None:
        """Cut off somebody who leads."""
        leaders = self._leading()
        if leaders:
            self._cut(self._rng.choice(leaders), self._rng.choice(["both ways", "hearing"]))

    def isolate_leader(self) -> None:
        """Cut off somebody who leads while all else is well: its followers elect another."""
        leaders = self._leading()
        if leaders and not self._network.cut:
            self._cut(self._rng.choice(leaders), "both ways")

    def desert_leader(self) -> None:
        """Cut a leader off from a follower, then from the others, and start those again.

        It happens just when the first one is about to ask the others for their votes once more.
        """
        leaders = self._leading()
        if not leaders or self._network.cut:
            return
        leader = self._rng.choice(leaders)
        first, *others = self._shuffled_without(leader)
        self._note(f"cut off {leader.name} from {first.name}, and later from all")
        self._fill(leader, 0)  # so that nothing is written that the first one would lack
        self._break(self._links(leader, [first]))

        def desert() -> None:
            self._break(self._links(leader, others))
            for replica in others:
                if replica.shard is not None:
                    replica.crash(CrashPolicy.KEPT)
                    replica.start()

        self._when(lambda: _asks_soon(first), desert)

    def stop_leader(self) -> None:
        """Stop a leader for so long that another is elected, of whom it hears nothing."""
        leaders = self._leading()
        if leaders and not self._network.cut:
            leader, longest_s = self._rng.choice(leaders), self._profile.raft.election_s_max
            leader.pause(self._rng.uniform(1.2, 2.0) * longest_s)
            self._schedule.after(0.004, lambda: self._cut(leader, "both ways"))

    def hand_over_and_isolate(self) -> None:
        """Hand a leadership over, and cut the former leader off before it hears of that."""
        leaders = self._leading()
        if leaders and not self._network.cut:
            leader = self._rng.choice(leaders)
            target = self._shuffled_without(leader)[0]
            leader.run(partial(_transfer, target.node_id))
            self._when(lambda: _stands(target), lambda: self._cut(leader, "both ways"))

    def isolate_leader_and_another(self) -> None:
        """Cut a leader off together with a follower, who takes it for the leader for a while."""
        leaders = self._leading()
        if leaders and not self._network.cut:
            leader = self._rng.choice(leaders)
            other = self._rng.choice([each for each in self._replicas if each is not leader])
            self._note(f"cut off {leader.name} and {other.name} together")
            self._separate([leader.node_id, other.node_id])

    def crash_returning_leader(self) -> None:
        """Cut a leader off, let it come back to another's log, and take its power right then."""
        leaders = self._leading()
        if leaders and not self._network.cut:
            leader, away_s = self._rng.choice(leaders), self._rng.uniform(0.2, 0.5)
            self._cut(leader, "both ways")
            self._schedule.after(away_s, self._network.mend)
            crash_s = away_s + self._rng.uniform(0.02, 0.4)
            self._schedule.after(crash_s, lambda: self._crash(leader))

    def crash_full_leader(self) -> None:
        """Take the power of a leader on a full, slow disk when others have what it has not synced.

        It comes back to those who heard nothing of that, while the others are cut off: what it
        answered before its own sync is lost.
        """
        leaders = self._leading()
        if not leaders:
            return
        leader = self._rng.choice(leaders)
        assert leader.shard is not None
        others = self._shuffled_without(leader)
        near_count = len(leader.shard.member.membership.voters) // 2
        near, far = others[:near_count], others[near_count:]
        self._note(f"the leader {leader.name} on a full disk hears {[each.name for each in near]}")
        self._network.mend()
        self._break(self._links(leader, far))
        self._fill(leader, LITTLE_ROOM)
        leader.slow_sync = 1.0

        def quicken() -> None:
            leader.slow_sync = 0.0

        def crash() -> None:
            if not self.is_over and leader.shard is not None:
                leader.crash(CrashPolicy.LOST)
                self._network.mend()
                self._separate([each.node_id for each in near])
                leader.disk.capacity = None
                self._start(leader)

        self._when(lambda: _is_behind(leader, near), lambda: self._schedule.after(ANSWERS_S, crash))
        self._schedule.after(WHEN_S_MAX + ANSWERS_S, quicken)

    def strand_leader(self) -> None:
        """Cut a leader off with what it alone has, until the others' logs begin behind that."""
        leaders = self._leading()
        if not leaders or self._network.cut:
            return
        stranded = self._rng.choice(leaders)
        self._note(f"strand {stranded.name}")
        others = [each for each in self._replicas if each is not stranded]
        links = [(stranded.node_id, each.node_id) for each in others]
        self._network.cut.update(links + [(target, source) for source, target in links])

        def snapshot() -> None:
            for replica in others:
                self._snapshot_and_trim(replica)

        away_s = self._rng.uniform(2.0, 4.0)
        for share in (0.5, 0.75, 1.0):
            self._schedule.after(share * away_s, snapshot)
        self._schedule.after(away_s + 0.01, self._network.mend)

    def isolate_reborn_leader(self) -> None:
        """Crash a leader, make it lead again, and then cut it off: acks of its first life come."""
        leaders = self._leading()
        if not leaders or self._network.cut:
            return
        reborn = self._rng.choice(leaders)
        self._note(f"crash {reborn.name} and make it lead again")
        reborn.crash(CrashPolicy.KEPT)
        reborn.start()

        def transfer() -> None:
            for leader in self._leading():
                if leader is not reborn:
                    leader.run(partial(_transfer, reborn.node_id))

        def isolate() -> None:
            if reborn in self._leading():
                self._cut(reborn, "both ways")

        self._schedule.after(0.6, transfer)
        self._schedule.after(1.0, isolate)

    def split(self) -> None:
        """Cut the cluster in two."""
        size = self._rng.randint(1, len(self._replicas) - 1) if len(self._replicas) > 1 else 0
        one = self._rng.sample([each.node_id for each in self._replicas], size)
        self._note(f"cut off {[each.int for each in one]} together")
        self._separate(one)

    def _separate(self, one: list[UUID]) -> None:
        other = [each.node_id for each in self._replicas if each.node_id not in one]
        links = [(a, b) for a in one for b in other]
        self._break(links + [(b, a) for a, b in links])

    def cut_off_follower(self) -> None:
        """Cut off somebody who does not lead, and let it come back."""
        followers = [each for each in self._replicas if each not in self._leading()]
        if followers and not self._network.cut:
            self._cut(self._rng.choice(followers), "both ways")

    def mend(self) -> None:
        """End all cuts."""
        self._network.mend()

    def weather(self) -> None:
        """Change how much is lost, repeated and late."""
        network, profile, rng = self._network, self._profile, self._rng
        network.loss = rng.choice(profile.loss)
        network.repeat = rng.choice(profile.repeat)
        network.slow = rng.choice(profile.slow)

    def _cut(self, replica: Replica, how: str) -> None:
        self._note(f"cut off {replica.name} {how}")
        links: list[tuple[UUID, UUID]] = []
        for other in self._replicas:
            if other is not replica and how != "hearing":
                links.append((replica.node_id, other.node_id))
            if other is not replica and how != "sending":
                links.append((other.node_id, replica.node_id))
        self._break(links)

    def _links(self, replica: Replica, others: list[Replica]) -> list[tuple[UUID, UUID]]:
        links = [(replica.node_id, each.node_id) for each in others]
        return links + [(target, source) for source, target in links]

    def _break(self, links: list[tuple[UUID, UUID]]) -> None:
        self._network.cut.update(links)

        def mend() -> None:
            self._network.cut.difference_update(links)

        self._schedule.after(self._rng.uniform(0.2, self._profile.cut_s_max), mend)

    def _when(self, is_so: Callable[[], bool], act: Callable[[], None]) -> None:
        """Do something as soon as something is so, if it is so soon."""
        until_s = self._schedule.now_s + WHEN_S_MAX

        def look() -> None:
            if is_so():
                act()
            elif self._schedule.now_s < until_s and not self.is_over:
                self._schedule.after(LOOK_S, look)

        look()

    def _shuffled_without(self, replica: Replica) -> list[Replica]:
        others = [each for each in self._replicas if each is not replica]
        return self._rng.sample(others, len(others))

    # Disks and clocks

    def slow_sync(self) -> None:
        """Change how slow a disk is."""
        self._some().slow_sync = self._rng.choice(self._profile.slow_sync)

    def disk_full(self) -> None:
        """Fill a disk for a while."""
        self._fill(self._some(), self._rng.choice([0, 100, 2000]))

    def _fill(self, replica: Replica, free: int) -> None:
        replica.was_full = True
        replica.disk.capacity = 1 << 40
        used = replica.disk.capacity - replica.disk.free_bytes(Path("/"))
        self._note(f"the disk of {replica.name} has {free} bytes left")
        replica.disk.capacity = used + free

        def empty() -> None:
            replica.disk.capacity = None

        self._schedule.after(self._rng.uniform(0.2, 4.0), empty)

    def disk_error(self) -> None:
        """Make one file operation fail."""
        replica, operation = self._some(), self._rng.choice(FAILING)
        self._note(f"{operation} will fail on {replica.name}")
        replica.disk.fail(operation, errno.EIO, after=self._rng.randint(0, 10))

    def rot(self) -> None:
        """Flip a bit in a sealed segment that a restart does not need; one at a time."""
        replica = self._some()
        shard = replica.shard
        if shard is None or any(each.is_damaged for each in self._replicas):
            return
        newest = shard.snapshots.newest
        if shard.log.manifest_file._under_way is not None:
            return  # the disk may be too full to keep that one
        others = [each.shard for each in self._replicas if each.shard and each is not replica]
        segments = [
            segment
            for segment in shard.log.segments.segments
            if isinstance(segment, SealedSegment)
            and newest is not None
            and segment.last_index < newest.index
            and any(other.log.first_index <= segment.first_index for other in others)
        ]
        if segments:
            segment = self._rng.choice(segments)
            # Behind the header: without it, and without a neighbour, nobody knows what is missing.
            byte = self._rng.randrange(HEADER_SIZE, segment.size_bytes)
            self._note(f"{segment.path.name} of {replica.name} rots at {byte}")
            replica.disk.flip(segment.path, 8 * byte + self._rng.randrange(8))

    def rot_while_down(self) -> None:
        """Crash a replica and damage a sealed file of it, of whose range another has a copy."""
        replica = self._some()
        shard = replica.shard
        if shard is None or any(each.is_damaged for each in self._replicas):
            return
        replica.seal()  # what no snapshot covers yet, too
        others = [each.shard for each in self._replicas if each.shard and each is not replica]
        replica.crash(self._policy())
        files = replica.sealed_files()
        known = {
            segment.path: segment
            for segment in shard.log.segments.segments
            if isinstance(segment, SealedSegment)
            and any(
                other.log.first_index <= segment.first_index
                and segment.last_index <= other.log.applied_index
                for other in others
            )
        }
        candidates = [each for each in files if each in known]
        if candidates:
            path = self._rng.choice(candidates)
            # Before a file that is not sealed a lost one may have been unsealed, too.
            replica.damage(path, may_lose=path != files[-1])
        self._start(replica)

    def wall_jump(self) -> None:
        """Make a wall clock jump."""
        self._some().clock.wall_offset_s += self._rng.choice([-900.0, -2.0, 2.0, 900.0])

    # What operators do

    def snapshot(self) -> None:
        """Take a snapshot; sometimes let go of the log before the older one."""
        self._snapshot(self._some())

    def snapshot_all(self) -> None:
        """Take snapshots and trim everywhere: replicas that are down or cut off fall behind."""
        for replica in self._replicas:
            self._snapshot(replica)

    def _snapshot(self, replica: Replica) -> None:
        if self._rng.random() < 0.7:
            self._snapshot_and_trim(replica)
        else:
            replica.snapshot()

    def _snapshot_and_trim(self, replica: Replica) -> None:
        """Trim at once, while MANIFEST is being replaced for the snapshot, or a little later."""
        replica.snapshot()
        if self._rng.random() < 0.5:
            self._trim(replica)
        else:
            self._schedule.after(self._rng.uniform(0.0, 0.03), lambda: self._trim(replica))

    def _trim(self, replica: Replica) -> None:
        """Trim a log, unless a replica cannot start without a part of it."""
        if not any(each.repairing for each in self._replicas):
            replica.trim()

    def transfer(self) -> None:
        """Hand a leadership over."""
        for replica in self._leading():
            targets = [each.node_id for each in self._replicas if each is not replica]
            target = self._rng.choice(targets)
            self._note(f"transfer from {replica.name} to {target.int}")
            replica.run(partial(_transfer, target))

    def add_learner(self) -> None:
        """Add a new replica, as a learner."""
        leaders = self._leading()
        if leaders and len(self._replicas) < REPLICAS_MAX:
            leader = self._rng.choice(leaders)
            assert leader.shard is not None
            if leader.shard.member.membership.learners:
                return  # one after the other
            newcomer = self._add_replica()
            self._note(f"add {newcomer.name}")
            self._start(newcomer)
            self._change(leader, Membership.with_learner, newcomer.node_id)

    def promote(self) -> None:
        """Make a learner a voter."""
        for leader in self._leading():
            assert leader.shard is not None
            for member in leader.shard.member.membership.learners[:1]:
                self._note(f"promote {member.int}")
                self._change(leader, Membership.with_promoted, member)

    def remove(self) -> None:
        """Remove a member that does not lead."""
        for leader in self._leading():
            assert leader.shard is not None
            membership = leader.shard.member.membership
            others = [each for each in membership.members if each != leader.node_id]
            if len(membership.voters) > 2 and others:
                member = self._rng.choice(others)
                self._note(f"remove {member.int}")
                self._change(leader, Membership.without, member)

    def change_twice(self) -> None:
        """Ask for two changes at once; the second must wait."""
        for leader in self._leading():
            assert leader.shard is not None
            others = leader.shard.member.membership.voters
            if len(others) > 3:
                for member in [each for each in others if each != leader.node_id][:2]:
                    self._note(f"remove {member.int}, together with another")
                    self._change(leader, Membership.without, member)

    def _change(
        self, leader: Replica, change: Callable[[Membership, UUID], Membership], member: UUID
    ) -> None:
        def act(shard: Shard) -> None:
            try:
                membership = change(shard.member.membership, member)
            except ClusterError:
                return
            deadline_s = leader.clock.now_s() + 5.0
            shard.change_membership(membership, deadline_s, lambda _: None)

        leader.run(act)

    def _some(self) -> Replica:
        return self._rng.choice(self._replicas)

    def _leading(self) -> list[Replica]:
        return [
            each
            for each in self._replicas
            if each.shard is not None and each.shard.member.state == LEADER
        ]


def _is_behind(leader: Replica, near: list[Replica]) -> bool:
    """Tell whether others have synced everything of a leader, which has not."""
    if leader.shard is None or not leader.shard.log.needs_sync:
        return False
    last_index = leader.shard.log.last_index
    return all(each.shard and each.shard.log.durable_index >= last_index for each in near)


def _transfer(target: UUID, shard: Shard) -> None:
    shard.transfer(target, lambda _: None)


def _stands(replica: Replica) -> bool:
    return replica.shard is not None and replica.shard.member.state != FOLLOWER


def _asks_soon(replica: Replica) -> bool:
    """Tell whether a follower has asked for pre-votes in vain, and is about to ask again."""
    if replica.shard is None:
        return False
    again_s = replica.shard.member._pre_vote._ballot.until_s
    return 0 < again_s - replica.clock.now_s() < ASKS_SOON_S
