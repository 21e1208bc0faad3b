"""What the tests of the commands share: a directory with all models, and ways to ask about it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onelog import Client
from onelog.cli.main import run
from tests.onelog.cli.commands import Cli
from tests.onelog.cli.log.models import Ask, Models, Result, build_models
from tests.onelog.client.serving import serving


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A directory that no test changes."""
    return build_models(tmp_path_factory.mktemp("models") / "data")


@pytest.fixture
def onelog(capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(*arguments: object) -> Result:
        code = run(["log", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "INTERNAL" not in err, err
        assert "\x1b" not in out + err
        return Result(code, out, err)

    return ask


@pytest.fixture
def replay(onelog: Ask, models: Models) -> Callable[..., Any]:
    """Ask as JSON, and return the answer about one thing."""

    def ask(subject: str, name: str, *arguments: object) -> Any:
        asked = onelog("replay", models.data_dir, f"--{subject}", name, *arguments, "--json")
        assert asked.code == 0, asked
        (shard,) = asked.json["shards"]
        return shard[subject]

    return ask


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in a process of its own, for the tests of one file: names would meet otherwise."""
    with serving(tmp_path_factory.mktemp("served"), "--shards", "4") as endpoint:
        with Client(endpoint, timeout_s=60) as client:
            client.kv.put("ready", "")
        yield endpoint


@pytest.fixture
def cli(
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> Cli:
    """Run a command line in this process, against the server."""
    for name in os.environ:
        if name.startswith("ONELOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ONELOG_ENDPOINTS", endpoint)
    monkeypatch.setenv("ONELOG_CLIENT_TIMEOUT", "30s")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return Cli(monkeypatch, capsysbinary)
