"""Ways to miss the server: each is one clear sentence with a stable reason.

A wrong endpoint or setting is said at once; what may pass by itself, such as a server that is not
up yet, is tried again for a while.
"""

import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic

import pytest

from onelog import AsyncClient, Client, Tls
from onelog.client.options import parse_endpoint
from onelog.errors import InvalidArgument, Unavailable
from onelog.wire.http2 import PEER_PORT_TEXT, PREFACE
from tests.onelog.client.serving import serving
from tests.system.certificates import Certificate, authority, signed
from tests.system.ports import free_addresses

# Longer than any test: an error that comes after it was not said at once.
LONG_S = 600.0
SHORT_S = 0.5


@dataclass
class Server:
    """One server, with the three ports that it has."""

    api: str
    peers: str
    http: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    peers, http = free_addresses(2)
    flags = ("--peer-listen", peers, "--http-listen", http)
    with serving(tmp_path_factory.mktemp("data"), *flags) as api:
        with Client(api, timeout_s=60) as client:
            client.kv.put("ready", "")
        yield Server(api, peers, http)


@contextmanager
def answering(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """Another server: it passes each connection to ``talk`` and keeps it open."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                stack.enter_context(connection)
                talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def refused(endpoint: str | list[str], timeout_s: float, tls: Tls | None = None) -> Unavailable:
    client = Client(endpoint, timeout_s=timeout_s, tls=tls)
    with pytest.raises(Unavailable) as failure:
        client.connect()
    client.close()
    return failure.value


def test_the_http_port_is_no_port_of_the_api(server: Server) -> None:
    error = refused(server.http, LONG_S)
    assert error.reason == "NOT_ONELOG"
    assert f"no connection to {server.http}: it speaks HTTP/1" in error.message


def test_the_port_for_other_nodes_is_no_port_of_the_api(server: Server) -> None:
    error = refused(server.peers, LONG_S)
    assert error.reason == "NOT_ONELOG"
    assert f"no connection to {server.peers}: it is a port for other nodes" in error.message


def test_the_port_for_other_nodes_says_so_to_any_client_of_grpc(server: Server) -> None:
    """Clients of other languages show what the server says with its GOAWAY."""
    host, _, port = server.peers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(PREFACE)
        said = b""
        while part := connection.recv(1 << 16):
            said += part
    assert PEER_PORT_TEXT in said


def test_a_client_with_tls_finds_no_port_for_other_nodes(server: Server) -> None:
    error = refused(server.peers, LONG_S, Tls())
    assert error.reason == "TLS_MISMATCH"


def test_a_server_of_something_else_is_said_at_once() -> None:
    with answering(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as endpoint:
        error = refused(endpoint, LONG_S)
    assert error.reason == "NOT_ONELOG"
    assert f"{endpoint}: what answers there is not a server of onelog" in error.message


def test_a_server_that_says_nothing_is_waited_for() -> None:
    with answering(lambda _: None) as endpoint:
        error = refused(endpoint, SHORT_S)
    assert error.reason == "NOT_CONNECTED"


def test_a_client_with_tls_is_told_that_the_server_has_none(server: Server) -> None:
    error = refused(server.api, LONG_S, Tls())
    assert error.reason == "TLS_MISMATCH"
    assert f"{server.api}: it does not speak TLS, and this client does" in error.message


def test_a_host_without_an_address_is_named() -> None:
    error = refused("nowhere.invalid:7400", LONG_S)
    assert error.reason == "HOST_UNKNOWN"
    assert "nowhere.invalid:7400: no address is known for this host" in error.message


def test_how_long_nobody_is_waited_for_can_be_said() -> None:
    (nobody,) = free_addresses(1)
    client = Client(nobody, timeout_s=LONG_S)
    with pytest.raises(Unavailable, match="nobody listens there"):
        client.connect(refused_s=SHORT_S)
    client.close()


def test_a_wrong_port_costs_a_part_of_the_timeout_only() -> None:
    (nobody,) = free_addresses(1)
    timeout_s, began_s = 30.0, monotonic()  # of which it takes 6
    assert refused(nobody, timeout_s).reason == "NOT_CONNECTED"
    assert monotonic() - began_s < 0.8 * timeout_s


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nobody_is_there(host: str) -> None:
    (address,) = free_addresses(1)
    endpoint = f"{host}:{address.rpartition(':')[2]}"
    error = refused(endpoint, SHORT_S)
    assert error.reason == "NOT_CONNECTED"
    assert error.message == f"no connection to {endpoint}: nobody listens there"


def test_each_of_several_endpoints_is_named(server: Server) -> None:
    (nobody,) = free_addresses(1)
    error = refused([nobody, server.http], SHORT_S)
    assert error.reason == "NOT_CONNECTED"  # it may come up; the other is a mistake
    assert f"{nobody}: nobody listens there" in error.message
    assert f"{server.http}: it speaks HTTP/1" in error.message
    error = refused([server.http, server.http.replace("127.0.0.1", "localhost")], LONG_S)
    assert error.reason == "NOT_ONELOG"


def test_one_good_endpoint_among_wrong_ones_is_enough(server: Server) -> None:
    (nobody,) = free_addresses(1)
    with Client([nobody, server.http, server.api], timeout_s=60) as client:
        assert client.kv.get("ready") is not None


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    directory = tmp_path_factory.mktemp("certs")
    known, foreign = authority(directory, "known"), authority(directory, "foreign")
    return {"known": known, "foreign": foreign, "node": signed(directory, "node", known)}


@pytest.fixture(scope="module")
def secured(
    certificates: dict[str, Certificate], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    node, known = certificates["node"], certificates["known"]
    flags = ("--tls-cert", node.chain, "--tls-key", node.key, "--tls-client-ca", known.chain)
    with serving(tmp_path_factory.mktemp("data"), *map(str, flags)) as endpoint:
        yield endpoint.replace("127.0.0.1", "localhost")


def trusting(certificate: Certificate) -> Tls:
    return Tls(ca=certificate.chain.read_bytes())


@needs_openssl
def test_a_certificate_of_a_foreign_authority_is_not_accepted(
    secured: str, certificates: dict[str, Certificate]
) -> None:
    error = refused(secured, LONG_S, trusting(certificates["foreign"]))
    assert error.reason == "CERTIFICATE_REFUSED"
    assert f"{secured}: its certificate is not accepted" in error.message


@needs_openssl
def test_a_port_for_other_nodes_with_tls_is_no_port_of_the_api(
    certificates: dict[str, Certificate],
) -> None:
    """Such a port speaks TLS, but not with a protocol of clients."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates["node"].chain, certificates["node"].key)

    def shake_hands(connection: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)  # until the client has left

    with answering(shake_hands) as endpoint:
        endpoint = endpoint.replace("127.0.0.1", "localhost")
        error = refused(endpoint, LONG_S, trusting(certificates["known"]))
    assert error.reason == "NOT_ONELOG"
    assert f"{endpoint}: it speaks TLS and no HTTP/2" in error.message


@needs_openssl
def test_a_client_without_a_certificate_is_told_that_the_server_may_want_one(
    secured: str, certificates: dict[str, Certificate]
) -> None:
    error = refused(secured, SHORT_S, trusting(certificates["known"]))
    assert error.reason == "CONNECTION_CLOSED"
    assert "it may want a certificate of this client" in error.message


@needs_openssl
def test_a_server_that_says_that_it_wants_a_certificate_is_quoted(
    certificates: dict[str, Certificate],
) -> None:
    """As servers of others do, that stand before ours."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates["node"].chain, certificates["node"].key)
    context.load_verify_locations(certificates["known"].chain)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    def shake_hands(connection: socket.socket) -> None:
        with suppress(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    with answering(shake_hands) as endpoint:
        endpoint = endpoint.replace("127.0.0.1", "localhost")
        error = refused(endpoint, LONG_S, trusting(certificates["known"]))
    assert error.reason == "CERTIFICATE_REFUSED"
    assert "it wants a certificate of this client" in error.message


@needs_openssl
def test_a_plain_client_is_told_that_the_server_wants_tls(secured: str) -> None:
    error = refused(secured, LONG_S)
    assert error.reason == "TLS_MISMATCH"
    assert f"{secured}: it speaks TLS, and this client does not" in error.message


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("127.0.0.1", "127.0.0.1:7400"),
        ("db.example.org", "db.example.org:7400"),
        ("db.example.org:1234", "db.example.org:1234"),
        ("[::1]", "[::1]:7400"),
        ("[fe80::1%eth0]:1234", "[fe80::1%eth0]:1234"),
    ],
)
def test_the_port_is_7400_unless_it_is_given(given: str, endpoint: str) -> None:
    assert parse_endpoint(given) == endpoint


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://127.0.0.1:7402", "has a scheme; write 127.0.0.1:7402"),
        ("https://db:7400/", "write db:7400, and pass tls=Tls()"),
        ("a:7400,b:7400", "pass a list"),
        ("::1", "in brackets"),
        ("2001:db8::1:7400", "in brackets"),
        ("", "is not HOST:PORT"),
        (":7400", "is not HOST:PORT"),
        ("7400", "is not HOST:PORT"),
        ("a b:7400", "is not HOST:PORT"),
        ("user@db:7400", "is not HOST:PORT"),
        ("db:0", "has no port of 1 to 65535"),
        ("db:65536", "has no port of 1 to 65535"),
        ("db:http", "has no port of 1 to 65535"),
    ],
)
def test_what_is_no_endpoint_is_refused_before_anybody_is_asked(given: str, shown: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        Client(given)
    assert failure.value.reason == "ENDPOINT_INVALID"
    assert shown in failure.value.message


def test_what_a_notebook_shows_of_a_client_says_what_it_is() -> None:
    client = Client(["db", "[::1]:7401"])
    assert repr(client) == "Client('db:7400', '[::1]:7401')"
    assert repr(client.namespace("shop")).endswith(", namespace='shop')")
    assert repr(client.queue("work")) == "Queue('work')"
    assert repr(client.stream("s")) == "Stream('s')"
    assert repr(client.stream("s").group("g")) == "Group('g' of stream 's')"
    assert repr(AsyncClient("db")) == "AsyncClient('db:7400')"
    client.close()


def test_a_client_needs_an_endpoint() -> None:
    with pytest.raises(InvalidArgument) as failure:
        Client([])
    assert failure.value.reason == "ENDPOINT_INVALID"
