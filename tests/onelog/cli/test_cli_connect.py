"""How commands find a server, and how they fail when there is none."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onelog.cli.connect import VARIABLES, find_settings, parse_endpoints
from onelog.cli.failure import CommandFailed
from tests.onelog.cli.commands import Cli
from tests.system.ports import free_addresses

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the configuration file of this user."""

    def write(text: str) -> Path:
        path = tmp_path / "config" / "onelog" / "client.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_a_setting_comes_from_the_flag_the_variable_the_file_or_the_default(
    tmp_path: Path, write: Write
) -> None:
    path = write('endpoints = ["file:1", "file:2"]\nnamespace = "file"\ntimeout = "1s"\n')
    environment = {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "ONELOG_ENDPOINTS": "variable:1",
        "ONELOG_CLIENT_NAMESPACE": "variable",
    }
    found = find_settings({"endpoints": "flag:1"}, None, environment)
    assert [(found[name].text, found[name].origin) for name in list(VARIABLES)[:4]] == [
        ("flag:1", "the command line"),
        ("variable", "ONELOG_CLIENT_NAMESPACE"),
        ("1s", str(path)),
        ("sync", "default"),
    ]
    del environment["ONELOG_ENDPOINTS"]
    assert parse_endpoints(find_settings({}, None, environment)["endpoints"]) == [
        "file:1",
        "file:2",
    ]


def test_a_file_may_be_named_and_then_must_exist(tmp_path: Path, write: Write) -> None:
    write('namespace = "home"')
    other = tmp_path / "other.toml"
    other.write_text('namespace = "other"\ntls = true')
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    assert find_settings({}, other, environment)["namespace"].text == "other"
    assert find_settings({}, other, environment)["tls"].is_yes
    named = environment | {"ONELOG_CLIENT_CONFIG": str(other)}
    assert find_settings({}, None, named)["namespace"].text == "other"
    assert find_settings({}, None, {"HOME": str(tmp_path)})["namespace"].text == ""
    with pytest.raises(FileNotFoundError):
        find_settings({}, tmp_path / "missing", {})


@pytest.mark.parametrize("text", ["endpoint = 'a:1'", "timeout = 5", "not toml", "tls = 'maybe'"])
def test_a_file_that_is_wrong_is_refused_with_its_name(
    text: str, cli: Cli, write: Write, endpoint: str
) -> None:
    path = write(text)
    ran = cli("kv", "get", "a", code=2 if "maybe" in text else 1)
    assert str(path) in ran.err


def test_commands_use_the_file(
    cli: Cli, write: Write, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONELOG_ENDPOINTS")
    cli("admin", "namespaces", "create", "filed", "-e", endpoint)
    write(f'endpoints = "{endpoint}"\nnamespace = "filed"\ndurability = "async"')
    cli("kv", "put", "{where}", "here")
    # An ASYNC write is visible once it is committed: so is everything ahead of a SYNC write.
    cli("kv", "put", "{where}2", "later", "--durability", "sync")
    assert cli("kv", "get", "{where}", "--namespace", "filed").out == "here\n"
    cli("kv", "get", "{where}", "--namespace", "default", code=3)
    rows = cli.lines("admin", "config")
    shown = {row["setting"]: row["value"] for row in rows}
    assert shown["namespace"] == "filed"


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (
            ["-e", "http://a:1"],
            "endpoints 'http://a:1' of the command line cannot be used: "
            "'http://a:1' has a scheme; write a:1",
        ),
        (["-e", "https://a:1"], "write a:1, and add --tls"),
        (["-e", "a:99999"], "has no port of 1 to 65535"),
        (["-e", ","], "has no endpoint"),
        (["--timeout", "soon"], "is no duration"),
        (["--timeout", "0"], "must be above 0"),
        (["--durability", "maybe"], "is neither sync nor async"),
        (["--tls-cert", "x"], "belong together"),
    ],
)
def test_a_flag_that_is_wrong_is_refused_before_anybody_is_asked(
    flags: list[str], what: str, cli: Cli
) -> None:
    assert what in cli("kv", "get", "a", *flags, code=2).err


def test_a_certificate_that_is_missing_is_named(cli: Cli) -> None:
    assert "ENOENT: nowhere.pem" in cli("kv", "get", "a", "--tls-ca", "nowhere.pem", code=1).err


@pytest.mark.parametrize(
    "command",
    [["ping"], ["kv", "get", "a"], ["queue", "list"], ["stream", "list"], ["ts", "list"], ["watch"],
     ["admin", "status"], ["kv", "lock", "a", "--", "true"]],
)  # fmt: skip
def test_a_server_that_is_down_is_one_line_and_a_code(command: list[str], cli: Cli) -> None:
    """And soon: the first thing that most people will see of onelog is this."""
    (address,) = free_addresses(1)
    ran = cli("-e", address, "--timeout", "600s", *command, code=5)
    assert ran.err.startswith("error: ")
    assert address in ran.err
    assert ran.err.endswith("; start a server with onelog serve, or name one with -e\n")


@pytest.mark.parametrize(
    "words",
    [
        ["-e", "{}", "kv", "get", "early"],
        ["--endpoint={}", "--json", "kv", "get", "early"],
        ["-e{}", "kv", "-n", "default", "get", "early"],
        ["kv", "--endpoint", "{}", "--timeout", "60", "get", "early"],
        ["kv", "json", "-e", "{}", "get", "early"],
    ],
)
def test_flags_about_the_connection_may_stand_before_the_command(
    words: list[str], cli: Cli, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with kubectl, etcdctl and redis-cli: people say where before they say what."""
    cli("kv", "put", "early", "7")
    monkeypatch.setenv("ONELOG_ENDPOINTS", "127.0.0.1:1")
    assert "7" in cli(*(word.format(endpoint) for word in words)).out


def test_a_flag_before_a_command_that_does_not_take_it_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert "No such option: -e" in cli("-e", "a", "log", "inspect", tmp_path, code=2).err
    assert cli("--json", "log", "inspect", tmp_path, code=1).err.startswith("error: NOT_A_DATA")
    assert "No such option: --stale" in cli("--stale", "kv", "get", "a", code=2).err


def test_a_namespace_that_does_not_exist_is_told(cli: Cli) -> None:
    assert "NAMESPACE_UNKNOWN" in cli("kv", "get", "a", "-n", "nowhere", code=3).err
    assert "NAMESPACE_UNKNOWN" in cli("kv", "put", "a", "1", "-n", "nowhere", code=3).err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")
def test_tls_without_a_server_that_has_it_fails_like_any_other(cli: Cli, tmp_path: Path) -> None:
    from tests.cluster.transport.test_transport_tls import certificate

    _, chain = certificate(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(chain)
    flags: list[Any] = ["--tls-ca", "ca.pem", "--tls-name", "localhost", "--timeout", "500ms"]
    cli("kv", "get", "a", *flags, code=5)


def test_a_switch_is_yes_or_no() -> None:
    settings = find_settings({"tls": "maybe"}, None, {"HOME": "/nonexistent"})
    with pytest.raises(CommandFailed, match="neither yes nor no"):
        assert settings["tls"].is_yes
