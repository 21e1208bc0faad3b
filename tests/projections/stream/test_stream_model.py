"""The stream projection against a plain model, step by step, with everything between.

Between two commands the machine may be saved and loaded, or be replayed from its log: none of that
may show. ``check()`` runs after every step, and all that can be asked is compared with the model.
"""

import copy
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onelog.projections.codec import U64, read_prefix
from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Outcome, Refused, Result
from onelog.projections.stream.commands import (
    Cause,
    Command,
    GroupJoin,
    GroupLeave,
    Trim,
    TrimTo,
    decode_command,
    encode_body,
    encode_command,
)
from onelog.projections.stream.reads import GroupDescription, Record, StreamDescription
from onelog.projections.system import commands as system_commands
from onelog.projections.system.commands import Expire, encode_batch
from onelog.ual.entry import OWNER_STREAM, Draft
from tests.projections.stream.stream_group_model import ModelGroup
from tests.projections.stream.stream_histories import NAMESPACE, answers, draw_command
from tests.projections.stream.stream_model import ModelStream, StreamModel, exact_cut
from tests.projections.stream.stream_model_rows import Turn
from tests.projections.stream.stream_pages import list_pending, read_page
from tests.projections.stream.stream_world import StreamWorld, replay
from tests.projections.world import SECOND


class StreamMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.world = StreamWorld()
        self.model = StreamModel()

    def turn(self, command: Command, index: int) -> Turn:
        return Turn(index, self.world.now_ns, len(encode_body(command)))

    def run(self, command: Command) -> None:
        voids = len(self.world.notes.voids)
        result = self.world.run(command)
        turn = self.turn(command, self.world.index)
        expected = self.model.apply(command, turn, self.world.stream)
        same(result, expected)
        is_void = isinstance(expected, Refused) or expected.value == b"\x01"
        assert (len(self.world.notes.voids) > voids) == is_void

    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 40))
    def run_many(self, seed: int, count: int) -> None:
        """Commands that look at what exists reach deeper than those that do not."""
        rng = Random(seed)
        for _ in range(count):
            self.run(draw_command(rng, self.world.stream))

    @rule(seed=st.integers(0, 2**32))
    def run_batch(self, seed: int) -> None:
        rng = Random(seed)
        drawn = [draw_command(rng, self.world.stream) for _ in range(rng.randint(1, 5))]
        # Where the model takes over a choice it must see the state right after it.
        commands = [each for each in drawn if not has_choice(each)]
        drafts = [encode_command(command, NAMESPACE) for command in commands]
        first = self.world.index + 1
        before = {key: list(rows) for key, rows in self.world.records.records.items()}
        answered = answers(self.world.stream), self.world.stream.state_hash()
        results = self.world.group(encode_batch(drafts, (), NAMESPACE))
        expected = self.expect_batch(commands, first)
        if isinstance(expected, Refused):
            assert results == [expected] * (len(drafts) + 1)
            assert self.world.notes.voids[-1] == (first, self.world.index)
            assert self.world.records.records == before
            assert (answers(self.world.stream), self.world.stream.state_hash()) == answered
            return
        for result, each in zip(results[1:], expected.results, strict=True):
            same(result, each)

    def expect_batch(self, commands: list[Command], first: int) -> Outcome:
        """The model's batch: take back everything if something was refused."""
        before = copy.deepcopy(self.model)
        results: list[Outcome] = []
        for position, command in enumerate(commands):
            turn = self.turn(command, first + 1 + position)
            result = self.model.apply(command, turn, self.world.stream)
            if isinstance(result, Refused):
                self.model = before
                return Refused(Reason.BATCH_REFUSED, position, result.reason)
            results.append(result)
        return Applied(len(commands), None, tuple(results))

    @rule(nanoseconds=st.integers(0, 3 * SECOND))
    def pass_time(self, nanoseconds: int) -> None:
        """Time takes effect through entries only, and each of them is as the model has it."""
        self.world.now_ns += nanoseconds
        router = self.world.state.router
        for _ in range(50):
            drafts = router.due(self.world.now_ns, 1_000)
            assert drafts == router.due(self.world.now_ns, 1_000)
            deadline_ns = router.next_deadline()
            assert (deadline_ns is not None and deadline_ns <= self.world.now_ns) == bool(drafts)
            if not drafts:
                break
            for draft in drafts:
                if draft.entry_type >> 8 == OWNER_STREAM:
                    self.run(decoded(draft))
                else:
                    self.expire(draft)
        else:
            raise AssertionError("what is due does not go away")

    @precondition(lambda self: self.model.streams)
    @rule(seed=st.integers(0, 2**32))
    def trim_exactly(self, seed: int) -> None:
        rng = Random(seed)
        stream = rng.choice([*self.model.streams.values()])
        cuts = []
        for number, partition in enumerate(stream.partitions):
            before = rng.randint(partition.kept_from, partition.end)
            if rng.random() < 0.7:
                cuts.append(exact_cut(stream, number, before))
        if cuts:
            cause = rng.choice((Cause.REQUEST, Cause.AGE, Cause.SIZE, Cause.COUNT))
            self.run(TrimTo(stream.stream_id, cause, tuple(cuts), rng.random() < 0.5))

    def expire(self, draft: Draft) -> None:
        _, reader = read_prefix(draft.payload)
        command = system_commands.decode_command(draft.entry_type, reader)
        assert isinstance(command, Expire)
        members = {U64.unpack_from(item, 1)[0] for _, item in command.ids}
        groups = [
            (name, stream.groups[each], each)
            for name, stream in self.model.streams.items()
            for each in stream.groups
        ]
        due = {
            member
            for _, group, _ in groups
            for member, (_, deadline_ns) in group.members.items()
            if deadline_ns <= self.world.now_ns
        }
        assert members == due
        assert self.world.draft(draft) == Applied(len(due))
        for stream, group, name in groups:
            gone = due & set(group.members)
            for member in gone:
                del group.members[member]
            if gone:
                group.generation += len(gone) - 1
                found = self.world.stream.describe_group(NAMESPACE, stream, name)
                group.rebalance(found, several=len(gone) > 1)

    @rule(chunk_size=st.integers(1, 300))
    def reload(self, chunk_size: int) -> None:
        other = self.world.reloaded(chunk_size)
        assert other.state.router.state_hashes() == self.world.state.router.state_hashes()
        assert other.sections() == self.world.sections()
        assert answers(other.stream) == answers(self.world.stream)
        self.world = other

    @precondition(lambda self: self.world.index < 300)
    @rule()
    def replay(self) -> None:
        other = replay(self.world.entries)
        assert other.state.router.state_hash() == self.world.state.router.state_hash()
        assert other.sections() == self.world.sections()
        assert other.records.records == self.world.records.records
        assert other.records.voids == self.world.records.voids
        assert answers(other.stream) == answers(self.world.stream)

    @invariant()
    def nothing_is_broken(self) -> None:
        if hasattr(self, "world"):
            self.world.state.router.check()
            assert self.world.stream.list_streams(NAMESPACE) == tuple(sorted(self.model.streams))

    @invariant()
    def every_stream_is_the_same(self) -> None:
        if not hasattr(self, "world"):
            return
        pinned = set()
        for name, stream in self.model.streams.items():
            self.same_stream(name, stream)
            for each, group in stream.groups.items():
                self.same_group(name, each, group)
                key = self.world.cursors(name, each)
                assert key == str(self.model.cursor_keys[name, each]).replace(" ", "").encode()
                for number, offset in group.pending:
                    if offset < stream.partitions[number].kept_from:
                        pinned.add(offset)
        assert pinned <= set(self.world.stream.pinned(0, U64_MAX))

    def same_stream(self, name: str, stream: ModelStream) -> None:
        described = self.world.stream.describe(NAMESPACE, name)
        assert isinstance(described, StreamDescription)
        assert (described.stream_id, described.retention) == (stream.stream_id, stream.retention)
        assert described.groups == tuple(sorted(stream.groups))
        log = self.world.memory_log
        kept = self.world.stream.kept_streams()
        # What nobody asks to keep is gone: reads must not miss it.
        log.dropped = set(range(1, self.world.index + 1))
        log.dropped -= set(self.world.stream.pinned(0, U64_MAX))
        for partition_id, rows in self.world.records.records.items():
            log.dropped -= {row for row in rows if row >= kept.get(partition_id, U64_MAX)}
        for number, partition in enumerate(stream.partitions):
            part = described.partitions[number]
            assert (part.first_offset, part.end_offset) == (partition.kept_from, partition.end)
            assert part.record_count == len(partition.records)
            left = partition.kept()
            assert part.record_count_kept >= len(left)
            if partition.is_counted:
                assert part.record_count_kept == len(left)
                assert part.size_kept == sum(record.size for record in left)
            if left and partition.is_counted:
                assert part.first_record == left[0].offset
            page = read_page(self.world.stream, log, name, number)
            found = [item for item in page.items if isinstance(item, Record)]
            assert [(r.offset, r.timestamp_ns, r.value, r.key, r.tag) for r in found] == [
                (r.offset, r.timestamp_ns, r.value, r.command.key, r.command.tag)
                for r in partition.kept()
            ]

    def same_group(self, stream: str, name: str, group: ModelGroup) -> None:
        found = self.world.stream.describe_group(NAMESPACE, stream, name)
        assert isinstance(found, GroupDescription)
        assert (found.group_id, found.config) == (group.group_id, group.config)
        assert found.generation == group.generation
        assert list(found.owners) == group.owners
        assert list(found.delivered) == group.delivered
        committed = [group.committed(number) for number in range(len(group.delivered))]
        assert list(found.committed) == committed
        assert dict(found.members) == {member: each[1] for member, each in group.members.items()}
        pending = list_pending(self.world.stream, stream, name)
        assert [(p.partition, p.offset) for p in pending] == sorted(group.pending)
        for each in pending:
            twin = group.pending[each.partition, each.offset]
            assert (each.member, each.since_ns) == (twin.member, twin.since_ns)
            assert (each.deliveries, each.ready_ns) == (twin.deliveries, twin.ready_ns)
            assert (each.reason, each.dead) == (twin.reason, twin.dead)


def same(result: Result, expected: Outcome) -> None:
    """Compare what a command answers; the bytes of a value are for tests of their own."""
    if isinstance(expected, Refused):
        assert result == expected
        return
    assert isinstance(result, Applied), (result, expected)
    assert result.number == expected.number
    if expected.value is not None:
        assert result.value == expected.value


def has_choice(command: Command) -> bool:
    coarse = isinstance(command, Trim) and command.cause is not Cause.REQUEST
    return coarse or isinstance(command, GroupJoin | GroupLeave)


def decoded(draft: Draft) -> Command:
    _, reader = read_prefix(draft.payload)
    return decode_command(draft.entry_type & 0xFF, reader)


TestStream = StreamMachine.TestCase
TestStream.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, print_blob=True
)
