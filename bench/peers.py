"""onelog compared with etcd, NATS JetStream, RabbitMQ and a bare gRPC server, in turns.

``make peers``, or ``python bench/peers.py [--turns N] [--seconds S] [--only PREFIX] [--quick]``.
Three nodes of each on loopback, everything synced before it counts, and one process of load each,
with the Python client of the system: onelog by its ordinary calls, the others by the calls that
were found to be fastest. The bare server keeps nothing, and is compared with one node of onelog.
For each row both systems are measured right after each other, in several turns, with the order
reversed each turn: the machine may be busy, so only ratios of measurements close in time are
meaningful.

One line of JSON for each measurement, and one for each row with the ratios of its turns, their
median and the goal. ``resting_cores`` is the CPU that the other system and its load used meanwhile;
if it is not small, the measurement was disturbed. A peer that is not installed is skipped, with a
line that says what to install.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.api import Cluster, serving
from bench.api_cases import CASES
from bench.peers_processes import Load, find_exit_code, loading
from bench.peers_rows import ROWS, Row, verdict
from bench.peers_servers import RABBITMQ_SERVER, VENV, echo, etcd, nats, rabbitmq

TURNS, SECONDS, WARM_UP_S = 5, 2.0, 0.3
QUICK_TURNS, QUICK_S = 1, 0.1
SHARDS = 1
# In addition to the measured time; filling a queue before it is emptied takes longest.
ANSWER_S = 180.0


@dataclass(frozen=True)
class Peer:
    """Another system."""

    serving: Callable[[Path, Path], AbstractContextManager[Cluster]]
    module: str
    # Nodes of onelog to compare with.
    nodes: int = 3
    # Whether its client is in our own environment.
    is_ours: bool = False
    # What pip cannot give, and who can.
    needs: Path | None = None
    install: str = ""

    def python(self, venv: Path) -> Path:
        """Return what runs its load."""
        return Path(sys.executable) if self.is_ours else venv / "bin" / "python"

    def missing(self, venv: Path) -> str | None:
        """Return what has to be done before it can run, if something has."""
        if not self.python(venv).exists():
            return f"there is no environment in {venv.name}: make peers"
        if self.needs is not None and not self.needs.exists():
            return self.install
        return None


PEERS = {
    "echo": Peer(echo, "bench.peers_load_echo", nodes=1, is_ours=True),
    "etcd": Peer(etcd, "bench.peers_load_etcd"),
    "nats": Peer(nats, "bench.peers_load_nats"),
    "rabbitmq": Peer(
        rabbitmq,
        "bench.peers_load_rabbitmq",
        needs=RABBITMQ_SERVER,
        install="not installed: apt-get install rabbitmq-server (its service need not run)",
    ),
}


@dataclass
class Side:
    """A cluster and the load on it."""

    name: str
    cluster: Cluster
    load: Load

    def measure(self, case: str, callers: int, seconds: float, warm_up_s: float) -> dict[str, Any]:
        within_s = ANSWER_S + 2 * (seconds + warm_up_s)
        return self.load.ask(
            within_s, row=case, callers=callers, seconds=seconds, warm_up_s=warm_up_s
        )

    def cpu_s(self) -> float:
        """Return what all its processes have used so far."""
        return sum(self.cluster.cpu_s().values())


@contextmanager
def beginning(
    name: str, python: str, module: str, cluster: Cluster, directory: Path
) -> Iterator[Side]:
    """Start the load on a cluster, and end it."""
    endpoints = dict(zip(cluster.pids, cluster.endpoints, strict=True))
    with loading(name, python, module, directory, endpoints) as load:
        cluster.pids["load"] = load.pid
        yield Side(name, cluster, load)


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def run_row(row: Row, ours: Side, theirs: Side, turns: int, seconds: float) -> None:
    """Measure both sides in turns, and report the results."""
    case = next(case for case in CASES if case.name == row.ours)
    sides = {
        ours.name: (ours, theirs, row.ours, row.callers),
        theirs.name: (theirs, ours, row.theirs, row.callers_theirs or row.callers),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(turns):
        # Where the first turn of ours needs longer, theirs gets as much.
        warm_up_s = min(case.warm_up_s if turn == 0 else WARM_UP_S, seconds)
        for name in list(sides) if turn % 2 == 0 else reversed(sides):
            side, resting, what, callers = sides[name]
            begun_s, rested_s = time.monotonic(), resting.cpu_s()
            result = side.measure(what, callers, seconds, warm_up_s)
            cores = (resting.cpu_s() - rested_s) / (time.monotonic() - begun_s)
            found[name].append(result)
            line = {"measured": name, "case": what, "callers": callers, "turn": turn + 1}
            say(line | result | {"resting_cores": round(cores, 2)})
    say(verdict(row, found[ours.name], found[theirs.name]))


def run_peer(name: str, rows: Sequence[Row], venv: Path, turns: int, seconds: float) -> None:
    """Start a peer and a cluster of ours, both new, and measure all rows of it."""
    peer = PEERS[name]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onelog-peers-")))
        their_cluster = stack.enter_context(peer.serving(venv, directory))
        our_cluster = stack.enter_context(serving(peer.nodes, SHARDS))
        theirs = stack.enter_context(
            beginning(name, str(peer.python(venv)), peer.module, their_cluster, directory)
        )
        ours = stack.enter_context(
            beginning("onelog", sys.executable, "bench.peers_load_onelog", our_cluster, directory)
        )
        for row in rows:
            run_row(row, ours, theirs, turns, seconds)


def run(rows: Sequence[Row], venv: Path, turns: int, seconds: float) -> None:
    """Measure rows, one peer after the other."""
    for name, peer in PEERS.items():
        chosen = [row for row in rows if row.peer == name]
        hint = peer.missing(venv)
        if hint is not None:
            for row in chosen:
                say({"row": row.name, "skipped": hint})
        elif chosen:
            run_peer(name, chosen, venv, turns, seconds)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of each row (default {TURNS})")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of a measurement (default {SECONDS:g})"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="PREFIX",
        help='rows whose names begin so, as "etcd" or "nats put"; more than once: any of them',
    )
    parser.add_argument("--quick", action="store_true", help="see only that everything works")
    parser.add_argument("--list", action="store_true", help="print the names of the rows, and end")
    parser.add_argument(
        "--venv", type=Path, default=VENV, help="where the peers are (default build/peers)"
    )
    arguments = parser.parse_args()
    if arguments.turns < 1 or arguments.seconds <= 0:
        parser.error("a row has at least one turn, and a turn takes some time")
    only = tuple(arguments.only or ("",))
    arguments.rows = [row for row in ROWS if row.name.startswith(only)]
    if not arguments.rows:
        parser.error(f"no row begins with {' or '.join(only)}; --list prints them")
    return arguments


def main() -> int:
    arguments = parsed()
    if arguments.list:
        for row in arguments.rows:
            print(row.name)
        return 0
    turns = QUICK_TURNS if arguments.quick else arguments.turns
    seconds = QUICK_S if arguments.quick else arguments.seconds
    return find_exit_code(lambda: run(arguments.rows, arguments.venv.absolute(), turns, seconds))


if __name__ == "__main__":
    sys.exit(main())
