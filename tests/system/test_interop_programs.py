"""Programs that are nothing of ours against a real server: grpc-js, nghttp, curl and h2load.

``make interop`` installs what npm has and says which packages Debian has; a program that is missing
is a failure, not something to leave out. grpcio is in test_interop.py, which needs nothing more.
"""

import gzip
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pytest

from bench.unary_load import parse_summary
from onelog.v1 import kv_pb2, kv_pb2_grpc
from tests.system.certificates import authority, signed
from tests.system.nodes import ServeProcess, nodes
from tests.system.processes import ROOT

pytestmark = pytest.mark.interop

WAIT_S = 60.0
CALLS = 1_000
CURL_TIMED_OUT = 28
GRPC = ("content-type: application/grpc", "te: trailers")
SCRIPT = Path(__file__).with_name("interop_client.js")
CASES = (
    "unary", "at_once", "server_stream", "watch", "both_stream", "error", "deadline",
    "cancellation", "metadata", "gzip",
)  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServeProcess]:
    with nodes(directory, "plain", shards="2") as made:
        yield made["plain"].start()


@pytest.fixture(scope="module")
def secure(directory: Path) -> Iterator[ServeProcess]:
    """A server that wants certificates of clients."""
    ours = authority(directory, "ours")
    theirs = signed(directory, "server", ours)
    signed(directory, "client", ours)
    signed(directory, "stranger", authority(directory, "foreign"))
    flags = {"tls-cert": theirs.chain, "tls-key": theirs.key, "tls-client-ca": ours.chain}
    with nodes(directory, "secure", shards="1") as made:
        made["secure"].flags |= {name: str(path) for name, path in flags.items()}
        yield made["secure"].start()


def run(*command: str | Path) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, with no proxy between it and the server."""
    environment = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    environment["NODE_PATH"] = str(ROOT / "build" / "interop" / "node_modules")
    return subprocess.run(
        command, env=environment, capture_output=True, timeout=WAIT_S, check=False
    )


def run_script(case: str, server: ServeProcess, *files: Path) -> None:
    server.until_ready()
    address = server.flags["listen"].replace("127.0.0.1", "localhost")
    done = run("node", SCRIPT, case, address, server.http, ROOT / "proto", *files)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


def body(directory: Path, message: bytes, *, compressed: bool = False) -> Path:
    """Write a message as a body of a request, behind its prefix."""
    data = gzip.compress(message) if compressed else message
    path = directory / "body"
    path.write_bytes(struct.pack(">BI", compressed, len(data)) + data)
    return path


def url(server: ServeProcess, call: str) -> str:
    server.until_ready()
    return f"http://{server.flags['listen']}/onelog.v1.KV/{call}"


def put(key: bytes, value: bytes) -> bytes:
    return bytes(kv_pb2.PutRequest(key=key, value=value).SerializeToString())


def kv(server: ServeProcess, call: str, request: object) -> object:
    """Make a call by grpcio: what the others did must be there."""
    with grpc.insecure_channel(server.flags["listen"]) as channel:
        stub = kv_pb2_grpc.KVStub(channel)  # type: ignore[no-untyped-call]
        answer: object = getattr(stub, call)(request, timeout=WAIT_S)
        return answer


def value_of(server: ServeProcess, key: bytes) -> bytes:
    answer = kv(server, "Get", kv_pb2.GetRequest(key=key))
    assert isinstance(answer, kv_pb2.GetResponse)
    return answer.item.value


@pytest.mark.parametrize("case", CASES)
def test_grpc_js_does_all_kinds_of_calls(case: str, server: ServeProcess) -> None:
    """Node's gRPC is written in JavaScript alone: another reading of the same documents."""
    run_script(case, server)


def test_grpc_js_over_tls_is_served_with_a_certificate_and_not_without(
    secure: ServeProcess, directory: Path
) -> None:
    root = directory / "ours.crt"
    own = (directory / "client.crt", directory / "client.key")
    foreign = (directory / "stranger.crt", directory / "stranger.key")
    run_script("unary", secure, root, *own)
    run_script("both_stream", secure, root, *own)
    run_script("refused", secure, root)
    run_script("refused", secure, root, *foreign)
    run_script("unary", secure, root, *own)


@pytest.mark.parametrize("padding", [0, 64])
def test_nghttp_posts_a_message_and_reads_the_trailers(
    padding: int, server: ServeProcess, directory: Path
) -> None:
    """It speaks HTTP/2 with priorities and padding, and knows nothing of gRPC."""
    headers = [f"--header={each}" for each in GRPC]
    data = body(directory, put(b"nghttp", b"frames"))
    command = ("nghttp", "--verbose", f"--padding={padding}", f"--data={data}", *headers)
    done = run(*command, url(server, "Put"))
    said = done.stdout.decode(errors="replace")
    assert done.returncode == 0, said
    assert ":status: 200" in said
    assert "grpc-status: 0" in said
    assert value_of(server, b"nghttp") == b"frames"


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_curl_posts_a_message_with_prior_knowledge(
    server: ServeProcess, directory: Path, *, compressed: bool
) -> None:
    """And compressed by hand, which proves that the server takes what others only may send."""
    headers = [*GRPC, *(["grpc-encoding: gzip"] if compressed else [])]
    value = b"by hand " * 10_000 + (b"gzip" if compressed else b"")
    data = body(directory, put(b"curl", value), compressed=compressed)
    answer, head = directory / "answer", directory / "head"
    done = run(
        *("curl", "--silent", "--show-error", "--http2-prior-knowledge"),
        *(part for each in headers for part in ("--header", each)),
        *("--data-binary", f"@{data}", "--output", answer, "--dump-header", head),
        url(server, "Put"),
    )
    assert done.returncode == 0, done.stderr
    said = head.read_text()
    assert said.startswith("HTTP/2 200")
    assert "grpc-status: 0" in said.splitlines()
    message = answer.read_bytes()
    assert struct.unpack(">BI", message[:5]) == (0, len(message) - 5)
    assert kv_pb2.PutResponse.FromString(message[5:]).header.index > 0
    assert value_of(server, b"curl") == value


def test_curl_over_tls_agrees_on_http_2_and_needs_its_certificate(
    secure: ServeProcess, directory: Path
) -> None:
    secure.until_ready()
    port = secure.flags["listen"].rsplit(":", 1)[1]
    data = body(directory, put(b"curl", b"tls"))
    command = (
        *("curl", "--silent", "--show-error", "--http2", "--cacert", directory / "ours.crt"),
        *("--header", GRPC[0], "--header", GRPC[1], "--data-binary", f"@{data}"),
        *("--dump-header", "-", "--output", directory / "answer"),
        f"https://localhost:{port}/onelog.v1.KV/Put",
    )
    own = ("--cert", directory / "client.crt", "--key", directory / "client.key")
    served = run(*command, *own)
    assert served.returncode == 0, served.stderr
    assert served.stdout.startswith(b"HTTP/2 200")
    assert b"grpc-status: 0" in served.stdout
    refused = run(*command)
    assert refused.returncode not in (0, CURL_TIMED_OUT), refused.stdout


@pytest.mark.parametrize("flag", ["--http1.1", "--http2"])
def test_a_request_of_http_1_is_refused_at_once_and_others_are_served(
    flag: str, server: ServeProcess
) -> None:
    """A browser or a probe on the wrong port must neither wait nor do harm.

    ``--http2`` asks for an upgrade in HTTP/1.1, which RFC 9113 has given up.
    """
    done = run("curl", "--silent", "--include", "--max-time", "20", flag, url(server, "Get"))
    assert done.returncode != CURL_TIMED_OUT
    if done.returncode == 0:
        assert re.match(rb"HTTP/1\.1 [45]\d\d ", done.stdout), done.stdout
    kv(server, "Put", kv_pb2.PutRequest(key=b"k", value=b"v"))


@pytest.mark.parametrize(
    "arguments", [(), ("--header", "content-type: text/plain", "--data", "x")], ids=["GET", "text"]
)
def test_http_2_without_grpc_is_refused_and_others_are_served(
    arguments: tuple[str, ...], server: ServeProcess
) -> None:
    """The answer is an HTTP status that a client maps, or the stream is reset: never success."""
    command = ("curl", "--silent", "--include", "--max-time", "20", "--http2-prior-knowledge")
    done = run(*command, *arguments, url(server, "Get"))
    assert done.returncode != CURL_TIMED_OUT
    if done.returncode == 0:
        assert re.match(rb"HTTP/2 [45]\d\d ", done.stdout), done.stdout
    kv(server, "Put", kv_pb2.PutRequest(key=b"k", value=b"v"))


def test_each_of_a_thousand_calls_by_h2load_takes_effect_once(
    server: ServeProcess, directory: Path
) -> None:
    """h2load counts an error of gRPC as an answer, so the server's own count is the proof."""
    count = kv_pb2.CountRequest(key=b"h2load", add=1)
    data = body(directory, count.SerializeToString())
    done = run(
        *("h2load", f"--requests={CALLS}", "--clients=4", "--max-concurrent-streams=25"),
        *(f"--data={data}", *(f"--header={each}" for each in GRPC), url(server, "Count")),
    )
    assert done.returncode == 0, done.stderr
    summary = parse_summary(done.stdout.decode())
    assert summary.done == CALLS
    assert not summary.has_failures
    count.add = 0
    answer = kv(server, "Count", count)
    assert isinstance(answer, kv_pb2.CountResponse)
    assert answer.number == CALLS
