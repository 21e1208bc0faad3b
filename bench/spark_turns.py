"""How bench/spark.py compares: contenders in turns, by wall time and CPU of Java and workers."""

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

TURNS = 5
_TICKS = os.sysconf("SC_CLK_TCK")
# Of a line of /proc/PID/stat after the name: parent, and ticks of the process and of its children
# that ended.
_PARENT, _TIMES = 1, slice(11, 15)

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    wall_s: float
    java_s: float
    python_s: float  # this process and the workers


def report(case: str, **fields: object) -> None:
    """Print one line."""
    print(json.dumps({"case": case, **fields}), flush=True)


def compare(
    case: str,
    steps: Mapping[str, Step],
    *,
    goals: Mapping[str, float],
    rows: int,
    turns: int = TURNS,
    **fields: object,
) -> None:
    """Run contenders in turns, and report the first one's speed as multiples of the others'."""
    costs: dict[str, list[Cost]] = {name: [] for name in steps}
    for step in steps.values():
        step()  # classes are loaded, files are in the cache
    for _ in range(turns):
        for name, step in steps.items():
            costs[name].append(measure(step))
    first, *others = steps
    for other in others:
        pairs = zip(costs[first], costs[other], strict=True)
        ratios = [theirs.wall_s / ours.wall_s for ours, theirs in pairs]
        report(
            case,
            of=first,
            to=other,
            speed=round(statistics.median(ratios), 2),
            speeds=[round(each, 2) for each in ratios],
            goal=goals.get(other),
            rows=rows,
            **fields,
        )
    for name, found in costs.items():
        wall_s = statistics.median(each.wall_s for each in found)
        report(
            f"{case}: {name}",
            rows_per_s=round(rows / wall_s),
            wall_s=round(wall_s, 3),
            java_cpu_s=round(statistics.median(each.java_s for each in found), 3),
            python_cpu_s=round(statistics.median(each.python_s for each in found), 3),
        )


def measure(step: Step) -> Cost:
    """Run once."""
    java, python = cpu_s()
    started = time.perf_counter()
    step()
    wall_s = time.perf_counter() - started
    java_after, python_after = cpu_s()
    return Cost(wall_s, java_after - java, python_after - python)


def cpu_s() -> tuple[float, float]:
    """Return the CPU time so far of Java, and of Python, in this process and those below it."""
    parents: dict[int, int] = {}
    times: dict[int, tuple[bool, float]] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            head, _, rest = (path / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        fields = rest.split()
        pid = int(path.name)
        parents[pid] = int(fields[_PARENT])
        ticks = sum(map(int, fields[_TIMES]))
        times[pid] = head.endswith("(java"), ticks / _TICKS
    mine = {os.getpid()}
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in mine}
        grown = not below <= mine
        mine |= below
    java = sum(spent for pid, (is_java, spent) in times.items() if pid in mine and is_java)
    both = sum(spent for pid, (_, spent) in times.items() if pid in mine)
    return java, both - java
