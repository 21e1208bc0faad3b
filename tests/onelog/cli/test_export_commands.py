"""``onelog export`` and ``verify``: from a server and from a directory, as people call them.

Tasks run in this process; tests/spark/jvm has the same through Spark.
"""

import io
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from onelog import Client
from onelog.cli import export as export_commands
from onelog.cli.export import export_progress
from onelog.cli.program import tree
from tests.onelog.cli.commands import Cli
from tests.spark.exports import directory, export, seal, serial, three_days
from tests.spark.shard_dirs import Shard


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_commands._Run, "_runner", lambda _, *arguments: serial(*arguments))


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return three_days(tmp_path / "data", groups=6)


def test_what_was_written_to_a_server_is_exported_and_verified(
    cli: Cli, endpoint: str, tmp_path: Path
) -> None:
    with Client(endpoint, timeout_s=60) as client:
        for number in range(50):
            client.kv.put(f"exported:{number}", f"value {number}")
    out = tmp_path / "out"
    found = cli.json("export", "kv_operations", out, "--key-prefix", "exported:")
    assert found["rows"] == 50
    assert found["receipt"] == "receipt-000001.json"
    keys = pyarrow.parquet.read_table(out / "kv_operations")["key_text"].to_pylist()
    assert sorted(keys) == sorted(f"exported:{number}" for number in range(50))
    report = cli.json("export", "verify", out, "--endpoint", endpoint)
    assert report["good"]
    assert report["log_compared"] == report["files"] > 0
    # Without being asked for, no server is: receipts and files are enough.
    report = cli.json("export", "verify", out)
    assert report["log_compared"] == 0

    with Client(endpoint, timeout_s=60) as client:
        client.kv.put("exported:more", "x")
    found = cli.json("export", "kv_operations", out, "--key-prefix", "exported:", "--since", out)
    assert (found["rows"], found["receipt"]) == (1, "receipt-000002.json")
    assert cli.json("export", "verify", out, "-e", endpoint)["good"]


def test_the_state_and_the_changes_of_a_server_are_exported(
    cli: Cli, endpoint: str, tmp_path: Path
) -> None:
    with Client(endpoint, timeout_s=60) as client:
        client.kv.put("stated:1", "before")
        client.kv.put("stated:2", "before")
        client.kv.put("stated:1", "after")
    options = ("--key-prefix", "stated:")
    found = cli.json("export", "kv", tmp_path / "kv", *options)
    assert found["rows"] == 2
    rows = pyarrow.parquet.read_table(tmp_path / "kv" / "kv")
    pairs = dict(zip(rows["key_text"].to_pylist(), rows["value"].to_pylist(), strict=True))
    assert pairs == {"stated:1": b"after", "stated:2": b"before"}
    again = cli("export", "kv", tmp_path / "kv", *options)
    assert again.out.startswith("complete already")
    assert "export into another target" in again.out
    report = cli.json("export", "verify", tmp_path / "kv", "-e", endpoint)
    assert report["good"]
    assert "it has no entries of its own" in report["log_not_compared"][0]
    changes = cli.json("export", "kv_changes", tmp_path / "changes", *options)
    assert changes["rows"] == 3
    with Client(endpoint, timeout_s=60) as client:
        client.kv.delete("stated:2")
    since = ("--since", tmp_path / "changes")
    assert cli.json("export", "kv_changes", tmp_path / "changes", *options, *since)["rows"] == 1
    assert cli.json("export", "verify", tmp_path / "changes", "-e", endpoint)["good"]


def test_the_state_of_a_directory_as_of_an_index_or_a_time(
    cli: Cli, shard: Shard, tmp_path: Path
) -> None:
    ran = cli("export", "kv", tmp_path / "by", "--data", shard.path, "--as-of-index", "1")
    assert "shard 0: the state right behind entry 1" in ran.err
    moment = "1970-01-02T00:00:00Z"
    found = cli.json(
        "export", "kv", tmp_path / "time", "--data", shard.path, "--as-of-time", moment
    )
    assert 1 < found["ranges"][0]["last_index"] < shard.sealed_index
    ran = cli("export", "kv", tmp_path / "by", "--data", shard.path, code=1)
    assert ran.err.startswith("error: TARGET_HAS_ANOTHER_EXPORT: ")


def test_an_export_of_a_directory_says_what_it_did_in_words(
    cli: Cli, shard: Shard, tmp_path: Path
) -> None:
    rows = len(shard.expected(shard.sealed_index))
    table = cli.json(
        "export", "log", tmp_path / "table", "--data", shard.path, "--as-table", "delta"
    )["table"]
    assert table == str(tmp_path / "table" / "log")
    ran = cli("export", "log", tmp_path / "out", "--data", shard.path, "--format", "json")
    assert ran.out.startswith(f"exported {rows:,} rows")
    assert "a running server may have more" in ran.err
    assert "\n" not in ran.out.strip()
    again = cli("export", "log", tmp_path / "out", "--data", shard.path, "--format", "json")
    assert again.out.startswith("complete already")
    verified = cli("export", "verify", tmp_path / "out", "--data", shard.path)
    assert verified.out.startswith(f"good: {rows:,} rows")


def test_differences_are_named_and_end_with_an_error(
    cli: Cli, shard: Shard, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    cli("export", "log", out, "--data", shard.path)
    first, *_, last = sorted(out.rglob("*.parquet"))
    first.unlink()
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    ran = cli("export", "verify", out, code=1)
    assert f"MISSING     {first.relative_to(out)}" in ran.out
    assert f"CHANGED     {last.relative_to(out)}" in ran.out
    assert "2 differences" in ran.out
    found = cli.json("export", "verify", out, code=1)
    assert not found["good"]
    assert [each["kind"] for each in found["differences"]] == ["MISSING", "CHANGED"]


def test_following_continues_until_it_is_interrupted(
    cli: Cli, shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        match len(waits):
            case 1 | 3:
                shard.write(5)
                seal(shard)
            case 2:
                pass  # nothing new: no receipt
            case _:
                raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", wait)
    ran = cli(
        "export", "log", tmp_path / "out", "--data", shard.path, "--follow", "--interval", "5m",
        "--json",
    )  # fmt: skip
    assert waits == [300.0] * 4
    assert [each["receipt"] for each in ran.lines] == [
        f"receipt-{number:06d}.json" for number in (1, 2, 3)
    ]
    assert sum(each["rows"] for each in ran.lines) == len(shard.expected(shard.sealed_index))
    monkeypatch.undo()


def test_on_a_terminal_a_bar_shows_rows_bytes_and_splits(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with export_progress() as progress:
        receipt = export(shard.path, directory(tmp_path / "out"), progress).receipt
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    counts = re.findall(r"(\d+)/(\d+) splits, (\d+) rows, ([0-9.]+ kB|\d+ bytes)", shown)
    assert counts[-1][0] == counts[-1][1] != "0"
    assert int(counts[-1][2]) == receipt.rows


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["nothing", "out"], 1, "VIEW_UNKNOWN"),
        (["log", "out", "--columns", "nothing"], 1, "COLUMN_UNKNOWN"),
        (["log", "out", "--format", "xml"], 1, "FORMAT_UNKNOWN"),
        (["log", "out", "--since", "nothing/receipt-000001.json"], 1, "NO_RECEIPT"),
        (["log", "out", "--since", "nothing"], 1, "NO_RECEIPT"),
        (["log", "out", "--interval", "5s"], 2, "USAGE"),
        (["log", "out", "--as-of-index", "5"], 1, "OPTION_UNCONCERNED"),
        (["kv", "out", "--from-index", "5"], 1, "OPTION_UNCONCERNED"),
        (["kv", "out", "--as-of-index", "5", "--as-of-time", "now"], 1, "OPTION_CONFLICT"),
        (["kv", "out", "--follow"], 1, "VIEW_NOT_CONTINUED"),
        (["log", "out", "--from-time", "yesterday"], 2, "USAGE"),
        (["log", "out", "--endpoint", "127.0.0.1:1"], 2, "USAGE"),
        (["log"], 2, "USAGE"),
        (["log", ""], 1, "TARGET"),
        (["verify", "nothing"], 3, "NO_RECEIPT"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_written(
    arguments: list[str], code: int, reason: str, cli: Cli, shard: Shard, tmp_path: Path
) -> None:
    ran = cli("export", *arguments, "--data", shard.path, code=code)
    assert ran.err.startswith(f"error: {reason}: ")
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_none_is_refused(cli: Cli, tmp_path: Path) -> None:
    ran = cli("export", "log", tmp_path / "out", "--data", tmp_path / "nothing", code=1)
    assert ran.err.startswith("error: NOT_A_DATA_DIRECTORY: ")


def commands() -> list[tuple[str, str]]:
    group: Any = tree().get_command(None, "export")
    return [
        (name, line.strip())
        for name in group.commands
        for line in re.findall(r"^  (onelog .*)$", group.commands[name].help, re.MULTILINE)
    ]


@pytest.mark.parametrize(("name", "example"), commands())
def test_the_examples_of_the_help_are_understood(name: str, example: str) -> None:
    words = shlex.split(example)[1:]
    assert words.pop(0) == "export"
    group: Any = tree().get_command(None, "export")
    if name == "verify":
        assert words.pop(0) == "verify"
    with group.commands[name].make_context(name, words):
        pass
