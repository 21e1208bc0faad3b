"""The benchmark beside other systems, without them: what it makes of turns, and what it skips."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.api_cases import CASES
from bench.peers import PEERS
from bench.peers_rows import ROWS, Row, verdict
from tests.bench.quick_runs import lines_of


def turns(of: str, *values: float) -> list[dict[str, Any]]:
    return [{of: value, "done": 1} for value in values]


def test_a_rate_is_divided_turn_by_turn_and_the_median_counts() -> None:
    """A moment in which the machine was busy must not decide, whichever side it hit."""
    row = Row("etcd", "put", "put", 3, callers=64)
    line = verdict(row, turns("per_s", 300, 20, 900), turns("per_s", 100, 100, 200))
    assert line["ratios"] == [3, 0.2, 4.5]
    assert (line["ratio"], line["goal"], line["reached"]) == (3, 3, True)
    assert (line["ours"], line["theirs"]) == ([300, 20, 900], [100, 100, 200])
    assert not verdict(row, turns("per_s", 299), turns("per_s", 100))["reached"]


def test_of_times_the_shorter_one_is_better() -> None:
    row = Row("etcd", "put", "put", 0.5, callers=1, of="p50_ms")
    line = verdict(row, turns("p50_ms", 4.0, 2.0), turns("p50_ms", 2.0, 1.0))
    assert (line["ratios"], line["ratio"], line["reached"]) == ([0.5, 0.5], 0.5, True)
    assert not verdict(row, turns("p50_ms", 4.1), turns("p50_ms", 2.0))["reached"]


def test_a_ratio_just_below_the_goal_is_not_rounded_up_to_it() -> None:
    row = Row("etcd", "put", "put", 3, callers=64)
    line = verdict(row, turns("per_s", 2999), turns("per_s", 1000))
    assert (line["ratio"], line["reached"]) == (3, False)


def test_a_turn_that_only_one_side_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        verdict(ROWS[1], turns("per_s", 1, 2), turns("per_s", 1))


def test_every_row_is_a_case_of_ours_with_its_callers_and_a_known_peer() -> None:
    """Or the run would end in the middle."""
    cases = {(case.name, case.callers) for case in CASES}
    assert {(row.ours, row.callers) for row in ROWS} <= cases
    assert {row.peer for row in ROWS} == set(PEERS)
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_rows_of_peers_that_are_not_installed_say_what_to_do(tmp_path: Path) -> None:
    lines = lines_of("bench/peers.py", "--venv", tmp_path / "none")
    skipped = [line for line in lines if "skipped" in line]
    others = [row.name for row in ROWS if not PEERS[row.peer].is_ours]
    assert [line["row"] for line in skipped] == others
    assert all("make peers" in line["skipped"] for line in skipped)
    # The bare server needs nothing that is not here.
    measured = {(line["measured"], line["case"]) for line in lines if "measured" in line}
    assert measured == {("echo", "echo of 128"), ("onelog", "put_many of 128")}
    assert all(line["ratio"] > 0 for line in lines if "ratio" in line)


def test_a_server_that_pip_cannot_give_is_asked_for_by_its_package(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert PEERS["etcd"].missing(tmp_path) is None
    hint = replace(PEERS["rabbitmq"], needs=tmp_path / "none").missing(tmp_path)
    assert hint is not None
    assert "apt-get install rabbitmq-server" in hint
