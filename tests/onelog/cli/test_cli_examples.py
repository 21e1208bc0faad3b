"""Examples of the help of commands that need no server: run where that is quick, else understood.

Those that talk to a server are run by tests/onelog/cli/test_cli_help.py.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onelog.cli.program import tree
from onelog.node.config.sources import load
from tests.onelog.cli.forking import forking
from tests.onelog.cli.log.models import Models
from tests.onelog.cli.test_cli_help import ALL, ONLY_PARSED, TALKING, groups

TIMEOUT_S = 60
SETTINGS_FILE = "[cluster]\nshards = 2\n"

Shell = Callable[[str], str]


def lines_of(path: str) -> list[str]:
    """Return the examples of a command."""
    return examples_of(ALL[path].help)


def examples_of(text: str) -> list[str]:
    found = re.search(r"^Examples:\n((?:  .*\n?)+)", text, re.MULTILINE)
    assert found is not None, text
    return [line.strip() for line in found[1].splitlines()]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with forking(tmp_path_factory.mktemp("forking")) as found:
        yield found


@pytest.fixture
def shell(programs: Path, tmp_path: Path) -> Shell:
    """Run a line in a directory of its own."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ONELOG_")
    } | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def run(line: str) -> str:
        if shutil.which("jq") is None:
            line = line.partition(" | jq ")[0]
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", line],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("path", [path for path in ALL if path.startswith("log ")])
def test_the_examples_of_a_command_of_the_log_work(
    path: str, shell: Shell, models: Models, tmp_path: Path
) -> None:
    """On a directory that has the names they speak of, and is smaller than theirs."""
    shutil.copytree(models.data_dir, tmp_path / "onelog-data")
    last = models.live.log.last_index
    newest = models.live.store.records[-1]
    for line in lines_of(path):
        line = re.sub(r"--shard \d+", "--shard 0", line)
        line = re.sub(r"--from \d+", "--from 1", line)
        line = re.sub(r"--(to|at) \d+", rf"--\1 {last}", line)
        # No server runs here: what it would say is the state of these files.
        line = line.replace(
            "$(onelog admin hash 0)", f"{newest.state_hash} at index {newest.index}"
        )
        shell(line)


@pytest.mark.parametrize(
    "path", [path for path, _ in groups(tree()) if path.split()[0] not in TALKING]
)
def test_the_examples_of_a_group_are_understood(path: str) -> None:
    lines = [line for line in examples_of(dict(groups(tree()))[path].help) if "onelog " in line]
    assert lines
    for line in lines:
        if not line.startswith("onelog "):
            continue  # of another program
        words = shlex.split(line)[1:]
        if path == "export" and f"export {words[1]}" not in ALL:
            words.insert(1, "run")  # what it does with a view
        name = max((each for each in ALL if words[: len(each.split())] == each.split()), key=len)
        assert name.startswith(path)
        with ALL[name].make_context(name, words[len(name.split()) :]):
            pass


@pytest.mark.parametrize("path", ["serve", "config show"])
def test_the_examples_of_a_server_are_settings_that_fit(
    path: str, shell: Shell, tmp_path: Path
) -> None:
    """A server checks its settings before anything else, and so does who shows them."""
    (tmp_path / "onelog.toml").write_text(SETTINGS_FILE)
    for line in lines_of(path):
        assert line.startswith(f"onelog {path}")
        shell(line.replace("onelog serve", "onelog config show"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["onelog.toml"]


@pytest.mark.parametrize(
    "path",
    [path for path in ALL if path.split()[0] in ("cluster", "bench", "demo")] + list(ONLY_PARSED),
)
def test_examples_that_would_take_their_time_are_understood(path: str) -> None:
    """Parsed as they would be, and not run: nodes would be started and killed."""
    examples = [line for line in lines_of(path) if line.startswith("onelog ")]
    assert examples
    for line in examples:
        words = shlex.split(re.sub(r"\$\w+", "1", line.partition(" | ")[0]))
        own = ["onelog", *path.split()]
        assert words[: len(own)] == own
        arguments = words[len(own) :]
        with ALL[path].make_context(path, list(arguments)):
            pass
        if "--" in arguments:
            load(arguments[arguments.index("--") + 1 :], {})  # they are for the nodes
