"""Queues as anybody would write them who has all the time and memory in the world.

Messages are objects in a dict that is searched from end to end for every question. Nothing here is
shared with the code under test but commands and reasons. Answers are plain tuples.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field

from onelog.projections.queue.commands import (
    Ack,
    Cancel,
    Command,
    Extend,
    Lease,
    Nack,
    Prioritise,
    Purge,
    QueueConfigure,
    QueueCreate,
    QueueDelete,
    QueuePause,
    QueueResume,
    Redrive,
    RedriveCancel,
    RedriveStep,
    Release,
    ScheduleDelete,
    ScheduleFire,
)
from onelog.projections.queue.message import Enqueue, QueueConfig, ScheduleCreate
from onelog.projections.reasons import Reason

FOREVER = 2**64
MINUTE = 60 * 10**9
CRONS = {b"* * * * *": 1, b"*/2 * * * *": 2, b"0 * * * *": 60}
TRIM = 4

Answer = tuple[object, ...]


class No(Exception):
    def __init__(self, reason: Reason, detail: int = 0) -> None:
        super().__init__(reason)
        self.answer = ("refused", reason, detail)


@dataclass
class Message:
    id: int
    since: int
    state: str
    priority: int
    deliveries: int = 0
    due: int = 0
    token: int = 0
    expires: int = 0
    body: int = 0
    group: bytes = b""
    tenant: bytes = b""
    dead: tuple[int, int, int, bytes] | None = None  # queue, retries, time, failure


@dataclass
class Job:
    command: Redrive
    started: int
    cursor: int
    next: int
    left: int
    moved: int = 0


@dataclass
class Timer:
    command: ScheduleCreate
    next: int
    ttl: int


@dataclass
class ModelQueue:
    id: int
    name: str
    config: QueueConfig
    paused: bool = False
    last_tenant: bytes = b""
    turn: int = 0  # messages that it got in a turn that is not over
    messages: dict[int, Message] = field(default_factory=dict)
    dedup: list[tuple[bytes, int, int]] = field(default_factory=list)  # id, message, time
    timers: dict[int, Timer] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)

    def in_state(self, state: str) -> list[Message]:
        return [m for m in self.messages.values() if m.state == state]

    def law_holds(self) -> bool:
        gone = ("acked", "expired", "dead", "cancelled", "purged", "moved")
        came = sum(self.totals[name] for name in ("enqueued", "redriven", "arrived"))
        return came == len(self.messages) + sum(self.totals[name] for name in gone)

    def weight(self, tenant: bytes) -> int:
        return dict(self.config.tenant_weights).get(tenant, 1)

    def next_message(self, passed: tuple[tuple[int, int], ...]) -> Message | None:
        eligible = []
        for message in self.in_state("ready"):
            mates = [m for m in self.messages.values() if m.group == message.group]
            blocked = message.group and (
                min(m.id for m in mates) != message.id or any(m.state == "leased" for m in mates)
            )
            body = message.body or message.id
            if not blocked and not any(first <= body <= last for first, last in passed):
                eligible.append(message)
        if not eligible:
            return None
        tenants = sorted({m.tenant for m in eligible})
        tenant = next((name for name in tenants if name > self.last_tenant), tenants[0])
        if 0 < self.turn < self.weight(self.last_tenant) and self.last_tenant in tenants:
            tenant = self.last_tenant
        ageing = self.config.ageing_ns

        def rank(message: Message) -> tuple[int, ...]:
            if ageing:
                return message.since + message.priority * ageing, message.priority, message.id
            return message.priority, message.since, message.id

        return min((m for m in eligible if m.tenant == tenant), key=rank)


class Model:
    """All queues of one namespace."""

    def __init__(self) -> None:
        self.queues: dict[int, ModelQueue] = {}

    def apply(self, command: Command, index: int, now: int) -> Answer:
        before = copy.deepcopy(self.queues)
        try:
            return self.run(command, index, now)
        except No as no:
            self.queues = before
            return no.answer

    def run(self, command: Command, index: int, now: int) -> Answer:
        if isinstance(command, QueueCreate):
            return self.create(command, index)
        if command.queue not in self.queues:
            raise No(Reason.QUEUE_UNKNOWN, command.queue)
        queue = self.queues[command.queue]
        match command:
            case Enqueue():
                return self.enqueue(queue, command, index, now)
            case Lease():
                return self.lease(queue, command, index, now)
            case Ack() | Nack() | Extend() | Release():
                return self.settle(queue, command, now)
            case Cancel() | Prioritise():
                return self.by_id(queue, command)
            case Purge():
                return self.purge(queue, command)
            case Redrive() | RedriveStep() | RedriveCancel():
                return self.redrive(queue, command, index, now)
            case ScheduleCreate() | ScheduleDelete() | ScheduleFire():
                return self.schedule(queue, command, index, now)
            case QueueConfigure(_, config):
                self.check_dead(config, queue.id)
                queue.config = config
                if not config.tenant_weights:
                    queue.turn = 0
            case QueueDelete():
                users = [q.id for q in self.queues.values() if q.config.dead_queue == queue.id]
                if users:
                    raise No(Reason.QUEUE_IN_USE, min(users))
                del self.queues[queue.id]
            case QueuePause() | QueueResume():
                queue.paused = isinstance(command, QueuePause)
        return ("applied", 0)

    def create(self, command: QueueCreate, index: int) -> Answer:
        for queue in self.queues.values():
            if queue.name == command.name:
                raise No(Reason.QUEUE_EXISTS, queue.id)
        self.check_dead(command.config, index)
        self.queues[index] = ModelQueue(index, command.name, command.config)
        return ("applied", index)

    def check_dead(self, config: QueueConfig, queue_id: int) -> None:
        if config.dead_queue or config.max_deliveries:
            target = config.dead_queue
            if target not in self.queues or target == queue_id:
                raise No(Reason.DEAD_QUEUE_INVALID, target)

    def check_room(self, queue: ModelQueue) -> None:
        limit = queue.config.messages_max
        if limit and len(queue.messages) >= limit:
            raise No(Reason.QUEUE_FULL, limit)

    def enqueue(self, queue: ModelQueue, command: Enqueue, index: int, now: int) -> Answer:
        config = queue.config
        remembers = bool(command.dedup) and config.dedup_max > 0
        if remembers:
            for key, message_id, time in queue.dedup:
                if key == command.dedup and now - time < config.dedup_window_ns:
                    queue.totals["duplicates"] += 1
                    return ("applied", message_id)
        start = command.at_ns if command.at_ns is not None else now + (command.delay_ns or 0)
        if start > now + 100 * 365 * 86_400 * 10**9:
            raise No(Reason.DELAY_INVALID, start - now)
        self.check_room(queue)
        if remembers:
            queue.dedup = [entry for entry in queue.dedup if entry[0] != command.dedup]
            queue.dedup.append((command.dedup, index, now))
            for _ in range(TRIM):
                is_old = now - queue.dedup[0][2] >= config.dedup_window_ns
                if not is_old and len(queue.dedup) <= config.dedup_max:
                    break
                del queue.dedup[0]
                queue.totals["dedup_dropped"] += not is_old
                if not queue.dedup:
                    break
        ttl = config.ttl_ns if command.ttl_ns is None else command.ttl_ns
        message = Message(index, max(start, now), "ready", command.priority)
        if start > now:
            message.state, message.due = "delayed", start
        message.expires = now + ttl if ttl else 0
        message.group, message.tenant = command.group, command.tenant
        queue.messages[index] = message
        queue.totals["enqueued"] += 1
        return ("applied", 0)

    def lease(self, queue: ModelQueue, command: Lease, index: int, now: int) -> Answer:
        if queue.paused:
            raise No(Reason.QUEUE_PAUSED, queue.id)
        deadline = now + (command.visibility_ns or queue.config.visibility_ns)
        got = []
        for _ in range(command.count):
            message = queue.next_message(command.passed)
            if message is None:
                break
            if message.tenant != queue.last_tenant or queue.turn >= queue.weight(message.tenant):
                queue.turn = 0
            queue.last_tenant = message.tenant
            queue.turn = (queue.turn + 1) % queue.weight(message.tenant)
            message.state, message.due, message.token = "leased", deadline, index
            message.deliveries = min(message.deliveries + 1, 65_535)
            got.append((message.id, message.body or message.id, message.deliveries, message.dead))
        return ("leased", index, deadline, got) if got else ("leased", 0, 0, [])

    def settle(self, queue: ModelQueue, command: Ack | Nack | Extend | Release, now: int) -> Answer:
        def one(item: tuple[int, int]) -> None:
            message_id, token = item
            message = queue.messages.get(message_id)
            if message is None:
                raise No(Reason.MESSAGE_UNKNOWN, message_id)
            if message.state != "leased" or message.token != token:
                raise No(Reason.LEASE_TOKEN_STALE, message.token)
            match command:
                case Ack():
                    del queue.messages[message_id]
                    queue.totals["acked"] += 1
                case Nack(_, _, delay, failure):
                    self.fail(queue, message, failure, now, delay)
                case Extend(_, _, visibility):
                    message.due = now + (visibility or queue.config.visibility_ns)
                case Release():
                    message.state, message.due, message.token = "ready", 0, 0
                    message.deliveries -= 1

        return self.each(list(command.items), command.strict, one)

    def each(self, items: list, strict: bool, one: object) -> Answer:  # type: ignore[type-arg]  # noqa: FBT001
        verdicts: list[Reason | None] = []
        for item in items:
            try:
                one(item)  # type: ignore[operator]
                verdicts.append(None)
            except No as no:
                if strict or len(items) == 1:
                    raise
                verdicts.append(no.answer[1])
        return ("verdicts", verdicts.count(None), verdicts)

    def fail(
        self, queue: ModelQueue, message: Message, failure: bytes, now: int, delay: int | None
    ) -> None:
        config = queue.config
        retries = message.deliveries
        if config.max_deliveries and retries >= config.max_deliveries:
            del queue.messages[message.id]
            queue.totals["dead"] += 1
            target = self.queues[config.dead_queue]
            self.move(message, target, now)
            message.dead = (queue.id, retries, now, failure)
            target.totals["arrived"] += 1
            return
        if delay is None:
            steps = config.backoff_ns
            delay = (steps[retries - 1] if retries <= len(steps) else steps[-1]) if steps else 0
        message.token = 0
        message.state, message.due = ("delayed", now + delay) if delay else ("ready", 0)

    def move(self, message: Message, target: ModelQueue, now: int) -> None:
        message.since, message.state, message.deliveries = now, "ready", 0
        message.due = message.token = message.expires = 0
        target.messages[message.id] = message

    def by_id(self, queue: ModelQueue, command: Cancel | Prioritise) -> Answer:
        seen: set[int] = set()

        def one(message_id: int) -> None:
            message = queue.messages.get(message_id)
            if message is None or (command.strict and message_id in seen):
                raise No(Reason.MESSAGE_UNKNOWN, message_id)
            seen.add(message_id)
            if isinstance(command, Prioritise):
                message.priority = command.priority
            elif message.state == "leased":
                raise No(Reason.MESSAGE_LEASED, message_id)
            else:
                del queue.messages[message_id]
                queue.totals["cancelled"] += 1

        return self.each(list(command.ids), command.strict, one)

    def purge(self, queue: ModelQueue, command: Purge) -> Answer:
        removed = 0
        for message_id in sorted(queue.messages):
            message = queue.messages[message_id]
            if message_id < command.from_id:
                continue
            if message_id >= (command.below_id or FOREVER):
                break
            if removed == command.limit:
                queue.totals["purged"] += removed
                return ("cursor", removed, message_id)
            is_late = message.since >= (command.before_ns or FOREVER)
            if is_late or (message.state == "leased" and not command.leased_too):
                continue
            del queue.messages[message_id]
            removed += 1
        queue.totals["purged"] += removed
        return ("cursor", removed, None)

    def redrive(
        self,
        queue: ModelQueue,
        command: Redrive | RedriveStep | RedriveCancel,
        index: int,
        now: int,
    ) -> Answer:
        if isinstance(command, Redrive):
            if command.target and (command.target not in self.queues or command.target == queue.id):
                raise No(Reason.QUEUE_UNKNOWN, command.target)
            if len(queue.jobs) >= 16:
                raise No(Reason.REDRIVES_FULL, 16)
            queue.jobs[index] = Job(command, now, command.first_id, now, command.limit)
            return self.step(queue, index, now)
        if command.redrive not in queue.jobs:
            raise No(Reason.REDRIVE_UNKNOWN, command.redrive)
        job = queue.jobs[command.redrive]
        if isinstance(command, RedriveCancel):
            del queue.jobs[command.redrive]
            return ("applied", 0)
        if job.cursor != command.cursor or job.next > now:
            raise No(Reason.REDRIVE_NOT_DUE, job.next)
        return self.step(queue, command.redrive, now)

    def step(self, queue: ModelQueue, job_id: int, now: int) -> Answer:
        job = queue.jobs[job_id]
        wanted = job.command
        rate = wanted.rate_per_s
        at_once = 1_000 if not rate else min(1_000, max(1, rate // 10))
        pause = 0 if not rate else (at_once * 10**9 + rate - 1) // rate
        if job.left:
            at_once = min(at_once, job.left)
        moved = 0
        for message_id in sorted(queue.messages):
            message = queue.messages[message_id]
            if message_id < job.cursor:
                continue
            if message_id > (wanted.last_id or FOREVER):
                break
            if moved == at_once:
                job.left -= moved if job.left else 0
                if wanted.limit and not job.left:
                    break
                job.cursor, job.next, job.moved = message_id, now + pause, job.moved + moved
                return ("cursor", moved, job_id)
            if message.state == "leased" or message.dead is None or message.since > job.started:
                continue
            source, _, failed, failure = message.dead
            target = self.queues.get(wanted.target or source)
            if (
                not wanted.failed_from_ns <= failed <= (wanted.failed_until_ns or FOREVER)
                or wanted.failure not in failure
                or target in (None, queue)
            ):
                continue
            assert target is not None
            del queue.messages[message_id]
            queue.totals["moved"] += 1
            self.move(message, target, now)
            target.totals["redriven"] += 1
            moved += 1
        del queue.jobs[job_id]
        return ("cursor", moved, None)

    def schedule(
        self,
        queue: ModelQueue,
        command: ScheduleCreate | ScheduleDelete | ScheduleFire,
        index: int,
        now: int,
    ) -> Answer:
        if isinstance(command, ScheduleCreate):
            ttl = queue.config.ttl_ns if command.ttl_ns is None else command.ttl_ns
            queue.timers[index] = Timer(command, after(command.cron, now), ttl)
            return ("applied", index)
        timer = queue.timers.get(command.schedule)
        if timer is None:
            raise No(Reason.SCHEDULE_UNKNOWN, command.schedule)
        if isinstance(command, ScheduleDelete):
            del queue.timers[command.schedule]
            return ("applied", 0)
        if timer.next != command.fire_ns or timer.next > now:
            raise No(Reason.SCHEDULE_NOT_DUE, timer.next)
        timer.next = after(timer.command.cron, now)
        if queue.config.messages_max and len(queue.messages) >= queue.config.messages_max:
            queue.totals["missed"] += 1
            return ("applied", 0)
        message = Message(index, now, "ready", timer.command.priority, body=command.schedule)
        message.expires = now + timer.ttl if timer.ttl else 0
        message.group, message.tenant = timer.command.group, timer.command.tenant
        queue.messages[index] = message
        queue.totals["enqueued"] += 1
        return ("applied", index)

    # Time ----------------------------------------------------------------------------------------

    def deadlines(self) -> list[int]:
        found = []
        for queue in self.queues.values():
            for message in queue.messages.values():
                if message.due:
                    found.append(message.due)
                if message.expires and message.state != "leased":
                    found.append(message.expires)
            found += [timer.next for timer in queue.timers.values()]
            found += [job.next for job in queue.jobs.values()]
        return found

    def expire(self, now: int) -> None:
        """Expire everything that is due, as one expire entry does."""
        due = []
        for queue in self.queues.values():
            for message in queue.messages.values():
                if message.due and message.due <= now:
                    due.append((queue, message, message.state))
                if message.state != "leased" and message.expires and message.expires <= now:
                    due.append((queue, message, "mortal"))
        for queue, message, kind in due:
            if message.id not in queue.messages:
                continue
            if kind == "leased":
                self.fail(queue, message, b"lease expired", now, None)
            elif kind == "delayed":
                message.state, message.due = "ready", 0
            else:
                del queue.messages[message.id]
                queue.totals["expired"] += 1


def after(cron: bytes, now: int) -> int:
    step = CRONS[cron] * MINUTE
    return (now // step + 1) * step
