"""Settings: one tree, four sources, and clear words for everything that is wrong."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from onelog.cli.main import run
from onelog.cluster.config import RaftConfig, ShippingConfig
from onelog.cluster.transport.outbox import OutboxLimits
from onelog.cluster.transport.peers import TransportConfig
from onelog.cluster.transport.wire import Reason
from onelog.node import errors
from onelog.node.config.schema import Config
from onelog.node.config.settings import Address, Kind
from onelog.node.config.sources import SETTINGS, help_text, load
from onelog.node.errors import ConfigError
from onelog.node.replica.requests import ShardConfig
from onelog.ual.log_config import LogConfig


def refused(arguments: list[str] | None = None, **environment: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(arguments or [], environment)
    return str(error.value)


def write(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "onelog.toml"
    path.write_text(text)
    return ["--config", str(path)]


def test_without_anything_it_is_a_single_node_on_loopback() -> None:
    config = load([], {}).config
    assert config == Config()
    assert config.node.data_dir == Path("onelog-data")
    assert [str(each) for each in (config.listen.api, config.listen.peers, config.listen.http)] == [
        "127.0.0.1:7400", "127.0.0.1:7500", "127.0.0.1:7600",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "shards"),
    [
        ([], 1),
        (["--workers", "3"], 3),
        (["--shards", "4"], 4),
        (["--initial-cluster", "n1=a:1,n2=b:1"], 4),
        (["--initial-cluster", "n1=a:1,n2=b:1", "--workers", "6"], 6),
        (["--initial-cluster", "n1=a:1,n2=b:1", "--shards", "1"], 1),
        (["--join", "a:1"], 4),
    ],
)
def test_a_node_by_itself_has_one_shard_and_a_cluster_four(flags: list[str], shards: int) -> None:
    """With one shard every transaction is possible; a cluster spreads its leaders."""
    loaded = load(flags, {})
    assert loaded.config.cluster.shards == shards
    assert loaded.config.topology.shards == shards
    assert ("cluster.shards" in loaded.config.given) == ("--shards" in flags)


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = write(
        tmp_path, '[raft]\nheartbeat_s = 0.11\n[node]\nname = "f"\n[cluster]\nshards = 2\n'
    )
    loaded = load(
        [*file, "--raft-heartbeat-s", "0.13"],
        {"ONELOG_RAFT_HEARTBEAT_S": "0.12", "ONELOG_NAME": "v", "PATH": "/bin"},
    )
    config = loaded.config
    assert (config.raft.heartbeat_s, loaded.find_origin("raft.heartbeat_s")) == (
        0.13, "--raft-heartbeat-s",
    )  # fmt: skip
    assert (config.node.name, loaded.find_origin("node.name")) == ("v", "ONELOG_NAME")
    assert (config.cluster.shards, loaded.find_origin("cluster.shards")) == (2, file[1])
    assert loaded.find_origin("node.data_dir") == "default"
    assert config.given == {"raft.heartbeat_s", "node.name", "cluster.shards"}


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    _, path = write(tmp_path, "[node]\nworkers = 2\n")
    assert load([], {"ONELOG_CONFIG": path}).config.node.workers == 2


@pytest.mark.parametrize("each", SETTINGS.values(), ids=lambda each: each.key)
def test_every_default_survives_being_written_and_read(each: object) -> None:
    setting = SETTINGS[each.key]  # type: ignore[attr-defined]
    assert setting.read(setting.show(setting.default)) == setting.default
    assert setting.help.endswith(".")


def test_names_are_unique_and_every_flag_is_in_the_help() -> None:
    flags = [each.flag for each in SETTINGS.values()]
    assert len(set(flags)) == len(flags)
    text = help_text("onelog serve", "What it does.")
    assert "What it does." in text
    assert all(f"{flag} " in text for flag in flags)


@pytest.mark.parametrize(
    ("section", "part", "left_out"),
    [
        ("raft", RaftConfig, set()),
        ("shard", ShardConfig, set()),
        ("log", LogConfig, {"unsynced_bytes_max"}),
        ("transport", TransportConfig, {"outbox"}),
        ("transport", OutboxLimits, set()),
    ],
)
def test_every_knob_of_a_part_is_a_setting(section: str, part: type, left_out: set[str]) -> None:
    names = {each.name.replace("_ns_", "_s_") for each in dataclasses.fields(part)}
    assert {f"{section}.{name}" for name in names - left_out} <= set(SETTINGS)


def test_values_arrive_where_they_belong() -> None:
    """Each setting of a section is changed, and shows up under its own name in the part."""
    arguments = [
        "--raft-election-s-max", "0.9", "--raft-frame-bytes-max", "128KiB",
        "--shard-group-entries-max", "77", "--log-segment-age-s-max", "90",
        "--log-free-bytes-min", "7", "--transport-refused-s", "3.5",
        "--transport-bulk-messages-max", "99", "--log-scrub-bytes-per-s", "1MiB",
        "--log-scrub-pause-s", "30",
    ]  # fmt: skip
    config = load(arguments, {}).config
    assert config.raft_config() == RaftConfig(election_s_max=0.9, frame_bytes_max=128 << 10)
    assert config.shard_config() == ShardConfig(group_entries_max=77)
    assert config.log_config() == LogConfig(segment_age_ns_max=90 * 10**9, free_bytes_min=7)
    assert config.transport_config() == TransportConfig(
        refused_s=3.5, outbox=OutboxLimits(bulk_messages_max=99)
    )
    assert config.shipping_config() == ShippingConfig(scrub_bytes_per_s=1 << 20, scrub_pause_s=30)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1024", 1024), ("64MiB", 64 << 20), ("64 MiB", 64 << 20), ("1gib", 1 << 30)],
)
def test_sizes_have_units(text: str, value: int) -> None:
    assert SETTINGS["log.free_bytes_min"].kind is Kind.SIZE
    assert SETTINGS["log.free_bytes_min"].read(text) == value


def test_members_are_read_from_text_lists_and_tables(tmp_path: Path) -> None:
    expected = (("n1", Address("a", 1)), ("n2", Address("::1", 2)))
    for text in (
        'initial = "n2=[::1]:2,n1=a:1"',
        'initial = ["n1=a:1", "n2=[::1]:2"]',
        'initial = {n1 = "a:1", n2 = "[::1]:2"}',
    ):
        file = write(tmp_path, f"[cluster]\n{text}\n")
        assert load(file, {}).config.cluster.initial == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shards", "none"], "cluster.shards (--shards) is 'none'; expected a whole number"),
        (["--shards", "0"], "cluster.shards (--shards) is '0'; at least 1"),
        (["--shards", "70000"], "at most 65535"),
        (["--raft-heartbeat-s", "nan"], "raft.heartbeat_s (--raft-heartbeat-s) is 'nan'"),
        (["--balance-leaders", "maybe"], "expected true or false"),
        (["--log-ring-bytes", "64MB"], "log.ring_bytes (--log-ring-bytes) is '64MB'; expected"),
        (["--listen", "7400"], "listen.api (--listen) is '7400'; expected HOST:PORT"),
        (["--listen", "::1:7400"], "write an IPv6 address as [HOST]:PORT"),
        (["--listen", "localhost:x"], "a port is a number"),
        (["--listen", ""], "listen.api (--listen) is empty"),
        (["--logging-level", "loud"], "choose debug, info, warning, error"),
        (["--name", "a b"], "node.name (--name) is 'a b'"),
        (["--initial-cluster", "a"], "NAME=HOST:PORT"),
        (["--initial-cluster", "n1=a:1,n1=b:1"], "names n1 twice"),
        (["--initial-cluster", "n1=a:1,n2=a:1"], "has the address a:1 twice"),
        (["--initial-cluster", "n2=a:1"], "node.name (default) is n1, which is not in"),
        (["--initial-cluster", "n1=a:1", "--join", "b:1"], "exclude each other"),
        (
            ["--partitions", "2", "--shards", "3"],
            "cluster.shards (--shards), cluster.partitions (--partitions)",
        ),
        (
            ["--partitions", "2", "--initial-cluster", "n1=a:1"],
            "cluster.shards (default), cluster.partitions (--partitions)",
        ),
        (["--workers", "5", "--shards", "4"], "node.workers (--workers) is 5 for 4 shards"),
        (["--raft-heartbeat-s", "0.3"], "must exceed three heartbeats"),
        (["--listen", "0.0.0.0:7400"], "without TLS"),
        (["--http-listen", "10.0.0.1:7600"], "listen.http (--http-listen) is 10.0.0.1:7600"),
        (["--listen", "0.0.0.0:7400", "--insecure-bind"], "set advertise.api"),
        (["--http-listen", "127.0.0.1:7401", "--workers", "2"], "overlap"),
        (["--workers", "2", "--listen", "127.0.0.1:0"], "one worker only"),
        (["--tls-cert", "x"], "security.api_cert (--tls-cert) is of no use without"),
        (["--config", "/does/not/exist"], "/does/not/exist: No such file"),
    ],
)
def test_what_is_wrong_is_named_with_where_it_came_from(arguments: list[str], words: str) -> None:
    assert words in refused(arguments)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[raft]\nheartbeat = 1", "raft.heartbeat is no setting; did you mean raft.heartbeat_s?"),
        ("[rafts]\n", "rafts is no section; did you mean raft?"),
        ("raft = 1", "write [raft]"),
        ("[raft", "is not TOML"),
        ("[node]\nworkers = true", "expected a whole number"),
        ("[cluster]\nbalance_leaders = 1", "expected true or false"),
        ("[node]\nname = 7", "expected a name"),
    ],
)
def test_a_file_says_nothing_that_is_not_known(tmp_path: Path, text: str, words: str) -> None:
    message = refused(write(tmp_path, text))
    assert words in message
    assert "onelog.toml" in message


def test_unknown_flags_and_variables_are_refused_with_the_nearest() -> None:
    assert "--shard is no setting; did you mean --shards?" in refused(["--shard", "4"])
    assert "did you mean ONELOG_SHARDS?" in refused(ONELOG_SHARD="4")
    assert "error" not in refused(["serve"])
    # Not settings of a server.
    load([], {"ONELOG_TEST_SYNC_MS": "1", "ONELOG_CLIENT_TOKEN": "x", "ONELOG_ENDPOINTS": "a:1"})


def test_a_switch_needs_no_value() -> None:
    config = load(["--insecure-bind", "--listen", "10.0.0.1:1"], {}).config
    assert config.security.insecure_bind
    assert not load(["--balance-leaders=false"], {}).config.cluster.balance_leaders


def test_a_part_may_be_overridden_by_an_empty_text_where_nothing_is_the_default() -> None:
    assert load(["--advertise", ""], {"ONELOG_ADVERTISE": "a:1"}).config.advertise.api is None


def test_config_show_prints_every_value_with_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def onelog(*arguments: str) -> tuple[int, str, str]:
        return run(arguments), *capsys.readouterr()

    file = write(tmp_path, "[cluster]\nshards = 2\n")
    code, out, err = onelog("config", "show", "--json", *file, "--name", "n7")
    assert (code, err) == (0, "")
    values = json.loads(out)
    assert list(values) == list(SETTINGS)
    assert values["node.name"] == {"value": "n7", "origin": "--name"}
    assert values["cluster.shards"] == {"value": "2", "origin": file[1]}

    _, table, _ = onelog("config", "show", *file)
    assert re.search(r"cluster.shards +2 +\S+onelog.toml", table)
    assert re.search(r"listen.api +127.0.0.1:7400 +default", table)


def test_serve_fails_with_one_line_before_it_opens_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["serve", "--shard", "3"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: USAGE: --shard is no setting; did you mean --shards?; try --help\n",
    )
    assert run(["serve", "--shards", "zero"]) == 1
    assert capsys.readouterr().err.startswith("error: BAD_CONFIG: cluster.shards (--shards)")
    assert run(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--initial-cluster NAME=HOST:PORT" in text
    assert "\nExamples:\n  onelog serve\n" in text
    assert list(tmp_path.iterdir()) == []


def test_every_reason_that_ends_a_node_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    reasons = {
        item.reason
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, errors.NodeError)
    } - {errors.NodeError.reason}
    introductions = {
        Reason.CLUSTER_NAME_MISMATCH, Reason.FOUNDERS_MISMATCH, Reason.NAME_TAKEN,
        Reason.NODE_REPLACED, Reason.NOT_A_PEER_PORT, Reason.NOT_FOUNDED,
    }  # fmt: skip
    assert [each for each in reasons | introductions if f"`{each}`" not in text] == []


def test_every_setting_that_the_documents_name_exists() -> None:
    text = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    sections = {each.section for each in SETTINGS.values()}
    named = re.findall(r"`([a-z]+)\.([a-z_]+)`", text)
    assert {f"{s}.{n}" for s, n in named if s in sections} - {"server.md"} <= set(SETTINGS)
    flags = set(re.findall(r"`(--[a-z-]+)", text))
    known = {each.flag for each in SETTINGS.values()} | {"--config", "--json"}
    assert flags <= known, flags - known
