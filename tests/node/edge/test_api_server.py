"""The API port: calls that wait for nothing, writes, time, limits, and peers that misbehave."""

import asyncio
import logging
import shutil
import ssl
from contextlib import AsyncExitStack
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog.errors import DeadlineExceeded
from onelog.node.config.schema import LimitSettings, SecuritySettings
from onelog.node.credentials import Credentials
from onelog.node.edge import port as api_server
from onelog.node.edge.exchange import MESSAGES_PER_TURN, Exchange
from onelog.node.errors import ConfigError
from onelog.node.replica.direct_future import DirectFuture
from onelog.node.replica.driver import own_task
from onelog.wire.http2 import PREFACE
from tests.cluster.transport.test_transport_tls import certificate
from tests.node.edge.api_peer import NAME, WAIT_S, Port, both, peer, port, run, stream, unary, until

CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE = 1, 4, 8, 12, 14


def call_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("/")]


# Tasks


def test_a_call_that_waits_for_nothing_has_no_task_and_one_that_waits_has() -> None:
    """A task costs more than the rest of such a call."""
    seen: list[bool] = []
    go = asyncio.Event()

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        seen.append(asyncio.current_task() is None)
        if request == b"wait":
            await go.wait()
            seen.append(asyncio.current_task() is None)
        return request

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            call = client.begin("Wait", b"no")
            client.flush()
            assert await client.outcome(call) == (0, [b"no"])
            assert seen == [True]
            call = client.begin("Wait", b"wait")
            client.flush()
            await until(lambda: at.gate.under_way == 1)
            assert call_tasks() == [f"/{NAME}/Wait"]
            go.set()
            assert await client.outcome(call) == (0, [b"wait"])
            assert seen == [True, True, False]
            await until(lambda: not call_tasks())

    run(test())


def test_errors_and_results_of_what_a_first_step_waited_for_reach_the_handler() -> None:
    """The rest of a handler runs as if its task had run all of it."""
    futures: list[asyncio.Future[bytes]] = []
    caught: list[str] = []

    async def wait(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
        futures.append(asyncio.get_running_loop().create_future())
        try:
            return await futures[-1]
        except LookupError as error:
            caught.append(str(error))
            await asyncio.sleep(0)
            return b"caught"

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            calls = [client.begin("Wait", b"") for _ in range(2)]
            client.flush()
            await until(lambda: len(futures) == 2)
            futures[0].set_result(b"result")
            futures[1].set_exception(LookupError("why"))
            assert await client.outcome(calls[0]) == (0, [b"result"])
            assert await client.outcome(calls[1]) == (0, [b"caught"])
            assert caught == ["why"]

    run(test())


def test_what_needs_a_task_in_the_first_step_gets_one() -> None:
    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        await own_task()
        async with asyncio.timeout(20):
            await asyncio.sleep(0)
        return request

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            call = client.begin("Wait", b"x")
            client.flush()
            assert await client.outcome(call) == (0, [b"x"])

    run(test())


def test_a_call_that_waits_for_its_shard_continues_in_the_call_that_ends_that() -> None:
    """A task and a turn of the loop for each answer are an eighth of what a put costs."""
    futures: list[DirectFuture[bytes]] = []
    found: ContextVar[bytes] = ContextVar("found", default=b"none")

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        found.set(request)
        answer = b""
        for _ in range(2):
            futures.append(DirectFuture())
            answer += await futures[-1]
        return found.get() + b" " + answer

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            calls = [client.begin("Wait", name) for name in (b"a", b"b")]
            client.flush()
            await until(lambda: len(futures) == 2)
            futures[0].set_result(b"1")
            assert len(futures) == 3
            futures[2].set_result(b"2")
            assert at.gate.under_way == 1
            assert not call_tasks()
            assert await client.outcome(calls[0]) == (0, [b"a 12"])
            futures[1].set_result(b"3")
            futures[3].set_result(b"4")
            assert await client.outcome(calls[1]) == (0, [b"b 34"])

    run(test())


def test_what_needs_a_task_behind_an_outcome_gets_its_own() -> None:
    """An outcome may come in a task that ticks: a timeout there would cancel the ticks."""
    futures: list[DirectFuture[bytes]] = []
    names: list[str] = []

    async def wait(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
        futures.append(DirectFuture())
        answer = await futures[-1]
        await own_task()
        task = asyncio.current_task()
        assert task is not None
        names.append(task.get_name())
        async with asyncio.timeout(20):
            await asyncio.sleep(0)
        return answer

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            call = client.begin("Wait", b"")
            client.flush()
            await until(lambda: futures)
            futures[0].set_result(b"x")
            assert await client.outcome(call) == (0, [b"x"])
            assert names == [f"/{NAME}/Wait"]

    run(test())


def test_context_variables_stay_with_their_call() -> None:
    """Handlers of one read run one after the other in the same callback of the loop."""
    found: ContextVar[bytes] = ContextVar("found", default=b"none")
    go = asyncio.Event()

    async def note(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        before = found.get()
        found.set(request)
        await go.wait()
        return before + b" " + found.get()

    async def test() -> None:
        async with port(unary("Note", note)) as at, peer(at.number) as client:
            for _ in range(2):  # the first time they wait, the second time they do not
                calls = [client.begin("Note", name) for name in (b"a", b"b")]
                client.flush()
                await until(lambda: go.is_set() or at.gate.under_way == 2)
                go.set()
                assert await client.outcome(calls[0]) == (0, [b"none a"])
                assert await client.outcome(calls[1]) == (0, [b"none b"])

    run(test())


# Writes


class Counting:
    """A transport that counts how often it is written to."""

    def __init__(self, transport: Any) -> None:
        self.writes = 0
        self._transport = transport

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def test_answers_that_are_ready_together_leave_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each write is a system call, and a packet where nothing else waits."""
    monkeypatch.setattr(api_server, "ALONE", (1e6, 32))  # a slow machine may need two turns for 50
    go = asyncio.Event()

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        await go.wait()
        return request

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            call = client.begin("Echo", b"x")
            client.flush()
            await client.outcome(call)
            counting = Counting(at.connection._transport)
            at.connection._transport = counting  # type: ignore[assignment]
            calls = [client.begin("Echo", b"%d" % each) for each in range(50)]
            client.flush()
            for each in calls:
                await client.outcome(each)
            assert counting.writes == 1
            calls = [client.begin("Wait", b"%d" % each) for each in range(50)]
            client.flush()
            await until(lambda: at.gate.under_way == 50)
            assert counting.writes == 1
            go.set()
            for number, each in enumerate(calls):
                assert await client.outcome(each) == (0, [b"%d" % number])
            assert counting.writes == 2

    run(test())


def test_a_connection_that_is_cancelled_as_it_is_made_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop closes its socket without a word; a node that stopped wrote to it and failed."""

    async def test() -> None:
        async with port() as at:
            loop = asyncio.get_running_loop()
            connect, made = loop.connect_accepted_socket, list[asyncio.Transport]()

            async def cancelled(*arguments: Any, **options: Any) -> Any:
                transport, _ = await connect(*arguments, **options)
                made.append(transport)
                raise asyncio.CancelledError

            monkeypatch.setattr(loop, "connect_accepted_socket", cancelled)
            reader, writer = await asyncio.open_connection("127.0.0.1", at.number)
            await until(lambda: made and len(at.api.acceptor._tasks) == 1)  # that accepts
            assert not at.api.connections
            assert not at.api.acceptor.count
            made[0].abort()  # other loops tell of its end after all: it is counted out once
            await reader.read()
            assert not at.api.acceptor.count
            writer.close()

    run(test())


# Ends of calls


@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_calls_that_are_reset_at_once_leave_nothing_behind(kind: str) -> None:
    """A client may reset a call in the same packet that began it, thousands of times.

    Hardly any of them begins: only those whose reset is looked at later than the call.
    """
    begun, cleaned, calls = 0, 0, 100

    async def wait(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
        nonlocal begun, cleaned
        begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            cleaned += 1
        return b""

    async def test() -> None:
        method = unary("Wait", wait) if kind == "unary" else stream("Wait", wait)
        async with port(method) as at, peer(at.number) as client:
            await client.outcome(client.begin("Echo", b"before"))
            for _ in range(calls):
                client.core.cancel(client.begin("Wait", b"x"))
            call = client.begin("Echo", b"after")
            client.flush()
            assert await client.outcome(call) == (0, [b"after"])
            await until(lambda: not at.gate.under_way and not call_tasks())
            most = 3 * calls // api_server.ALONE[1] + 1
            assert begun == cleaned
            assert begun <= most
            assert not at.connection.exchanges
            name, labels = "onelog_rpc_seconds_count", {"service": NAME, "method": "Wait"}
            counted = at.metrics.registry.get_sample_value(name, labels | {"code": "CANCELLED"})
            assert begun <= (counted or 0) <= most

    run(test())


def test_a_call_that_waits_for_its_shard_is_cancelled_with_what_it_waits_for() -> None:
    """What was not proposed yet is left out of the log when nobody waits for it any more."""
    futures: list[DirectFuture[bytes]] = []
    ends: list[str] = []

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        futures.append(DirectFuture())
        try:
            return await futures[-1]
        except asyncio.CancelledError:
            ends.append(request.decode())
            raise

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            reset = client.begin("Wait", b"reset")
            client.flush()
            await until(lambda: futures)
            client.core.cancel(reset)
            client.flush()
            await until(lambda: ends == ["reset"])
            assert futures[0].cancelled()
            call = client.begin("Wait", b"cut")
            client.flush()
            await until(lambda: at.gate.under_way == 1)
            at.connection.cut(DeadlineExceeded("late"))
            assert ends == ["reset", "cut"]
            assert await client.outcome(call) == (DEADLINE_EXCEEDED, [])
            assert not at.gate.under_way
            assert not at.connection.exchanges

    run(test())


def test_a_client_that_disconnects_cancels_its_calls() -> None:
    ends: list[str] = []

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append(request.decode())
            raise
        return b""

    async def test() -> None:
        async with port(unary("Wait", wait), stream("Watch", wait)) as at:
            async with peer(at.number) as client:
                client.begin("Wait", b"unary")
                client.begin("Watch", b"stream")
                client.flush()
                await until(lambda: len(call_tasks()) == 2)
            await until(lambda: sorted(ends) == ["stream", "unary"])
            await until(lambda: not at.api.connections and not at.gate.under_way)

    run(test())


def test_a_call_beyond_its_clients_deadline_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every client has a clock of its own for it, and a handler may wait for ever."""
    monkeypatch.setattr(api_server, "LOOK_S", 0.02)
    ends: list[bytes] = []

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(request)
        return b""

    async def test() -> None:
        async with (
            port(unary("Wait", wait), stream("Watch", wait)) as at,
            peer(at.number) as client,
        ):
            calls = [client.begin(name, name.encode(), 0.1) for name in ("Wait", "Watch")]
            client.flush()
            for call in calls:
                assert await client.outcome(call) == (DEADLINE_EXCEEDED, [])
            await until(lambda: sorted(ends) == [b"Wait", b"Watch"] and not at.gate.under_way)

    run(test())


def test_a_call_that_the_server_cancels_itself_is_answered() -> None:
    """Nobody waits for ever, and the connection does not end with it."""

    async def give_up(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        if request == b"later":
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    async def test() -> None:
        methods = unary("GiveUp", give_up), stream("Stop", give_up)
        async with port(*methods) as at, peer(at.number) as client:
            calls = [client.begin("GiveUp", each) for each in (b"now", b"later")]
            calls.append(client.begin("Stop", b"now"))
            client.flush()
            for call in calls:
                assert await client.outcome(call) == (CANCELLED, [])
            assert not at.gate.under_way

    run(test())


def test_a_method_that_nobody_has_is_unimplemented() -> None:
    async def test() -> None:
        async with port() as at, peer(at.number) as client:
            call = client.begin("Nothing", b"x")
            client.flush()
            code, _ = await client.outcome(call)
            assert code == UNIMPLEMENTED
            assert client.ended[call.stream_id].details is not None

    run(test())


# Limits


def test_connections_above_the_limit_are_closed_until_others_end() -> None:
    async def test() -> None:
        limits = LimitSettings(connections_max=2, connections_per_address_max=2)
        async with port(limits=limits) as at:
            async with peer(at.number) as one, peer(at.number) as two:
                for each in (one, two):
                    call = each.begin("Echo", b"x")
                    each.flush()
                    assert await each.outcome(call) == (0, [b"x"])
                async with peer(at.number) as three:
                    await three.read_until(lambda: False)
                    assert three.is_closed
                call = one.begin("Echo", b"x")
                one.flush()
                assert await one.outcome(call) == (0, [b"x"])
            await until(lambda: not at.api.connections)
            async with peer(at.number) as again:
                call = again.begin("Echo", b"x")
                again.flush()
                assert await again.outcome(call) == (0, [b"x"])

    run(test())


def test_a_connection_with_few_calls_gets_in_where_others_have_all_of_them() -> None:
    """The newest calls of the largest are cut; the first ones, and those of others, go on."""
    cut: list[bytes] = []
    go = asyncio.Event()

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        try:
            await go.wait()
        except asyncio.CancelledError:
            cut.append(request)
            raise
        return request

    async def test() -> None:
        limits = LimitSettings(concurrent_rpcs_max=16)
        async with (
            port(unary("Wait", wait), limits=limits) as at,
            peer(at.number) as large,
            peer(at.number) as small,
            peer(at.number) as late,
        ):
            calls = [large.begin("Wait", b"large %d" % each) for each in range(8)]
            large.flush()
            others = [small.begin("Wait", b"small %d" % each) for each in range(7)]
            small.flush()
            await until(lambda: at.gate.under_way == 15)
            new = [late.begin("Wait", b"late %d" % each) for each in range(5)]
            late.flush()
            # The fifth is refused: that many get in, and no more.
            assert (await late.outcome(new.pop()))[0] == RESOURCE_EXHAUSTED
            await until(lambda: at.gate.under_way == 16)
            # A quarter of the first, then of the second, which had more by then.
            assert cut == [b"large 7", b"large 6", b"small 6"]
            assert (await large.outcome(calls[7]))[0] == DEADLINE_EXCEEDED
            assert at.gate._cut == 0
            go.set()
            for each in new:
                assert (await late.outcome(each))[0] == 0
            for each in calls[:6]:
                assert (await large.outcome(each))[0] == 0
            for each in others[:6]:
                assert (await small.outcome(each))[0] == 0
            await until(lambda: not at.gate.under_way)
            assert not any(each.admitted for each in at.api.connections)

    run(test())


def test_a_connection_without_a_preface_is_closed_and_an_idle_one_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_server, "LOOK_S", 0.02)
    monkeypatch.setattr(api_server, "PREFACE_S", 0.3)

    async def test() -> None:
        async with port() as at, peer(at.number) as idle:
            idle.flush()
            await until(lambda: len(at.api.connections) == 1)
            for sent in (b"", PREFACE[:23]):
                async with peer(at.number) as silent:
                    silent.writer.write(sent)
                    async with asyncio.timeout(WAIT_S):
                        await silent.reader.read()  # until its end
            call = idle.begin("Echo", b"still there")
            idle.flush()
            assert await idle.outcome(call) == (0, [b"still there"])

    run(test())


def test_a_silent_connection_without_calls_is_asked_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_server, "LOOK_S", 0.02)
    monkeypatch.setattr(api_server, "KEEPALIVE_IDLE_S", 0.1)
    monkeypatch.setattr(api_server, "KEEPALIVE_TIMEOUT_S", 3.0)

    async def test() -> None:
        async with port() as at, peer(at.number) as idle, peer(at.number) as gone:
            idle.flush()
            gone.flush()
            reading = asyncio.create_task(idle.read_until(lambda: False))
            await until(lambda: len(at.api.connections) == 2)
            # The one that reads answers pings, the other one does not.
            await until(lambda: len(at.api.connections) == 1)
            call = idle.begin("Echo", b"still there")
            idle.flush()
            await until(lambda: call.stream_id in idle.ended)
            reading.cancel()

    run(test())


LARGE = bytes(1 << 20)
# SETTINGS with windows of nothing; with a WINDOW_UPDATE, as wide as can be.
NO_WINDOW = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00"
WIDE_WINDOWS = (
    b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff"
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\x00\x00\x00"
)


async def large(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
    return LARGE


def test_a_peer_that_reads_nothing_is_cut_off_and_another_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its windows are as wide as can be, so only the socket holds the answers back."""
    monkeypatch.setattr(api_server, "LOOK_S", 0.02)
    monkeypatch.setattr(api_server, "STALL_S", 0.5)

    async def test() -> None:
        async with port(unary("Large", large)) as at, peer(at.number) as other:
            async with peer(at.number) as greedy:
                greedy.writer.write(PREFACE + WIDE_WINDOWS)
                greedy.core.take_output()
                for _ in range(100):
                    greedy.begin("Large", b"")
                greedy.flush()
                await until(lambda: any(each._is_paused for each in at.api.connections))
                call = other.begin("Echo", b"x")
                other.flush()
                assert await other.outcome(call) == (0, [b"x"])
                await until(lambda: len(at.api.connections) == 1)
            call = other.begin("Echo", b"y")
            other.flush()
            assert await other.outcome(call) == (0, [b"y"])

    run(test())


def test_those_who_read_nothing_of_what_was_under_way_are_sent_away_in_the_order_of_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Calls that wait are all under way before the first answer finds out that nobody reads."""
    go = asyncio.Event()

    async def wait(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
        await go.wait()
        return LARGE

    async def test() -> None:
        limits = LimitSettings(in_flight_bytes_max=16 << 20)
        async with port(unary("Wait", wait), limits=limits) as at, AsyncExitStack() as stack:
            other = await stack.enter_async_context(peer(at.number))
            for count in (10, 20, 30, 40):
                greedy = await stack.enter_async_context(peer(at.number))
                greedy.writer.write(PREFACE + WIDE_WINDOWS)
                greedy.core.take_output()
                for _ in range(count):
                    greedy.begin("Wait", b"")
                greedy.flush()
            await until(lambda: at.gate.under_way == 100)
            go.set()
            await until(lambda: not at.gate.under_way)
            kept = sorted(each.kept_bytes for each in at.api.connections)
            assert sum(kept) == at.api._kept_bytes <= api_server.kept_bytes_max(limits)
            assert "is sent away, which holds" in caplog.text
            # The two that hold the least are together below the limit, so they stay.
            assert len(kept) >= 2
            call = other.begin("Echo", b"x")
            other.flush()
            assert await other.outcome(call) == (0, [b"x"])

    run(test())


def test_headers_of_calls_count_into_what_all_connections_hold(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each connection is within its limits: only together do they hold too much."""

    async def wait(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def test() -> None:
        limits = LimitSettings(in_flight_bytes_max=1 << 20, message_bytes_max=64 << 10)
        metadata = (("a", "v" * 15_000),)
        allowed = api_server.kept_bytes_max(limits) // 15_000
        few, many = allowed // 3, allowed
        async with port(unary("Wait", wait), limits=limits) as at, AsyncExitStack() as stack:
            other = await stack.enter_async_context(peer(at.number))
            for count in (few, many):
                greedy = await stack.enter_async_context(peer(at.number))
                greedy.core.peer_streams_max = count
                for _ in range(count):
                    call = greedy.core.start(f"/{NAME}/Wait", metadata, None)
                    greedy.core.send(call, b"", is_last=True)
                greedy.flush()
                await until(lambda: at.gate.under_way >= few)
            await greedy.read_until(lambda: greedy.is_going_away)
            assert "is sent away, which holds" in caplog.text
            await until(lambda: at.gate.under_way == few)
            assert at.api._kept_bytes <= api_server.kept_bytes_max(limits)
            call = other.begin("Echo", b"x")
            other.flush()
            assert await other.outcome(call) == (0, [b"x"])

    run(test())


@pytest.mark.parametrize("limited", ["all connections", "one connection"])
def test_of_those_who_share_a_connection_only_the_one_that_holds_the_most_loses_its_calls(
    limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A node forwards calls of many clients on one connection; one that reads nothing fills it."""
    go = asyncio.Event()

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        await go.wait()
        return LARGE if request == b"large" else request

    async def test() -> None:
        limits = LimitSettings(
            in_flight_bytes_max=(8 if limited == "all connections" else 64) << 20
        )
        async with port(unary("Wait", wait), limits=limits) as at, peer(at.number) as node:
            node.writer.write(PREFACE + NO_WINDOW)
            node.core.take_output()
            greedy = [node.begin("Wait", b"large", client="1.1.1.1:1") for _ in range(80)]
            innocent = [node.begin("Wait", b"small", client="2.2.2.2:2") for _ in range(3)]
            node.flush()
            await until(lambda: at.gate.under_way == 83)
            go.set()
            await node.read_until(lambda: all(each.stream_id in node.ended for each in greedy))
            codes = {node.ended[each.stream_id].code for each in greedy}
            assert codes == {RESOURCE_EXHAUSTED}
            assert "for 1.1.1.1:1 are reset" in caplog.text
            node.writer.write(WIDE_WINDOWS)
            for call in innocent:
                assert await node.outcome(call) == (0, [b"small"])
            call = node.begin("Echo", b"x", client="3.3.3.3:3")
            node.flush()
            assert await node.outcome(call) == (0, [b"x"])
            assert not node.is_going_away
            assert not at.gate.under_way
            await until(lambda: not at.connection.kept_bytes)

    run(test())


def test_one_of_many_who_share_a_connection_gets_in_although_another_has_all_calls() -> None:
    """An attacker whose calls a node forwards must not keep that node's other clients out."""

    async def wait(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def test() -> None:
        limits = LimitSettings(concurrent_rpcs_max=64)  # 32 on one connection
        async with port(unary("Wait", wait), limits=limits) as at, AsyncExitStack() as stack:
            shared = [await stack.enter_async_context(peer(at.number)) for _ in range(3)]
            for node, count in zip(shared, (22, 21, 21), strict=True):
                for _ in range(count):
                    node.begin("Wait", b"", client="1.1.1.1:1")
                node.flush()
            await until(lambda: at.gate.under_way == 64)
            for node in shared:
                call = node.begin("Echo", b"x", client="2.2.2.2:2")
                node.flush()
                assert await node.outcome(call) == (0, [b"x"])
            # Who has many already makes room for nobody.
            call = shared[0].begin("Echo", b"x", client="1.1.1.1:1")
            late = [shared[0].begin("Wait", b"", client="1.1.1.1:1") for _ in range(9)]
            shared[0].flush()
            await shared[0].read_until(lambda: late[-1].stream_id in shared[0].ended)
            assert shared[0].ended[late[-1].stream_id].code == RESOURCE_EXHAUSTED

    run(test())


def test_answers_that_wait_for_a_window_are_bounded_and_dropped_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client with windows of nothing must not make the server keep what it never takes."""
    monkeypatch.setattr(api_server, "LOOK_S", 0.02)
    monkeypatch.setattr(api_server, "STALL_S", 1.0)
    go = asyncio.Event()

    async def wait(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
        await go.wait()  # so that all are under way before the first answer
        return LARGE

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as greedy:
            greedy.writer.write(PREFACE + NO_WINDOW)
            greedy.core.take_output()
            calls = [greedy.begin("Wait", b"") for _ in range(100)]
            greedy.flush()
            await until(lambda: at.gate.under_way == len(calls))
            go.set()
            core = at.connection._core
            limit = core.limits.unsent_bytes_max
            # Those beyond the limit have their status at once.
            await greedy.read_until(lambda: greedy.ended)
            assert limit // 2 < core.unsent_bytes <= limit
            assert set(greedy.ended.values()).pop().code == DEADLINE_EXCEEDED
            # The others are reset.
            await greedy.read_until(lambda: len(greedy.ended) == len(calls))
            assert len(greedy.ended) == len(calls)
            assert core.unsent_bytes == 0
            assert not at.connection.exchanges

    run(test())


def test_calls_of_a_client_that_leaves_its_answers_wait_until_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would be carried out in vain; now all are answered, in order, and few at a time."""
    # Nothing waits for a look, nor for the client: its windows are as wide as all of it.
    monkeypatch.setattr(api_server, "LOOK_S", 600.0)
    monkeypatch.setattr(api_server, "ALONE", (0.0002, 32))
    monkeypatch.setattr(api_server, "ANSWERS_UNREAD_MAX", 128 << 10)
    each_answer = bytes(32 << 10)
    begun: list[bytes] = []

    async def answer(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        begun.append(request)
        return each_answer

    async def test() -> None:
        async with port(unary("Large", answer)) as at, peer(at.number) as slow:
            slow.writer.write(PREFACE + NO_WINDOW)
            slow.core.take_output()
            calls = [slow.begin("Large", b"%d" % each) for each in range(100)]
            slow.flush()
            await until(lambda: at.api.connections and len(at.connection.exchanges) > 80)
            connection, most = at.connection, api_server.ANSWERS_UNREAD_MAX // len(each_answer) + 1
            assert len(begun) <= most
            assert connection.kept_bytes <= (most + 1) * len(each_answer)
            assert at.gate.under_way == 0
            # One that is given up leaves no trace.
            slow.core.cancel(calls[50])
            slow.writer.write(slow.core.take_output())
            await until(
                lambda: len(connection.held) == len(connection.exchanges) == 99 - len(begun)
            )
            # One that comes with the window does not get in before the others.
            slow.begin("Large", b"100")
            slow.writer.write(WIDE_WINDOWS + slow.core.take_output())
            await slow.read_until(lambda: len(slow.ended) == 100)
            assert {status.code for status in slow.ended.values()} == {0}
            assert begun == [b"%d" % each for each in range(101) if each != 50]
            assert not connection.held
            assert not connection.exchanges

    run(test())


def test_calls_that_are_held_end_with_their_deadline_and_with_their_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_server, "LOOK_S", 0.02)

    async def test() -> None:
        async with port(unary("Large", large)) as at:
            async with peer(at.number) as slow:
                slow.writer.write(PREFACE + NO_WINDOW)
                slow.core.take_output()
                for _ in range(20):
                    slow.begin("Large", b"")
                call = slow.begin("Large", b"", timeout_s=0.2)
                slow.flush()
                assert await slow.outcome(call) == (DEADLINE_EXCEEDED, [])
                connection = at.connection
                assert len(connection.held) == len(connection.exchanges) > 0
            await until(lambda: not at.api.connections)
            assert not connection.held
            assert not connection.exchanges
            assert at.gate.under_way == 0

    run(test())


def test_calls_of_a_client_that_leaves_a_stream_unread_are_carried_out() -> None:
    """It may be about to call before it reads on: to hold that call would stop both for ever."""

    async def send(exchange: Exchange, _request: bytes, _size: int) -> None:
        exchange.send(bytes(2 * api_server.ANSWERS_UNREAD_MAX))
        await exchange.sent()

    async def test() -> None:
        async with port(stream("Send", send)) as at, peer(at.number) as client:
            client.begin("Send", b"")
            client.flush()
            await until(lambda: at.api.connections and at.connection._core.unsent_bytes)
            assert at.connection._core.unsent_bytes > api_server.ANSWERS_UNREAD_MAX
            call = client.begin("Echo", b"x")
            call.send_window = 1 << 20
            client.flush()
            await until(lambda: at.metrics.rpcs.request_bytes == 1)
            assert not at.connection.held

    run(test())


def test_a_stream_that_is_not_read_waits_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    async def pour(exchange: Exchange, _request: bytes, _size: int) -> None:
        nonlocal sent
        for _ in range(64):
            sent += 1
            if not exchange.send(bytes(64 << 10)):
                await exchange.sent()

    async def test() -> None:
        async with port(stream("Pour", pour)) as at, peer(at.number) as client:
            call = client.begin("Pour", b"")
            client.flush()
            await until(lambda: sent and call_tasks())
            before = -1
            while before != sent:  # until it waits
                before = sent
                for _ in range(10):
                    await asyncio.sleep(0)
            assert sent < 64
            code, messages = await client.outcome(call)
            assert (code, len(messages)) == (0, 64)

    run(test())


# Bad peers


GARBAGE = {
    "http/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300),
    "zeros": bytes(4096),
    "frames": PREFACE + bytes(9) + b"\xff" * 512,
    "no settings": PREFACE + b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8),
    "table": PREFACE + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 4, 1, 5, 0, 0, 0, 1)) + b"\xff" * 4,
}


def test_garbage_ends_its_own_connection_and_is_logged_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with port() as at, peer(at.number) as other:
            for _ in range(20):
                for garbage in GARBAGE.values():
                    async with peer(at.number) as bad:
                        bad.writer.write(garbage)
                        await bad.read_until(lambda: False)
                        assert bad.is_closed
                    call = other.begin("Echo", garbage)
                    other.flush()
                    assert await other.outcome(call) == (0, [garbage])
            await until(lambda: len(at.api.connections) == 1)

    with caplog.at_level(logging.WARNING):
        run(test())
    times = [each.created for each in caplog.records if each.name == "onelog.node.api"]
    assert times
    assert all(later - earlier > 0.9 for earlier, later in pairwise(times))
    assert not [each for each in caplog.records if each.levelno > logging.WARNING]


# Stopping


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.count += 1
        self._loop.call_soon(self._next)


@pytest.mark.parametrize("others", [0, 1])
def test_others_have_their_turn_while_thousands_of_calls_of_one_read_are_carried_out(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One write of a client may hold seconds of work, for which no other client should wait.

    Turns are shorter while there is another client that calls.
    """
    for name in ("ALONE", "BESIDE_OTHERS"):
        monkeypatch.setattr(api_server, name, (0.0, getattr(api_server, name)[1]))
    monkeypatch.setattr(api_server, "SHARED_S", 600.0)
    frames = (api_server.BESIDE_OTHERS if others else api_server.ALONE)[1]
    seen: set[int] = set()

    async def test() -> None:
        turns = Turns()

        async def note(_exchange: Exchange, request: bytes, _size: int) -> bytes:
            seen.add(turns.count)
            return request

        async with AsyncExitStack() as stack:
            at = await stack.enter_async_context(port(unary("Note", note)))
            client = await stack.enter_async_context(peer(at.number))
            await client.outcome(client.begin("Echo", b"before"))  # now it knows what it may
            for _ in range(others):
                other = await stack.enter_async_context(peer(at.number))
                await other.outcome(other.begin("Echo", b"another"))
            calls = [client.begin("Note", b"x") for _ in range(1000)]
            client.flush()
            await client.read_until(lambda: len(client.ended) > len(calls))
            turns_min = len(calls) * 2 // frames // 2
            assert len(seen) > turns_min
            if not others:
                assert len(seen) < 4 * turns_min
            # And the connection is read again.
            after = client.begin("Echo", b"after")
            client.flush()
            assert await client.outcome(after) == (0, [b"after"])

    run(test())


def test_others_have_their_turn_while_a_stream_takes_thousands_of_messages() -> None:
    """Messages whose answers wait for nothing would stop the loop until the last one."""
    seen: set[int] = set()

    async def test() -> None:
        turns = Turns()

        async def take(_exchange: Exchange, messages: Any, _size: int) -> None:
            async for _ in messages:
                seen.add(turns.count)

        async with port(both("Take", take)) as at, peer(at.number) as client:
            call = client.core.start(f"/{NAME}/Take")
            for number in range(1000):
                client.core.send(call, b"x", is_last=number == 999)
            client.flush()
            assert await client.outcome(call) == (0, [])
            assert len(seen) > 1000 // MESSAGES_PER_TURN // 2

    run(test())


def test_what_a_peer_sent_is_repeated_in_part() -> None:
    """A status is sent in headers, which clients take 8 KiB of; and each byte costs time."""

    async def test() -> None:
        async with port() as at, peer(at.number) as client:
            call = client.begin("x" * 10_000, b"")
            await client.outcome(call)
            status = client.ended[call.stream_id]
            assert status.code == UNIMPLEMENTED
            assert len(status.message) < 200
            assert status.details is not None
            assert len(status.details) < 400

    run(test())


def test_a_drain_says_goaway_and_lets_calls_end_then_a_stop_cuts_the_rest() -> None:
    go, waiting = asyncio.Event(), asyncio.Event()

    async def wait(_exchange: Exchange, request: bytes, _size: int) -> bytes:
        await (go if request == b"ends" else waiting).wait()
        return request

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            ends, never = client.begin("Wait", b"ends"), client.begin("Wait", b"never")
            client.flush()
            await until(lambda: at.gate.under_way == 2)
            at.api.drain()
            await client.read_until(lambda: client.is_going_away)
            assert not client.core.can_start
            # New connections are answered: health, and a reason for everything else.
            async with peer(at.number) as late:
                call = late.begin("Echo", b"x")
                late.flush()
                assert await late.outcome(call) == (0, [b"x"])
            go.set()
            assert await client.outcome(ends) == (0, [b"ends"])
            stopping = asyncio.create_task(at.api.stop(0.05))
            assert await client.outcome(never) == (UNAVAILABLE, [])
            await client.read_until(lambda: False)
            assert client.is_closed
            await stopping
            assert not at.api.connections
            assert not call_tasks()
            with pytest.raises(OSError, match="Connect"):
                await asyncio.open_connection("127.0.0.1", at.number)

    run(test())


def test_a_stop_waits_for_calls_that_wait_for_their_shard_one_time_after_the_other() -> None:
    futures: list[DirectFuture[bytes]] = []

    async def wait(_exchange: Exchange, _request: bytes, _size: int) -> bytes:
        for _ in range(2):
            futures.append(DirectFuture())
            await futures[-1]
        return b"done"

    async def test() -> None:
        async with port(unary("Wait", wait)) as at, peer(at.number) as client:
            call = client.begin("Wait", b"")
            client.flush()
            await until(lambda: futures)
            stopping = asyncio.create_task(at.api.stop(WAIT_S))
            await client.read_until(lambda: client.is_going_away)
            futures[0].set_result(b"")
            for _ in range(10):  # whoever stops sees that the first wait is over
                await asyncio.sleep(0)
            futures[1].set_result(b"")
            assert await client.outcome(call) == (0, [b"done"])
            await stopping

    run(test())


def test_a_port_is_taken_from_the_moment_that_it_is_bound() -> None:
    """Also before connections are accepted: the node says where it listens before that."""

    async def test() -> None:
        async with port() as at:
            with pytest.raises(ConfigError, match=r"cannot listen for clients on .*listen\.api"):
                async with port(number=at.number):
                    pass

    run(test())


# TLS

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")


def client_tls(directory: Path, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(directory / "known.crt"))
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


@needs_openssl
def test_over_tls_both_sides_have_to_name_http2(tmp_path: Path) -> None:
    async def check(at: Port, tls: ssl.SSLContext) -> bool:
        async with peer(at.number, ssl=tls, server_hostname="localhost") as client:
            call = client.begin("Echo", b"x")
            client.flush()
            await client.read_until(lambda: call.stream_id in client.ended)
            return not client.is_closed

    async def test() -> None:
        certificate(tmp_path, "known")
        security = SecuritySettings(api_cert=tmp_path / "known.crt", api_key=tmp_path / "known.key")
        async with port(security=security) as at:
            assert await check(at, client_tls(tmp_path, "h2"))
            assert await check(at, client_tls(tmp_path, "http/1.1", "h2"))
            assert not await check(at, client_tls(tmp_path, "http/1.1"))
            assert not await check(at, client_tls(tmp_path))
            assert at.api.acceptor._tls is not None
            assert at.api.acceptor._tls.minimum_version == ssl.TLSVersion.TLSv1_2
            # No TLS at all.
            async with peer(at.number) as plain:
                plain.begin("Echo", b"x")
                plain.flush()
                await plain.read_until(lambda: False)
                assert not plain.ended
            await until(lambda: not at.api.connections and not at.api.acceptor.count)

    run(test())


@needs_openssl
def test_where_clients_have_an_authority_only_theirs_get_in(tmp_path: Path) -> None:
    async def check(at: Port, own: str | None) -> bytes:
        credentials = grpc.ssl_channel_credentials(
            (tmp_path / "known.crt").read_bytes(),
            None if own is None else (tmp_path / f"{own}.key").read_bytes(),
            None if own is None else (tmp_path / f"{own}.crt").read_bytes(),
        )
        address = f"localhost:{at.number}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            answer: bytes = await channel.unary_unary(f"/{NAME}/Echo")(b"x", timeout=20)
            return answer

    async def test() -> None:
        for name in ("known", "client", "foreign"):
            certificate(tmp_path, name)
        security = SecuritySettings(
            api_cert=tmp_path / "known.crt",
            api_key=tmp_path / "known.key",
            api_client_ca=tmp_path / "client.crt",
        )
        async with port(security=security) as at:
            assert await check(at, "client") == b"x"
            for own in ("foreign", None):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await check(at, own)
                assert error.value.code() == grpc.StatusCode.UNAVAILABLE

    run(test())


@needs_openssl
def test_bad_certificates_are_settings_that_are_wrong(tmp_path: Path) -> None:
    certificate(tmp_path, "known")
    cert, key = tmp_path / "known.crt", tmp_path / "known.key"
    nothing, bad = tmp_path / "nothing", tmp_path / "bad"
    bad.write_text("no certificate")
    for wrong in (
        SecuritySettings(api_cert=nothing, api_key=key),
        SecuritySettings(api_cert=cert, api_key=bad),
        SecuritySettings(api_cert=cert, api_key=key, api_client_ca=bad),
        SecuritySettings(api_cert=cert, api_key=key, api_client_ca=nothing),
    ):
        with pytest.raises(ConfigError, match=r"nothing|bad"):
            Credentials(wrong)
