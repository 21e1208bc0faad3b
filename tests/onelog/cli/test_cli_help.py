"""The tree of commands: everything of the API is in it, and every example of its help works."""

import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from onelog import Client
from onelog.cli.program import SECTIONS, tree
from tests.onelog.cli.forking import forking
from tests.onelog.client.serving import ROOT

TIMEOUT_S = 120
PROTOS = sorted((ROOT / "proto" / "onelog" / "v1").glob("*.proto"))
WRITE_S = 0.1
# Above the offsets that examples name.
OFFSETS_NAMED_MAX = 100
PREPARE = """
onelog queue create 'jobs.dead{jobs}'
onelog queue create 'jobs{jobs}' --max-deliveries 5 --dead-letters 'jobs.dead{jobs}'
onelog queue create old-jobs
onelog stream create events
onelog stream create clicks
onelog stream create old-events
onelog stream group create events billing --from 0 --shared
onelog stream group create events reading --from 0
onelog stream group create events old-group
onelog ts write 'cpu,host=a load=0.5' 'cpu{m} load=1' 'old-cpu load=1'
onelog ts rule set 'cpu{m}' hourly --window 1h -a mean --into 'cpu_hourly{m}'
onelog admin namespaces create shop
onelog admin namespaces create old-shop
onelog admin hold set old-export
for n in 1 2 3 5 6; do onelog kv put user:$n "name $n"; done
onelog kv put greeting hello
onelog kv put config '{}'
onelog kv put today now
onelog kv json set profile . '{"name": "Ann", "tags": ["x"]}'
onelog kv put 'balance{ann}' 10
echo '{"a": 1}' > settings.json
echo '{"key": "a", "value": "1"}' > backup.jsonl
echo '{"do": [{"op": "increment", "key": "n{1}"}]}' > batch.json
printf 'time,host,load\\n1000,a,0.5\\n' > loads.csv
echo x > picture.jpg
printf 'id,name,age\\n1,Ann,30\\n' > users.csv
mkdir logs && echo '{"value": "started"}' > logs/1.jsonl
echo '{"body": "resize 1.jpg"}' > jobs.jsonl
"""
# What creates something that the preparation has made already; each has a test of its own.
REMADE = re.compile(
    r"onelog (queue create 'jobs|stream create (events|clicks)$|stream create clicks|"
    r"stream group create events billing|admin namespaces create shop)"
)


def commands(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command by its path."""
    children = getattr(node, "commands", None)
    if children is None:
        yield " ".join(path), node
        return
    for name in list(children):
        yield from commands(node.get_command(None, name), (*path, name))


def groups(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every group of commands by its path."""
    for name in list(node.commands):
        child = node.get_command(None, name)
        if hasattr(child, "commands"):
            yield " ".join((*path, name)), child
            yield from groups(child, (*path, name))


# Those that talk to a server that is there; others run one, or work without.
TALKING = (
    "kv",
    "queue",
    "stream",
    "ts",
    "watch",
    "transact",
    "admin",
    "completion",
    "import",
    "explain",
    "ping",
    "call",
)
ALL = dict(commands(tree()))
OURS = {path: each for path, each in ALL.items() if path.split()[0] in TALKING}
# They need another node, or dead letters that take their time: their examples are parsed only.
ONLY_PARSED = (
    "queue cancel-redrive",
    "admin members add",
    "admin members promote",
    "admin members remove",
)

GROUPS = {path: each for path, each in groups(tree()) if path.split()[0] in TALKING}


def examples(path: str) -> str:
    described = (OURS | GROUPS)[path].help
    found = re.search(r"^Examples:\n((?:  .*\n?)+)", described, re.MULTILINE)
    assert found is not None, path
    return found[1]


def test_every_call_of_the_api_has_a_command_that_the_document_names() -> None:
    """docs/cli.md has the list, and a reason where there is none."""
    text = (ROOT / "docs" / "cli.md").read_text()
    rows = re.findall(r"^\| `(\w+/\w+)` \| (.*) \|$", text, re.MULTILINE)
    modules = [import_module(f"onelog.v1.{path.stem}_pb2") for path in PROTOS if is_public(path)]
    assert [call for call, _ in rows] == [
        f"{name}/{method.name}"
        for module in modules
        for name, service in module.DESCRIPTOR.services_by_name.items()
        for method in service.methods
    ]
    for call, command in rows:
        named = re.fullmatch(r"`onelog ([\w -]+)`", command)
        assert (named[1] in OURS) if named else command.startswith("none: "), (call, command)


def is_public(path: Path) -> bool:
    """Return whether a proto is a part of the API; that between nodes has no service."""
    return re.search(r"^service ", path.read_text(), re.MULTILINE) is not None


def test_the_help_of_a_group_begins_with_examples_and_cuts_no_sentence() -> None:
    for path, found in groups(tree()):
        assert "\n\nExamples:\n" in found.help.replace("\b\n", ""), path
        shown = found.get_help(found.make_context(path, [], resilient_parsing=True))
        assert "..." not in shown.partition("Commands:")[2], path


def test_the_root_lists_every_command_once() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(tree().commands)


# What somebody who knows another program looks for.
def test_the_commands_for_who_knows_another_program_can_be_typed() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    rows = re.findall(r"^\| `(?:etcdctl|nats|redis-cli) .*\| `onelog (.*)` \|$", text, re.MULTILINE)
    assert len(rows) >= 15
    for row in rows:
        words = shlex.split(row)
        path = max((each for each in ALL if words[: len(each.split())] == each.split()), key=len)
        with ALL[path].make_context(path, words[len(path.split()) :]):
            pass


@pytest.mark.parametrize("path", ALL)
def test_a_command_says_what_it_does(path: str) -> None:
    command = ALL[path]
    assert re.match(r"[A-Z]", command.help)
    shown = command.get_help(command.make_context(path, [], resilient_parsing=True))
    assert "\\b" not in shown  # a mark of ours that was not understood
    assert re.search(r"\nExamples:\n  \S", command.help.replace("\b\n", ""))
    assert "\nUsage:" not in command.help  # which is the line above all that
    assert [each.name for each in command.params if not each.help] == []


@pytest.fixture(scope="module")
def shell(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run scripts in a directory where the examples find what they speak of."""
    directory = tmp_path_factory.mktemp("examples")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ONELOG_")
    }
    with forking(tmp_path_factory.mktemp("forking")) as programs:
        environment |= {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "ONELOG_ENDPOINTS": endpoint,
            "ONELOG_CLIENT_TIMEOUT": "60s",
            "XDG_CONFIG_HOME": str(directory),
        }

        def run(script: str) -> str:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", script],
                cwd=directory, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
            )  # fmt: skip
            assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
            return done.stdout

        yield run


@pytest.fixture(scope="module")
def prepared(shell: Any, endpoint: str) -> Iterator[Any]:
    """Make what the examples name, and keep changing it."""
    shell(PREPARE)
    with Client(endpoint, timeout_s=60) as client:
        # Examples name offsets, which are indexes: there must have been as many entries.
        for name in ("events", "clicks"):
            client.stream(name).append_many(["something"] * OFFSETS_NAMED_MAX)
    stopping = threading.Event()

    def go_on() -> None:
        with Client(endpoint, timeout_s=60) as client:
            while not stopping.wait(WRITE_S):
                for key in ("greeting", "user:7"):
                    client.kv.put(key, str(time.time_ns()))
                client.queue("jobs{jobs}").enqueue("work")
                for name in ("events", "clicks"):
                    client.stream(name).append("something", key="ann")

    writing = threading.Thread(target=go_on)
    writing.start()
    yield shell
    stopping.set()
    writing.join()


@pytest.mark.parametrize("path", [*(path for path in OURS if path not in ONLY_PARSED), *GROUPS])
def test_the_examples_of_a_command_work(path: str, prepared: Any) -> None:
    lines = []
    for line in examples(path).splitlines():
        example = line.strip() if line.startswith("  onelog") else line
        if REMADE.match(example):
            continue
        if is_endless(example):
            example += " --limit 1"
        # What it would find may have been taken by the example before; more is on its way.
        example = example.replace("stream group fetch", "stream group fetch --wait 30s")
        lines.append(example)
    prepared("\n".join(lines))


def is_endless(example: str) -> bool:
    """Tell whether somebody has to press Ctrl-C."""
    streams = re.match(
        r"onelog (watch|kv watch|stream tail|queue consume|stream group consume)", example
    )
    return streams is not None and "--limit" not in example
