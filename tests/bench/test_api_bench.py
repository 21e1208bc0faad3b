"""The benchmark of the API works: what it prints decides what is worth doing next."""

from tests.bench.quick_runs import lines_of


def test_a_quick_run_has_a_row_for_every_case() -> None:
    rows = lines_of("bench/api.py", "--nodes", "1")
    measured = {(row["case"], row.get("callers")): row for row in rows if "per_s" in row}
    assert {("put", 1), ("put", 64), ("get", 64), ("transact of 128", 16)} <= set(measured)
    for row in measured.values():
        assert row["per_s"] > 0, row
        assert 0 < row["p50_ms"] <= row["p99_ms"], row
        assert row["client_us"] > 0, row
