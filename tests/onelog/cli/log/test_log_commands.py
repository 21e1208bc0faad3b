"""``onelog log`` as a person runs it: real processes, real directories, real exit codes.

Starting a process takes longer than anything these commands do here, so each test asks a lot of
the few that it starts.
"""

import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c

from onelog.cli.log.output import shown_type
from onelog.cli.main import run
from onelog.ual.entry import Entry
from onelog.ual.files import DiskFiles
from onelog.ual.hard_state import SLOT_SIZE
from onelog.ual.segments.format import FOOTER_SIZE, tomb_name
from tests.ual.directories import Built, build_directory, copied, is_void

TIMEOUT_S = 60


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def onelog(*arguments: object) -> Result:
    """Run the command as installed; whatever happens, there is never a traceback."""
    command = [sys.executable, "-m", "onelog.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "Traceback" not in done.stdout + done.stderr, done
    assert "INTERNAL" not in done.stderr, done.stderr
    return Result(done.returncode, done.stdout, done.stderr)


def onelog_here(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """Run the same command line without a process of its own, where there are many to try."""
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "INTERNAL" not in err, err
    return Result(code, out, err)


def error_line(result: Result, code: int = 1) -> str:
    """Return the one line that a failed command prints."""
    assert result.code == code, result
    (line,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
    return line


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A healthy directory that no test changes."""
    return build_directory(DiskFiles(), tmp_path_factory.mktemp("pristine") / "data")


@pytest.fixture
def built(pristine: Built, tmp_path: Path) -> Built:
    """A copy of it to damage."""
    return copied(pristine, tmp_path / "data")


def patch(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(bytes(content))


def flip(path: Path, offset: int) -> None:
    patch(path, offset, bytes([path.read_bytes()[offset] ^ 1]))


def findings(result: Result) -> dict[str, dict[str, Any]]:
    return {Path(item["path"]).name: item for item in result.json["findings"]}


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


# The command itself ------------------------------------------------------------------------------


def test_the_installed_command_says_what_it_is_and_what_it_is_not() -> None:
    script = Path(sys.executable).with_name("onelog")
    done = subprocess.run(
        [script, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout.startswith("onelog 0.")
    assert "Servers:\n" in onelog().out


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("inspect", "dump", "verify", "repair"):
        shown = onelog_here(capsys, "log", command, "--help")
        assert shown.code == 0
        assert f"onelog log {command} ./onelog-data" in shown.out
        assert "Exit codes:" in shown.out
        assert onelog_here(capsys, "log", command, "-h") == shown
    root = onelog_here(capsys, "-h").out
    assert re.search(r"serve +Run a database", root)


def test_a_command_that_is_not_understood_is_one_line_and_code_2(
    pristine: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_line(onelog("log", "bogus"), code=2).startswith("error: USAGE: No such command")
    for arguments, expected in (
        (("log", "dump"), "Missing argument 'DIR'"),
        (("log", "dump", pristine.data_dir, "--from", "x"), "--from"),
        (("log", "dump", pristine.data_dir, "--from", "9", "--to", "3"), "--to 3 is below"),
        (("log", "dump", pristine.data_dir, "--type", "0xfffff"), "--type 0xfffff"),
        (("log", "dump", pristine.data_dir, "--type", "0x_1_01"), "--type 0x_1_01"),
        (("log", "verify", ""), "'DIR': is empty"),
    ):
        line = error_line(onelog_here(capsys, *arguments), code=2)
        assert line.startswith("error: USAGE: ")
        assert expected in line


def test_what_is_not_a_data_directory_is_named(
    pristine: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "readme.txt").write_text("hello")
    inside = pristine.paths.segments
    for arguments, expected in (
        (("verify", tmp_path / "nowhere"), "NOT_A_DATA_DIRECTORY: .* does not exist"),
        (("inspect", tmp_path), "NOT_A_DATA_DIRECTORY: .* no SYSTEM file"),
        (("dump", pristine.active), f"NOT_A_DATA_DIRECTORY: .* did you mean {pristine.data_dir}"),
        (("repair", inside), f"NOT_A_DATA_DIRECTORY: .* did you mean {pristine.data_dir}"),
        (("dump", pristine.data_dir, "--shard", 7), "DIRECTORY_ERROR: shard 7 .* shards 0 to 0"),
        (("dump", pristine.data_dir, "--from", 10**9), "INDEX_IN_FUTURE: index 1000000000"),
    ):
        line = error_line(onelog_here(capsys, "log", *arguments))
        assert re.search(expected, line), (expected, line)


# inspect and dump --------------------------------------------------------------------------------


def test_inspect_prints_a_table_and_json(pristine: Built) -> None:
    table = onelog("log", "inspect", pristine.data_dir)
    assert (table.code, table.err) == (0, "")
    for path in (pristine.compacted, pristine.sealed, pristine.closed, pristine.active):
        assert path.name in table.out
    assert f"committed to {pristine.commit_index}" in table.out
    report = onelog("log", "inspect", pristine.data_dir, "--shard", 0, "--types", "--json").json
    (shard,) = report["shards"]
    assert shard["last_index"] == len(pristine.entries)
    sealed = shard["files"][1]
    assert sum(sealed["entries_by_type"].values()) == sealed["entry_count"]
    # People get names, which --type takes as well.
    named = onelog("log", "inspect", pristine.data_dir, "--types").out
    names = set(re.findall(r"\b(?:system|kv|queue|stream|timeseries)\.\w+", named))
    assert len(names) == len(sealed["entries_by_type"]) or len(names) > 1
    for name in sorted(names)[:2]:
        dumped = onelog("log", "dump", pristine.data_dir, "--type", name, "--json").out
        kinds = {json.loads(row)["type"] for row in dumped.splitlines()}
        assert [shown_type(int(kind, 16)) for kind in kinds] == [name]


@pytest.mark.parametrize("columns", [40, 80])
def test_inspect_cuts_nothing_on_a_narrow_terminal(pristine: Built, columns: int) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    command = [sys.executable, "-m", "onelog.cli.main", "log", "inspect", str(pristine.data_dir)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    done = subprocess.run(command, stdout=follower, env=environment, timeout=TIMEOUT_S, check=False)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert (done.returncode, "…" in shown) == (0, False)
    for path in (pristine.compacted, pristine.sealed, pristine.closed, pristine.active):
        (line,) = [line for line in shown.splitlines() if path.name in line]
        assert len(re.findall(r"2026-01-01T00:00:[0-9]{2}", line)) == 2
    assert "1 shard," in shown
    assert "voted term 0" in shown


def payload_of(row: dict[str, Any]) -> bytes:
    if "payload" in row:
        return str(row["payload"]).encode()
    return bytes.fromhex(row["payload_hex"])


def test_dump_prints_every_entry_decoded(pristine: Built) -> None:
    result = onelog("log", "dump", pristine.data_dir, "--all", "--json")
    rows = [json.loads(line) for line in result.out.splitlines()]
    found = [
        (
            row["index"], row["term"], row["timestamp_ns"], row["type"], row["group_left"],
            row["stored_size"], payload_of(row),
        )
        for row in rows
    ]  # fmt: skip
    assert found == [
        (
            entry.index, entry.term, entry.timestamp_ns, f"0x{entry.entry_type:04x}",
            entry.group_left, len(entry.payload), entry.plain_payload(),
        )
        for entry in pristine.kept_entries
    ]  # fmt: skip
    assert rows[0]["time"].startswith("2026-01-01T00:00:")
    assert any(row["flags"] == ["zstd"] and row["size"] == 1500 for row in rows)


def test_dump_shows_lines_within_what_is_committed(pristine: Built) -> None:
    first = int(pristine.sealed.name[:10])
    result = onelog("log", "dump", pristine.data_dir, "--from", first, "--to", 10**6)
    header, *lines = result.out.splitlines()
    assert header.split()[:3] == ["index", "term", "time"]
    assert [int(line.split()[0]) for line in lines] == list(range(first, pristine.commit_index + 1))
    assert f"entries above {pristine.commit_index}" in result.err
    assert any(line.endswith("xxx…") for line in lines)


def test_dump_filters(pristine: Built) -> None:
    def indexes(*arguments: object) -> list[int]:
        result = onelog("log", "dump", pristine.data_dir, "--json", *arguments)
        assert result.code == 0
        return [json.loads(line)["index"] for line in result.out.splitlines()]

    def expected(*owners: int) -> list[int]:
        return [entry.index for entry in committed if entry.owner in owners]

    committed: list[Entry] = [
        entry for entry in pristine.kept_entries if entry.index <= pristine.commit_index
    ]
    assert indexes("--type", "KV", "--type", "0X0201", "--limit", 20) == expected(1, 2)[:20]
    records = [
        entry.index
        for entry in committed
        if entry.owner == 4
        and entry.index % 2 == 0
        and not is_void(entry.index)
        and entry.index < int(pristine.closed.name[:10])
    ]
    assert indexes("--stream", 7, "--skip-voids") == records


def dumped(result: Result) -> list[int]:
    return [json.loads(line)["index"] for line in result.out.splitlines()]


def test_dump_of_a_log_that_lacks_something_is_an_error_after_what_is_there(
    built: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bytes of each lost file are put back before the next is taken away."""
    kept = [entry.index for entry in built.kept_entries]
    later = (built.sealed, built.closed, built.active)
    second, third, fourth = (int(path.name[:10]) for path in later)
    for paths, expected, lost in (
        ([built.compacted], [i for i in kept if i >= second], f"entries 1 to {second - 1};"),
        ([built.sealed], [i for i in kept if i < second], f"entries {second} to {third - 1};"),
        ([built.active], [i for i in kept if i < fourth], f"entries {fourth} to {kept[-1]};"),
        (list(built.paths.segments.iterdir()), [], f"entries 1 to {kept[-1]};"),
    ):
        contents = {path: path.read_bytes() for path in paths}
        for path in paths:
            path.unlink()
        for arguments in ((), ("--all",)):
            result = onelog_here(capsys, "log", "dump", built.data_dir, "--json", *arguments)
            line = error_line(result)
            assert line.startswith("error: MISSING_SEGMENT: "), line
            assert lost in line
            end = kept[-1] if arguments else built.commit_index
            assert dumped(result) == [index for index in expected if index <= end]
        inspected = onelog_here(capsys, "log", "inspect", built.data_dir)
        assert inspected.code == 1
        assert re.search(f"problem: MISSING_SEGMENT: .*{lost}", inspected.out)
        for path, data in contents.items():
            path.write_bytes(data)
    whole = onelog_here(capsys, "log", "dump", built.data_dir, "--json", "--all")
    assert (whole.code, whole.err, dumped(whole)) == (0, "", kept)


def test_dump_of_a_damaged_entry_shows_what_is_before_it_and_where_to_look(
    built: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    first = int(built.sealed.name[:10])
    size = struct.unpack_from("<I", built.sealed.read_bytes(), 64 + 32)[0]
    offset = 64 + 40 + size  # the second entry
    flip(built.sealed, offset + 20)
    result = onelog_here(capsys, "log", "dump", built.data_dir, "--json", "--from", first)
    line = error_line(result)
    assert dumped(result) == [first]
    assert f"{built.sealed} at offset {offset}: entry {first + 1} is damaged" in line
    assert "onelog log verify" in line
    limited = ("--from", first, "--limit", 1)
    assert onelog_here(capsys, "log", "dump", built.data_dir, *limited).code == 0
    # Behind it, and in what is not sealed: the last group was durable.
    flip(built.active, 70)
    result = onelog_here(
        capsys, "log", "dump", built.data_dir, "--all", "--json", "--from", first + 2
    )
    fourth = int(built.active.name[:10])
    assert dumped(result) == list(range(first + 2, fourth))
    assert re.search(f"at offset 64: entries {fourth} to .* were durable", error_line(result))


def test_dump_says_what_it_leaves_out(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    def dump(*arguments: object) -> Result:
        return onelog_here(capsys, "log", "dump", built.data_dir, *arguments)

    line = error_line(dump("--from", built.commit_index + 1))
    assert line.startswith("error: INDEX_IN_FUTURE: ")
    assert "not known to be committed; --all shows them" in line
    nothing = dump("--type", "timeseries")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "note: no entry matches\n")
    (built.data_dir / "SYSTEM").unlink()
    (advice,) = findings(onelog_here(capsys, "log", "verify", built.data_dir, "--json")).values()
    without = dump("--limit", 1)
    assert without.code == 0
    assert f"note: CORRUPT_FILE: {built.data_dir / 'SYSTEM'}: missing" in without.err
    assert advice["advice"] in without.err
    assert advice["advice"] in onelog_here(capsys, "log", "inspect", built.data_dir).out


def test_closed_output_is_no_error_and_the_exit_code_still_tells(pristine: Built) -> None:
    command = f"{sys.executable} -m onelog.cli.main log verify {pristine.data_dir}"
    for closed in (">&-", ">&- 2>&-"):
        done = subprocess.run(
            ["bash", "-c", f"{command} {closed}"],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_reader_that_leaves_early_is_no_error(pristine: Built) -> None:
    """As ``| head -1`` does."""
    command = [sys.executable, "-m", "onelog.cli.main", "log", "dump", str(pristine.data_dir)]
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*command, "--all"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == 141


# verify and repair -------------------------------------------------------------------------------


def test_verify_of_a_healthy_directory_is_clean_with_a_progress_bar_on_a_terminal(
    pristine: Built,
) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "onelog.cli.main", "log", "verify", str(pristine.data_dir)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=follower,
        env=environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(follower)
    shown = os.read(leader, 1 << 16)
    os.close(leader)
    assert (done.returncode, done.stdout) == (0, b"clean\n")
    assert "━".encode() in shown
    quiet = onelog("log", "verify", pristine.data_dir)
    assert (quiet.code, quiet.out, quiet.err) == (0, "clean\n", "")


def test_tails_and_leftovers_are_code_3_and_repair_does_only_what_it_is_told(
    built: Built,
) -> None:
    with built.active.open("ab") as file:
        file.write(b"half an entry")
    (built.paths.segments / tomb_name(999)).touch()
    (built.paths.segments / "123.flseg").touch()
    before = tree(built.data_dir)
    verified = onelog("log", "verify", built.data_dir, "--json")
    assert verified.code == 3
    assert {name: item["level"] for name, item in findings(verified).items()} == {
        built.active.name: "tail",
        tomb_name(999): "leftover",
        "123.flseg": "foreign",
    }
    planned = onelog("log", "repair", built.data_dir)
    assert planned.code == 3
    assert "cut 13 bytes" in planned.out
    assert "--yes" in planned.out
    assert tree(built.data_dir) == before

    done = onelog("log", "repair", built.data_dir, "--yes", "--json")
    assert (done.code, done.json["done"]) == (0, True)
    copies = Path(done.json["copies"])
    assert sorted(tree(copies).values()) == [b"", b"half an entry"]
    again = onelog("log", "repair", built.data_dir, "--yes")
    assert (again.code, again.out) == (0, "nothing to repair\n")


def test_bad_input_is_named_and_what_can_be_repaired_is(built: Built) -> None:
    """Wrong magic, absurd counts, a future version, payload_len beyond the file."""
    sealed = bytearray(built.sealed.read_bytes())
    patch(built.sealed, 0, b"NOTASEG\0")
    footer_at = built.compacted.stat().st_size - FOOTER_SIZE
    patch(built.compacted, footer_at + 12, b"\xff\xff\xff\xff")  # the count of offsets
    patch(built.active, 64 + 32, struct.pack("<I", 0x7FFFFFFF))
    flip(built.paths.hard_state, 20)
    flip(built.paths.manifest, 50)
    verified = onelog("log", "verify", built.data_dir, "--json")
    assert verified.code == 1
    found = findings(verified)
    assert found[built.sealed.name]["reason"] == "HEADER_DAMAGED"
    assert "wrong magic" in found[built.sealed.name]["message"]
    assert found[built.compacted.name]["reason"] == "FOOTER_DAMAGED"
    assert found[built.active.name]["reason"] == "ENTRY_DAMAGED"
    assert found["RAFT"]["reason"] == "RAFT_SLOT"
    assert found["MANIFEST"]["repairable"] is False, "the log could not be opened with a new one"
    people = onelog("log", "verify", built.data_dir, "--no-progress")
    assert people.code == 1
    assert f"{built.sealed.name} at 0: HEADER_DAMAGED" in people.out

    line = error_line(onelog("log", "dump", built.data_dir))
    assert line.startswith("error: CORRUPT_FILE: ")
    table = onelog("log", "inspect", built.data_dir)
    assert table.code == 1
    assert "wrong magic" in table.out

    repaired = onelog("log", "repair", built.data_dir, "--yes")
    assert repaired.code == 1
    assert "cannot be repaired here: 00000/segs/" + built.active.name in repaired.out
    assert built.sealed.read_bytes() == bytes(sealed)
    (copies,) = built.data_dir.glob("repair-*")
    assert set(tree(copies)) == {
        f"00000/segs/{built.sealed.name}",
        f"00000/segs/{built.compacted.name}",
        "00000/RAFT",
    }


def test_a_future_version_is_told_from_damage(built: Built) -> None:
    data = bytearray(built.active.read_bytes())
    data[8:10] = struct.pack("<H", 2)
    data[60:64] = struct.pack("<I", crc32c(bytes(data[:32])))
    built.active.write_bytes(bytes(data))
    before = tree(built.data_dir)
    verified = onelog("log", "verify", built.data_dir, "--json")
    assert verified.code == 1
    assert findings(verified)[built.active.name]["reason"] == "UNKNOWN_VERSION"
    assert onelog("log", "repair", built.data_dir, "--yes").code == 1
    assert tree(built.data_dir) == before
    dumped = onelog("log", "dump", built.data_dir, "--all", "--from", built.active.name[:10])
    assert error_line(dumped).startswith("error: ")


def test_a_repair_beside_a_running_server_is_refused(built: Built) -> None:
    flip(built.paths.hard_state, SLOT_SIZE + 20)
    lock = DiskFiles().lock(built.data_dir / "LOCK")
    assert lock is not None
    line = error_line(onelog("log", "repair", built.data_dir, "--yes"))
    assert line.startswith("error: DIRECTORY_IN_USE: ")
    lock.release()


def test_an_error_of_the_system_is_named_as_in_its_manuals(
    built: Built, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(built.paths.segments)
    built.paths.segments.write_text("not a directory")
    line = error_line(onelog_here(capsys, "log", "dump", built.data_dir))
    assert line == f"error: ENOTDIR: {built.paths.segments}: Not a directory"


@pytest.mark.parametrize("name", ["SYSTEM", "00000/RAFT", "00000/MANIFEST", "00000/segs/*1.flseg"])
def test_a_directory_in_place_of_a_file_is_named(
    built: Built, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (path,) = built.data_dir.glob(name)
    path.unlink()
    path.mkdir()
    for command in ("inspect", "dump", "verify", "repair"):
        result = onelog_here(capsys, "log", command, built.data_dir)
        shown = str(path.relative_to(built.data_dir))
        (line,) = [line for line in (result.out + result.err).splitlines() if shown in line]
        assert "not a regular file" in line
