"""What the tests of the commands share: a directory with all models, and ways to ask about it."""

from collections.abc import Callable
from typing import Any

import pytest

from onelog.cli.main import run
from tests.onelog.models import Ask, Models, Result, build_models


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
