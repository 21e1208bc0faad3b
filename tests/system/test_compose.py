"""docker-compose.yml without containers: its commands, environment and checks as three processes.

What a container adds is mapped to this machine: each node's address to one of loopback, which has
many, each volume to a directory. All else is taken from the files as it stands there; whether
containers work as well is for ``make compose-test``.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from onelog import Client
from onelog.node.config.schema import Config
from tests.system.nodes import WAIT_S, until
from tests.system.processes import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
# Addresses that no other test has, and no other run of this one.
LOOPBACK = f"127.{1 + os.getpid() // 250 % 250}.{1 + os.getpid() % 250}"
PROGRAMS = {"onelog": (sys.executable, "-m", "onelog.cli.main"), "python3": (sys.executable,)}


def settings() -> dict[str, str]:
    lines = (ROOT / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def compose() -> Any:
    """Return the compose file with the settings put in."""
    known = settings()
    used: set[str] = set()

    def put_in(found: re.Match[str]) -> str:
        used.add(found[1])
        return known[found[1]]

    text = re.sub(r"\$\{(\w+)\}", put_in, (ROOT / "docker-compose.yml").read_text())
    assert used == set(known), "a setting that nobody uses, or one that is not there"
    return yaml.safe_load(text)


def instruction(name: str) -> str:
    """Return what the Dockerfile says last with an instruction."""
    return str(re.findall(rf"^{name} (.*)$", DOCKERFILE, flags=re.MULTILINE)[-1])


class Container:
    """A service of the compose file as a process."""

    def __init__(self, service: Any, directory: Path) -> None:
        self.address = service["networks"]["onelog"]["ipv4_address"]
        self.service = service
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        (volume,) = service["volumes"]
        self.volume, self.mounted_at = volume.split(":")
        self.home = directory / self.volume
        self.home.mkdir()

    @property
    def endpoint(self) -> str:
        return self.here(f"{self.address}:7400")

    def here(self, text: str) -> str:
        """Map addresses and paths of a container to this machine."""
        network = self.address.rpartition(".")[0]
        own = self.address.replace(network, LOOPBACK)
        text = text.replace(f"{network}.", f"{LOOPBACK}.")
        text = text.replace("0.0.0.0", own).replace("127.0.0.1", own)
        return text.replace(self.mounted_at, str(self.home))

    def command(self, program: str, *arguments: str) -> list[str]:
        return [*PROGRAMS[program], *map(self.here, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        of_image = dict(part.split("=", 1) for part in shlex.split(instruction("ENV")))
        del of_image["PATH"]
        given = of_image | {name: str(text) for name, text in self.service["environment"].items()}
        return {name: self.here(text) for name, text in given.items()} | {"PYTHONPATH": str(ROOT)}

    def start(self) -> None:
        assert self.process is None
        entrypoint = yaml.safe_load(instruction("ENTRYPOINT"))
        with (self.directory / f"{self.volume}.log").open("ab") as output:
            self.process = subprocess.Popen(
                self.command(*entrypoint, *self.service["command"]),
                cwd=self.home,
                env=self.environment,
                stdout=output,
                stderr=output,
            )

    def is_healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / f"{self.volume}.log").read_text()
        kind, *command = self.service["healthcheck"]["test"]
        assert kind == "CMD"
        done = subprocess.run(self.command(*command), capture_output=True, timeout=WAIT_S)
        return done.returncode == 0

    def stop(self, number: signal.Signals, within_s: float = WAIT_S) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=within_s)
        self.process = None
        return code


@contextmanager
def containers(directory: Path) -> Iterator[dict[str, Container]]:
    made = {name: Container(service, directory) for name, service in compose()["services"].items()}
    try:
        yield made
    finally:
        for each in made.values():
            if each.process is not None:
                each.stop(signal.SIGKILL)


def seconds(text: str) -> float:
    assert text.endswith("s"), text
    return float(text[:-1])


def test_the_nodes_of_the_compose_file_lose_nothing_when_one_is_killed(tmp_path: Path) -> None:
    with containers(tmp_path) as made:
        for each in made.values():
            each.start()
        for each in made.values():
            until(each.is_healthy)
        endpoints = [each.endpoint for each in made.values()]
        with Client(endpoints, timeout_s=WAIT_S) as client:
            client.kv.put("a", "written by three")
            killed = made["n2"]
            killed.stop(signal.SIGKILL)
            client.kv.put("b", "written by two")
            found = [client.kv.get(key) for key in ("a", "b")]
            assert [item and item.value for item in found] == [
                b"written by three",
                b"written by two",
            ]
            killed.start()
            until(killed.is_healthy)

            def are_equal() -> bool:
                return all(
                    len({(each.index, each.state_hash) for each in hashes}) == 1
                    for shard in range(int(settings()["ONELOG_SHARDS"]))
                    for hashes in [
                        [client.admin.state_hash(shard, endpoint=each) for each in endpoints]
                    ]
                )

            until(are_equal)
        # As compose would: within the time that the file gives.
        for each in made.values():
            grace_s = seconds(each.service["stop_grace_period"])
            assert each.stop(signal.SIGTERM, grace_s) == 0


def test_the_compose_file_gives_each_node_what_it_needs_and_no_more() -> None:
    document = compose()
    services = document["services"]
    founders = {
        f"{name}={each['networks']['onelog']['ipv4_address']}:7500"
        for name, each in services.items()
    }
    shutdown = Config().shutdown
    for name, each in services.items():
        environment = each["environment"]
        address = each["networks"]["onelog"]["ipv4_address"]
        assert environment["ONELOG_NAME"] == name
        assert environment["ONELOG_ADVERTISE"] == f"{address}:7400"
        assert environment["ONELOG_PEER_ADVERTISE"] == f"{address}:7500"
        assert set(environment["ONELOG_INITIAL_CLUSTER"].split(",")) == founders
        assert each["volumes"] == [f"{name}:{instruction('VOLUME')}"]
        assert name in document["volumes"]
        assert each["restart"] == "unless-stopped"
        assert each["read_only"] is True
        assert each["cap_drop"] == ["ALL"]
        assert "ports" not in each, "there is no TLS: nothing is published"
        assert seconds(each["stop_grace_period"]) > shutdown.drain_s + shutdown.transfer_s
    assert instruction("USER") not in ("root", "0")
    assert instruction("STOPSIGNAL") == "SIGTERM"


def test_the_image_gets_every_package_and_nothing_else() -> None:
    """A package that is not copied is missed only when it is imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    # onelog has links to the folders beside it.
    links = {path.name for path in (ROOT / "onelog").iterdir() if path.is_symlink()}
    assert sources == {*packages, *links, "pyproject.toml", "README.md", "LICENSE"}
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    assert set(kept) == sources
