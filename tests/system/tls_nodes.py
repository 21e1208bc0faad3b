"""Real nodes that prove who they are, with certificates of ``onelog cluster certs``."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onelog import Client, Tls
from onelog.cli.cluster.certificates import Authority, NodeRequest
from onelog.v1 import admin_pb2
from tests.system.nodes import ServeProcess, nodes

HOSTS = ("127.0.0.1", "localhost")
# Three nodes share this machine with other tests: a leader that waits for a core stays leader.
PATIENT = {
    "raft_election_s_min": "3",
    "raft_election_s_max": "5",
    "raft_leader_silence_s_max": "10",
}
CLIENT = "app"


def tls_flags(certs: Path, name: str, ca: str = "ca") -> dict[str, str]:
    own, trusted = (
        {end: str(certs / f"{name}.{end}") for end in ("crt", "key")},
        certs / f"{ca}.crt",
    )
    return {
        "tls-cert": own["crt"], "tls-key": own["key"], "tls-client-ca": str(trusted),
        "peer-tls-cert": own["crt"], "peer-tls-key": own["key"], "peer-tls-ca": str(trusted),
    }  # fmt: skip


def make_certificates(certs: Path, *names: str, days: float = 90.0) -> Authority:
    """Make an authority if there is none, and certificates of nodes and of a client."""
    authority = Authority(certs, "onelog")
    for name in names:
        authority.issue_node(NodeRequest(name, HOSTS), days)
    authority.issue_client(CLIENT, days)
    return authority


@contextmanager
def tls_nodes(directory: Path, *names: str, **flags: str) -> Iterator[dict[str, ServeProcess]]:
    """Make nodes with certificates in ``directory/certs``, not started yet."""
    make_certificates(directory / "certs", *names)
    with nodes(directory, *names, **{"shards": "1", "partitions": "1", **PATIENT, **flags}) as made:
        for each in made.values():
            each.flags |= tls_flags(directory / "certs", each.name)
        yield made


def client_tls(certs: Path, name: str = f"client-{CLIENT}") -> Tls:
    ca, own, key = (
        (certs / each).read_bytes() for each in ("ca.crt", f"{name}.crt", f"{name}.key")
    )
    return Tls(ca=ca, certificate=own, key=key)


def connect(certs: Path, *processes: ServeProcess, timeout_s: float = 30.0) -> Client:
    endpoints = [each.flags["listen"] for each in processes]
    return Client(endpoints, timeout_s=timeout_s, tls=client_tls(certs))


def status(client: Client, process: ServeProcess) -> admin_pb2.GetStatusResponse:
    return client.admin.status(endpoint=process.flags["listen"])


class Putting:
    """A client in a thread that puts all the time, from ``with`` to its end, and counts."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="putting")
        self.acknowledged: list[int] = []
        self.failure: Exception | None = None

    def __enter__(self) -> "Putting":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        try:
            while not self._is_over.is_set():
                self._client.kv.put(f"k{number}", str(number))
                self.acknowledged.append(number)
                number += 1
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def verify(self) -> None:
        """Check that no call failed, and that every acknowledged write is there."""
        assert self.failure is None, self.failure
        assert self.acknowledged
        for number in self.acknowledged:
            found = self._client.kv.get(f"k{number}")
            assert found is not None, number
            assert found.value == str(number).encode()
