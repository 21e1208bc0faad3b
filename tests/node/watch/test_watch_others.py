"""Shards of other processes: what they send is passed on, and nobody is behind it too early."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from onelog.client.options import Scope
from onelog.client.tail import AsyncTail
from onelog.errors import OutOfRange
from onelog.node.edge.waits import Timeouts
from onelog.node.services.stream_tail import TAIL_METHOD, RecordPage
from onelog.node.watch.feeds import PAGE_BYTES_MAX
from onelog.node.watch.watch import MESSAGES_WAITING_MAX, Follower, Others
from onelog.v1 import common_pb2
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import run, until

NAMES = {0: "a", 1: "b"}


def answer(shard: int, index: int, *offsets: int, size: int = 1) -> bytes:
    """What the process of a shard sends."""
    position = common_pb2.Position(shard=shard, index=index)
    message = pb.TailResponse(cursor=common_pb2.Cursor(positions=[position]))
    for offset in offsets:
        message.records.add(stream=NAMES[shard], offset=offset, value=bytes(size))
    data: bytes = message.SerializeToString()
    return data


class Siblings:
    """Two processes, each with a shard, that say what a test wants."""

    def __init__(self) -> None:
        self.said: dict[str, asyncio.Queue[bytes | Exception]] = {
            each: asyncio.Queue() for each in ("a", "b")
        }
        edge: Any = SimpleNamespace(calls=SimpleNamespace(forwarder=self), timeouts=Timeouts())
        self.follower = Follower(edge, self._begin, RecordPage, 60.0)

    async def _begin(self, follower: Follower) -> None:
        parts = {"a": (b"", [0]), "b": (b"", [1])}
        call: Any = SimpleNamespace(client="127.0.0.1:1", metadata=())
        await follower.follow_others(TAIL_METHOD, pb.TailResponse, parts, call)

    @property
    def waiting(self) -> int:
        """How many messages of them wait."""
        return sum(len(each._messages) for each in self.follower.parts if isinstance(each, Others))

    async def stream(self, endpoint: str, *_: object) -> AsyncIterator[bytes]:
        """See ``Forwarder``."""
        while True:
            data = await self.said[endpoint].get()
            if isinstance(data, Exception):
                raise data
            yield data

    def say(self, endpoint: str, *messages: bytes | Exception) -> None:
        for message in messages:
            self.said[endpoint].put_nowait(message)


def test_the_first_message_is_empty_though_one_of_the_others_is_far_ahead() -> None:
    async def test() -> None:
        siblings = Siblings()
        more = [answer(0, 10 + n, 10 + n) for n in range(MESSAGES_WAITING_MAX + 3)]
        siblings.say("a", answer(0, 5), *more)
        messages = siblings.follower
        first = asyncio.ensure_future(anext(messages))
        await until(lambda: siblings.waiting == MESSAGES_WAITING_MAX)
        assert not first.done()
        siblings.say("b", answer(1, 7))
        begun = await first
        assert not begun.records
        assert {each.shard: each.index for each in begun.cursor.positions} == {0: 5, 1: 7}
        offsets: list[int] = []
        while len(offsets) < len(more):
            offsets += [each.offset for each in (await anext(messages)).records]
        assert offsets == [10 + n for n in range(len(more))]
        await siblings.follower.aclose()

    run(test())


def test_why_one_of_the_others_ends_is_told_before_and_after_it_has_begun() -> None:
    async def test() -> None:
        for begun in ((), (answer(1, 7),)):
            siblings = Siblings()
            siblings.say("a", answer(0, 5), answer(0, 6, 6))
            siblings.say("b", *begun, OutOfRange("gone", reason="COMPACTED"))
            with pytest.raises(OutOfRange):
                async for _ in siblings.follower:
                    pass
            await siblings.follower.aclose()

    run(test())


def test_messages_of_others_are_put_together_only_as_far_as_they_fit() -> None:
    """Each may be as large as a message may be."""

    async def test() -> None:
        siblings = Siblings()
        sizes = [PAGE_BYTES_MAX // 3, PAGE_BYTES_MAX // 3, 9 << 20, 1, 9 << 20]
        said = [answer(0, 10 + n, 10 + n, size=size) for n, size in enumerate(sizes)]
        siblings.say("a", answer(0, 5), *said)
        siblings.say("b", answer(1, 5))
        messages = siblings.follower
        await anext(messages)
        await until(lambda: siblings.waiting == MESSAGES_WAITING_MAX)
        counts: list[int] = []
        while sum(counts) < len(sizes):
            counts.append(len((await anext(messages)).records))
        assert counts == [2, 1, 1, 1]
        await siblings.follower.aclose()

    run(test())


class Scripted:
    """A connection on which a tail is answered what a test says; keeps the cursors it asked for."""

    def __init__(self, *answers: bytes) -> None:
        self.calls = self.topology = self
        self.asked: list[common_pb2.Cursor] = []
        self._answers = [pb.TailResponse.FromString(each) for each in answers]

    async def ready(self, _timeout_s: float) -> None:
        """See ``Connection``."""

    def find_shard(self, name: bytes) -> int:
        return {name: shard for shard, name in NAMES.items()}[name.decode()]

    async def stream(self, _path: str, request: Any, **_: object) -> AsyncIterator[Any]:
        self.asked.append(common_pb2.Cursor.FromString(request().cursor.SerializeToString()))
        for each in self._answers:
            yield each


async def take_one(*answers: bytes) -> dict[int, int]:
    """Take one record of a tail, and return from where another asks that goes on there."""
    starts = [pb.TailStart(stream=name, from_offset=0) for name in NAMES.values()]
    connection: Any = Scripted(*answers)
    async with AsyncTail(connection, Scope(), starts, None, None) as tail:
        await anext(tail)
        cursor = tail.cursor
    again: Any = Scripted(answer(0, 99))
    await AsyncTail(again, Scope(), starts, None, cursor).start()
    (asked,) = again.asked
    return {each.shard: each.index for each in asked.positions}


def test_a_tail_whose_first_answer_holds_records_goes_on_behind_those_that_were_taken() -> None:
    async def test() -> None:
        first = pb.TailResponse.FromString(answer(0, 12, 10, 11, 12))
        first.MergeFromString(answer(1, 12, 8, 9))
        assert await take_one(first.SerializeToString()) == {0: 10, 1: 7}
        # As servers do it now: the first is empty.
        assert await take_one(answer(0, 9), answer(0, 12, 10, 11, 12)) == {0: 10}

    run(test())
