"""``onelog import``: files become rows, once, and what was done is in the receipt."""

import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from onelog import Client
from onelog.spark.load import files as load_files
from tests.documents import ROOT, blocks_of, paste
from tests.onelog.cli.commands import Cli
from tests.onelog.cli.forking import forking
from tests.system.nodes import nodes, until

ROWS = 2_500
WAIT_S = 120.0


@pytest.fixture
def client(endpoint: str) -> Any:
    with Client(endpoint, timeout_s=60) as client:
        yield client


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbers(count: int = ROWS) -> list[dict[str, Any]]:
    return [{"value": f"{number}", "key": f"k{number % 7}"} for number in range(count)]


def values_of(client: Client, stream: str) -> list[bytes]:
    return [record.value for record in client.stream(stream).read()]


def test_files_of_all_kinds_are_imported_in_order(cli: Cli, client: Client, tmp_path: Path) -> None:
    client.stream("kinds").create()
    rows = numbers()
    lines(tmp_path / "b.jsonl", rows)
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=700)
    (tmp_path / "a.csv").write_text(
        "value,key\n" + "".join(f"{row['value']},{row['key']}\n" for row in rows)
    )
    flags = ("--to", "stream", "--stream", "kinds", "--receipt", "receipt.json")
    found = cli.json("import", "*.csv", "b.jsonl", "c.parquet", *flags)
    expected = [row["value"].encode() for row in rows] * 3
    assert values_of(client, "kinds") == expected
    receipt = json.loads(Path("receipt.json").read_text())
    assert {name: receipt[name] for name in found} == found
    assert (found["rows"], found["skipped_rows"], found["to"]) == (3 * ROWS, 0, "stream")
    assert [Path(each["path"]).name for each in found["files"]] == [
        "a.csv", "b.jsonl", "c.parquet",
    ]  # fmt: skip
    for each in found["files"]:
        data = Path(each["path"]).read_bytes()
        assert (each["size"], each["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert each["rows"] == ROWS
    (shard,) = found["shards"]
    offsets = [record.offset for record in client.stream("kinds").read()]
    assert shard["first_index"] < offsets[0]
    assert offsets[-1] < shard["last_index"]

    again = cli("import", "*.csv", "b.jsonl", "c.parquet", *flags)
    assert f"{3 * ROWS} of them were there already" in again.out
    assert values_of(client, "kinds") == expected
    assert json.loads(Path("receipt.json").read_text())["shards"] == found["shards"]


def test_an_import_that_broke_off_is_continued(cli: Cli, client: Client, tmp_path: Path) -> None:
    """The bad row is mended; what stands before it is not written again."""
    client.stream("broken").create()
    rows = numbers(5_000)
    path = lines(tmp_path / "rows.jsonl", [*rows[:4_000], {"value": None}, *rows[4_001:]])
    # Small blocks, so that a part of the file is written before the bad row is read.
    flags = ("--to", "stream", "--stream", "broken", "--ignore-others")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_files, "BLOCK_BYTES", 16_384)
        said = cli("import", path, *flags, code=1).err
        assert "COLUMN_NULL" in said
        assert "row 4000" in said
        assert str(path) in said
        written = len(values_of(client, "broken"))
        assert 0 < written < 4_000
        lines(path, rows)
        found = cli.json("import", path, *flags)
    assert found["rows"] == 5_000
    assert found["skipped_rows"] == written
    assert values_of(client, "broken") == [row["value"].encode() for row in rows]


def test_a_file_of_other_rows_is_refused_unless_it_is_another_job(
    cli: Cli, client: Client, tmp_path: Path
) -> None:
    client.stream("jobs").create()
    path = lines(tmp_path / "rows.jsonl", numbers(10))
    flags = ("--to", "stream", "--stream", "jobs")
    cli("import", path, *flags)
    lines(path, numbers(11))
    said = cli("import", path, *flags, code=1).err
    assert "WRITE_ROWS_CHANGED" in said
    assert "--job" in said
    cli("import", path, *flags, "--job", "again")
    assert len(values_of(client, "jobs")) == 21


def test_keys_queues_and_series_are_imported(cli: Cli, client: Client, tmp_path: Path) -> None:
    client.queue("imported").create()
    (tmp_path / "users.csv").write_text("id,name,age\n1,Ann,30\n2,Bob,40\n")
    flags = ("--column", "key=id", "--column", "value=name", "--ignore-others")
    cli("import", "users.csv", "--to", "keys", *flags)
    items = client.kv.get_many(["1", "2"])
    assert [item.value for item in items if item is not None] == [b"Ann", b"Bob"]

    jobs: list[dict[str, Any]] = [
        {"body": "x", "priority": 3, "headers": {"a": "1"}},
        {"body": "y", "headers": {"b": ""}},
    ]
    lines(tmp_path / "jobs.json", jobs)
    cli("import", "jobs.json", "--to", "queue", "--queue", "imported")
    first, second = client.queue("imported").lease(2)
    assert (first.body, first.priority, first.headers) == (b"x", 3, {"a": b"1"})
    assert second.headers == {"b": b""}

    (tmp_path / "loads.csv").write_text(
        "at,host,load\n2026-01-01T00:00:00Z,a,0.5\n2026-01-01T00:00:01Z,b,1.5\n"
    )
    series = ("--to", "series", "--measurement", "loads", "--time", "at", "--tags", "host")
    cli("import", "loads.csv", *series)
    found = client.ts.query("loads", "load", 0, 2**62, by_series=True)
    assert [(each.tags["host"], each.values.tolist()) for each in found] == [
        ("a", [0.5]), ("b", [1.5]),
    ]  # fmt: skip


def test_lines_may_lack_what_others_have(cli: Cli, client: Client, tmp_path: Path) -> None:
    """Blocks of a file are read one by one, and columns are those of the first."""
    client.stream("uneven").create()
    rows: list[dict[str, Any]] = [
        {"value": "a" * 100, "tag": "t", "headers": {f"h{number}": "1"}} for number in range(9)
    ]
    rows += [{"value": "b" * 100} for _ in range(9)]
    path = lines(tmp_path / "rows.jsonl", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_files, "BLOCK_BYTES", 300)
        cli("import", path, "--to", "stream", "--stream", "uneven")
    records = list(client.stream("uneven").read())
    assert [dict(record.headers) for record in records[:9]] == [
        {f"h{number}": b"1"} for number in range(9)
    ]
    assert [record.tag for record in records] == ["t"] * 9 + [""] * 9
    lines(path, [*rows, {"value": "x", "key": "late"}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_files, "BLOCK_BYTES", 300)
        flags = ("--to", "stream", "--stream", "uneven", "--dry-run")
        said = cli("import", path, *flags, code=1).err
    assert "COLUMN_UNKNOWN" in said
    assert "'key' is not in the first rows" in said


def test_a_dry_run_checks_all_rows_and_writes_none(
    cli: Cli, client: Client, tmp_path: Path
) -> None:
    client.stream("dry").create()
    flags = ("--to", "stream", "--stream", "dry", "--dry-run", "-e", "127.0.0.1:1")
    lines(tmp_path / "rows.jsonl", numbers(10))
    assert cli.json("import", "rows.jsonl", *flags) == {"files": 1, "rows": 10}
    lines(tmp_path / "rows.jsonl", [*numbers(10), {"value": "x", "key": "x" * 5_000}])
    said = cli("import", "rows.jsonl", *flags, code=1).err
    assert "KEY_SIZE_INVALID" in said
    assert "row 10" in said
    assert values_of(client, "dry") == []


def test_bad_input_is_refused_before_anything_is_written(
    cli: Cli, client: Client, tmp_path: Path
) -> None:
    client.stream("bad").create()
    good = lines(tmp_path / "good.jsonl", numbers(3))
    (tmp_path / "bad.csv").write_text("value,colour\nx,red\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "broken.jsonl").write_text('{"value": "x"\n')
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "folder").mkdir()
    stream = ("--to", "stream", "--stream", "bad")
    for arguments, code, said in (
        ((good, "missing.csv", *stream), 3, "FILE_UNKNOWN"),
        ((good, "no/*.csv", *stream), 3, "FILE_UNKNOWN"),
        ((good, "bad.csv", *stream), 1, "COLUMN_UNKNOWN"),
        ((good, "empty.csv", *stream), 1, "FILE_INVALID"),
        ((good, "broken.jsonl", *stream), 1, "FILE_INVALID"),
        ((good, "torn.parquet", *stream), 1, "FILE_INVALID"),
        ((good, "rows.txt", *stream), 1, "FORMAT_UNKNOWN"),
        ((good, "folder", *stream), 1, "FILE_INVALID"),
        ((good, *stream, "--format", "xml"), 2, "--format"),
        ((good, *stream, "--column", "value"), 2, "--column"),
        ((good, *stream, "--column", "value=text"), 1, "COLUMN_MISSING"),
        ((good, *stream, "--receipt", "no/such/folder"), 2, "receipt"),
        ((good, *stream, "--tags", "host"), 1, "OPTION_UNKNOWN"),
        ((good, *stream, "--job", ""), 1, "JOB_NAME_INVALID"),
        ((good, "--to", "table"), 1, "TARGET_UNKNOWN"),
        ((good, "--to", "stream", "--stream", "nobody"), 3, "STREAM_UNKNOWN"),
        ((good, *stream, "-e", "127.0.0.1:1"), 5, "NOT_CONNECTED"),
    ):
        assert said in cli("import", *arguments, code=code).err, arguments
    assert values_of(client, "bad") == []


def import_process(path: Path, endpoint: str, *flags: str, shell: str = "") -> "Popen[str]":
    """Run the program as its users do; ``shell``: what the shell does before."""
    command = [sys.executable, "-m", "onelog.cli.main", "import", str(path), "--to", "keys"]
    return Popen(
        ["sh", "-c", f'{shell} exec "$@"', "sh", *command, "--endpoint", endpoint, *flags],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=PIPE, stderr=PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("what", ["interrupted", "lost"])
def test_an_import_that_ends_in_the_midst_prints_no_traceback(tmp_path: Path, what: str) -> None:
    """Chunks are under way that nobody asks for any more."""
    path = tmp_path / "rows.csv"
    path.write_text("key,value\n" + "".join(f"{number},v\n" for number in range(500_000)))
    with nodes(tmp_path, "n1", shards="2") as made:
        node = made["n1"].start()
        node.until_ready()
        endpoint = node.flags["listen"]
        importing = import_process(path, endpoint, "--retry-for", "1s")
        with Client(endpoint) as client:
            until(lambda: client.kv.get("0"), WAIT_S)
        assert node.process is not None
        if what == "lost":
            node.kill()
            out, err = importing.communicate(timeout=WAIT_S)
            assert (importing.returncode, out) == (5, "")
            assert re.fullmatch("error: .*there was no progress for 1 s\n", err), err
            return
        node.process.send_signal(signal.SIGSTOP)  # nothing is answered now
        importing.send_signal(signal.SIGINT)
        try:
            out, err = importing.communicate(timeout=WAIT_S)
        finally:
            node.process.send_signal(signal.SIGCONT)
        assert (importing.returncode, out, err) == (130, "", "")


def test_a_receipt_that_cannot_be_written_is_said_and_written_next_time(
    client: Client, endpoint: str, tmp_path: Path
) -> None:
    """The rows are there: a user must not take the error for a failed import."""
    path, receipt = tmp_path / "rows.csv", tmp_path / "receipt.json"
    path.write_text("key,value\nfull,1\n")
    flags = ("--job", "full", "--receipt", str(receipt))
    importing = import_process(path, endpoint, *flags, shell="ulimit -f 0;")
    out, err = importing.communicate(timeout=WAIT_S)
    assert (importing.returncode, out) == (1, "")
    assert err.startswith("error: RECEIPT_UNWRITABLE: all rows are imported, but the receipt")
    (item,) = client.kv.get_many(["full"])
    assert item is not None
    assert item.value == b"1"
    assert list(tmp_path.glob("receipt*")) == []
    again = import_process(path, endpoint, *flags)
    out, err = again.communicate(timeout=WAIT_S)
    assert (again.returncode, err) == (0, "")
    assert json.loads(receipt.read_text())["skipped_rows"] == 1


def test_a_log_is_restored_and_not_imported(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "exported" / "log").mkdir(parents=True)
    (tmp_path / "exported" / "receipt-000001.json").write_text("{}")
    row = {"shard": 0, "index": 1, "term": 1, "group_left": 0, "payload": b"x"}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "log.parquet")
    for name in ("exported", "exported/receipt-000001.json", "log.parquet"):
        said = cli("import", name, "--to", "stream", "--stream", "s", code=1).err
        assert "IMPORT_IS_RESTORE" in said
        assert "a restore and no import" in said


def test_without_pyarrow_it_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = cli("import", "x.csv", "--to", "keys", code=1).err
    assert "PYARROW_MISSING" in said
    assert "pip install 'onelogdb[spark]'" in said


def test_the_document_works_when_pasted(
    endpoint: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = "\n".join(block.text for block in blocks_of("docs/import.md", "sh"))
    variables = {"ONELOG_ENDPOINTS": endpoint, "ONELOG_CLIENT_TIMEOUT": "60s"}
    with forking(tmp_path_factory.mktemp("forking")) as programs:
        printed = paste(script, tmp_path, programs, variables)
    assert "Ann" in printed
    assert '"skipped_rows": 2' in printed
