"""The benchmark of unary calls: what it makes of turns and of h2load's words, and that it runs."""

from pathlib import Path
from typing import Any

import pytest

from bench import unary_load
from bench.peers_processes import PeerFailed
from bench.unary import Row, make_rows, verdict
from tests.bench.quick_runs import lines_of

REPORT = """
finished in 700.54ms, 1404.29 req/s, 94.75KB/s
requests: 983 total, 984 started, 983 done, 982 succeeded, 1 failed, 0 errored, 0 timeout
status codes: 981 2xx, 0 3xx, 2 4xx, 0 5xx
traffic: 66.33KB (67920) total, 2.95KB (3024) headers (space savings 96.20%), 9.48KB (9705) data
"""


def turns(*values: tuple[float, float, float]) -> list[dict[str, Any]]:
    return [
        {"per_s": per_s, "p50_ms": p50_ms, "p99_ms": p50_ms * 2, "cpu_us": cpu_us}
        for per_s, p50_ms, cpu_us in values
    ]


def test_each_turn_is_compared_with_etcd_in_the_same_turn() -> None:
    """A moment in which the machine was busy must not decide, whichever side it hit."""
    ours = turns((300, 1, 90), (20, 9, 95), (900, 1, 400))
    theirs = turns((100, 1, 50), (100, 1, 50), (200, 1, 50))
    line = verdict(Row(1, "put", 64, 8), {"onelog": ours, "etcd": theirs})
    assert line["ratios"]["per_s"] == [3, 0.2, 4.5]
    assert line["ratio"]["per_s"] == 3
    assert line["onelog"] == {"per_s": 300, "p50_ms": 1, "p99_ms": 2, "cpu_us": 95}
    rate, cpu = line["goals"]
    assert (rate["of"], rate["found"], rate["reached"]) == ("per_s / etcd's", 3, True)
    assert (cpu["of"], cpu["found"], cpu["reached"]) == ("cpu_us", 95, True)


def test_a_figure_just_beside_its_goal_is_not_rounded_into_it() -> None:
    slow = verdict(
        Row(3, "get", 256, 8), {"onelog": turns((999, 1, 1)), "etcd": turns((1000, 1, 1))}
    )
    assert slow["goals"] == [
        {"of": "per_s / etcd's", "found": 1.0, "goal": ">= 1", "aim": 1.5, "reached": False}
    ]
    late = verdict(Row(3, "put", 1, 1), {"onelog": turns((1, 1.2001, 1)), "etcd": turns((1, 1, 1))})
    assert [goal["reached"] for goal in late["goals"]] == [False]


def test_without_etcd_only_our_own_figures_have_goals() -> None:
    line = verdict(Row(1, "put", 64, 8), {"onelog": turns((300, 1, 101)), "echo": turns((1, 1, 1))})
    assert [(goal["of"], goal["reached"]) for goal in line["goals"]] == [("cpu_us", False)]
    assert line["ratio"] == {}


def test_rows_have_one_64_and_256_callers_on_both_sizes() -> None:
    rows = make_rows([1, 3], connections=8)
    assert len({row.name for row in rows}) == len(rows) == 12
    assert {(row.callers, row.connections) for row in rows} == {(1, 1), (64, 8), (256, 8)}


def test_the_report_of_h2load_is_read_and_another_one_is_an_error() -> None:
    """Answers that failed are counted apart, or a broken server would be the fastest."""
    assert unary_load.parse_summary(REPORT) == unary_load.Summary(983, 982, 0, 2, 0, 9705)
    assert unary_load.parse_summary(REPORT).has_failures
    good = REPORT.replace("982 succeeded", "983 succeeded").replace("2 4xx", "0 4xx")
    assert not unary_load.parse_summary(good).has_failures
    assert unary_load.parse_summary(good.replace("0 5xx", "1 5xx")).has_failures
    with pytest.raises(PeerFailed, match="something else"):
        unary_load.parse_summary(REPORT.replace("status codes", "codes"))


def test_a_machine_without_h2load_hears_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    hint = unary_load.missing()
    assert hint is not None
    assert "apt-get install nghttp2-client" in hint


def test_a_quick_run_of_watchers_has_every_row() -> None:
    """Thousands of streams without a library are worth nothing if the server refuses them."""
    rows = {row["name"]: row for row in lines_of("bench/watchers.py")}
    assert "one of 20 watch streams" in rows
    assert rows["a put until 200 watch streams had it"]["ms"] > 0
    assert rows["a put until 20 watches of one client had it"]["ms"] > 0


@pytest.mark.interop
def test_a_quick_run_without_etcd_measures_ours_and_the_echo(tmp_path: Path) -> None:
    lines = lines_of("bench/unary.py", "--venv", tmp_path / "none")
    rows = {line["row"]: line for line in lines if "row" in line}
    assert sorted(rows) == sorted(row.name for row in make_rows([1, 3], 8))
    assert all(row["onelog"]["per_s"] > 0 for row in rows.values())
    assert all(("echo" in row) == name.startswith("1 node") for name, row in rows.items())
    assert sum("skipped" in line for line in lines) == 2
