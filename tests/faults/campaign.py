"""The fault matrix, run again: ``python -m tests.faults.campaign [--only TEXT] [--page]``.

For each row of tests/faults/matrix.py the tests run that it names, one after the other. The results
are kept in tests/faults/results.json, those of rows that did not run this time as well, and
docs/faults.md is made of them. Tests may record figures (``record_property``) for the page. A row
whose tests need what this machine lacks says so. The exit code is 1 if a test failed.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.matrix import MATRIX, Fault

ROOT = Path(__file__).parent.parent.parent
PAGE, RESULTS = ROOT / "docs" / "faults.md", Path(__file__).parent / "results.json"
PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"
# A row with several long tests on a busy machine.
ROW_S_MAX = 1800
COLUMNS = 110
FIGURES = "figures"
INTRODUCTION = """
What can go wrong, what onelog promises then, the tests that show it, and how these went the last
time. `make faults` runs them again, prints a table and writes this page; `make faults ONLY=disk`
runs the rows whose names have that. All of them take about ten minutes on two cores.
[guarantees.md](guarantees.md) has the promises in full, [security.md](security.md#tried) what other
clients notice of floods.

Tests with namespaces or a tmpfs need Linux and root, those with clocks libfaketime; where that is
missing, a row says that it was not run, and why. Between namespaces `tests/faults/switch.py`
carries every packet itself, so `tc netem` is not needed. Disks that lose power, fail or lie are
simulated (`tests/simulation/disk.py`): a real one does not do so when it is asked.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """How a row went the last time."""

    outcome: str  # the reason follows if it did not run
    tests: int
    seconds: int
    day: str
    figures: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return it in words."""
        if self.outcome.startswith(NOT_RUN):
            return f"{self.outcome} ({self.day})"
        number = "1 test" if self.tests == 1 else f"{self.tests} tests"
        said = f": {'; '.join(self.figures)}" if self.figures else ""
        return f"{self.outcome} on {self.day}, {number} in {self.seconds} s{said}"


def run_row(fault: Fault) -> tuple[Result, str]:
    """Run the tests of a row; return how it went, and what pytest printed."""
    day, begin_s = datetime.now(UTC).date().isoformat(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onelog-faults-") as directory:
        report = Path(directory) / "report.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q"),
                *("--junitxml", report, "-o", "junit_family=xunit1"),
                *(Path("tests", each) for each in fault.tests),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ROW_S_MAX,
            check=False,
        )
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    seconds = round(time.monotonic() - begin_s)
    reasons = {each.get("message", "") for case in cases for each in case.iter("skipped")}
    ran = sum(case.find("skipped") is None for case in cases)
    if done.returncode != 0 or not cases:
        outcome = FAILED
    elif reasons:
        outcome = f"{NOT_RUN}: {', '.join(sorted(reasons))}"
    else:
        outcome = PASSED
    figures = tuple(
        each.get("value", "")
        for case in cases
        for each in case.iter("property")
        if each.get("name") == FIGURES
    )
    return Result(outcome, ran, seconds, day, figures), done.stdout


def load_results() -> dict[str, Result]:
    """Return the last results by the names of faults."""
    if not RESULTS.exists():
        return {}
    found = json.loads(RESULTS.read_text())
    return {
        name: Result(**(each | {FIGURES: tuple(each[FIGURES])})) for name, each in found.items()
    }


def save_results(results: Mapping[str, Result]) -> None:
    """Keep the results of faults that there still are, in the order of the matrix."""
    kept = {each.name: asdict(results[each.name]) for each in MATRIX if each.name in results}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


def write_page(results: Mapping[str, Result]) -> str:
    """Return docs/faults.md."""
    paragraphs = ["# Faults", *map(fill, INTRODUCTION.strip().split("\n\n"))]
    for kind, faults in groupby(MATRIX, lambda each: each.kind):
        paragraphs.append(f"## {kind}")
        rows = [fill(describe_row(each, results.get(each.name)), "* ", "  ") for each in faults]
        paragraphs.append("\n".join(rows))
    return "\n\n".join(paragraphs) + "\n"


def describe_row(fault: Fault, result: Result | None) -> str:
    """Return a row of the page as one line."""
    tests = ", ".join(f"`{each}`" for each in fault.tests)
    last = NOT_RUN if result is None else result.describe()
    return f"**{fault.name}** ({fault.shown_by}). {fault.promise} {tests}. Last: {last}."


def fill(text: str, first: str = "", others: str = "") -> str:
    """Break a paragraph into lines, at spaces alone: a name that is too long stays whole."""
    lines = [first]
    for word in text.split():
        if len(lines[-1]) + len(word) >= COLUMNS and lines[-1].strip(" *"):
            lines.append(others)
        lines[-1] += word if lines[-1].endswith(" ") or not lines[-1] else f" {word}"
    return "\n".join(lines)


def run_all(console: Console, faults: Sequence[Fault]) -> int:
    """Run rows, keep their results and write the page; return how many failed."""
    results = load_results()
    table = Table("fault", "shown by", "tests", "seconds", "result", title="Faults")
    failed = 0
    for number, fault in enumerate(faults, start=1):
        console.print(f"{number} of {len(faults)}: {fault.name} ...", markup=False)
        result, printed = run_row(fault)
        results[fault.name] = result
        if result.outcome == FAILED:
            failed += 1
            console.print(printed, markup=False, highlight=False)
        save_results(results)
        console.print(f"   {result.describe()}", markup=False)
        row = (fault.name, fault.shown_by, str(result.tests), str(result.seconds), result.outcome)
        table.add_row(*(re.sub(r"\[", r"\\[", each) for each in row))
    PAGE.write_text(write_page(results))
    console.print(table)
    console.print(f"{len(faults)} rows, {failed} failed; see {PAGE.relative_to(ROOT)}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only rows whose names contain this")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(write_page(load_results()))
        return 0
    wanted = arguments.only.lower()
    faults = [each for each in MATRIX if wanted in f"{each.kind} {each.name}".lower()]
    return min(1, run_all(Console(), faults))


if __name__ == "__main__":
    sys.exit(main())
