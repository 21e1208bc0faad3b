"""The KV projection against a plain model, step by step, with everything that may happen between.

Between two commands the machine may lose its memory to the spill store, be saved and loaded, or
be replayed from its log: none of that may show. ``check()`` runs after every step.
"""

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from onelog.projections.conditions import Condition
from onelog.projections.kv.commands import Command, LeaseGrant, PutMany, encode_command
from onelog.projections.kv.reads import KeyValue, Page, Range
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused
from onelog.projections.system.commands import NamespaceConfigure, encode_batch
from tests.projections.histories import Writer
from tests.projections.model import Model, Written
from tests.projections.strategies import commands, conditions, keys
from tests.projections.world import NAMESPACE, SECOND, World, replay


class KvMachine(RuleBasedStateMachine):
    @initialize(
        versions_max=st.integers(1, 4),
        keys_max=st.sampled_from([0, 0, 3]),
        tombstones_max=st.integers(0, 3),
    )
    def configure(self, versions_max: int, keys_max: int, tombstones_max: int) -> None:
        self.world = World()
        self.model = Model()
        self.model.remember(0)
        self.set_limits(Limits(versions_max, 600, keys_max, tombstones_max))

    def set_limits(self, limits: Limits) -> None:
        assert self.world.system(NamespaceConfigure(limits), NAMESPACE) == APPLIED
        self.model.limits = limits
        self.model.remember(self.world.index)

    @rule(versions_max=st.integers(1, 5), tombstones_max=st.integers(0, 4))
    def reconfigure(self, versions_max: int, tombstones_max: int) -> None:
        self.set_limits(Limits(versions_max, 600, self.model.limits.keys_max, tombstones_max))

    @rule(several=st.lists(commands, min_size=1, max_size=12))
    def run_several(self, several: list[Command]) -> None:
        for command in several:
            self.run(command)

    @rule(seed=st.integers(0, 2**32), count=st.integers(20, 120))
    def run_many(self, seed: int, count: int) -> None:
        """Commands that look at what exists reach deeper than those that do not."""
        writer = Writer(seed, self.world)
        for _ in range(count):
            command = writer.draw_command()
            self.run(command)
            if isinstance(command, LeaseGrant):
                writer.leases.append(self.world.index)

    def run(self, command: Command) -> None:
        result = self.world.kv(command)
        expected = self.model.apply(command, self.world.index, self.world.now_ns)
        self.model.remember(self.world.index)
        assert result == expected
        is_void = self.world.notes.voids[-1:] == [(self.world.index, self.world.index)]
        assert is_void == isinstance(expected, Refused)

    @rule(seconds=st.integers(0, 3))
    def pass_time(self, seconds: int) -> None:
        """Time takes effect through entries only, and each of them is as the model has it."""
        self.world.now_ns += seconds * SECOND
        deadlines = self.model.deadlines()
        assert self.world.state.router.next_deadline() == min(deadlines, default=None)
        drafts = self.world.state.router.due(self.world.now_ns, 1_000)
        assert drafts == self.world.state.router.due(self.world.now_ns, 1_000)
        assert bool(drafts) == any(deadline <= self.world.now_ns for deadline in deadlines)
        for draft in drafts:
            self.world.draft(draft)
            self.model.expire(self.world.index, self.world.now_ns)
            self.model.remember(self.world.index)

    @rule(batch=st.lists(commands, min_size=1, max_size=4), wanted=st.lists(conditions, max_size=1))
    def run_batch(self, batch: list[Command], wanted: list[Condition]) -> None:
        drafts = encode_batch(
            [encode_command(command, NAMESPACE) for command in batch], wanted, NAMESPACE
        )
        first = self.world.index + 1
        results = self.world.group(drafts)
        expected = self.expect_batch(batch, wanted, first)
        assert results[0] == expected
        if isinstance(expected, Refused):
            assert results[1:] == [expected] * len(batch)
            assert self.world.notes.voids[-1] == (first, self.world.index)
        else:
            assert tuple(results[1:]) == expected.results

    def expect_batch(self, batch: list[Command], wanted: list[Condition], first: int) -> Outcome:
        """The model's batch: take back everything if something was refused."""
        for index in range(first, first + len(batch) + 1):
            self.model.remember(index)
        for position, condition in enumerate(wanted):
            if not self.model.holds(condition):
                return Refused(Reason.CONDITION_FAILED, position)
        before = copy.deepcopy(self.model)
        results = []
        operations = 0  # each put of many is one
        for index, command in enumerate(batch, first + 1):
            result = self.model.apply(command, index, self.world.now_ns)
            if isinstance(result, Refused):
                self.model = before
                if isinstance(command, PutMany) and result.cause is not None:
                    operations, result = operations + result.detail, Refused(result.cause)
                return Refused(Reason.BATCH_REFUSED, operations, result.reason)
            operations += len(command.bodies) if isinstance(command, PutMany) else 1
            results.append(result)
            self.model.remember(index)
        return Applied(len(batch), None, tuple(results))

    @rule(size=st.integers(1, 2_000))
    def evict(self, size: int) -> None:
        before = self.world.state.router.state_hash()
        self.world.state.router.evict(size)
        assert self.world.state.router.state_hash() == before

    @rule(chunk_size=st.integers(1, 200))
    def reload(self, chunk_size: int) -> None:
        other = self.world.reloaded(chunk_size)
        assert other.state.router.state_hashes() == self.world.state.router.state_hashes()
        assert other.sections() == self.world.sections()
        other.notes = self.world.notes
        other.state.router._notes = self.world.notes  # the test follows the voids on
        self.world = other

    @precondition(lambda self: self.world.index < 300)
    @rule()
    def replay(self) -> None:
        other = replay(self.world.entries)
        assert other.state.router.state_hash() == self.world.state.router.state_hash()
        assert other.sections() == self.world.sections()

    @rule(key=keys, data=st.data())
    def read_the_past(self, key: bytes, data: st.DataObject) -> None:
        as_of = data.draw(st.integers(0, self.world.index), label="as_of")
        item = self.world.state.kv.get(NAMESPACE, key, as_of)
        known_from = (
            self.model.known_from(key) if key in self.model.chains else self.model.purged_index
        )
        if as_of < known_from:
            kept = [w.version for w in self.model.chains.get(key, []) if w.version <= as_of]
            if not kept:
                assert item == Refused(Reason.COMPACTED, known_from)
                return
        self.same(item, key, self.model.past[as_of].get(key))

    @rule(bounds=st.tuples(keys, keys), reverse=st.booleans(), limit=st.integers(1, 4))
    def scan_in_pages(self, bounds: tuple[bytes, bytes], reverse: bool, limit: int) -> None:  # noqa: FBT001
        inside = Range(min(bounds), max(bounds))
        found: list[KeyValue] = []
        token: bytes | None = None
        while True:
            page = self.world.state.kv.scan(
                NAMESPACE, inside, limit=limit, reverse=reverse, token=token
            )
            assert isinstance(page, Page)
            assert len(page.items) <= limit
            found += page.items
            token = page.next_key
            if token is None:
                break
        live = self.model.live()
        expected = sorted((k for k in live if inside.start <= k < max(bounds)), reverse=reverse)
        assert [item.key for item in found] == expected
        for item in found:
            self.same(item, item.key, live[item.key])

    @rule(data=st.data(), reverse=st.booleans())
    def scan_the_past(self, data: st.DataObject, reverse: bool) -> None:  # noqa: FBT001
        as_of = data.draw(st.integers(0, self.world.index), label="as_of")
        page = self.world.state.kv.scan(NAMESPACE, Range(), limit=100, reverse=reverse, as_of=as_of)
        if isinstance(page, Refused):
            assert page.reason is Reason.COMPACTED
            assert as_of < page.detail
            return
        assert [item.key for item in page.items] == sorted(self.model.past[as_of], reverse=reverse)

    @invariant()
    def nothing_is_broken(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.state.router.check()
        assert self.world.state.kv.counts()["keys"] == len(self.model.live())

    @invariant()
    def every_key_and_its_history_are_the_same(self) -> None:
        if not hasattr(self, "world"):
            return
        kv = self.world.state.kv
        for key, chain in self.model.chains.items():
            self.same(kv.get(NAMESPACE, key), key, self.model.find(key))
            history = kv.history(NAMESPACE, key)
            assert not isinstance(history, Refused)
            assert [(v.version, v.value, v.expired) for v in history.versions] == [
                (w.version, w.value, w.expired) for w in reversed(chain)
            ]
            assert history.complete_from == self.model.known_from(key)

    @staticmethod
    def same(item: object, key: bytes, written: Written | None) -> None:
        """A read of the past shows lifetime and lease as last set, so those are not compared."""
        if written is None:
            assert item is None
            return
        assert isinstance(item, KeyValue)
        assert (item.key, item.value, item.version) == (key, written.value, written.version)


TestKv = KvMachine.TestCase
TestKv.settings = settings(max_examples=25, stateful_step_count=30, deadline=None, print_blob=True)
