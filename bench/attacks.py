"""How attacks slow an innocent client down: its calls alone and during each attack, in turns.

``python bench/attacks.py [--turns N] [--seconds S] [--only TEXT] [--quick]``. One real node, an
innocent client that puts and gets one after the other on its own connection, and an attacker in its
own process that starts again whenever it is disconnected (tests/system/attackers.py). One line of
JSON for each attack: p50 and p99 with and without it, the ratios, the node's memory before, at its
peak and after, what the attacker sent each second, and how it was answered. All run on loopback: on
two cores, attacker, client and node share what the node would otherwise have alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.system.attackers import CROWDS, IDLE_STREAMS, LARGE_BYTES, LARGE_KEY, NAMES
from tests.system.innocent import Busy, Innocent
from tests.system.nodes import ServeProcess, nodes

ROOT = Path(__file__).parent.parent
TURNS, SECONDS, QUICK_S = 2, 1.5, 0.2
# The number of concurrent attackers; the others are counted by reconnection.
CROWD, QUICK_CROWD, OFTEN = 10_000, 100, 1_000_000
# With 1,024 streams each, more than the limit of calls.
STREAMING_CROWD = 17
# Needs a server with TLS; against another one it is garbage.
LEFT_OUT = "handshakes that never end"


def percentile_ms(durations_s: list[float], part: float) -> float:
    ordered = sorted(durations_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3


def turn(node: ServeProcess, name: str | None, seconds: float, crowd: int) -> dict[str, Any]:
    """Measure the innocent client for a while, during an attack or without one."""
    found: dict[str, Any] = {}
    largest_mib = before_mib = node.rss_mib
    with Busy(node.flags["listen"]) as innocent:
        if name is None:
            time.sleep(seconds)
        else:
            times = crowd if name in CROWDS else OFTEN
            if name == IDLE_STREAMS:
                times = STREAMING_CROWD
            flags = ["--seconds", str(seconds), "--times", str(times)]
            module = [sys.executable, "-m", "tests.system.attackers"]
            attacker = subprocess.Popen(
                [*module, name, node.flags["listen"], *flags],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            while attacker.poll() is None:
                largest_mib = max(largest_mib, node.rss_mib)
                time.sleep(0.02)
            found = json.loads(attacker.communicate()[0].splitlines()[-1])
    if innocent.failure is not None:
        raise innocent.failure
    return found | {"durations_s": innocent.durations_s, "mib": (before_mib, largest_mib)}


def row(node: ServeProcess, name: str, turns: int, seconds: float, crowd: int) -> dict[str, Any]:
    alone: list[float] = []
    beside: list[float] = []
    answers: dict[str, Counter[str]] = {"goaways": Counter(), "resets": Counter()}
    answers["statuses"] = Counter()
    sent = Counter[str]()
    before_mib, largest_mib = node.rss_mib, 0.0
    for _ in range(turns):
        alone += turn(node, None, seconds, crowd)["durations_s"]
        found = turn(node, name, seconds, crowd)
        beside += found["durations_s"]
        largest_mib = max(largest_mib, found["mib"][1])
        for kind, counts in answers.items():
            counts.update(found[kind])
        for what in ("connections", "closed", "sent_bytes", "sent_parts", "seconds"):
            sent[what] += found[what]
    line: dict[str, Any] = {"attack": name}
    for part in (0.5, 0.99):
        pair = [percentile_ms(each, part) for each in (alone, beside)]
        line[f"p{part * 100:g}_ms"] = [round(each, 2) for each in pair]
        line[f"p{part * 100:g}_ratio"] = round(pair[1] / pair[0], 1)
    line["max_ms"] = round(max(beside) * 1e3, 1)
    line["mib"] = [round(each) for each in (before_mib, largest_mib, node.rss_mib)]
    line["mb_per_s"] = round(sent["sent_bytes"] / sent["seconds"] / 1e6, 1)
    line["parts_per_s"] = round(sent["sent_parts"] / sent["seconds"])
    line["connections"], line["closed"] = sent["connections"], sent["closed"]
    return line | {kind: dict(counts) for kind, counts in answers.items() if counts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each turn")
    parser.add_argument("--only", action="append", help="only attacks whose names contain this")
    parser.add_argument("--quick", action="store_true", help="only check that everything works")
    arguments = parser.parse_args()
    turns = 1 if arguments.quick else arguments.turns
    seconds = QUICK_S if arguments.quick else arguments.seconds
    crowd = QUICK_CROWD if arguments.quick else CROWD
    wanted = arguments.only or [""]
    with (
        tempfile.TemporaryDirectory(prefix="onelog-bench-") as directory,
        nodes(Path(directory), "attacked") as made,
    ):
        node = made["attacked"].start()
        node.until_ready()
        client = Innocent(node.flags["listen"])
        client.put(LARGE_KEY, bytes(LARGE_BYTES))
        client.close()
        for name in NAMES:
            if name != LEFT_OUT and any(part in name for part in wanted):
                print(json.dumps(row(node, name, turns, seconds, crowd)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
