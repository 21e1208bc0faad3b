"""Queues against a plain model, step by step, with everything that may happen between.

Between two commands the machine may be saved and loaded or replayed from its log: none of that may
show. ``check()``, with the conservation law of every queue, runs after every step.
"""

import copy
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onelog.projections.codec import read_prefix
from onelog.projections.queue.commands import (
    Ack,
    Cancel,
    Command,
    Extend,
    Lease,
    Nack,
    Prioritise,
    Purge,
    QueueCreate,
    Redrive,
    RedriveStep,
    Release,
    decode_command,
    encode_command,
)
from onelog.projections.queue.message import (
    QueueConfig,
    decode_cursor,
    decode_leased,
    decode_verdicts,
)
from onelog.projections.queue.reads import Peeked, QueueInfo
from onelog.projections.queue.store import QueueState
from onelog.projections.queue.table import Row
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused, Result
from onelog.projections.system.commands import TYPE_EXPIRE, encode_batch
from tests.projections.queue.queue_histories import draw_command
from tests.projections.queue.queue_model import Answer, Message, Model
from tests.projections.world import NAMESPACE, SECOND, World, replay

STATES = ["ready", "delayed", "leased"]
ROUNDS_MAX = 60


def plain(command: Command, result: Result) -> Answer:
    """Return a result as the model would put it."""
    if isinstance(result, Refused):
        return ("refused", result.reason, result.detail)
    assert isinstance(result, Applied), result
    match command:
        case Lease():
            leased = decode_leased(result)
            assert result.number == len(leased.messages)
            messages = [
                (m.id, m.body_index, m.deliveries, None if m.dead is None else tuple(m.dead))
                for m in leased.messages
            ]
            return ("leased", leased.token, leased.deadline_ns, messages)
        case Ack() | Nack() | Extend() | Release():
            return ("verdicts", result.number, decode_verdicts(result, len(command.items)))
        case Cancel() | Prioritise():
            return ("verdicts", result.number, decode_verdicts(result, len(command.ids)))
        case Purge() | Redrive() | RedriveStep():
            return ("cursor", result.number, decode_cursor(result))
        case _:
            assert result.value is None
            return ("applied", result.number)


def as_message(row: Row) -> Message:
    return Message(
        row.id,
        row.since_ns,
        STATES[row.state],
        row.priority,
        row.deliveries,
        row.due_ns,
        row.token,
        row.expires_ns,
        row.body,
        row.group,
        row.tenant,
        row.dead,
    )


class QueueMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.world = World()
        self.model = Model()
        self.run(QueueCreate("dead", QueueConfig()))
        config = QueueConfig(max_deliveries=2, dead_queue=1, backoff_ns=(0, SECOND))
        self.run(QueueCreate("jobs", config))

    def run(self, command: Command) -> None:
        result = self.world.draft(encode_command(command, NAMESPACE))
        expected = self.model.apply(command, self.world.index, self.world.now_ns)
        assert plain(command, result) == expected, command

    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 60))
    def run_many(self, seed: int, count: int) -> None:
        draw = Random(seed)
        for _ in range(count):
            self.run(draw_command(draw, self.world.state.queue))

    @rule(seconds=st.sampled_from([0, 1, 1, 2, 5, 70]))
    def pass_time(self, seconds: int) -> None:
        """Time takes effect through entries only, and each of them is as the model has it."""
        world = self.world
        world.now_ns += seconds * SECOND
        for _ in range(ROUNDS_MAX):
            deadlines = self.model.deadlines()
            assert world.state.queue.next_deadline() == min(deadlines, default=None)
            drafts = world.state.router.due(world.now_ns, 1_000)
            assert drafts == world.state.router.due(world.now_ns, 1_000)
            assert bool(drafts) == any(deadline <= world.now_ns for deadline in deadlines)
            if not drafts:
                return
            for draft in drafts:
                result = world.draft(draft)
                if draft.entry_type == TYPE_EXPIRE:
                    self.model.expire(world.now_ns)
                    continue
                command = decode_command(draft.entry_type & 0xFF, read_prefix(draft.payload)[1])
                expected = self.model.apply(command, world.index, world.now_ns)
                assert plain(command, result) == expected, command
        raise AssertionError("what is due does not go away")

    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 8))
    def run_batch(self, seed: int, count: int) -> None:
        """All or nothing, over several queues."""
        draw = Random(seed)
        batch = [draw_command(draw, self.world.state.queue) for _ in range(count)]
        before = self.world.state.router.state_hashes()
        first = self.world.index + 2
        drafts = encode_batch([encode_command(each, NAMESPACE) for each in batch], [], NAMESPACE)
        results = self.world.group(drafts)
        saved = copy.deepcopy(self.model.queues)
        expected: list[Answer] = []
        for position, command in enumerate(batch):
            answer = self.model.apply(command, first + position, self.world.now_ns)
            if answer[0] == "refused":
                self.model.queues = saved
                reason = answer[1]
                assert isinstance(reason, Reason)
                assert results[0] == Refused(Reason.BATCH_REFUSED, position, reason)
                assert self.world.state.router.state_hashes() == before
                return
            expected.append(answer)
        assert isinstance(results[0], Applied)
        assert list(map(plain, batch, results[1:])) == expected

    @rule(chunk_size=st.integers(1, 200))
    def reload(self, chunk_size: int) -> None:
        other = self.world.reloaded(chunk_size)
        assert other.state.router.state_hashes() == self.world.state.router.state_hashes()
        assert other.sections() == self.world.sections()
        other.log = self.world.log
        self.world = other

    @precondition(lambda self: self.world.index < 400)
    @rule()
    def replay(self) -> None:
        other = replay(self.world.entries)
        assert other.state.router.state_hash() == self.world.state.router.state_hash()
        assert other.sections() == self.world.sections()

    @rule(from_id=st.integers(0, 80), seconds=st.integers(0, 20), limit=st.integers(1, 5))
    def peek_in_pages(self, from_id: int, seconds: int, limit: int) -> None:
        from_ns = (1_000 + seconds) * SECOND
        for queue in self.model.queues.values():
            found: list[Row] = []
            next_id: int | None = from_id
            while next_id is not None:
                page = self.world.state.queue.peek(
                    NAMESPACE, queue.id, limit=limit, from_id=next_id, from_ns=from_ns
                )
                assert isinstance(page, Peeked)
                found += page.messages
                next_id = page.next_id
            wanted = [m for m in queue.messages.values() if m.id >= from_id and m.since >= from_ns]
            assert list(map(as_message, found)) == sorted(wanted, key=lambda m: m.id)

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "world"):
            self.world.state.router.check()
            assert all(queue.law_holds() for queue in self.model.queues.values())

    @invariant()
    def every_message_and_every_count_is_the_same(self) -> None:
        if not hasattr(self, "world"):
            return
        state = self.world.state.queue
        names = sorted((queue.name, queue.id) for queue in self.model.queues.values())
        assert state.list_queues(NAMESPACE) == names
        pinned: set[int] = set()
        for queue in self.model.queues.values():
            page = state.peek(NAMESPACE, queue.id, limit=1_000)
            assert isinstance(page, Peeked)
            messages = {row.id: as_message(row) for row in page.messages}
            assert messages == queue.messages
            described = state.describe_queue(NAMESPACE, queue.id)
            assert isinstance(described, QueueInfo)
            stats = described.stats
            depths = [stats.ready, stats.delayed, stats.leased]
            assert depths == [len(queue.in_state(name)) for name in STATES]
            waiting = [message.since for message in queue.in_state("ready")]
            assert stats.oldest_ready_ns == min(waiting, default=None)
            assert {k: v for k, v in stats.totals.items() if v} == +queue.totals
            assert stats.dedup_ids == len(queue.dedup)
            found = state.get_queue(NAMESPACE, described.name)
            assert isinstance(found, QueueState)
            assert (found.next_ready() is None) == (queue.next_message(()) is None)
            bodies = sorted({each.body or each.id for each in queue.messages.values()})
            passed = tuple((body, body) for body in bodies[::2])
            assert (found.next_ready(passed) is None) == (queue.next_message(passed) is None)
            within = [
                each for each in queue.in_state("ready") if (each.body or each.id) in bodies[::2]
            ]
            assert found.count_within(passed) == len(within)
            pinned |= {message.body or message.id for message in queue.messages.values()}
            pinned |= set(queue.timers)
        assert state.pinned(0, 2**63) == sorted(pinned)
        assert state.pinned(20, 60) == sorted(index for index in pinned if 20 <= index <= 60)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, print_blob=True
)
