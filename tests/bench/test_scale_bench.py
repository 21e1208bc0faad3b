"""The benchmark of many of everything works, and docs/operations.md has what it measures."""

import pytest

from bench.scale import OVERLOADING, OVERLOADS, POPULATIONS, WATCHERS
from tests.bench.quick_runs import lines_of
from tests.system.processes import ROOT


@pytest.mark.parametrize("case", ["overload: put", "overload: lease and ack"])
def test_more_callers_than_a_node_can_serve_are_served(case: str) -> None:
    (row,) = lines_of("bench/scale.py", "--only", case)
    assert row["case"].endswith(f"by {OVERLOADING} callers")
    assert all(each > 0 for each in row["per_s"]), row


def test_watchers_have_their_events() -> None:
    (row,) = lines_of("bench/scale.py", "--only", "watchers")
    assert all(each > 0 for each in row["per_s"]), row


@pytest.mark.parametrize("case", ["queues", "sessions", "values"])
def test_a_population_is_made_and_there_after_each_restart(case: str) -> None:
    (row,) = lines_of("bench/scale.py", "--only", case)
    assert case in row["case"]
    assert len(row["restart_s"]) == len(row["restart_cpu_s"]) == 3
    assert all(each > 0 for each in (*row["made_per_s"], *row["restart_cpu_s"], *row["rss_mib"]))


def test_the_document_has_every_case_at_its_full_size() -> None:
    section = (ROOT / "docs" / "operations.md").read_text().partition("## Many of everything")[2]
    found = set()
    for line in section.partition("\n## ")[0].splitlines():
        if line.startswith("| ") and not line.startswith("| case |"):
            found.add(line.split("|")[1].strip())
    assert found == {
        *(f"{name} by {OVERLOADING} callers" for name in OVERLOADS),
        f"events to {WATCHERS} watchers",
        *(f"{each.count:,} {each.name}" for each in POPULATIONS),
    }
