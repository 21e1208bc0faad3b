"""Streams between peers over mutual TLS: whose hello is believed, and whose is not."""

import asyncio
import shutil
import subprocess
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from onelog.cluster.raft.messages import Vote
from onelog.cluster.transport.certificate import Certificate, node_uri
from onelog.cluster.transport.connection import Purpose, connect
from onelog.cluster.transport.link import LinkEnded
from onelog.cluster.transport.wire import Hello, Reason, Refused, decode_first, encode_hello
from onelog.node.config.schema import SecuritySettings
from onelog.node.credentials import Credentials
from onelog.node.errors import ConfigError
from tests.cluster.transport.pairs import (
    LARGE,
    SMALL,
    WAIT_S,
    Endpoint,
    endpoint,
    identity,
    until,
)
from tests.system.certificates import authority, client_context, signed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")
CLUSTER = "c"
NAMES = {SMALL: "small", LARGE: "large"}
BOTH_USES = "serverAuth,clientAuth"


def certificate(directory: Path, name: str) -> tuple[bytes, bytes]:
    """Make a self-signed certificate for localhost; return key and certificate."""
    key, made = directory / f"{name}.key", directory / f"{name}.crt"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "1", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", made,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return key.read_bytes(), made.read_bytes()


def certificates(directory: Path) -> None:
    """Make an authority, the certificates of both nodes, and some that do not name them."""
    ca = authority(directory, "ca")
    small, large = (f"URI:{node_uri(CLUSTER, name)}" for name in NAMES.values())
    signed(directory, "small", ca, names=(small,), uses=BOTH_USES)
    signed(directory, "large", ca, names=(large,), uses=BOTH_USES)
    third = f"URI:{node_uri(CLUSTER, 'third')}"
    signed(directory, "third", ca, names=(third,), uses=BOTH_USES)
    signed(directory, "client", ca, uses="clientAuth")
    signed(directory, "unnamed", ca)
    signed(directory, "of another cluster", ca, names=(f"URI:{node_uri('d', 'small')}",))
    signed(directory, "for clients only", ca, names=(small,), uses="clientAuth")
    signed(directory, "for servers only", ca, names=(small,), uses="serverAuth")
    signed(directory, "by DNS", ca, names=("DNS:small",))


def tls(directory: Path, own: str, trusted: str = "ca") -> dict[str, Any]:
    found = Credentials(
        SecuritySettings(
            peer_cert=directory / f"{own}.crt",
            peer_key=directory / f"{own}.key",
            peer_ca=directory / f"{trusted}.crt",
        )
    )
    return {"server_tls": found.peer_server, "client_tls": found.peer_client}


def node(
    directory: Path, node_id: UUID, own: str | None = None
) -> AbstractAsyncContextManager[Endpoint]:
    """Start a node of the cluster that shows this certificate, by default its own."""
    name = NAMES[node_id]
    who = identity(node_id, node_name=name, cluster_name=CLUSTER)
    return endpoint(who, **tls(directory, own or name))


def meet(one: Endpoint, two: Endpoint) -> None:
    one.transport.set_peers({LARGE: two.address}, NAMES)
    two.transport.set_peers({SMALL: one.address}, NAMES)


async def say_hello(
    directory: Path, two: Endpoint, own: str, node_name: str = "small"
) -> Hello | Refused:
    """Say hello as the small node with this certificate; return what the large one answers."""
    connection = await connect(two.address, Purpose.EXCHANGE, client_context(directory, "ca", own))
    who = identity(SMALL, node_name=node_name, endpoints=("evil:1",))
    try:
        await connection.write(encode_hello(who.hello(LARGE, 1)))
        frame = await connection.read()
        assert frame is not None
        return decode_first(frame)
    finally:
        await connection.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * WAIT_S))


@pytest.mark.parametrize("own", ["small", "by DNS"])
def test_peers_whose_certificates_name_them_talk(tmp_path: Path, own: str) -> None:
    certificates(tmp_path)

    async def test() -> None:
        async with node(tmp_path, SMALL, own) as one, node(tmp_path, LARGE) as two:
            meet(one, two)
            await until(lambda: two.transport.status()[SMALL].is_connected)
            await until(lambda: one.transport.status()[LARGE].is_connected)
            one.transport.send(LARGE, 0, Vote(1))
            await until(lambda: two.got == [(SMALL, 0, Vote(1))])

    run(test())


def test_a_certificate_of_a_foreign_authority_does_not_get_to_say_hello(tmp_path: Path) -> None:
    certificates(tmp_path)
    certificate(tmp_path, "foreign")

    async def test() -> None:
        # It trusts the server, but the server does not trust it.
        async with node(tmp_path, SMALL, "foreign") as one, node(tmp_path, LARGE) as two:
            meet(one, two)
            status = one.transport.status()[LARGE]
            await until(lambda: status.attempts > 2 and status.last_error)
            assert status.sessions == 0
            assert two.transport.status()[SMALL].sessions == 0
            assert two.transport.refused_callers == 0

    run(test())


@pytest.mark.parametrize("own", ["client", "unnamed", "of another cluster", "for clients only"])
def test_a_forged_hello_is_refused_and_nothing_of_it_is_believed(tmp_path: Path, own: str) -> None:
    """Any certificate of the authority was any node: it could take the leader's calls."""
    certificates(tmp_path)

    async def test() -> None:
        async with node(tmp_path, LARGE) as two:
            two.transport.set_peers({SMALL: "localhost:1"}, NAMES)
            answer = await say_hello(tmp_path, two, own)
            assert isinstance(answer, Refused)
            assert answer.reason == Reason.CERTIFICATE_MISMATCH
            # Neither the id nor the name of the cluster, nor its nodes.
            for secret in (str(two.transport.identity.cluster_id), "small", "large"):
                assert secret not in answer.detail
            status = two.transport.status()[SMALL]
            assert (status.endpoints, status.is_connected) == ((), False)
            assert status.last_error == ""  # nothing is wrong with the real one

    run(test())


@pytest.mark.parametrize("node_name", ["small", "large"])
def test_a_node_is_not_another_node(tmp_path: Path, node_name: str) -> None:
    """Whatever name it gives: its certificate has one, and the membership has one for the id."""
    certificates(tmp_path)

    async def test() -> None:
        async with node(tmp_path, LARGE) as two:
            two.transport.set_peers({SMALL: "localhost:1"}, NAMES)
            answer = await say_hello(tmp_path, two, "large", node_name)
            assert isinstance(answer, Refused)
            assert answer.reason == Reason.CERTIFICATE_MISMATCH

    run(test())


def test_a_member_without_a_name_keeps_the_one_that_it_proved_first(tmp_path: Path) -> None:
    """Members that an earlier version added have no name in the log."""
    certificates(tmp_path)

    async def test() -> None:
        async with node(tmp_path, LARGE) as two:
            two.transport.set_peers({SMALL: "localhost:1"})
            taken = await say_hello(tmp_path, two, "large", "large")
            assert isinstance(taken, Refused)
            assert isinstance(await say_hello(tmp_path, two, "small", "small"), Hello)
            later = await say_hello(tmp_path, two, "third", "third")
            assert isinstance(later, Refused)
            assert later.reason == Reason.CERTIFICATE_MISMATCH

    run(test())


def test_who_answers_at_a_members_address_must_be_that_member(tmp_path: Path) -> None:
    """The certificate of another node fits the host: on one machine, all of them do."""
    certificates(tmp_path)

    async def test() -> None:
        async with node(tmp_path, SMALL) as one, node(tmp_path, LARGE, "small") as two:
            meet(one, two)
            status = one.transport.status()[LARGE]
            await until(lambda: status.last_reason == Reason.CERTIFICATE_MISMATCH)
            assert status.sessions == 0

    run(test())


def test_a_certificate_for_servers_only_cannot_dial(tmp_path: Path) -> None:
    certificates(tmp_path)

    async def test() -> None:
        async with node(tmp_path, LARGE) as two:
            two.transport.set_peers({SMALL: "localhost:1"}, NAMES)
            with pytest.raises(LinkEnded):
                await say_hello(tmp_path, two, "for servers only")

    run(test())


def test_a_certificate_for_another_host_is_not_believed(tmp_path: Path) -> None:
    """Who is called must have the name that it was called by."""
    certificates(tmp_path)  # for localhost

    async def test() -> None:
        async with node(tmp_path, LARGE) as two:
            address = two.address.replace("localhost", "127.0.0.1")
            with pytest.raises(LinkEnded, match="no TLS"):
                await connect(address, Purpose.EXCHANGE, tls(tmp_path, "small")["client_tls"])
            with pytest.raises(LinkEnded):  # and without TLS nobody is heard
                await connect(address, Purpose.EXCHANGE, None)

    run(test())


@pytest.mark.parametrize("part", ["crt", "key", "ca"])
def test_files_that_are_no_certificates_are_named(tmp_path: Path, part: str) -> None:
    certificate(tmp_path, "known")
    certificate(tmp_path, "authority")
    wrong = tmp_path / ("authority.crt" if part == "ca" else f"known.{part}")
    wrong.write_text("nothing of use")
    with pytest.raises(ConfigError, match=wrong.name):
        tls(tmp_path, "known", "authority")


def test_names_are_compared_whole_and_a_common_name_does_not_count() -> None:
    def found(*uris: str, dns: tuple[str, ...] = ()) -> Certificate:
        return Certificate(uris, dns, is_for_servers=True, is_for_clients=True)

    assert found(node_uri("a b", "n/1")).names_node("a b", "n/1")
    assert node_uri("a b", "n/1") == "onelog://a%20b/n%2F1"
    assert not found("onelog://c/n11").names_node("c", "n1")
    assert not found("onelog://c/n1", dns=("n2",)).names_node("c", "n2")  # a URI excludes the rest
    assert found("spiffe://x/y", dns=("n1",)).names_node("c", "n1")
    assert found("onelog://c/n1").names_node("", "n1")  # a newcomer knows no cluster
    assert not found("onelog://c/n1").names_node("", "n2")
    assert not found(dns=("n1",)).names_node("c", "")
    assert not Certificate(("onelog://c/n1",), (), is_for_servers=True).names_node("c", "n1")
