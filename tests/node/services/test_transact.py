"""Puts of a batch that are one entry: nobody may tell, except by the version that they share."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog import errors
from onelog.node.services.kv import parse_put
from onelog.node.services.transact import prepare
from onelog.projections.codec import SessionRef, read_prefix
from onelog.projections.conditions import Condition, Target
from onelog.projections.kv import commands as kv_commands
from onelog.projections.kv.commands import (
    TYPE_PUT,
    TYPE_PUT_MANY,
    Delete,
    Increment,
    Put,
    PutMany,
    encode_command,
)
from onelog.projections.kv.reads import History
from onelog.projections.namespaces import Limits
from onelog.projections.result import Applied, Refused
from onelog.projections.system.commands import NamespaceConfigure, encode_batch
from onelog.projections.system.commands import encode_command as encode_system
from onelog.ual.entry import Draft
from onelog.v1 import admin_pb2, common_pb2, queue_pb2, stream_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from tests.node.services.nodes import Node, cluster, refusal, run, single
from tests.node.watch.test_watch import Watcher
from tests.projections.world import NAMESPACE, World

Operation = pipeline.TransactOperation
Request = pipeline.TransactRequest


def put(key: bytes, value: bytes = b"v", **fields: Any) -> pipeline.TransactOperation:
    return Operation(put=kv.PutRequest(key=key, value=value, **fields))


def count(key: bytes, add: int = 1) -> pipeline.TransactOperation:
    return Operation(count=kv.CountRequest(key=key, add=add))


def puts_of(draft: Draft) -> list[Put]:
    """Return what an entry puts, and see that it is encoded as ever."""
    _, reader = read_prefix(draft.payload)
    command: Any = kv_commands.decode_command(draft.entry_type & 0xFF, reader)
    assert draft == encode_command(command, NAMESPACE)
    return command.puts() if isinstance(command, PutMany) else [command]


with_options = st.sampled_from(
    [put(b"a", ttl_ms=9), put(b"a", lease_id=4), put(b"b", expected_version=0)]
)
plain = st.builds(put, st.sampled_from([b"a", b"b", b"c", b"d{t}"]), st.binary(max_size=9))
others = st.just(count(b"a"))


@given(st.lists(plain | plain | plain | with_options | others, min_size=1, max_size=12))
def test_puts_without_options_that_follow_each_other_are_one_entry(
    given_: list[pipeline.TransactOperation],
) -> None:
    """As many together as can be, none that asks for more, and no key twice in one."""
    batch = prepare(Request(operations=given_, namespace=NAMESPACE))

    assert batch.names == [each.put.key or each.count.key for each in given_]
    assert [each for part in batch.parts for each in part.requests] == [
        getattr(each, each.WhichOneof("operation") or "") for each in given_
    ]
    for part in batch.parts:
        if not part.puts:
            assert all(isinstance(each, kv.CountRequest) for each in part.requests)
            continue
        made = [puts_of(draft) for draft, _ in part.puts]
        assert [len(puts) for puts in made] == [number for _, number in part.puts]
        assert [put for puts in made for put in puts] == list(map(parse_put, part.requests))
        for draft, number in part.puts:
            assert draft.entry_type == (TYPE_PUT if number == 1 else TYPE_PUT_MANY)
            assert len({each.key for each in puts_of(draft)}) == number
        for puts, following in pairwise(made):
            can_be_together = not has_options(puts[-1]) and not has_options(following[0])
            if can_be_together:
                assert following[0].key in {each.key for each in puts}


def has_options(put: Put) -> bool:
    return (put.ttl_ns, put.lease, put.expected) != (None, None, None)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (put(b""), "KEY_SIZE_INVALID"),
        (put(b"a" * 5_000), "KEY_SIZE_INVALID"),
        (put(b"cg:a"), "KEY_RESERVED"),
        (put(b"a", bytes(9 << 20)), "VALUE_TOO_LARGE"),
        (put(b"a", ttl_ms=1 << 60), "TTL_INVALID"),
        (Operation(), "OPERATION_MISSING"),
    ],
)
def test_an_invalid_operation_of_a_batch_is_refused(
    operation: pipeline.TransactOperation, reason: str
) -> None:
    """Before anything is written, for the reason that its own call would give."""
    with pytest.raises(errors.OnelogError) as caught:
        prepare(Request(operations=[put(b"ok"), operation]))
    assert caught.value.reason == reason


class Twins:
    """Two worlds: one gets a batch's puts one by one, the other as the service puts them."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.apart, self.together = World(), World()
        limits = Limits(versions_max=3, value_size_max=1_000, keys_max=9, tombstones_max=2)
        for world in (self.apart, self.together):
            world.draft(encode_system(NamespaceConfigure(limits), NAMESPACE))
        self.keys = [b"k%d" % number for number in range(12)]

    def step(self) -> type:
        """Run a batch in both; return what it ended as."""
        draw = self.draw
        operations: list[pipeline.TransactOperation] = []
        drafts: list[Draft] = []
        for _ in range(draw.randrange(1, 12)):
            key, value = draw.choice(self.keys), b"%d" % draw.randrange(99)
            if draw.random() < 0.02:
                value = bytes(1_001)
            kinds: list[tuple[kv_commands.Command, pipeline.TransactOperation]] = [
                *[(Put(key, value), put(key, value))] * 9,
                (Delete(key), Operation(delete=kv.DeleteRequest(key=key))),
                (Increment(key, 1), count(key)),
                (Put(key, b"", expected=0), put(key, b"", expected_version=0)),
            ]
            command, operation = draw.choice(kinds)
            operations.append(operation)
            drafts.append(encode_command(command, NAMESPACE))
        wanted = [Condition(draw.choice(self.keys), Target.EXISTS)] * (draw.random() < 0.2)
        (one, *_) = self.apart.group(encode_batch(drafts, wanted, NAMESPACE))
        entries: list[Draft] = []
        for part in prepare(Request(operations=operations, namespace=NAMESPACE)).parts:
            made = [draft for draft, _ in part.puts]
            entries += made or part.write.drafts(None, part.requests, NAMESPACE, None)
        (other, *_) = self.together.group(encode_batch(entries, wanted, NAMESPACE))
        if isinstance(one, Refused):
            assert other == one
        else:
            assert isinstance(other, Applied)
        return type(one)

    def values(self, world: World) -> list[list[bytes | None]]:
        """Return what each key was, newest first."""
        found = [world.state.kv.history(NAMESPACE, key) for key in self.keys]
        return [[past.value for past in each.versions] for each in found if type(each) is History]


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_do_the_same_with_their_puts_together_and_apart(seed: int) -> None:
    """Refused at the same operation for the same reason, or done with the same past of each key."""
    twins = Twins(seed)
    ends = []
    for _ in range(150):
        ends.append(twins.step())
        assert twins.values(twins.apart) == twins.values(twins.together)
        twins.together.state.router.check()

    assert min(ends.count(Applied), ends.count(Refused)) > 20


async def version(node: Node, key: bytes, **fields: Any) -> tuple[int, bytes]:
    item = (await node.kv.Get(kv.GetRequest(key=key, **fields))).item
    return item.version, item.value


def test_each_operation_of_a_batch_has_its_own_result(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await node.queue.CreateQueue(queue_pb2.CreateQueueRequest(queue="q"))
            await node.stream.CreateStream(stream_pb2.CreateStreamRequest(stream="s"))
            enqueue = queue_pb2.EnqueueRequest(queue="q")
            enqueue.messages.add(body=b"m")
            append = stream_pb2.AppendRecordsRequest(stream="s")
            append.records.add(value=b"r")
            request = Request(
                operations=[
                    put(b"a", b"1"), put(b"b", b"2"), count(b"n", 5), put(b"c", b"3"),
                    Operation(enqueue=enqueue), put(b"d", b"4"), put(b"e", b"5"), put(b"f", b"6"),
                    put(b"d", b"7"), put(b"g", b"8"), Operation(append_records=append),
                    put(b"h", b"9", ttl_ms=60_000), put(b"i", b"10"),
                ],
                options=common_pb2.WriteOptions(with_cost=True),
            )  # fmt: skip
            log = node.context.drivers[0].shard.log
            done = await node.pipeline.Transact(request)
            first = done.header.index
            assert log.last_index == first + 9
            assert done.header.HasField("cost")
            kinds = [str(each.WhichOneof("result")) for each in done.results]
            assert kinds == [
                "put", "put", "count", "put", "enqueue", "put", "put", "put", "put", "put",
                "append_records", "put", "put",
            ]  # fmt: skip
            indexes = [
                getattr(each, kind).header.index - first
                for each, kind in zip(done.results, kinds, strict=True)
            ]
            assert indexes == [1, 1, 2, 3, 4, 5, 5, 5, 6, 6, 7, 8, 9]
            assert done.results[2].count.number == 5
            assert done.results[4].enqueue.results[0].message_id == first + 4
            assert done.results[10].append_records.results[0].offset == first + 7
            for key, at, value in (
                (b"a", 1, b"1"), (b"b", 1, b"2"), (b"c", 3, b"3"), (b"d", 6, b"7"),
                (b"e", 5, b"5"), (b"f", 5, b"6"), (b"g", 6, b"8"), (b"i", 9, b"10"),
            ):  # fmt: skip
                assert await version(node, key) == (first + at, value)
            # Of a key that came twice both are kept.
            past = await node.kv.GetHistory(kv.GetHistoryRequest(key=b"d"))
            assert [(each.version - first, each.value) for each in past.versions] == [
                (6, b"7"), (5, b"4"),
            ]  # fmt: skip

    run(test())


def test_a_put_that_is_refused_is_named_and_nothing_of_its_batch_is_done(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            limits = admin_pb2.NamespaceLimits(keys_max=5, value_size_max=1_000)
            await node.admin.CreateNamespace(
                admin_pb2.CreateNamespaceRequest(namespace="small", limits=limits)
            )
            held = kv.PutRequest(namespace="small", key=b"a", value=b"old")
            before = (await node.kv.Put(held)).header.index
            many = [put(key, b"new") for key in (b"a", b"b", b"c")]
            full = [put(b"d"), put(b"e"), put(b"f"), put(b"g")]
            large = [put(b"d"), put(b"a", bytes(1_001)), put(b"e")]
            for operations, position, cause, kind, thing in (
                ([*many, *full], 5, "NAMESPACE_FULL", errors.ResourceExhausted, "small"),
                ([*many, *large], 4, "VALUE_TOO_LARGE", errors.InvalidArgument, "a"),
                ([*many, count(b"n"), *large], 5, "VALUE_TOO_LARGE", errors.InvalidArgument, "a"),
                ([*many, *many, count(b"a")], 6, "NOT_A_NUMBER", errors.FailedPrecondition, "a"),
                ([*many, put(b"d", expected_version=9)], 3, "CONDITION_FAILED",
                 errors.ConditionFailed, "d"),
            ):  # fmt: skip
                request = Request(namespace="small", operations=operations)
                error = await refusal(node.pipeline.Transact(request))
                assert (type(error), error.reason) == (kind, "BATCH_REFUSED")
                named = "namespace" if thing == "small" else "key"
                details = {"position": str(position), "cause": cause, named: thing}
                assert error.metadata == details
                assert error.message.endswith(f"refused: {cause} ({named} {thing!r})")
                assert await version(node, b"a", namespace="small") == (before, b"old")
                kept = await node.kv.List(kv.ListRequest(namespace="small"))
                assert [each.key for each in kept.items] == [b"a"]
            nowhere = Request(namespace="nowhere", operations=[count(b"n"), *many])
            error = await refusal(node.pipeline.Transact(nowhere))
            refused = {"position": "0", "cause": "NAMESPACE_UNKNOWN"}
            assert error.metadata == refused | {"namespace": "nowhere"}
            failing = Request(
                namespace="small",
                conditions=[kv.Condition(key=b"b", exists=True)],
                operations=many,
            )
            error = await refusal(node.pipeline.Transact(failing))
            assert (type(error), error.reason) == (errors.ConditionFailed, "CONDITION_FAILED")
            assert await version(node, b"a", namespace="small") == (before, b"old")
            done = await node.pipeline.Transact(Request(namespace="small", operations=many))
            assert await version(node, b"b", namespace="small") == (done.header.index + 1, b"new")

    run(test())


def test_a_batch_in_a_session_is_done_once_and_answered_alike_by_every_node(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            opened = await nodes[0].pipeline.OpenSession(pipeline.OpenSessionRequest())
            session = common_pb2.Session(session_id=opened.session_id, sequence=1)
            request = Request(
                operations=[put(b"a", b"1"), put(b"b"), count(b"n", 5), put(b"c"), put(b"d")],
                options=common_pb2.WriteOptions(session=session),
            )
            first = await nodes[0].pipeline.Transact(request)
            later = (await nodes[0].kv.Put(kv.PutRequest(key=b"a"))).header.index
            for node in nodes:
                again = await node.pipeline.Transact(request)
                assert again.header.duplicate
                assert again.header.index == first.header.index
                assert again.results == first.results
                assert await version(node, b"a") == (later, b"")
            request.options.session.sequence = 2
            request.operations[3].put.expected_version = 1
            for node in nodes:
                error = await refusal(node.pipeline.Transact(request))
                position = {"position": "3", "cause": "CONDITION_FAILED"}
                assert error.metadata == position | {"key": "c"}
            # It takes one number, however many puts it has.
            request.options.session.sequence = 3
            request.operations[3].put.ClearField("expected_version")
            assert not (await nodes[0].pipeline.Transact(request)).header.duplicate

    run(test())


def test_a_repetition_is_answered_whose_puts_were_entries_of_their_own(tmp_path: Path) -> None:
    """Servers did that before: a session that they kept has a result of each put."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            opened = await node.pipeline.OpenSession(pipeline.OpenSessionRequest())
            ref = SessionRef(opened.session_id, 1, 0)
            commands: list[kv_commands.Command] = [
                Put(b"a", b"1"),
                Put(b"b", b"2"),
                Increment(b"n", 5),
                Put(b"c", b"3"),
            ]
            drafts = [encode_command(command, NAMESPACE) for command in commands]
            driver = node.context.drivers[0]
            batch = encode_batch(drafts, (), NAMESPACE, ref)
            outcome: Any = await driver.propose(batch, node.context.clock.now_s() + 9)
            session = common_pb2.Session(session_id=ref.session, sequence=1)
            request = Request(
                operations=[put(b"a", b"1"), put(b"b", b"2"), count(b"n", 5), put(b"c", b"3")],
                options=common_pb2.WriteOptions(session=session),
            )
            again = await node.pipeline.Transact(request)
            assert again.header.duplicate
            first = outcome.first_index
            assert again.results[2].count.number == 5
            for result, key in ((0, b"a"), (1, b"b"), (3, b"c")):
                index = again.results[result].put.header.index
                assert index == first + 1 + result == (await version(node, key))[0]

    run(test())


def test_a_watch_tells_each_key_of_a_batch_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            watcher = await Watcher(node, with_previous=True).begin()
            start = watcher.cursor
            operations = [put(b"%d" % number, b"v") for number in range(40)]
            refused = Request(operations=[*operations, put(b"x", expected_version=9)])
            await refusal(node.pipeline.Transact(refused))
            operations[20:20] = [count(b"n", 5), put(b"7", b"again"), put(b"8", b"again")]
            first = (await node.pipeline.Transact(Request(operations=operations))).header.index
            await node.kv.Put(kv.PutRequest(key=b"last"))
            expected = [(first + 1, b"%d" % number, b"v") for number in range(20)]
            expected += [(first + 2, b"n", b"5")]
            expected += [(first + 3, key, b"again") for key in (b"7", b"8")]
            expected += [(first + 3, b"%d" % number, b"v") for number in range(20, 40)]
            expected += [(first + 4, b"last", b"")]
            live = await watcher.collect(len(expected))
            assert [(index, key, value) for _, index, key, value, _ in live] == expected
            assert await Watcher(node, cursor=start).collect(len(expected)) == live
            before = {event.key.key: event.key.previous.value for event in watcher.events[21:23]}
            assert before == {b"7": b"v", b"8": b"v"}

    run(test())
