"""Consumer groups as plain dicts and lists, for the model of streams."""

from dataclasses import dataclass, field

from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Outcome, Refused
from onelog.projections.stream.commands import (
    Ack,
    Claim,
    Deliver,
    GroupCommand,
    GroupCommit,
    GroupConfig,
    GroupConfigure,
    GroupCreate,
    GroupDelete,
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupSeek,
    Nack,
)
from onelog.projections.stream.limits import PARTITION_ANY
from onelog.projections.stream.reads import GroupDescription
from tests.projections.stream.stream_model_rows import Turn

Bounds = tuple[int, int, int]
"""Of a partition: the first offset that ever was, the first one kept, and the end."""


@dataclass
class ModelPending:
    member: int
    since_ns: int
    deliveries: int
    ready_ns: int = 0
    reason: bytes = b""
    dead: bool = False


@dataclass
class ModelGroup:
    group_id: int
    config: GroupConfig
    delivered: list[int]
    owners: list[int]
    generation: int = 0
    members: dict[int, tuple[int, int]] = field(default_factory=dict)
    pending: dict[tuple[int, int], ModelPending] = field(default_factory=dict)

    def committed(self, partition: int) -> int:
        waiting = [offset for number, offset in self.pending if number == partition]
        return min([*waiting, self.delivered[partition]])

    def rebalance(self, described: object, *, several: bool = False) -> None:
        """Take over who has what, after checking that shares are even and moves are few."""
        self.generation += 1
        assert isinstance(described, GroupDescription)
        owners = list(described.owners)
        shares = {member: owners.count(member) for member in self.members}
        assert sum(shares.values()) == (len(owners) if self.members else 0)
        assert not shares or max(shares.values()) - min(shares.values()) <= 1
        for member, share in shares.items():
            had = {p for p, owner in enumerate(self.owners) if owner == member}
            has = {p for p, owner in enumerate(owners) if owner == member}
            few = len(had & has) == min(len(had), share)
            assert few or several, "a partition moved without need"
        self.owners = owners

    def takes_from(self, member: int, partition: int) -> bool:
        return self.config.shared or self.owners[partition] == member

    def fence(self, member: int, generation: int) -> Refused | None:
        if member not in self.members:
            return Refused(Reason.MEMBER_UNKNOWN, member)
        if not self.config.shared and generation != self.generation:
            return Refused(Reason.GENERATION_STALE, self.generation)
        return None

    def not_held(self, member: int, places: tuple[tuple[int, int], ...]) -> Refused | None:
        if member not in self.members:
            return Refused(Reason.MEMBER_UNKNOWN, member)
        for place in places:
            held = self.pending.get(place)
            if held is None or held.member != member or held.dead:
                return Refused(Reason.RECORD_NOT_PENDING, place[1])
        return None


def apply_group(
    groups: dict[str, ModelGroup],
    command: GroupCommand,
    turn: Turn,
    bounds: list[Bounds],
    targets: set[str],
    described: object,
) -> Outcome:
    """Return what a command of a group should answer, and do it."""
    group = groups.get(command.group)
    if isinstance(command, GroupCreate | GroupConfigure):
        if isinstance(command, GroupCreate) and group is not None:
            return Refused(Reason.GROUP_EXISTS, group.group_id)
        if isinstance(command, GroupConfigure) and group is None:
            return Refused(Reason.GROUP_UNKNOWN)
        if command.config.max_deliveries and command.config.dead_letter not in targets:
            return Refused(Reason.DEAD_LETTER_STREAM_UNKNOWN)
    if isinstance(command, GroupCreate):
        delivered = [start_at(command.start, each) for each in bounds]
        made = ModelGroup(turn.index, command.config, delivered, [0] * len(bounds))
        groups[command.group] = made
        return Applied(turn.index)
    if group is None:
        return Refused(Reason.GROUP_UNKNOWN)
    match command:
        case GroupConfigure(_, _, config):
            if not config.max_deliveries:
                for pending in group.pending.values():
                    pending.dead = False
            group.config = config
            return Applied(group.group_id)
        case GroupDelete(_, name):
            del groups[name]
            return Applied(group.group_id)
        case GroupJoin(_, _, session_ns):
            group.members[turn.index] = (session_ns, turn.now_ns + session_ns)
            group.rebalance(described)
            return Applied(turn.index)
        case GroupLeave(_, _, member) | GroupHeartbeat(_, _, member):
            if member not in group.members:
                return Refused(Reason.MEMBER_UNKNOWN, member)
            if isinstance(command, GroupLeave):
                del group.members[member]
                group.rebalance(described)
                return Applied()
            session_ns = group.members[member][0]
            group.members[member] = (session_ns, turn.now_ns + session_ns)
            return Applied(member)
        case GroupCommit():
            return commit(group, command, bounds)
        case GroupSeek(_, _, partition, offset):
            return seek(group, partition, offset, bounds)
        case Deliver():
            return deliver(group, command, turn, bounds)
        case Ack(_, _, member, places):
            refused = group.not_held(member, places)
            if refused is not None:
                return refused
            for place in places:
                del group.pending[place]
            return Applied(len(places))
        case Nack():
            return give_back(group, command, turn)
        case Claim():
            return claim(group, command, turn)


def start_at(offset: int, bounds: Bounds) -> int:
    first_ever, first_kept, end = bounds
    return first_kept if offset == 0 else sorted((first_ever, offset, end))[1]


def commit(group: ModelGroup, command: GroupCommit, bounds: list[Bounds]) -> Outcome:
    if command.generation != group.generation:
        return Refused(Reason.GENERATION_STALE, group.generation)
    if command.member not in group.members and (command.member or group.members):
        return Refused(Reason.MEMBER_UNKNOWN, command.member)
    for number, offset in command.places:
        if number >= len(bounds):
            return Refused(Reason.PARTITION_UNKNOWN, number)
        if command.member and not group.takes_from(command.member, number):
            return Refused(Reason.PARTITION_NOT_OWNED, number)
        if offset < group.committed(number):
            return Refused(Reason.CURSOR_BEHIND, group.committed(number))
        if offset > bounds[number][2]:
            return Refused(Reason.OFFSET_IN_FUTURE, bounds[number][2])
    for number, offset in command.places:
        for place, pending in list(group.pending.items()):
            if place[0] == number and place[1] < offset and not pending.dead:
                del group.pending[place]
        group.delivered[number] = max(group.delivered[number], offset)
    return Applied()


def seek(group: ModelGroup, partition: int, offset: int, bounds: list[Bounds]) -> Outcome:
    if partition != PARTITION_ANY and partition >= len(bounds):
        return Refused(Reason.PARTITION_UNKNOWN, partition)
    for number, each in enumerate(bounds):
        if partition in (number, PARTITION_ANY):
            group.delivered[number] = start_at(offset, each)
            kept_from = max(group.delivered[number], each[1])
            for place, pending in list(group.pending.items()):
                if place[0] == number and not (pending.dead and place[1] < kept_from):
                    del group.pending[place]
    group.generation += 1
    return Applied(group.generation)


def deliver(group: ModelGroup, command: Deliver, turn: Turn, bounds: list[Bounds]) -> Outcome:
    number = command.partition
    if number >= len(bounds):
        return Refused(Reason.PARTITION_UNKNOWN, number)
    refused = group.fence(command.member, command.generation)
    if refused is not None:
        return refused
    if not group.takes_from(command.member, number):
        return Refused(Reason.PARTITION_NOT_OWNED, number)
    if command.from_offset != group.delivered[number]:
        return Refused(Reason.DELIVERY_STALE, group.delivered[number])
    if command.next_offset > bounds[number][2]:
        return Refused(Reason.OFFSET_IN_FUTURE, bounds[number][2])
    if any(offset < bounds[number][1] for offset in command.offsets):
        return Refused(Reason.DELIVERY_STALE, group.delivered[number])
    for offset in command.offsets:
        group.pending[number, offset] = ModelPending(command.member, turn.now_ns, 1)
    group.delivered[number] = command.next_offset
    return Applied(len(command.offsets))


def give_back(group: ModelGroup, command: Nack, turn: Turn) -> Outcome:
    refused = group.not_held(command.member, command.places)
    if refused is not None:
        return refused
    limit = group.config.max_deliveries or U64_MAX
    for place in command.places:
        pending = group.pending[place]
        pending.member = 0
        pending.since_ns = turn.now_ns
        pending.ready_ns = turn.now_ns + command.delay_ns
        pending.reason = command.reason
        pending.dead = pending.deliveries >= limit
    dead = sum(group.pending[place].dead for place in command.places)
    return Applied(len(command.places), dead.to_bytes(2, "little") if dead else None)


def claim(group: ModelGroup, command: Claim, turn: Turn) -> Outcome:
    refused = group.fence(command.member, command.generation)
    if refused is not None:
        return refused
    limit = group.config.max_deliveries or U64_MAX
    claimed = 0
    for place in sorted(group.pending):
        pending = group.pending[place]
        if claimed == command.limit or pending.dead:
            continue
        if not group.takes_from(command.member, place[0]):
            continue
        if pending.member in group.members:
            free = turn.now_ns - pending.since_ns >= command.idle_ns
        else:
            free = bool(pending.member) or pending.ready_ns <= turn.now_ns
        if not free:
            continue
        if pending.deliveries >= limit:
            pending.member, pending.dead = 0, True
            continue
        claimed += 1
        pending.member, pending.since_ns = command.member, turn.now_ns
        pending.deliveries += 1
        pending.ready_ns = 0
    return Applied(claimed)
