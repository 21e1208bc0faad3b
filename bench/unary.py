"""Plain unary gRPC calls, as clients of all languages make them: onelog, etcd and an echo.

``make unary``, or ``python bench/unary.py [--turns N] [--seconds S] [--nodes 1 3] [--only TEXT]``.
h2load puts and gets one key ("unary", 100 bytes) over and over; gets are linearizable. Callers
share some connections, as in programs of several tasks; of three nodes the leader is called. The
echo is a bare grpc.aio server of one node that keeps nothing. Systems are measured in turns, right
after each other, each turn in another order: only measurements close in time can be compared.

One line of JSON for each measurement, and one for each row: medians over the turns, ratios to etcd
turn by turn with their median, and the goals. ``cpu_us`` is the CPU of all nodes of a system for
one call. Every answer was OK: bench/unary_load.py says how that is known. Before the rows of a size
is the duration of a sync of the disk, which a put depends on (TMPDIR chooses the disk).
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import peers_servers, unary_load
from bench.api import serving
from bench.peers_processes import find_exit_code
from bench.unary_load import System

TURNS, SECONDS, WARM_UP_S = 5, 2.0, 0.3
QUICK_TURNS, QUICK_S = 1, 0.1
SHARDS = 1
SYNCS, SYNCED_BYTES = 100, 300
FIELDS = ("per_s", "p50_ms", "p99_ms", "cpu_us")


@dataclass(frozen=True)
class Goal:
    """What is wanted: of a ratio to etcd in the same turn, or of our own figure."""

    of: str
    at_least: float = 0.0
    at_most: float = float("inf")
    is_ratio: bool = True
    # Beyond what is wanted, what is hoped for.
    aim: float | None = None

    def verdict(self, found: float) -> dict[str, Any]:
        """Say whether it is reached."""
        what = f"{self.of} / etcd's" if self.is_ratio else self.of
        wanted = f">= {self.at_least:g}" if self.at_least else f"<= {self.at_most:g}"
        line = {"of": what, "found": round(found, 2), "goal": wanted}
        if self.aim is not None:
            line["aim"] = self.aim
        return line | {"reached": self.at_least <= found <= self.at_most}


@dataclass(frozen=True)
class Row:
    """One case: how many callers, and how many nodes of each system."""

    nodes: int
    case: str
    callers: int
    connections: int

    @property
    def name(self) -> str:
        """What it is called in the output and by ``--only``."""
        nodes = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        callers = "1 caller" if self.callers == 1 else f"{self.callers} callers"
        return f"{nodes}, {self.case}, {callers}"

    @property
    def goals(self) -> list[Goal]:
        found = []
        if self.callers > 1:
            found.append(Goal("per_s", at_least=1.0, aim=1.5))
        elif self.case == "put":
            found.append(Goal("p50_ms", at_most=1.2))
        if self.case == "put" and self.nodes == 1:
            found.append(Goal("cpu_us", at_most=100, is_ratio=False))
        return found


def make_rows(nodes: Sequence[int], connections: int) -> list[Row]:
    return [
        Row(count, case, callers, min(connections, callers))
        for count in nodes
        for case in ("put", "get")
        for callers in (1, 64, 256)
    ]


def verdict(row: Row, turns: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return what the turns of a row say, system by system."""
    line: dict[str, Any] = {"row": row.name, "connections": row.connections}
    for name, results in turns.items():
        line[name] = {field: median(result[field] for result in results) for field in FIELDS}
    ours = turns["onelog"]
    ratios: dict[str, list[float]] = {}
    if "etcd" in turns:
        for field in FIELDS:
            pairs = zip(ours, turns["etcd"], strict=True)
            # CPU is counted in ticks: a short turn may have none.
            ratios[field] = [mine[field] / max(theirs[field], 1e-3) for mine, theirs in pairs]
    line["ratios"] = {field: [round(each, 2) for each in of] for field, of in ratios.items()}
    line["ratio"] = {field: round(median(of), 2) for field, of in ratios.items()}
    line["goals"] = [
        goal.verdict(median(ratios[goal.of]) if goal.is_ratio else line["onelog"][goal.of])
        for goal in row.goals
        if ratios or not goal.is_ratio
    ]
    return line


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def sync_ms(directory: Path) -> float:
    """Return the duration of a small append with a sync."""
    durations_s = []
    with (directory / "synced").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(SYNCED_BYTES))
            begun_s = time.perf_counter()
            os.fdatasync(file.fileno())
            durations_s.append(time.perf_counter() - begun_s)
    return round(median(durations_s) * 1e3, 3)


def run_row(
    row: Row, systems: Sequence[System], turns: int, seconds: float, directory: Path
) -> None:
    """Measure all systems in turns, and report the results."""
    found: dict[str, list[dict[str, Any]]] = {system.name: [] for system in systems}
    for turn in range(turns):
        first = turn % len(systems)
        for system in (*systems[first:], *systems[:first]):
            result = unary_load.measure(
                system, row.case, row.callers, row.connections, seconds,
                min(WARM_UP_S, seconds), directory,
            )  # fmt: skip
            found[system.name].append(result)
            say({"measured": system.name, "case": row.name, "turn": turn + 1} | result)
    say(verdict(row, found))


def run(rows: Sequence[Row], venv: Path, turns: int, seconds: float) -> None:
    """Start new clusters of each size, and measure all rows of it."""
    for count in sorted({row.nodes for row in rows}):
        with ExitStack() as stack:
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="onelog-unary-"))
            )
            say({"nodes": count, "fdatasync_ms": sync_ms(directory)})
            systems = [unary_load.onelog(stack.enter_context(serving(count, SHARDS)))]
            if (venv / "bin" / "python").exists():
                other = stack.enter_context(peers_servers.etcd(venv, directory, count))
                systems.append(unary_load.etcd(other))
            else:
                say({"skipped": f"etcd: there is no environment in {venv.name}: make unary"})
            if count == 1:
                echo = stack.enter_context(peers_servers.echo(venv, directory))
                systems.append(unary_load.echo(echo))
            for system in systems:  # or there would be nothing to get
                unary_load.call(system.leader(), system.requests["put"])
            for row in (row for row in rows if row.nodes == count):
                run_row(row, systems, turns, seconds, directory)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of each row (default {TURNS})")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of a measurement (default {SECONDS:g})"
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3], help="(default 1 3)")
    parser.add_argument("--connections", type=int, default=8, help="that callers share (default 8)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help='rows with this in their names, as "put, 64"',
    )
    parser.add_argument("--quick", action="store_true", help="see only that everything works")
    parser.add_argument(
        "--venv", type=Path, default=peers_servers.VENV, help="where etcd is (default build/peers)"
    )
    arguments = parser.parse_args()
    if arguments.turns < 1 or arguments.seconds <= 0:
        parser.error("a row has at least one turn, and a turn takes some time")
    if arguments.connections not in (1, 2, 4, 8, 16, 32, 64):
        parser.error("callers are spread evenly: a power of two up to 64 connections")
    only = arguments.only or [""]
    rows = make_rows(arguments.nodes, arguments.connections)
    arguments.rows = [row for row in rows if any(part in row.name for part in only)]
    if not arguments.rows:
        parser.error(f"there are these rows: {'; '.join(row.name for row in rows)}")
    return arguments


def main() -> int:
    arguments = parsed()
    hint = unary_load.missing()
    if hint is not None:
        print(hint, file=sys.stderr)
        return 1
    turns = QUICK_TURNS if arguments.quick else arguments.turns
    seconds = QUICK_S if arguments.quick else arguments.seconds
    return find_exit_code(lambda: run(arguments.rows, arguments.venv.absolute(), turns, seconds))


if __name__ == "__main__":
    sys.exit(main())
