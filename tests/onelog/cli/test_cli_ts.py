"""``onelog ts`` against a real server, and the points that it reads."""

from pathlib import Path

import pytest

from onelog.cli.failure import CommandFailed
from onelog.cli.timeseries import Point, chunks, parse_csv, parse_point
from tests.onelog.cli.commands import Cli

HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("line", "point"),
    [
        ("cpu load=0.5", Point("cpu", (), {"load": 0.5}, 7)),
        ("cpu,host=a,dc=x load=1,n=3i,ok=true 42",
         Point("cpu", (("dc", "x"), ("host", "a")), {"load": 1.0, "n": 3, "ok": True}, 42)),
        (r"my\ cpu,a\=b=c\,d f=-1e3 1970-01-01T00:00:01Z",
         Point("my cpu", (("a=b", "c,d"),), {"f": -1000.0}, 10**9)),
    ],
)  # fmt: skip
def test_a_line_is_a_point(line: str, point: Point) -> None:
    found = parse_point(line, "point 1", 7)
    assert found == point
    assert [type(each) for each in found.fields.values()] == [
        type(each) for each in point.fields.values()
    ]


@pytest.mark.parametrize(
    "line", ["cpu", "cpu load", "cpu load=x", "cpu load=1 2 3", "cpu,host load=1", "cpu a=1 soon",
             "cpu load=99999999999999999999i", "cpu =1", f"cpu load=1 {1 << 63}", "cpu a=1=2"],
)  # fmt: skip
def test_what_is_no_point_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(CommandFailed, match=r"^point 3: ") as refused:
        parse_point(line, "point 3", 0)
    assert refused.value.reason == "POINTS_INVALID"


def test_points_of_one_series_become_arrays() -> None:
    lines = ["cpu,h=a x=1 1", "cpu,h=b x=1 1", "cpu,h=a x=2 2", "mem x=1i 1", "cpu,h=a x=1,y=2 3"]
    points = [parse_point(line, "", 0) for line in lines]
    found = {
        (measurement, *each.tags.values(), *each.fields): list(each.times_ns)
        for measurement, _, series in chunks(points)
        for each in series
    }
    assert found == {
        ("cpu", "a", "x"): [1, 2], ("cpu", "b", "x"): [1], ("mem", "x"): [1],
        ("cpu", "a", "x", "y"): [3],
    }  # fmt: skip


def test_a_table_of_values_is_read_by_its_header() -> None:
    lines = [b"\xef\xbb\xbftime,host,load,n", b"5,a,0.5,3", b"6,,0.6,", b"7,b,,"]
    points = list(parse_csv(lines, "cpu", "time", ["host"], ["n"]))
    assert points == [
        Point("cpu", (("host", "a"),), {"load": 0.5, "n": 3}, 5),
        Point("cpu", (), {"load": 0.6}, 6),
    ]
    for wrong in ([b"time,load", b"5"], [b"time,load", b"5,x"], [b"when,load", b"5,1"]):
        with pytest.raises(CommandFailed):
            list(parse_csv(wrong, "cpu", "time", [], []))
    huge = b"x" * 200_000
    for broken in ([huge], [b"time,load", b"5," + huge], [b"time,load", b"5\r6,1"]):
        with pytest.raises(CommandFailed, match=rf"^line {len(broken)}: ") as refused:
            list(parse_csv(broken, "cpu", "time", [], []))
        assert refused.value.reason == "POINTS_INVALID"


def test_points_are_written_and_asked_for(cli: Cli) -> None:
    cli("ts", "create", "cpu1", "--keep", "30d", "--duplicates", "first")
    cli("ts", "configure", "cpu1", "--duplicates", "last")
    written = cli.json("ts", "write", "cpu1,host=a load=1,n=3i now-2m", "cpu1,host=b load=3 now-1m")
    assert written == {"points": 2, "values": 3}
    cli("ts", "write", stdin=b"# a comment\ncpu1,host=a load=2\n\ncpu1,host=a load=4\n")
    info = cli.json("ts", "show", "cpu1")
    assert info["config"] == {"duplicates": "last", "retention_s": 2_592_000, "series_max": 100_000}
    assert info["fields"] == {"load": "f64", "n": "i64"}
    assert info["series_count"] == 2
    by_host = cli.lines("ts", "query", "cpu1", "load", "--by", "host", "-a", "sum")
    assert {each["tags"]["host"]: each["values"] for each in by_host} == {"a": [7], "b": [3]}
    (only,) = cli.lines("ts", "query", "cpu1", "load", "--where", "host=~a.*")
    assert only["values"] == [1, 2, 4]
    ran = cli("ts", "query", "cpu1", "load", "--where", "host=a")
    assert "▁" in ran.out
    assert "█" in ran.out
    assert ran.rows[0][-5:] == ["1", "to", "4,", "last", "4"]
    assert len(ran.rows) == 5
    assert len(cli("ts", "query", "cpu1", "load", "--where", "host=a", "--chart").rows) == 1
    assert "NO_POINTS" in cli("ts", "query", "cpu1", "load", "--to", "now-1d", "--from", "now-2d",
                              code=3).err  # fmt: skip
    said = cli("ts", "query", "cpu1", "load", "-a", "best", code=1).err
    assert "AGGREGATE_INVALID: there is no aggregate 'best'; there are mean, " in said
    assert "USAGE" in cli("ts", "query", "cpu1", "load", "--where", "host", code=2).err
    assert "MEASUREMENT_UNKNOWN" in cli("ts", "query", "nothing", "load", code=3).err


def test_series_are_imported_listed_and_deleted(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,host,load\n1000,a,0.5\n2000,a,\n3000,b,0.7\n")
    assert cli.json("ts", "import", "cpu2", "a.csv", "--tag", "host")["points"] == 2
    assert cli.json("ts", "import", "cpu2", "--tag", "host", "--time", "t",
                    stdin=b"t,host,load\n4000,c,1\n")["points"] == 1  # fmt: skip
    hosts = [row["tags"]["host"] for row in cli.lines("ts", "series", "cpu2")]
    assert sorted(hosts) == ["a", "b", "c"]
    assert cli("ts", "series", "cpu2", "--where", "host=b").rows == [["tags"], ["host=b"]]
    assert cli.json("ts", "delete-points", "cpu2", "--where", "host=c") == {"series": 1}
    assert cli("ts", "delete-points", "cpu2", "--to", "1500").err == ""
    (left,) = cli.lines("ts", "query", "cpu2", "load", "--from", "0", "--to", "9000")
    assert left["values"] == [0.7]
    assert "--all" in cli("ts", "delete-points", "cpu2", code=2).err
    assert "POINTS_INVALID" in cli("ts", "import", "cpu2", stdin=b"a,b\n1,2\n", code=1).err
    assert [row["measurement"] for row in cli.lines("ts", "list", "cpu2")] == ["cpu2"]
    cli("ts", "delete", "cpu2")
    assert "MEASUREMENT_UNKNOWN" in cli("ts", "show", "cpu2", code=3).err


def test_rules_downsample(cli: Cli) -> None:
    cli("ts", "write", "cpu3{m} load=1")
    cli("ts", "rule", "set", "cpu3{m}", "hourly", "--window", "1h", "-a", "mean", "-a", "max",
        "--into", "cpu3_hourly{m}")  # fmt: skip
    (rule,) = cli.lines("ts", "rule", "list", "cpu3{m}")
    assert rule == {
        "name": "hourly", "window_s": 3600, "aggregates": ["mean", "max"],
        "target_measurement": "cpu3_hourly{m}",
    }  # fmt: skip
    assert "mean, max of 1h into cpu3_hourly{m}" in cli("ts", "show", "cpu3{m}").out
    cli("ts", "rule", "delete", "cpu3{m}", "hourly")
    assert "no rule" in cli("ts", "rule", "list", "cpu3{m}").err
    assert "RULE" in cli("ts", "rule", "delete", "cpu3{m}", "hourly", code=3).err
