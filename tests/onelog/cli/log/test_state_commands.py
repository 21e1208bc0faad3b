"""``onelog log replay``, ``snapshot`` and ``prove`` as a person runs them."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onelog import AsyncClient
from onelog.cli.log import commands, state
from onelog.cli.main import run
from onelog.projections.shard_state import Projections, build_projections
from onelog.ual.directory import DataDirectory
from onelog.ual.files import DiskFiles
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import load as load_manifest
from onelog.ual.manifest import save as save_manifest
from tests.node.services.nodes import single
from tests.snapshot.live import LiveShard, put
from tests.ual.shards import make_shard, seal_closed

CONFIG = LogConfig(ring_bytes=4096, segment_bytes_max=2000, free_bytes_min=0)


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _registered() -> None:
    """Use the commands where ``onelog log`` has them; add them if nobody has yet."""
    callbacks = [command.callback for command in commands.app.registered_commands]
    if state.prove not in callbacks:
        state.register(commands.app)


def onelog(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    code = run(["log", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert "INTERNAL" not in err, err
    return Result(code, out, err)


def lived(path: Path, groups: int = 30, snapshots: int = 2) -> LiveShard[Projections]:
    """Return a stopped shard that was snapshotted on the way."""
    live = LiveShard(DiskFiles(), build_projections, data_dir=path / "data", config=CONFIG)
    for number in range(groups):
        live.do([put(b"user/%d" % (number % 7), b"value %d" % number), put(b"k", b"%d" % number)])
        seal_closed(live.log)
        if snapshots and number % (groups // snapshots) == groups // snapshots - 4:
            live.snapshot()
    live.log.close()
    return live


def test_replay_prints_counts_and_the_state_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = lived(tmp_path)
    shown = onelog(capsys, "replay", live.data_dir)
    assert shown.code == 0
    assert live.state_hash in shown.out
    assert "keys 8" in shown.out
    found = onelog(capsys, "replay", live.data_dir, "--json").json
    (shard,) = found["shards"]
    assert (shard["index"], shard["state_hash"]) == (60, live.state_hash)
    assert shard["base_index"] == live.store.records[-1].index
    assert shard["entry_count"] == 60 - shard["base_index"]
    assert shard["counts"]["keys"] == 8


def test_replay_answers_what_a_key_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = lived(tmp_path)
    for index, value in ((2, "0"), (3, "0"), (4, "1"), (60, "29")):
        shown = onelog(capsys, "replay", live.data_dir, "--at", index, "--key", "k")
        assert f"default/k = {value} (version {index // 2 * 2})" in shown.out
    missing = onelog(capsys, "replay", live.data_dir, "--at", 1, "--key", "k", "--json").json
    assert missing["shards"][0]["key"] == {"namespace": "default", "exists": False, "key": "k"}
    there = onelog(capsys, "replay", live.data_dir, "--key", "user/3", "--json").json
    assert there["shards"][0]["key"]["value"] == "value 24"
    nowhere = onelog(
        capsys, "replay", live.data_dir, "--key", "k", "--namespace", "other", "--at", 60
    )
    assert (nowhere.code, "did not exist" in nowhere.out) == (0, True)


def test_values_that_are_not_text_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveShard(DiskFiles(), build_projections, data_dir=tmp_path / "data", config=CONFIG)
    live.do([put(b"\x1b]0;title\x07", b"\xff\x00\x1b[2J")])
    live.log.close()
    shown = onelog(capsys, "replay", live.data_dir, "--key", "\x1b]0;title\x07")
    assert "\x1b" not in shown.out
    assert "0xff001b5b324a" in shown.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--at", 3),
        ("--at", 3, "--to", 4, "--key", "k"),
        ("--at", 0, "--key", "k"),
        ("--to", "x"),
    ],
)
def test_a_replay_that_makes_no_sense_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...]
) -> None:
    live = lived(tmp_path, groups=2, snapshots=0)
    shown = onelog(capsys, "replay", live.data_dir, *arguments)
    assert shown.code == 2
    assert shown.err.startswith("error: USAGE: ")
    assert shown.err.count("\n") == 1


def test_what_goes_wrong_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = lived(tmp_path, groups=4, snapshots=0)
    for arguments, reason in (
        (("replay", live.data_dir, "--to", 999), "INDEX_IN_FUTURE"),
        (("replay", live.data_dir, "--shard", 9), "DIRECTORY_ERROR"),
        (("replay", tmp_path / "nothing"), "NOT_A_DATA_DIRECTORY"),
        (("snapshot", tmp_path / "nothing"), "NOT_A_DATA_DIRECTORY"),
        (("prove", tmp_path / "nothing"), "NOT_A_DATA_DIRECTORY"),
    ):
        shown = onelog(capsys, *arguments)
        assert shown.code == 1
        assert shown.err.startswith(f"error: {reason}: ")
        assert shown.err.count("\n") == 1


def test_a_snapshot_is_made_and_then_proved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = lived(tmp_path, snapshots=0)
    nothing = onelog(capsys, "prove", live.data_dir)
    assert nothing.code == 2
    assert "nothing to compare" in nothing.out

    made = onelog(capsys, "snapshot", live.data_dir, "--json").json
    (shard,) = made["shards"]
    assert shard["is_new"]
    assert shard["snapshot"]["state_hash"] == live.state_hash
    again = onelog(capsys, "snapshot", live.data_dir)
    assert (again.code, "unchanged since" in again.out) == (0, True)

    proved = onelog(capsys, "prove", live.data_dir)
    assert proved.code == 0
    assert proved.out.startswith(
        f"shard 0: equal, state hash {live.state_hash} at index 60 after 60 entries"
    )
    (proof,) = onelog(capsys, "prove", live.data_dir, "--json").json["shards"]
    assert proof["verdict"] == "equal"
    assert proof["replayed_hash"] == proof["snapshot_hash"] == proof["manifest_hash"]


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_what_admin_hash_names_is_replayed_and_proved_beside_the_server_and_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, has_snapshot: bool
) -> None:
    """The directory records a moment later what is committed: as it would be after a kill."""

    async def test() -> None:
        running = tmp_path / "n1"
        async with single(tmp_path, shards=1) as node:
            shard = node.context.drivers[0].shard
            async with AsyncClient(node.endpoint) as client:
                for number in range(5):
                    await client.kv.put("key", b"%d" % number)
                if has_snapshot:
                    await client.admin.take_snapshot(0)
                    await client.kv.put("key", b"after the snapshot")
            named = await asyncio.to_thread(admin_hash, capsys, node.endpoint)
            index = int(named.rpartition(" ")[2])
            assert index == shard.log.applied_index
            await asyncio.to_thread(check, running, named)
            killed = tmp_path / "killed"
            shutil.copytree(running, killed)
        check(killed, named)
        check(running, named)

    def check(directory: Path, named: str) -> None:
        state_hash, index = named.split(" at index ")
        replayed = onelog(capsys, "replay", directory, "--to", index)
        assert (replayed.code, f"state hash {named}," in replayed.out) == (0, True), replayed
        beyond = onelog(capsys, "replay", directory, "--to", int(index) + 1000)
        assert (beyond.code, "INDEX_IN_FUTURE" in beyond.err) == (1, True)
        proved = onelog(capsys, "prove", directory, "--expect", named)
        assert proved.code == 0
        assert "shard 0: equal" in proved.out
        assert f"; {named}, as expected" in proved.out
        (proof,) = onelog(capsys, "prove", directory, "--expect", named, "--json").json["shards"]
        assert proof["proved_index"] == int(index) <= proof["end_index"]
        assert proof["found_hash"] == proof["expected_hash"] == state_hash
        assert (proof["index"] > 0) == has_snapshot
        wrong = f"{int(state_hash, 16) ^ 1:016x} at index {index}"
        differs = onelog(capsys, "prove", directory, "--expect", wrong)
        assert differs.code == 1
        assert f"; {named}, expected {wrong[:16]}" in differs.out
        assert f"the state at index {index} differs" in differs.out

    asyncio.run(test())


def admin_hash(capsys: pytest.CaptureFixture[str], endpoint: str) -> str:
    assert run(["admin", "hash", "0", "--endpoint", endpoint]) == 0
    return capsys.readouterr().out.strip()


def test_a_proof_goes_on_to_the_end_of_the_log_and_says_what_it_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = lived(tmp_path)
    newest = live.store.records[-1]
    proved = onelog(capsys, "prove", live.data_dir)
    end = live.log.last_index
    assert proved.code == 0
    assert f"at index {newest.index} after" in proved.out
    assert (
        f"; entries {newest.index + 1} to {end} were replayed only, to {live.state_hash}"
        in proved.out
    )
    (proof,) = onelog(capsys, "prove", live.data_dir, "--json").json["shards"]
    assert (proof["proved_index"], proof["end_index"]) == (newest.index, end)
    assert proof["end_hash"] == live.state_hash
    # An older index: the replay passes it before the snapshots.
    early = live.store.records[0]
    named = f"{early.state_hash} at index {early.index}"
    assert onelog(capsys, "prove", live.data_dir, "--expect", named).code == 0


@pytest.mark.parametrize(
    ("expect", "code", "words"),
    [
        ("something", 2, "is not like"),
        ("ab at index 0", 2, "is not like"),
        ("ab at index 99999", 1, "INDEX_IN_FUTURE"),
        ("ab at index 3", 2, "index 3 is inside a group, where no server has a state"),
    ],
)
def test_an_expectation_that_cannot_be_met_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expect: str, code: int, words: str
) -> None:
    live = lived(tmp_path)
    result = onelog(capsys, "prove", live.data_dir, "--expect", expect)
    assert (result.code, words in result.out + result.err) == (code, True), result


def test_a_mismatch_and_damage_are_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = lived(tmp_path)
    manifest = load_manifest(live.files, live.paths.manifest)
    assert manifest is not None
    wrong = replace(manifest.snapshots[-1], state_hash="ab" * 8)
    records = (*manifest.snapshots[:-1], wrong)
    save_manifest(live.files, live.paths.manifest, replace(manifest, snapshots=records))
    differs = onelog(capsys, "prove", live.data_dir)
    assert differs.code == 1
    assert "mismatch" in differs.out
    assert f"MANIFEST {'ab' * 8}" in differs.out
    save_manifest(live.files, live.paths.manifest, manifest)
    path = live.store.path(live.store.records[-1])
    path.write_bytes(path.read_bytes()[:-1])
    damaged = onelog(capsys, "prove", live.data_dir)
    assert damaged.code == 1
    assert path.name in damaged.out
    rebuilt = onelog(capsys, "replay", live.data_dir)
    assert rebuilt.code == 0
    assert live.state_hash in rebuilt.out
    assert rebuilt.err.startswith("warning: shard 0: ")


def test_a_snapshot_of_a_directory_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = lived(tmp_path, groups=2, snapshots=0)
    with DataDirectory.open_existing(live.files, live.data_dir, lock=True):
        shown = onelog(capsys, "snapshot", live.data_dir)
        assert shown.code == 1
        assert shown.err.startswith("error: DIRECTORY_IN_USE: ")
        assert onelog(capsys, "replay", live.data_dir).code == 0


def test_an_empty_shard_is_nothing_to_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shard(DiskFiles(), tmp_path / "data")
    shown = onelog(capsys, "snapshot", tmp_path / "data")
    assert (shown.code, shown.out) == (0, "shard 0: empty, nothing to save\n")
    assert onelog(capsys, "replay", tmp_path / "data", "--json").json["shards"][0]["index"] == 0
