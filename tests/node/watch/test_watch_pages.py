"""What one message holds: bounded by the bytes that are sent, whatever the log makes of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog.client.client import AsyncClient
from onelog.node.config.schema import LimitSettings
from onelog.node.services.stream_tail import RecordPage
from onelog.node.watch.events import Event, KeyEvent, StreamEvent
from onelog.node.watch.feeds import PAGE_BYTES_MAX, EventPage, Feed
from onelog.projections.kv.changes import Change
from onelog.projections.kv.reads import KeyValue
from onelog.projections.limits import KEY_SIZE_MAX, NAMESPACE_SIZE_MAX, VALUE_SIZE_MAX
from onelog.ual.entry import OWNER_KV, Entry
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import queue_pb2
from tests.node.services.nodes import Node, run, single, until
from tests.node.services.streams import S, append, on_a_node
from tests.node.services.test_stream_tail import Tail, at, create_streams
from tests.node.watch.test_watch import Watcher
from tests.node.watch.test_watch_past import History, applied, position, read_all

MESSAGE_BYTES_MAX = LimitSettings().message_bytes_max
RECORDS = 40
RECORD = 1 << 20


async def fill(node: Node) -> None:
    """Append records that are small in the log and large in a message."""
    for _ in range(RECORDS):
        await append(node, bytes(RECORD))


def test_records_that_compress_well_make_no_large_messages(tmp_path: Path) -> None:
    """Whoever is told live, reads the log, or begins anew: a client takes 16 MiB at a time."""

    async def test(node: Node) -> None:
        await create_streams(node, S)
        live, tail = await Watcher(node).begin(), await Tail(node, at()).begin()
        start = live.cursor
        await fill(node)
        for watcher in (live, Watcher(node, cursor=start)):
            while len(watcher.events) < RECORDS:
                before = len(watcher.events)
                await watcher.read()
                assert sum(each.ByteSize() for each in watcher.events[before:]) < 2 * RECORD
        for each in (tail, Tail(node, at(from_offset=0))):
            while len(each.records) < RECORDS:
                before = len(each.records)
                await each.read()
                assert sum(r.ByteSize() for r in each.records[before:]) < 3 * RECORD

    on_a_node(tmp_path, test, shards=1)


def test_what_waits_for_a_watcher_is_counted_as_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        await create_streams(node, S)
        await Watcher(node).begin()
        held = 0
        take = Feed.take

        def counting(feed: Feed, events: list[Any]) -> None:
            nonlocal held
            take(feed, events)
            kept: list[Any] = [each for _, its, _ in feed._buffer or () for each in its]
            held = max(held, sum(len(each.record.value) for each in kept))

        monkeypatch.setattr(Feed, "take", counting)
        await fill(node)
        assert 0 < held <= 2 * RECORD

    on_a_node(tmp_path, test, shards=1)


def test_headers_count_for_a_page_of_records_as_well(tmp_path: Path) -> None:
    """Sixty-four of them may be a hundred times as large as the value."""

    async def test(node: Node) -> None:
        await create_streams(node, S)
        headers = [queue_pb2.Header(name=f"h{number}", value=bytes(4_000)) for number in range(64)]
        for _ in range(12):
            await append(node, b"", headers=headers)
        tail = Tail(node, at(from_offset=0))
        while len(tail.records) < 12:
            before = len(tail.records)
            await tail.read()
            assert sum(each.ByteSize() for each in tail.records[before:]) < 2 * PAGE_BYTES_MAX

    on_a_node(tmp_path, test, shards=1)


def test_a_large_key_that_is_written_again_is_told_with_the_value_before(tmp_path: Path) -> None:
    """Together with what came before it would be more than a message may be."""

    async def test(node: Node) -> None:
        async with AsyncClient(node.endpoint) as client:
            watch = client.watch(with_previous=True)
            async with watch:
                start = watch.cursor
                large = bytes(VALUE_SIZE_MAX)
                await node.kv.Put(kv.PutRequest(key=b"{t}large", value=large))
                for number in range(5):
                    await node.kv.Put(kv.PutRequest(key=b"{t}%d" % number, value=bytes(100_000)))
                await node.kv.Put(kv.PutRequest(key=b"{t}large", value=large))
                async with asyncio.timeout(20):
                    live = [await anext(watch) for _ in range(7)]
            async with asyncio.timeout(20), client.watch(with_previous=True, cursor=start) as again:
                assert [await anext(again) for _ in range(7)] == live
            assert live[-1].previous is not None
            assert live[-1].previous.value == large

    on_a_node(tmp_path, test, shards=1)


def test_the_largest_event_fits_into_a_message() -> None:
    """So a page with one event can always be sent."""
    entry = Entry(OWNER_KV << 8 | 1, 0, 1 << 62, 1 << 62, 1 << 62, 0, b"")
    key, value = bytes(KEY_SIZE_MAX), bytes(VALUE_SIZE_MAX)
    change = Change("n" * NAMESPACE_SIZE_MAX, key, value, 1 << 63, 1 << 63)
    event = KeyEvent(entry, change, _State(KeyValue(key, value, 1 << 62, 1 << 63, 1 << 63)))  # type: ignore[arg-type]
    assert event.settle(with_previous=True)
    page = EventPage(with_previous=True)
    page.add(1 << 16, event)
    size = page.message.ByteSize()
    assert len(value) * 2 < size <= page.size
    assert size + 1_000 * 40 < MESSAGE_BYTES_MAX  # with the cursor of a thousand shards


class _State:
    """A state that knows what a key was."""

    def __init__(self, found: KeyValue) -> None:
        self.kv, self._found = self, found

    def get(self, _namespace: str, _key: bytes, as_of: int) -> KeyValue:
        assert as_of
        return self._found


@pytest.mark.parametrize("seed", range(3))
def test_no_event_is_larger_than_it_is_taken_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    checked = 0
    add = EventPage.add

    def checking(self: EventPage, shard: int, event: Event) -> None:
        nonlocal checked
        checked += 1
        add(self, shard, event)
        assert self.message.ByteSize() <= self.size
        if isinstance(event, StreamEvent) and event.record is not None:
            record = RecordPage()
            record.add(shard, event)
            assert record.message.ByteSize() <= record.size

    monkeypatch.setattr(EventPage, "add", checking)

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await History(node, seed).go_on(80)
            await until(lambda: applied(node) > 80)
            await read_all(node, position(0), with_previous=True)

    run(test())
    assert checked > 50
