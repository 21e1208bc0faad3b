"""Calls over real sockets, to grpcio's server and to our own core, and all the ways they fail."""

import asyncio
import gc
import shutil
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
import uvloop

from onelog import channel as channels
from onelog.channel import Channel, Exchange, RpcError, client_tls
from onelog.client.calls import Verdict, judge
from onelog.errors import DeadlineExceeded, OnelogError, TooLarge, Unavailable
from onelog.status import error_of
from onelog.wire.grpc import (
    CallStarted,
    ErrorCode,
    Event,
    MessageReceived,
    Metadata,
    ServerConnection,
    Status,
    WireLimits,
)
from tests.cluster.transport.test_transport_tls import certificate
from tests.onelog.client.echoing import (
    BOTH,
    DETAILS,
    FAIL,
    STREAM,
    TEXT,
    UNARY,
    WAIT,
    Wired,
    WiredServer,
    foreign,
    wired,
)
from tests.onelog.client.scripted import until

WAIT_S = 60.0
FACTORIES = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
METADATA: Metadata = (("plain", "a, b"), ("raw-bin", bytes(range(256))), ("raw-bin", b""))

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")
each_loop = pytest.mark.parametrize("loop", FACTORIES)
each_server = pytest.mark.parametrize("kind", ["grpcio", "ours"])


def run(test: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    with asyncio.Runner(loop_factory=FACTORIES[loop]) as runner:
        runner.run(asyncio.wait_for(test, WAIT_S))


@asynccontextmanager
async def connected(endpoint: str, **options: Any) -> AsyncIterator[Channel]:
    """A channel that is closed in the end."""
    channel = Channel(endpoint, **options)
    try:
        yield channel
    finally:
        await channel.close()


@asynccontextmanager
async def ours() -> AsyncIterator[str]:
    async with wired() as (endpoint, _):
        yield endpoint


def served(kind: str) -> AbstractAsyncContextManager[str]:
    return foreign() if kind == "grpcio" else ours()


async def failure_of(call: Coroutine[Any, Any, Any]) -> RpcError:
    with pytest.raises(RpcError) as failed:
        await call
    return failed.value


class Talk(Exchange):
    """A stream both ways that keeps what comes."""

    def __init__(self, channel: Channel, path: str = BOTH) -> None:
        super().__init__(channel, path, ())
        self.messages: list[bytes] = []
        self.status: Status | None = None

    def received(self, data: bytes) -> None:
        self.messages.append(data)
        self.release(len(data))

    def over(self, status: Status) -> None:
        self.status = status


# What works


@each_loop
@each_server
def test_a_request_has_its_answer_whatever_its_size(kind: str, loop: str) -> None:
    """Beyond windows and frames both sides have to let each other send more."""

    async def test() -> None:
        async with served(kind) as endpoint, connected(endpoint) as channel:
            for size in (0, 1, 16_384 - 5, 16_384, 65_535, 5 << 20):
                assert await channel.unary(UNARY, bytes(size), 30.0) == bytes(size)
            answers = await asyncio.gather(
                *(channel.unary(UNARY, b"%d" % number, 30.0) for number in range(500))
            )
            assert answers == [b"%d" % number for number in range(500)]

    run(test(), loop)


@each_server
def test_a_failed_call_says_what_the_server_said(kind: str) -> None:
    async def test() -> None:
        async with served(kind) as endpoint, connected(endpoint) as channel:
            error = await failure_of(channel.unary(FAIL, b"", 30.0, METADATA))
            assert (error.code, error.message, error.details) == (9, TEXT, DETAILS)
            assert sorted(error.metadata, key=repr) == sorted(METADATA, key=repr)
            assert not error.is_unprocessed
            unknown = await failure_of(channel.unary("/tests.Echo/Nothing", b"", 30.0))
            assert (unknown.code, unknown.details) == (12, None)

    run(test())


@each_loop
@each_server
def test_a_stream_of_answers_comes_in_order_and_ends(kind: str, loop: str) -> None:
    async def test() -> None:
        async with served(kind) as endpoint, connected(endpoint) as channel:
            for count, size in ((0, 8), (1, 8), (3_000, 100), (30, 300_000)):
                stream = channel.stream(STREAM, b"%d %d" % (count, size))
                found = [(message[:8], len(message)) async for message in stream]
                assert found == [(b"%08d" % number, size) for number in range(count)]

    run(test(), loop)


@each_server
def test_both_sides_of_a_stream_send_when_they_want(kind: str) -> None:
    async def test() -> None:
        async with served(kind) as endpoint, connected(endpoint) as channel:
            await channel.ready(20.0)
            talk = Talk(channel)
            talk.begin()
            sent = []
            for size in (1, 100_000, 3 << 20, 5):
                await until(lambda: talk.can_send)
                sent.append(bytes(size))
                talk.send(sent[-1])
                talk.flush()
            await until(lambda: talk.messages == sent)
            talk.cancel()
            assert talk.status is not None
            assert talk.status.code == 1
            assert await channel.unary(UNARY, b"next", 20.0) == b"next"

    run(test())


def test_a_call_whose_first_step_was_made_by_hand_is_given_up_without_a_word() -> None:
    """A node does so with calls that it forwards: no task waits for the future yet."""
    unheard: list[dict[str, Any]] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, said: unheard.append(said))
        async with served("ours") as endpoint, connected(endpoint) as channel:
            await channel.ready(20.0)
            calling = channel.unary(WAIT, b"", 30.0)
            calling.send(None)
            with pytest.raises(asyncio.CancelledError):
                calling.throw(asyncio.CancelledError())
            del calling
            gc.collect()
            assert not unheard
            assert channel._link is not None
            assert channel._link.wire.call_count == 0

    run(test())


def test_an_address_of_the_sixth_version_is_in_brackets() -> None:
    async def test() -> None:
        async with wired(host="::1") as (endpoint, _), connected(endpoint) as channel:
            assert endpoint.startswith("[::1]:")
            assert await channel.unary(UNARY, b"six", 20.0) == b"six"

    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    run(test())


def test_calls_of_one_iteration_are_one_write() -> None:
    """Each costs a call of the kernel otherwise, which is most of what a small call takes."""

    async def test() -> None:
        async with wired() as (endpoint, _), connected(endpoint) as channel:
            await channel.unary(UNARY, b"", 20.0)
            link = channel._link
            assert link is not None
            writes = []
            transport = link._transport

            class Counting:
                def write(self, data: bytes) -> None:
                    assert transport is not None
                    writes.append(len(data))
                    transport.write(data)

                def __getattr__(self, name: str) -> Any:
                    return getattr(transport, name)

            link._transport = Counting()  # type: ignore[assignment]
            await asyncio.gather(*(channel.unary(UNARY, b"x", 20.0) for _ in range(50)))
            assert len(writes) == 1

    run(test())


def test_timeouts_that_are_nearly_equal_are_sent_as_one() -> None:
    """A server keeps header blocks by their bytes; what is left of ten seconds is never equal."""
    assert {channels._rounded(10.0 - 0.0001 * number) for number in range(100)} == {10.0}
    for timeout_s in (0.0001, 0.0042, 0.1, 0.123, 1.0, 7.77, 59.9, 299.0, 86_400.0):
        rounded = channels._rounded(timeout_s)
        assert timeout_s <= rounded <= max(timeout_s * 1.1, timeout_s + 0.001)
    assert channels._rounded(-1.0) == 0.001

    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            await channel.ready(20.0)
            for _ in range(3):
                await channel.unary(UNARY, b"", 20.0)
            assert [call.timeout_s for call in server.calls] == [20.0] * 3

    run(test())


# Whoever gives up


def test_a_deadline_is_kept_here_and_the_server_is_told() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            await channel.ready(20.0)
            error = await failure_of(channel.unary(WAIT, b"", 0.05))
            assert (error.code, error.is_unprocessed) == (4, False)
            assert judge(error_of(error)) is Verdict.UNKNOWN
            await until(lambda: server.cancelled)
            assert server.calls[0].timeout_s == 0.05

    run(test())


@each_server
def test_a_task_that_is_cancelled_gives_its_call_up(kind: str) -> None:
    async def test() -> None:
        async with served(kind) as endpoint, connected(endpoint) as channel:
            await channel.ready(20.0)
            calls = [asyncio.ensure_future(channel.unary(WAIT, b"", 30.0)) for _ in range(20)]
            await channel.unary(UNARY, b"", 20.0)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert all(call.cancelled() for call in calls)
            assert channel._link is not None
            assert channel._link.wire.call_count == 0
            assert await channel.unary(UNARY, b"next", 20.0) == b"next"

    run(test())


def test_many_calls_that_are_given_up_while_they_are_answered_cost_no_connection() -> None:
    """Their answers are on their way, and belong to nobody."""

    async def test() -> None:
        async with (
            wired(WireLimits(streams_max=1_900)) as (endpoint, server),
            connected(endpoint) as channel,
        ):
            await channel.ready(20.0)
            calls = [asyncio.ensure_future(channel.unary(WAIT, b"", 30.0)) for _ in range(1_900)]
            await until(lambda: len(server.calls) == 1_900)
            (at,) = server.connections
            for each in server.calls:
                at.wire.respond(each, b"late")
            at.flush()
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            assert await channel.unary(UNARY, b"next", 20.0) == b"next"
            assert len(server.connections) == 1

    run(test())


def test_a_stream_that_is_given_up_ends_at_the_server() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            stream = channel.stream(STREAM, b"1000000 1000")
            assert (await anext(stream))[:8] == b"00000000"
            stream.cancel()
            await until(lambda: server.cancelled)
            assert await channel.unary(UNARY, b"next", 20.0) == b"next"

    run(test())


# Limits


def test_ten_thousand_calls_at_once_wait_for_their_turn() -> None:
    async def test() -> None:
        async with (
            wired(WireLimits(streams_max=100)) as (endpoint, server),
            connected(endpoint) as channel,
        ):
            calls = (channel.unary(UNARY, b"%d" % number, 60.0) for number in range(10_000))
            answers = await asyncio.gather(*calls)
            assert answers == [b"%d" % number for number in range(10_000)]
            assert server.calls_at_once <= 100
            assert len(server.connections) == 1

    run(test())


def test_what_waits_for_its_turn_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a deadline that passes there, or a queue that is full, says that nothing was done."""
    monkeypatch.setattr(channels, "WAITING_CALLS_MAX", 2)

    async def test() -> None:
        async with (
            wired(WireLimits(streams_max=1)) as (endpoint, server),
            connected(endpoint) as channel,
        ):
            await channel.ready(20.0)
            first = asyncio.ensure_future(channel.unary(WAIT, b"", 30.0))
            await until(lambda: server.calls)
            late = asyncio.ensure_future(failure_of(channel.unary(WAIT, b"", 0.05)))
            left = asyncio.ensure_future(channel.unary(WAIT, b"", 30.0))
            await asyncio.sleep(0)
            full = await failure_of(channel.unary(WAIT, b"", 30.0))
            assert (full.code, full.is_unprocessed) == (14, True)
            assert judge(error_of(full)) is Verdict.AGAIN
            expired = await late
            assert (expired.code, expired.is_unprocessed) == (4, True)
            error = error_of(expired)
            assert isinstance(error, DeadlineExceeded)
            assert error.reason == "EXPIRED"
            left.cancel()
            await asyncio.wait((left,))
            first.cancel()
            await asyncio.wait((first,))
            assert await channel.unary(UNARY, b"next", 20.0) == b"next"
            assert len(server.calls) == 2

    run(test())


def test_a_call_does_not_overtake_those_that_wait() -> None:
    async def test() -> None:
        async with (
            wired(WireLimits(streams_max=1)) as (endpoint, server),
            connected(endpoint) as channel,
        ):

            class Next(Talk):
                def over(self, status: Status) -> None:
                    """Call again at the moment at which a place is free."""
                    Talk(channel, BOTH).begin()

            await channel.ready(20.0)
            first = Next(channel, WAIT)
            first.begin()
            first.flush()
            early = asyncio.ensure_future(channel.unary(UNARY, b"early", 30.0))
            await until(lambda: server.calls and channel._waiting)
            server.connections[0].wire.finish(server.calls[0])
            server.connections[0].flush()
            assert await early == b"early"
            await until(lambda: len(server.calls) == 3)
            assert [call.path for call in server.calls] == [WAIT, UNARY, BOTH]

    run(test())


def test_what_the_socket_does_not_take_is_kept_back() -> None:
    """It would pile up in the transport, up to all windows of the server."""

    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            await channel.ready(20.0)
            assert channel._link is not None
            transport = channel._link._transport
            assert transport is not None
            at = server.connections[0].transport
            at.pause_reading()
            for each, option in ((transport, socket.SO_SNDBUF), (at, socket.SO_RCVBUF)):
                each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 1 << 16)
            talks = [Talk(channel) for _ in range(10)]
            for talk in talks:
                talk.begin()
                talk.send(bytes(700_000))
                talk.flush()
            assert transport.get_write_buffer_size() < 1 << 20
            assert not talks[-1].can_send
            at.resume_reading()
            await until(lambda: all(talk.messages == [bytes(700_000)] for talk in talks))

    run(test())


def test_what_is_not_taken_is_not_sent_and_keeps_nobody_else_waiting() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            count, size = 200, 100_000
            stream = channel.stream(STREAM, b"%d %d" % (count, size))
            await until(lambda: server.calls and server.calls[0].unsent_bytes)
            for _ in range(20):
                assert await channel.unary(UNARY, b"beside", 20.0) == b"beside"
            assert server.sent_bytes < 3 << 20
            found = [message[:8] async for message in stream]
            assert found == [b"%08d" % number for number in range(count)]

    run(test())


def test_messages_beyond_the_limit_end_their_own_call_alone() -> None:
    async def test() -> None:
        async with (
            wired() as (endpoint, server),
            connected(endpoint, message_bytes_max=1_000) as channel,
        ):
            error = await failure_of(channel.unary(UNARY, bytes(1_001), 20.0))
            assert (error.code, error.is_unprocessed) == (8, True)
            assert isinstance(error_of(error), TooLarge)
            assert not server.calls
            stream = channel.stream(STREAM, b"1 1001")
            error = await failure_of(stream.__anext__())
            assert (error.code, error.is_unprocessed) == (8, False)
            assert not isinstance(error_of(error), TooLarge)
            assert await channel.unary(UNARY, bytes(1_000), 20.0) == bytes(1_000)
            assert len(server.connections) == 1

    run(test())


def test_metadata_that_no_header_can_hold_fails_its_call_alone() -> None:
    async def test() -> None:
        async with wired() as (endpoint, _), connected(endpoint) as channel:
            await channel.ready(20.0)
            error = await failure_of(channel.unary(UNARY, b"", 20.0, (("plain", "a\nb"),)))
            assert (error.code, error.is_unprocessed) == (3, True)
            assert channel._link is not None
            assert channel._link.wire.call_count == 0
            assert await channel.unary(UNARY, b"next", 20.0) == b"next"

    run(test())


# Servers that go away, refuse, or break off


def test_a_server_that_goes_away_keeps_its_calls_and_new_ones_go_elsewhere() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            await channel.unary(UNARY, b"", 20.0)
            under_way = asyncio.ensure_future(channel.unary(WAIT, b"", 30.0))
            await until(lambda: len(server.calls) == 2)
            old = server.connections[0]
            old.wire.drain()
            old.flush()
            await until(lambda: not channel.is_ready)
            assert await channel.unary(UNARY, b"new", 20.0) == b"new"
            assert len(server.connections) == 2
            assert not old.is_lost
            old.wire.respond(server.calls[1], b"old")
            old.flush()
            assert await under_way == b"old"
            await until(lambda: old.is_lost)

    run(test())


def test_a_connection_whose_numbers_are_used_up_is_replaced() -> None:
    """A billion calls are a day's work of a node that forwards."""

    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            await channel.unary(UNARY, b"", 20.0)
            assert channel._link is not None
            channel._link.wire._next_id = (1 << 31) - 5  # three are left
            stays = asyncio.ensure_future(channel.unary(WAIT, b"", 30.0))
            calls = (channel.unary(UNARY, b"%d" % number, 20.0) for number in range(5))
            assert await asyncio.gather(*calls) == [b"%d" % number for number in range(5)]
            old, _ = server.connections
            assert not old.is_lost
            stays.cancel()
            await until(lambda: old.is_lost)

    run(test())


def test_a_call_that_a_leaving_server_has_not_looked_at_was_not_done() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            await channel.ready(20.0)
            call = asyncio.ensure_future(failure_of(channel.unary(WAIT, b"", 30.0)))
            await until(lambda: server.calls)
            (at,) = server.connections
            # GOAWAY: the last stream is 0, no error.
            at.transport.write(b"\0\0\x08\x07\0" + struct.pack(">III", 0, 0, 0))
            error = await call
            assert (error.code, error.is_unprocessed) == (14, True)
            assert judge(error_of(error)) is Verdict.AGAIN

    run(test())


def test_a_refused_stream_was_not_done_and_a_reset_one_may_have_been() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:

            def reset(at: Wired, event: Event) -> None:
                if type(event) is CallStarted:
                    is_refused = event.call.path == UNARY
                    code = ErrorCode.REFUSED_STREAM if is_refused else ErrorCode.INTERNAL_ERROR
                    at.wire.cancel(event.call, code)

            server.handle = reset
            refused = await failure_of(channel.unary(UNARY, b"", 20.0))
            assert refused.is_unprocessed
            assert error_of(refused).reason == "STREAM_REFUSED"
            assert judge(error_of(refused)) is Verdict.AGAIN
            broken = await failure_of(channel.unary(WAIT, b"", 20.0))
            assert not broken.is_unprocessed
            assert judge(error_of(broken)) is Verdict.UNKNOWN
            # However many: a server that has too much to do may refuse all that there is.
            calls = (failure_of(channel.unary(UNARY, b"", 20.0)) for _ in range(3_000))
            assert all(error.is_unprocessed for error in await asyncio.gather(*calls))
            assert len(server.connections) == 1

    run(test())


def test_a_connection_that_is_cut_after_any_byte_ends_the_call_with_the_truth() -> None:
    """Before the server's settings nothing was sent; after that the call may have been done."""

    async def outcome(cut: int) -> tuple[bytes | RpcError, bool]:
        """Cut a server's answer; return the outcome, and whether it got the request."""
        left, has_call = cut, False

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal left, has_call
            wire = ServerConnection(WireLimits())
            try:
                while True:
                    data = wire.take_output()
                    writer.write(data[:left])
                    left -= min(left, len(data))
                    if not left:
                        break
                    for event in wire.receive(await reader.read(65_536)):
                        if type(event) is MessageReceived:
                            has_call = True
                            wire.respond(event.call, b"answer")
                await writer.drain()
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, connected(f"127.0.0.1:{port}") as channel:
            try:
                return await channel.unary(UNARY, b"question", 20.0), has_call
            except RpcError as error:
                return error, has_call

    async def test() -> None:
        cut, states = 0, []
        while True:
            found, has_call = await outcome(cut)
            if isinstance(found, bytes):
                assert found == b"answer"
                break
            assert found.code == 14
            if has_call:
                assert not found.is_unprocessed, cut
            states.append(found.is_unprocessed)
            cut += 1
        # First not sent, then sent; never the other way round.
        assert states == sorted(states, reverse=True)
        assert {True, False} == set(states)

    run(test())


def test_a_lost_connection_ends_all_calls_and_the_next_one_connects_again() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            await channel.unary(UNARY, b"", 20.0)
            calls = [
                asyncio.ensure_future(failure_of(channel.unary(WAIT, b"", 30.0))) for _ in range(5)
            ]
            stream = channel.stream(STREAM, b"100000 1000")
            await until(lambda: len(server.calls) == 7)
            server.connections[0].transport.abort()
            for error in await asyncio.gather(*calls):
                assert (error.code, error.is_unprocessed) == (14, False)
            with pytest.raises(RpcError):
                async for _ in stream:
                    pass
            assert await channel.unary(UNARY, b"again", 20.0) == b"again"
            assert len(server.connections) == 2

    run(test())


def test_calls_that_wait_for_their_turn_move_to_the_next_connection() -> None:
    async def test() -> None:
        async with (
            wired(WireLimits(streams_max=1)) as (endpoint, server),
            connected(endpoint) as channel,
        ):
            await channel.unary(UNARY, b"", 20.0)
            first = asyncio.ensure_future(failure_of(channel.unary(WAIT, b"", 30.0)))
            await until(lambda: len(server.calls) == 2)
            others = [
                asyncio.ensure_future(channel.unary(UNARY, b"%d" % number, 30.0))
                for number in range(5)
            ]
            await asyncio.sleep(0)
            server.connections[0].transport.abort()
            assert not (await first).is_unprocessed
            assert await asyncio.gather(*others) == [b"%d" % number for number in range(5)]

    run(test())


def test_nobody_there_is_said_at_once_and_found_when_there_is_somebody() -> None:
    async def test() -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{reserved.getsockname()[1]}"
            async with connected(endpoint) as channel:
                for _ in range(3):
                    with pytest.raises(Unavailable, match="NOT_CONNECTED") as failed:
                        await channel.ready(20.0)
                    assert endpoint in str(failed.value)
                    error = await failure_of(channel.unary(UNARY, b"", 20.0))
                    assert (error.code, error.is_unprocessed) == (14, True)
                reserved.close()
                server = WiredServer(WireLimits(), ServerConnection)
                loop = asyncio.get_running_loop()
                host, port = endpoint.split(":")
                listening = await loop.create_server(lambda: Wired(server), host, int(port))
                async with listening, asyncio.timeout(20.0):
                    while not channel.is_ready:
                        try:
                            await channel.ready(20.0)
                        except OnelogError:
                            await asyncio.sleep(0.01)
                    assert await channel.unary(UNARY, b"there", 20.0) == b"there"

    run(test())


def test_after_a_failure_nobody_connects_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or those who call again and again would keep a server that starts from starting."""
    monkeypatch.setattr(channels, "RECONNECT_S_MIN", 40.0)
    monkeypatch.setattr(channels, "RECONNECT_S_MAX", 60.0)
    accepted = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(1)
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, connected(f"127.0.0.1:{port}") as channel:
            for _ in range(5):
                with pytest.raises(Unavailable):
                    await channel.ready(20.0)
                assert (await failure_of(channel.unary(UNARY, b"", 20.0))).is_unprocessed
            assert len(accepted) == 1

    run(test())


@pytest.mark.parametrize("count", [0, 2])
def test_a_request_without_exactly_one_answer_has_failed(count: int) -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:

            def answer(at: Wired, event: Event) -> None:
                if type(event) is MessageReceived:
                    for _ in range(count):
                        at.wire.send(event.call, b"answer")
                    at.wire.finish(event.call)

            server.handle = answer
            error = await failure_of(channel.unary(UNARY, b"", 20.0))
            assert (error.code, error.is_unprocessed) == (13, False)

    run(test())


@pytest.mark.parametrize("endpoint", ["nowhere", "127.0.0.1", ":1", "127.0.0.1:x", "a..b:1"])
def test_an_endpoint_that_is_none_is_not_connected(endpoint: str) -> None:
    async def test() -> None:
        async with connected(endpoint) as channel:
            with pytest.raises(Unavailable, match="NOT_CONNECTED"):
                await channel.ready(20.0)

    run(test())


def test_a_server_that_speaks_something_else_is_not_connected() -> None:
    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, connected(f"127.0.0.1:{port}") as channel:
            with pytest.raises(Unavailable, match="NOT_ONELOG"):
                await channel.ready(20.0)

    run(test())


def test_a_server_that_says_nothing_is_not_waited_for_longer_than_asked() -> None:
    async def test() -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            endpoint = f"127.0.0.1:{listening.getsockname()[1]}"
            async with connected(endpoint) as channel:
                with pytest.raises(Unavailable, match=r"no answer in 0\.05 s"):
                    await channel.ready(0.05)
                error = await failure_of(channel.unary(UNARY, b"", 0.05))
                assert (error.code, error.is_unprocessed) == (4, True)

    run(test())


# Silence


class Pinged(ServerConnection):
    """Counts pings; may ignore them, as a server that is gone does."""

    answers = True
    pings = 0

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        type(self).pings += 1
        if self.answers:
            super()._on_ping(flags, stream_id, payload)


class Gone(Pinged):
    answers = False


def test_a_server_that_answers_pings_may_be_silent_for_long() -> None:
    async def test() -> None:
        async with (
            wired(make_wire=Pinged) as (endpoint, server),
            connected(endpoint, keepalive_s=0.02, keepalive_timeout_s=20.0) as channel,
        ):
            call = asyncio.ensure_future(channel.unary(WAIT, b"", 30.0))
            await until(lambda: Pinged.pings >= 3)
            (at,) = server.connections
            at.wire.respond(server.calls[0], b"at last")
            at.flush()
            assert await call == b"at last"

    run(test())


def test_a_server_that_does_not_answer_a_ping_is_gone() -> None:
    async def test() -> None:
        async with (
            wired(make_wire=Gone) as (endpoint, _),
            connected(endpoint, keepalive_s=0.05, keepalive_timeout_s=0.1) as channel,
        ):
            error = await failure_of(channel.unary(WAIT, b"", 30.0))
            assert (error.code, error.is_unprocessed) == (14, False)
            assert "ping" in error.message

    run(test())


def test_a_connection_that_nobody_uses_is_closed_and_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "TICK_S", 0.01)
    monkeypatch.setattr(channels, "IDLE_S", 0.02)

    async def test() -> None:
        async with wired(make_wire=Pinged) as (endpoint, server), connected(endpoint) as channel:
            for number in range(1, 3):
                assert await channel.unary(UNARY, b"x", 20.0) == b"x"
                assert len(server.connections) == number
                await until(lambda: server.connections[-1].is_lost)
            await channel.ready(20.0)  # nobody calls
            await until(lambda: len(server.connections) == 3 and server.connections[-1].is_lost)
            await channel.ready(20.0)

    run(test())


# The end


def test_closing_fails_what_is_under_way_and_leaves_nothing() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server):
            channel, tasks = Channel(endpoint), asyncio.all_tasks()
            calls = [
                asyncio.ensure_future(failure_of(channel.unary(WAIT, b"", 30.0))) for _ in range(3)
            ]
            stream = channel.stream(WAIT, b"")
            await until(lambda: len(server.calls) == 4)
            await channel.close()
            assert {error.code for error in await asyncio.gather(*calls)} == {14}
            with pytest.raises(RpcError):
                await anext(stream)
            with pytest.raises(Unavailable):
                await channel.ready(20.0)
            error = await failure_of(channel.unary(UNARY, b"", 20.0))
            assert error.is_unprocessed
            await until(lambda: server.connections[0].is_lost)
            assert asyncio.all_tasks() == tasks

    run(test())


def test_closing_ends_an_attempt_that_has_not_begun() -> None:
    async def test() -> None:
        async with wired() as (endpoint, _):
            channel = Channel(endpoint)
            waiting = asyncio.ensure_future(channel.ready(30.0))
            closing = asyncio.ensure_future(channel.close())
            await closing
            with pytest.raises(Unavailable, match="closed"):
                await asyncio.wait_for(waiting, 10.0)

    run(test())


def test_closing_does_not_wait_for_a_server_that_reads_nothing() -> None:
    async def test() -> None:
        async with wired() as (endpoint, server), connected(endpoint) as channel:
            await channel.ready(20.0)
            server.connections[0].transport.pause_reading()
            for _ in range(100):
                channel.stream(UNARY, bytes(1 << 20))
            await asyncio.sleep(0)
            attempt = Channel(endpoint)
            waiting = asyncio.ensure_future(failure_of(attempt.unary(UNARY, b"", 20.0)))
            await asyncio.sleep(0)
            await attempt.close()
            assert (await waiting).is_unprocessed

    run(test())


# TLS


def server_tls(directory: Path, *, clients: str | None = None, alpn: bool = True) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    if alpn:
        context.set_alpn_protocols(["h2"])
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(directory / f"{clients}.crt")
    return context


@needs_openssl
@each_loop
@each_server
def test_certificates_are_shown_and_asked_for_on_both_sides(
    kind: str, loop: str, tmp_path: Path
) -> None:
    key, chain = certificate(tmp_path, "server")
    client_key, client_chain = certificate(tmp_path, "client")
    foreign_key, foreign_chain = certificate(tmp_path, "foreign")

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        if kind == "grpcio":
            credentials = grpc.ssl_server_credentials(
                [(key, chain)], client_chain, require_client_auth=True
            )
            async with foreign(credentials) as endpoint:
                yield endpoint
        else:
            async with wired(tls=server_tls(tmp_path, clients="client")) as (endpoint, _):
                yield endpoint

    async def test() -> None:
        async with serve() as endpoint:
            known = client_tls(chain, client_chain, client_key)
            async with connected(endpoint, tls=known, server_name="localhost") as channel:
                assert await channel.unary(UNARY, bytes(1 << 20), 30.0) == bytes(1 << 20)
            refused = [
                (client_tls(chain, None, None), "localhost"),  # shows nothing
                (client_tls(chain, foreign_chain, foreign_key), "localhost"),
                (client_tls(foreign_chain, client_chain, client_key), "localhost"),
                (client_tls(None, client_chain, client_key), "localhost"),
                (known, None),  # 127.0.0.1 is not its name
                (known, "elsewhere"),
                (None, None),
            ]
            for tls, name in refused:
                async with connected(endpoint, tls=tls, server_name=name) as channel:
                    # A server may close the connection without saying that it wants a certificate.
                    reasons = "CERTIFICATE_REFUSED|CONNECTION_CLOSED"
                    with pytest.raises(Unavailable, match=reasons):
                        await channel.ready(20.0)

    run(test(), loop)


@needs_openssl
def test_a_server_that_does_not_agree_on_http2_is_not_connected(tmp_path: Path) -> None:
    _, chain = certificate(tmp_path, "server")

    async def test() -> None:
        async with wired(tls=server_tls(tmp_path, alpn=False)) as (endpoint, _):
            tls = client_tls(chain, None, None)
            async with connected(endpoint, tls=tls, server_name="localhost") as channel:
                with pytest.raises(Unavailable, match="ALPN"):
                    await channel.ready(20.0)

    run(test())


@needs_openssl
def test_certificates_that_are_none_are_refused_and_keys_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, chain = certificate(tmp_path, "server")
    kept = tmp_path / "temporary"
    kept.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    client_tls(chain, chain, key)
    for parts in ((b"no PEM", None, None), (chain, b"no PEM", key), (chain, chain, b"no PEM")):
        with pytest.raises((OSError, ValueError)):
            client_tls(*parts)
    assert list(kept.iterdir()) == []
