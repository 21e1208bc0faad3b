"""``make compose-test``: the real Dockerfile and docker-compose.yml, in real containers.

Builds the image, starts the three nodes, and writes through a client on this machine while one
container is stopped and while the leader is disconnected from the network. At the end every replica
must have the same state, and nothing of the project may be left.

The project has its own name and network, so that another cluster on this machine is not touched. It
needs Linux: elsewhere the containers' addresses cannot be reached.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from onelog import Client
from onelog.errors import OnelogError
from scripts.container_engine import BASE_IMAGE, ROOT, Engine, base_image, find_engine, say

PROJECT = "onelog-compose-test"
IMAGE = f"localhost/{PROJECT}"
NETWORK = "172.30.175"
NODES = {name: f"{NETWORK}.{11 + at}" for at, name in enumerate(("n1", "n2", "n3"))}
SHARDS = 3
KEYS = 200
WAIT_S = 60.0
POLL_S = 0.2
ANSWER_S = 15.0

T = TypeVar("T")


@dataclass
class Cluster:
    """The containers, and a client that knows what it has written."""

    engine: Engine
    client: Client = field(init=False)
    written: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.client = Client([self.endpoint(name) for name in NODES], timeout_s=ANSWER_S)

    @staticmethod
    def endpoint(name: str) -> str:
        return f"{NODES[name]}:7400"

    def container(self, name: str) -> str:
        labels = (("project", PROJECT), ("service", name))
        filters = [f"--filter=label=com.docker.compose.{key}={text}" for key, text in labels]
        found = self.engine.call("ps", "--all", *filters, "--format={{.Names}}").stdout.split()
        assert len(found) == 1, (name, found)
        return str(found[0])

    def in_container(self, name: str, *command: str) -> tuple[int, str]:
        done = self.engine.call("exec", self.container(name), *command, check=False)
        return done.returncode, done.stdout.strip()

    def is_healthy(self, name: str) -> bool:
        """Ask the health check of the compose file, in the container."""
        container = self.container(name)
        if self.engine.name == "podman":
            # podman's timers need systemd, which may be missing: run the check by hand.
            return not self.engine.call("healthcheck", "run", container, check=False).returncode
        state = self.engine.call("inspect", "--format={{.State.Health.Status}}", container).stdout
        return str(state).strip() == "healthy"

    def until_healthy(self, *names: str) -> None:
        for name in names:
            until(f"{name} is healthy", partial(self.is_healthy, name))

    def write_and_read(self, what: str) -> None:
        """Write keys, and read everything that was ever written."""
        started_s = time.monotonic()
        for number in range(KEYS):
            key = f"{what}/{number}"
            self.written[key] = os.urandom(100)
            self.client.kv.put(key, self.written[key])
        for key, value in self.written.items():
            item = self.client.kv.get(key)
            assert item is not None, f"{key} is lost"
            assert item.value == value, f"{key} is another"
        took_s = time.monotonic() - started_s
        say(f"   wrote {KEYS} keys and read {len(self.written)} in {took_s:.1f} s")

    def leader(self, shard: int) -> str:
        """Return the node that leads a shard."""

        def look() -> str | None:
            for each in self.client.admin.topology().shards:
                if each.shard == shard and each.leader_endpoint:
                    return next(n for n in NODES if self.endpoint(n) == each.leader_endpoint)
            return None

        return until(f"shard {shard} is led", look)

    def until_equal(self) -> None:
        """Wait until every replica of every shard has the same state."""

        def look() -> bool:
            for shard in range(SHARDS):
                try:
                    found = [
                        self.client.admin.state_hash(shard, endpoint=self.endpoint(name))
                        for name in NODES
                    ]
                except OnelogError:
                    return False
                if len({(each.index, each.state_hash) for each in found}) > 1:
                    return False
            return True

        until("all replicas have the same state hash", look)


def until(what: str, look: Callable[[], T | None]) -> T:
    """Poll until ``look`` returns something."""
    started_s = time.monotonic()
    while True:
        found = look()
        if found:
            say(f"   {what} after {time.monotonic() - started_s:.1f} s")
            return found
        if time.monotonic() - started_s > WAIT_S:
            sys.exit(f"not within {WAIT_S:g} s: {what}")
        time.sleep(POLL_S)


def check_confinement(cluster: Cluster) -> None:
    """Check that the process has no privileges and can write only its data."""
    code, user = cluster.in_container("n1", "id", "-u")
    assert (code, user) == (0, "10001"), (code, user)
    code, _ = cluster.in_container("n1", "touch", "/opt/onelog/x")
    assert code, "the root file system can be written"
    code, privileges = cluster.in_container("n1", "grep", "CapEff", "/proc/1/status")
    assert (code, int(privileges.split()[1], 16)) == (0, 0), privileges


def check_stopped_container(cluster: Cluster) -> None:
    """Check that clients do not notice a stopped node, and that it catches up."""
    started_s = time.monotonic()
    cluster.engine.compose("stop", "n3")
    state = cluster.engine.call(
        "inspect", "--format={{.State.ExitCode}}", cluster.container("n3")
    ).stdout.strip()
    assert state == "0", f"n3 did not stop in order: {state}"
    say(f"   n3 stopped in order in {time.monotonic() - started_s:.1f} s")
    cluster.write_and_read("without n3")
    cluster.engine.compose("start", "n3")
    cluster.until_healthy("n3")
    cluster.until_equal()


def check_partition(cluster: Cluster) -> None:
    """Check that the majority replaces a disconnected leader, which then follows."""
    name = cluster.leader(0)
    container, network = cluster.container(name), f"{PROJECT}_onelog"
    say(f"   {name} leads shard 0: cutting it off")
    cluster.engine.call("network", "disconnect", network, container)
    try:
        cluster.write_and_read(f"without the network of {name}")
        until(f"{name} says that it cannot serve", lambda: not cluster.is_healthy(name))
    finally:
        cluster.engine.call("network", "connect", f"--ip={NODES[name]}", network, container)
    cluster.until_healthy(name)
    cluster.until_equal()


def clean_up(engine: Engine) -> None:
    """Remove everything but the base image, and check that it is gone."""
    engine.compose("down", "--volumes")
    engine.call("image", "rm", IMAGE, check=False)
    label = f"--filter=label=com.docker.compose.project={PROJECT}"
    for kind in ("container", "volume", "network"):
        listed = ["--all"] if kind == "container" else []
        left = engine.call(kind, "ls", *listed, "--quiet", label).stdout.split()
        assert not left, f"{kind} left behind: {left}"


def settings() -> dict[str, str]:
    """Return what ``.env`` says."""
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def main() -> None:
    engine = find_engine(PROJECT)
    say(f"engine: {engine.name}")
    os.environ |= {
        "ONELOG_IMAGE": IMAGE,
        "ONELOG_PYTHON_IMAGE": base_image(engine, settings()["ONELOG_PYTHON_IMAGE"]),
        "ONELOG_SHARDS": str(SHARDS),
        "ONELOG_SUBNET": f"{NETWORK}.0/24",
        **{f"ONELOG_{name.upper()}": address for name, address in NODES.items()},
    }
    started_s = time.monotonic()
    try:
        say("1. build")
        engine.build()
        size = engine.call("image", "inspect", "--format={{.Size}}", IMAGE).stdout.strip()
        say(f"   {int(size) / 1e6:.0f} MB in {time.monotonic() - started_s:.0f} s")
        say("2. up")
        engine.compose("up", "--detach", "--no-build")
        cluster = Cluster(engine)
        cluster.until_healthy(*NODES)
        check_confinement(cluster)
        cluster.write_and_read("all nodes")
        say("3. stop a container")
        check_stopped_container(cluster)
        say("4. cut one off from the network")
        check_partition(cluster)
        cluster.client.close()
    finally:
        say("5. clean up")
        clean_up(engine)
    say(f"passed in {time.monotonic() - started_s:.0f} s; {BASE_IMAGE} is kept if it was made")


if __name__ == "__main__":
    main()
