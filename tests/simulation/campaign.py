"""Many runs of the simulator, in parallel: ``python -m tests.simulation.campaign SEEDS [SEED]``.

The first argument is the number of seeds, counted up from a random base, which is printed. With a
second argument that one seed is run again, exactly, and its events are shown. The exit code is the
number of seeds that failed, at most 1.
"""

import gc
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from random import SystemRandom

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.world import Violation, World

FAILURES_SHOWN_MAX = 5
NICE = 10
TOLD_EVERY = 50  # seeds, where no bar can be drawn


def run_seed(seed: int) -> str | None:
    """Run one seed; return what is wrong with it, if anything."""
    # Collected once, when the world is gone: in between it took a fifth of the time.
    gc.disable()
    try:
        World(seed).run()
    except Violation as violation:
        return str(violation)
    finally:
        gc.collect()
    return None


def run_many(console: Console, base: int, count: int) -> int:
    """Run seeds from ``base`` on; return how many failed."""
    console.print(f"seeds {base} to {base + count - 1}; each is 60 simulated seconds of faults")
    failures: list[tuple[int, str]] = []
    began_s = time.monotonic()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(initializer=os.nice, initargs=(NICE,)) as pool,
    ):
        task = progress.add_task("simulating", total=count)
        futures = {pool.submit(run_seed, base + at): base + at for at in range(count)}
        for done, future in enumerate(as_completed(futures), start=1):
            found = future.result()
            if found is not None:
                failures.append((futures[future], found))
                progress.console.print(f"[red]seed {futures[future]} fails")
            progress.update(task, advance=1, description=f"{len(failures)} failed")
            if not console.is_terminal and done % TOLD_EVERY == 0:
                console.print(f"{done} of {count}, {len(failures)} failed")
    minutes = (time.monotonic() - began_s) / 60
    console.print(f"{count} seeds, {len(failures)} failed, {count / minutes:.1f} seeds a minute")
    for _, found in failures[:FAILURES_SHOWN_MAX]:
        console.print(found, markup=False, highlight=False)
    for seed, _ in failures:
        console.print(f"again: make simulate SEED={seed}")
    return len(failures)


def main(arguments: list[str]) -> int:
    """Run a campaign, or one seed again."""
    console = Console()
    if len(arguments) > 1 and arguments[1]:
        found = run_seed(int(arguments[1]))
        console.print(found or f"seed {arguments[1]} holds", markup=False, highlight=False)
        return int(found is not None)
    base = SystemRandom().randrange(10**9)
    return min(1, run_many(console, base, int(arguments[0]) if arguments else 50))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
