"""grpcio, which is nothing of ours, against a real server: every kind of call, error and end.

Sync and asyncio are two implementations above one core, and programs use both with the stubs that
protoc makes. What the calls do is tested elsewhere; here it is the transport's turn. Programs of
other languages are in test_interop_programs.py.
"""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from onelog.status import error_of
from onelog.v1 import (
    kv_pb2,
    kv_pb2_grpc,
    pipeline_pb2,
    pipeline_pb2_grpc,
    queue_pb2,
    queue_pb2_grpc,
)
from tests.system.certificates import Certificate, authority, signed
from tests.system.nodes import ServeProcess, get, nodes, until

WAIT_S = 30.0
# Longer than a test waits for anything.
NEVER_MS = 600_000
SOON_S = 0.3
# Some times the window with which HTTP/2 begins.
LARGE = bytes(range(256)) * 4_096
AT_ONCE = 300
MESSAGE_BYTES_MAX = 16 << 20


class Caller(Protocol):
    """A channel with the stubs of protoc."""

    def call(self, stub: Any, name: str, request: Any, **options: Any) -> Any:
        """Make a unary call and return its answer."""

    def stream(
        self, stub: Any, name: str, requests: Any, take: int | None = None, **options: Any
    ) -> list[Any]:
        """Return so many answers of a stream and cancel it; without a number, all up to its end."""

    def at_once(self, stub: Any, name: str, requests: Sequence[Any]) -> list[Any]:
        """Make calls that are all under way together."""


class SyncCaller:
    """Grpcio as it is without asyncio."""

    def __init__(self, address: str, credentials: Any = None) -> None:
        self._channel = (
            grpc.secure_channel(address, credentials)
            if credentials
            else grpc.insecure_channel(address)
        )

    def call(self, stub: Any, name: str, request: Any, **options: Any) -> Any:
        return getattr(stub(self._channel), name)(request, **{"timeout": WAIT_S} | options)

    def stream(
        self, stub: Any, name: str, requests: Any, take: int | None = None, **options: Any
    ) -> list[Any]:
        sent = iter(requests) if isinstance(requests, list) else requests
        answers = getattr(stub(self._channel), name)(sent, **{"timeout": WAIT_S} | options)
        if take is None:
            return list(answers)
        taken = [next(answers) for _ in range(take)]
        answers.cancel()
        return taken

    def at_once(self, stub: Any, name: str, requests: Sequence[Any]) -> list[Any]:
        send = getattr(stub(self._channel), name).future
        return [each.result() for each in [send(request, timeout=WAIT_S) for request in requests]]

    def close(self) -> None:
        self._channel.close()


class AioCaller:
    """Grpcio with asyncio, on a loop that runs as long as a call takes."""

    def __init__(self, address: str, credentials: Any = None) -> None:
        self._runner = asyncio.Runner()
        self._channel = self._runner.run(self._open(address, credentials))

    async def _open(self, address: str, credentials: Any) -> Any:
        if credentials:
            return grpc.aio.secure_channel(address, credentials)
        return grpc.aio.insecure_channel(address)

    def call(self, stub: Any, name: str, request: Any, **options: Any) -> Any:
        async def run() -> Any:
            return await getattr(stub(self._channel), name)(
                request, **{"timeout": WAIT_S} | options
            )

        return self._runner.run(run())

    def stream(
        self, stub: Any, name: str, requests: Any, take: int | None = None, **options: Any
    ) -> list[Any]:
        async def run() -> list[Any]:
            answers = getattr(stub(self._channel), name)(requests, **{"timeout": WAIT_S} | options)
            if take is None:
                return [answer async for answer in answers]
            taken = [await answers.read() for _ in range(take)]
            answers.cancel()
            return taken

        return self._runner.run(run())

    def at_once(self, stub: Any, name: str, requests: Sequence[Any]) -> list[Any]:
        async def run() -> list[Any]:
            send = getattr(stub(self._channel), name)
            return await asyncio.gather(*(send(each, timeout=WAIT_S) for each in requests))

        return self._runner.run(run())

    def close(self) -> None:
        self._runner.run(self._channel.close())
        self._runner.close()


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")
KINDS: dict[str, type[SyncCaller] | type[AioCaller]] = {"sync": SyncCaller, "aio": AioCaller}
KV, PIPELINE, QUEUE = kv_pb2_grpc.KVStub, pipeline_pb2_grpc.PipelineStub, queue_pb2_grpc.QueueStub


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with nodes(tmp_path_factory.mktemp("interop"), "n1", shards="2") as made:
        made["n1"].start().until_ready()
        yield made["n1"]


@pytest.fixture(params=sorted(KINDS))
def caller(request: pytest.FixtureRequest, server: ServeProcess) -> Iterator[Caller]:
    made = KINDS[request.param](server.flags["listen"])
    yield made
    made.close()


def put(key: bytes, value: bytes = b"v", **fields: Any) -> kv_pb2.PutRequest:
    return kv_pb2.PutRequest(key=key, value=value, **fields)


def value_of(caller: Caller, key: bytes) -> bytes:
    return bytes(caller.call(KV, "Get", kv_pb2.GetRequest(key=key)).item.value)


def calls_under_way(server: ServeProcess) -> float:
    """Return how many calls the server says have no answer yet."""
    _, page = get(server.http, "/metrics")
    (line,) = (x for x in page.decode().splitlines() if x.startswith("onelog_rpc_under_way "))
    return float(line.split()[1])


def reason_of(error: grpc.RpcError) -> str:
    """Return the stable word in the details of an error."""
    (packed,) = (
        value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"
    )
    found = []
    for each in status_pb2.Status.FromString(packed).details:
        info = error_details_pb2.ErrorInfo()
        if each.Unpack(info):
            found.append(str(info.reason))
    (reason,) = found
    return reason


def test_a_value_larger_than_any_window_goes_both_ways(caller: Caller) -> None:
    """Flow control: neither side may wait for a window that nobody opens."""
    caller.call(KV, "Put", put(b"large", LARGE))
    assert value_of(caller, b"large") == LARGE


def test_a_stream_of_answers_ends_with_ok_after_the_last_one(caller: Caller) -> None:
    keys = [b"scan-%d" % number for number in range(4)]
    caller.at_once(KV, "Put", [put(key, LARGE[:100_000]) for key in keys])
    listing = kv_pb2.ListRequest(range=kv_pb2.KeyRange(prefix=b"scan-"), limit=1)
    answers = caller.stream(KV, "Scan", listing)
    assert sorted(item.key for answer in answers for item in answer.items) == keys[:1]
    listing.limit = 0
    answers = caller.stream(KV, "Scan", listing)
    assert sorted(item.key for answer in answers for item in answer.items) == keys


def test_messages_of_both_sides_share_a_stream_until_the_client_has_no_more(
    caller: Caller,
) -> None:
    requests = [
        pipeline_pb2.ExecuteRequest(
            request_id=number,
            operations=[pipeline_pb2.Operation(put=put(b"both-%d" % number, LARGE[:50_000]))],
        )
        for number in range(1, 21)
    ]
    answers = caller.stream(PIPELINE, "Execute", requests)
    answers += [more for answer in answers for more in answer.more]
    assert sorted(answer.request_id for answer in answers) == list(range(1, 21))
    assert all(answer.results[0].HasField("put") for answer in answers)
    assert caller.stream(PIPELINE, "Execute", []) == []


def test_many_calls_share_a_connection(caller: Caller) -> None:
    keys = [b"many-%d" % number for number in range(AT_ONCE)]
    caller.at_once(KV, "Put", [put(key, key) for key in keys])
    answers = caller.at_once(KV, "Get", [kv_pb2.GetRequest(key=key) for key in keys])
    assert [answer.item.value for answer in answers] == keys


def test_an_error_has_its_code_its_text_and_its_details(caller: Caller) -> None:
    """Text with letters beyond ASCII is percent-encoded on its way, details are base64."""
    with pytest.raises(grpc.RpcError) as refused:
        caller.call(QUEUE, "GetQueue", queue_pb2.GetQueueRequest(queue="größe 100 %"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'größe 100 %'" in refused.value.details()
    assert reason_of(refused.value) == "QUEUE_UNKNOWN"
    with pytest.raises(grpc.RpcError) as refused:
        caller.stream(KV, "Scan", kv_pb2.ListRequest(namespace="none"))
    assert reason_of(refused.value) == "NAMESPACE_UNKNOWN"


def test_a_call_that_the_server_does_not_have_is_unimplemented(caller: Caller) -> None:
    class Strange:
        def __init__(self, channel: Any) -> None:
            self.method = channel.unary_unary("/onelog.v1.KV/Nothing")
            self.service = channel.unary_unary("/nobody.Nothing/Get")

    for name in ("method", "service"):
        with pytest.raises(grpc.RpcError) as refused:
            caller.call(Strange, name, b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, name


def test_a_message_beyond_the_limit_is_refused_and_the_next_call_is_served(caller: Caller) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        caller.call(KV, "Put", put(b"k", bytes(2 * MESSAGE_BYTES_MAX)))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_of(refused.value).reason == "TOO_LARGE"
    caller.call(KV, "Put", put(b"k", b"small"))
    assert value_of(caller, b"k") == b"small"


def test_a_deadline_ends_a_call_and_a_stream_on_both_sides(
    caller: Caller, server: ServeProcess
) -> None:
    """A server that went on after the deadline would work for nobody."""
    name = f"idle-{type(caller).__name__}"
    caller.call(QUEUE, "CreateQueue", queue_pb2.CreateQueueRequest(queue=name))
    lease = queue_pb2.LeaseRequest(queue=name, wait_ms=30_000)
    watch = pipeline_pb2.WatchRequest(progress_ms=NEVER_MS)
    with pytest.raises(grpc.RpcError) as ended:
        caller.stream(PIPELINE, "Watch", watch, timeout=SOON_S)
    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    try:
        # Ours answers in time that there was nothing, if it is the first to see that time is up.
        assert not caller.call(QUEUE, "Lease", lease, timeout=SOON_S).messages
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # noqa: PT017
    until(lambda: calls_under_way(server) == 0 or None)


def test_a_cancelled_stream_ends_on_the_server_too(caller: Caller, server: ServeProcess) -> None:
    watch = pipeline_pb2.WatchRequest(progress_ms=NEVER_MS)
    (begun,) = caller.stream(PIPELINE, "Watch", watch, take=1, timeout=None)
    assert begun.cursor.positions
    until(lambda: calls_under_way(server) == 0 or None)


def test_metadata_arrives_text_and_bytes(caller: Caller) -> None:
    """Values of ``-bin`` keys are base64 on the wire; one that the server reads shows it."""
    some = (("note", "x" * 2_000), ("bytes-bin", bytes(range(256))), ("note", "again"))
    caller.call(KV, "Put", put(b"noted"), metadata=some)
    with pytest.raises(grpc.RpcError) as refused:
        caller.call(KV, "Get", kv_pb2.GetRequest(key=b"k"), metadata=(("onelog-shard", "99"),))
    assert reason_of(refused.value) == "SHARD_UNKNOWN"


def test_messages_may_be_compressed(caller: Caller) -> None:
    """Some clients compress what they send if their program says so, and ask nobody before."""
    caller.call(KV, "Put", put(b"gzip", LARGE), compression=grpc.Compression.Gzip)
    assert value_of(caller, b"gzip") == LARGE


def test_health_is_told_by_call_and_by_stream(caller: Caller) -> None:
    request, serving = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse.SERVING
    assert caller.call(health_pb2_grpc.HealthStub, "Check", request).status == serving
    (first,) = caller.stream(health_pb2_grpc.HealthStub, "Watch", request, take=1)
    assert first.status == serving


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Where a server listens that wants certificates of clients, and where the files are."""
    directory = tmp_path_factory.mktemp("secure")
    ours = authority(directory, "ours")
    theirs = signed(directory, "server", ours)
    signed(directory, "client", ours)
    signed(directory, "stranger", authority(directory, "foreign"))
    flags = {"tls-cert": theirs.chain, "tls-key": theirs.key, "tls-client-ca": ours.chain}
    with nodes(directory, "n1", shards="1") as made:
        made["n1"].flags |= {name: str(path) for name, path in flags.items()}
        made["n1"].start().until_ready()
        yield made["n1"].flags["listen"].replace("127.0.0.1", "localhost"), directory


def credentials(directory: Path, name: str | None) -> grpc.ChannelCredentials:
    root = (directory / "ours.crt").read_bytes()
    if name is None:
        return grpc.ssl_channel_credentials(root)
    own = Certificate(directory / f"{name}.key", directory / f"{name}.crt")
    return grpc.ssl_channel_credentials(root, own.key.read_bytes(), own.chain.read_bytes())


@needs_openssl
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_over_tls_a_client_with_a_certificate_is_served_and_no_other(
    kind: str, secure: tuple[str, Path]
) -> None:
    """Whoever can call can do anything, so the authority is the door."""
    address, directory = secure
    known = KINDS[kind](address, credentials(directory, "client"))
    known.call(KV, "Put", put(b"secret", LARGE))
    assert value_of(known, b"secret") == LARGE
    for stranger in (None, "stranger"):
        refused_caller = KINDS[kind](address, credentials(directory, stranger))
        with pytest.raises(grpc.RpcError) as refused:
            refused_caller.call(KV, "Get", kv_pb2.GetRequest(key=b"secret"))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        refused_caller.close()
    assert value_of(known, b"secret") == LARGE
    known.close()


@needs_openssl
def test_over_tls_the_protocol_is_agreed_by_name(secure: tuple[str, Path]) -> None:
    """Clients of Go and Java close a connection on which ``h2`` was not agreed."""
    address, directory = secure
    context = ssl.create_default_context(cafile=str(directory / "ours.crt"))
    context.load_cert_chain(directory / "client.crt", directory / "client.key")
    context.set_alpn_protocols(["http/1.1", "h2"])
    host, port = address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        assert wrapped.selected_alpn_protocol() == "h2"


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
def test_a_client_without_protos_lists_describes_and_calls(
    version: str, server: ServeProcess
) -> None:
    """What grpcurl and every graphical client do, by both names that reflection has."""

    def run(*arguments: str) -> str:
        script = Path(__file__).with_name("reflecting.py")
        done = subprocess.run(
            [sys.executable, "-P", script, "-plaintext", "-reflect", version, *arguments],
            cwd=server.directory,
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    address = server.flags["listen"]
    names = {f"onelog.v1.{name}" for name in ("Admin", "KV", "Log", "Pipeline", "Queue", "Stream")}
    assert names < set(run(address, "list").split())
    assert "bytes value = 3;" in run(address, "describe", "onelog.v1.PutRequest")
    key = "cmVmbGVjdGVk"  # "reflected"
    run("-d", json.dumps({"key": key, "value": "AAEC"}), address, "onelog.v1.KV/Put")
    found = json.loads(run("-d", json.dumps({"key": key}), address, "onelog.v1.KV/Get"))
    assert found["item"]["value"] == "AAEC"
    listing = json.dumps({"range": {"prefix": key}})
    scanned = json.loads(run("-d", listing, address, "onelog.v1.KV/Scan"))
    assert [item["key"] for item in scanned["items"]] == [key]
