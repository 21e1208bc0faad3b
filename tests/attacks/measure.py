"""How attacks slow an innocent client down: its calls alone and during each attack, in turns.

``python -m tests.attacks.measure [--turns N] [--seconds S] [--only TEXT] [--quick] [--table]``. One
real node, an innocent client that puts and gets one after the other on its own connection, and an
attacker in its own process that starts again whenever it is disconnected (for the port for clients
tests/attacks/clients.py, for the others tests/attacks/ports.py). One line of JSON for each attack:
p50 and p99 with and without it, the ratios, the node's memory before, at its peak and after, what
the attacker sent each second, how it was answered, calls of the innocent client that failed, and
crashes of the node. p50 and p99 are those of the quietest turn of each kind, since a machine that
is shared adds its own. ``--table`` prints rows of docs/security.md instead. All run on loopback: on
two cores, attacker, client and node share what the node would otherwise have alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.attacks.clients import (
    CROWDS,
    HALF_OPEN_STREAMS,
    HANDSHAKES,
    IDLE_STREAMS,
    LARGE_BYTES,
    LARGE_KEY,
    NAMES,
)
from tests.attacks.ports import CALLERS, HTTP
from tests.system.certificates import authority, signed
from tests.system.innocent import Busy, Innocent
from tests.system.nodes import ServeProcess, nodes
from tests.system.processes import ROOT

TURNS, SECONDS, QUICK_S = 6, 0.8, 0.2
# The number of concurrent attackers; the others are counted by reconnection.
CROWD, QUICK_CROWD, OFTEN = 10_000, 100, 1_000_000
OTHERS = 100
# With 1,024 streams each, more than the limit of calls.
STREAMING_CROWD = 17
# Connections to the HTTP port or the peer port.
CALLING = 3
ATTACKS = (*NAMES, *CALLERS)


class Target:
    """A node under attack, and what its innocent client trusts."""

    def __init__(self, node: ServeProcess, trusted: Path | None) -> None:
        self.node = node
        self.trusted = trusted
        self.crashes = 0
        self.failed_calls = 0
        self._start()

    def _start(self) -> None:
        self.node.start().until_ready()
        client = Innocent(self.node.flags["listen"], self.trusted)
        client.put(LARGE_KEY, bytes(LARGE_BYTES))
        client.close()

    def turn(self, name: str | None, seconds: float, crowd: int) -> dict[str, Any]:
        """Measure the innocent client for a while, during an attack or without one."""
        found: dict[str, Any] = {}
        node = self.node
        largest_mib = before_mib = node.rss_mib
        with Busy(node.flags["listen"], self.trusted) as innocent:
            if name is None:
                time.sleep(seconds)
            else:
                attacker = begin(node, name, seconds, crowd)
                while attacker.poll() is None:
                    if node.is_running:
                        largest_mib = max(largest_mib, node.rss_mib)
                    time.sleep(0.02)
                found = json.loads(attacker.communicate()[0].splitlines()[-1])
        self.failed_calls += innocent.failure is not None
        if not node.is_running:
            self.crashes += 1
            node.kill()
            self._start()
        return found | {"durations_s": innocent.durations_s, "mib": (before_mib, largest_mib)}

    def row(self, name: str, turns: int, seconds: float, crowd: int) -> dict[str, Any]:
        """Measure one attack and what is without it, in turns."""
        alone: list[list[float]] = []  # by turn
        beside: list[list[float]] = []
        answers: dict[str, Counter[str]] = {"goaways": Counter(), "resets": Counter()}
        answers["statuses"] = Counter()
        sent = Counter[str]()
        before_mib, largest_mib = self.node.rss_mib, 0.0
        self.crashes = self.failed_calls = 0
        for _ in range(turns):
            alone.append(self.turn(None, seconds, crowd)["durations_s"])
            found = self.turn(name, seconds, crowd)
            beside.append(found["durations_s"])
            largest_mib = max(largest_mib, found["mib"][1])
            for kind, counts in answers.items():
                counts.update(found.get(kind, {}))
            for what in ("connections", "closed", "sent_bytes", "sent_parts", "seconds"):
                sent[what] += found.get(what, 0)
        line: dict[str, Any] = {"attack": name, "port": find_port(name)}
        line |= {"crashes": self.crashes, "failed_calls": self.failed_calls}
        for part in (0.5, 0.99):
            pair = [
                min(percentile_ms(turn, part) for turn in turns_s) for turns_s in (alone, beside)
            ]
            line[f"p{part * 100:g}_ms"] = [round(each, 2) for each in pair]
            line[f"p{part * 100:g}_ratio"] = round(pair[1] / pair[0], 1)
        line["max_ms"] = round(max(map(max, beside)) * 1e3, 1)
        line["mib"] = [round(each) for each in (before_mib, largest_mib, self.node.rss_mib)]
        line["mb_per_s"] = round(sent["sent_bytes"] / sent["seconds"] / 1e6, 1)
        line["parts_per_s"] = round(sent["sent_parts"] / sent["seconds"])
        line["connections"], line["closed"] = sent["connections"], sent["closed"]
        return line | {kind: dict(counts) for kind, counts in answers.items() if counts}


def percentile_ms(durations_s: list[float], part: float) -> float:
    ordered = sorted(durations_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3


def find_port(name: str) -> str:
    if name in CALLERS:
        return "HTTP" if name in HTTP else "peers"
    return "clients, TLS" if name == HANDSHAKES else "clients"


def begin(node: ServeProcess, name: str, seconds: float, crowd: int) -> "subprocess.Popen[str]":
    """Start an attacker."""
    module, address = "tests.attacks.clients", node.flags["listen"]
    flags = ["--seconds", str(seconds)]
    if name in CALLERS:
        flags += ["--connections", str(CALLING)]
        module = "tests.attacks.ports"
        address = node.flags["http-listen" if name in HTTP else "peer-listen"]
    else:
        times = crowd if name in CROWDS else OFTEN
        is_streaming = name in (IDLE_STREAMS, HALF_OPEN_STREAMS)
        flags += ["--times", str(STREAMING_CROWD if is_streaming else times)]
    return subprocess.Popen(
        [sys.executable, "-m", module, name, address, *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def write_row(line: dict[str, Any]) -> str:
    """Return a row of the table in docs/security.md."""
    requests = f"{line['connections']:,} connections, {line['mb_per_s']:g} MB/s"
    if line["parts_per_s"]:
        requests += f", {line['parts_per_s']:,} parts/s"
    cells = (
        line["attack"], line["port"], requests, line["crashes"], line["failed_calls"],
        *(f"{each:.1f}" for each in line["p99_ms"]), line["p99_ratio"],
        line["mib"][0], line["mib"][2],
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


@contextmanager
def targets(directory: Path) -> Iterator[dict[bool, Target]]:
    """Start two nodes, the second with TLS."""
    most = str(CROWD + OTHERS)
    trusted = authority(directory, "authority")
    own = signed(directory, "node", trusted)
    with (
        nodes(directory, "plain", limits_connections_per_address_max=most) as plain,
        nodes(directory, "encrypted", limits_connections_per_address_max=most) as tls,
    ):
        encrypted = tls["encrypted"]
        encrypted.flags |= {"tls-cert": str(own.chain), "tls-key": str(own.key)}
        yield {
            False: Target(plain["plain"], None),
            True: Target(encrypted, trusted.chain),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each turn")
    parser.add_argument("--only", action="append", help="only attacks whose names contain this")
    parser.add_argument("--quick", action="store_true", help="only check that everything works")
    parser.add_argument("--table", action="store_true", help="print rows of docs/security.md")
    arguments = parser.parse_args()
    turns = 1 if arguments.quick else arguments.turns
    seconds = QUICK_S if arguments.quick else arguments.seconds
    crowd = QUICK_CROWD if arguments.quick else CROWD
    wanted = arguments.only or [""]
    with (
        tempfile.TemporaryDirectory(prefix="onelog-bench-") as directory,
        targets(Path(directory)) as found,
    ):
        for name in ATTACKS:
            if any(part in name for part in wanted):
                line = found[name == HANDSHAKES].row(name, turns, seconds, crowd)
                sys.stdout.write(f"{write_row(line) if arguments.table else json.dumps(line)}\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
