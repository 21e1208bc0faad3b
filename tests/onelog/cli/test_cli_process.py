"""The real program, as a process: interrupted, piped, without a server, in a shell."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from onelog import Client
from tests.onelog.client.serving import ROOT
from tests.system.ports import free_addresses

TIMEOUT_S = 120


def start(*arguments: str, options: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    command = [sys.executable, *options, "-m", "onelog.cli.main", *arguments]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("ONELOG_")
    }
    return subprocess.Popen(
        command, cwd=ROOT, env=environment | {"XDG_CONFIG_HOME": "/nonexistent"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def stream_of(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@pytest.mark.parametrize("module", ["typer.core", "onelog.cli.log.commands", "onelog.cli.serve"])
def test_an_interrupt_while_the_program_loads_ends_it_quietly(module: str) -> None:
    """Ctrl-C in the first half second is the fate of many a mistyped command."""
    with start("kv", "list", options=("-X", "importtime")) as process:
        errors = stream_of(process.stderr)
        for line in errors:
            if line.split("|")[-1].strip() == module:
                break
        process.send_signal(signal.SIGINT)
        rest = errors.read()
    assert process.returncode in (-signal.SIGINT, 130)
    assert "Traceback" not in rest
    assert [line for line in rest.splitlines() if not line.startswith("import time:")] == []


@pytest.mark.parametrize("command", [["watch", "kv"], ["kv", "watch", "p:"]])
def test_an_interrupt_ends_a_watch_quietly_and_says_where_to_go_on(
    command: list[str], endpoint: str
) -> None:
    process = start(*command, "-e", endpoint)
    with Client(endpoint, timeout_s=60) as client:
        # The watch sees what happens once it has begun; nobody knows when that is.
        while not select_line(process):
            client.kv.put("p:1", "x")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, err
    assert "p:1" in out or not out
    assert err.startswith("note: to continue here: --from ")
    assert err.count("\n") == 1


def select_line(process: "subprocess.Popen[str]") -> bool:
    """Tell whether a line has come within a moment, and take it."""
    found, _, _ = select.select([stream_of(process.stdout)], [], [], 0.05)
    return bool(found) and "p:1" in stream_of(process.stdout).readline()


def test_a_consumer_whose_session_ran_out_says_so_and_goes_on(endpoint: str) -> None:
    with Client(endpoint, timeout_s=60) as client:
        stream = client.stream("lost")
        stream.create()
        group = stream.group("g")
        group.create(from_offset=0)
        stream.append_many(["x" * 400_000, "y" * 400_000])
        consume = ("stream", "group", "consume", "lost", "g", "--json", "--limit", "3")
        process = start(*consume, "-e", endpoint)
        # It has the first record, and cannot go on before somebody reads what it prints.
        assert select.select([stream_of(process.stdout)], [], [], TIMEOUT_S)[0]
        (member,) = group.info().members
        group.rejoin(member.member_id).close()
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        values = [json.loads(line)["value"][0] for line in out.splitlines()]
        assert values == ["x", "x", "y"]
        assert "is delivered again" in err
        assert group.info().partitions[0].lag == 0


@pytest.mark.parametrize("command", [[], ["--", "cat"]])
def test_a_consumer_of_a_paused_queue_says_why_it_waits(endpoint: str, command: list[str]) -> None:
    with Client(endpoint, timeout_s=60) as client:
        queue = client.queue("paused")
        queue.create(exist_ok=True)
        queue.enqueue("x")
        queue.pause()
        process = start("queue", "consume", "paused", "--limit", "1", "-e", endpoint, *command)
        said = stream_of(process.stderr).readline()
        queue.resume()
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert said.startswith("note: paused is paused; go on with: onelog queue resume paused; ")
    assert (process.returncode, err) == (0, "")
    assert out.rstrip().endswith("x")


def test_a_server_that_is_down_is_one_line_soon() -> None:
    (address,) = free_addresses(1)
    process = start("kv", "get", "a", "-e", address, "--timeout", "1s")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (5, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert address in err


def test_a_reader_that_goes_away_ends_a_listing_quietly(endpoint: str) -> None:
    with Client(endpoint, timeout_s=60) as client:
        client.kv.put_many({f"pipe:{number}": "x" * 1000 for number in range(2000)})
    with start("kv", "list", "pipe:", "--json", "-e", endpoint) as process:
        assert stream_of(process.stdout).readline().startswith('{"key": "pipe:')
        stream_of(process.stdout).close()
        err = stream_of(process.stderr).read()
    assert process.returncode == 141
    assert err == ""


@pytest.mark.parametrize("arguments", [["--help"], ["kv", "--help"], ["ts", "query", "--help"]])
def test_help_loads_nothing_of_the_client(arguments: list[str]) -> None:
    """It is asked for more often than anything else."""
    script = (
        f"import sys; from onelog.cli.main import run; code = run({arguments!r}); "
        "loaded = {name.removeprefix('onelog.').partition('.')[0] for name in sys.modules}; "
        "assert not loaded & {'grpc', 'numpy', 'google', 'node', 'cluster', 'snapshot'}, loaded; "
        "others = {'kv', 'queue'} - {sys.argv[1]}; "
        "assert not any(f'onelog.cli.{each}' in sys.modules for each in others); sys.exit(code)"
    )
    own = arguments[0]
    done = subprocess.run(
        [sys.executable, "-c", script, own], cwd=ROOT, capture_output=True, text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_and_flags(tmp_path: Path) -> None:
    program = tmp_path / "onelog"
    program.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m onelog.cli.main "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(onelog completion bash)"
        complete_words() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); $function onelog; echo "${COMPREPLY[@]}"
        }
        function=$(complete -p onelog | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        complete_words onelog kv incr
        complete_words onelog kv get --max
        complete_words onelog serve --init
        complete_words onelog serve --name x --nam
        complete_words onelog serve --logging-format js
        complete_words onelog config show --raft-heartb
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.stdout.splitlines() == [
        "increment", "--max-staleness", "--initial-cluster", "", "json", "--raft-heartbeat-s",
    ], done.stderr  # fmt: skip


@pytest.mark.parametrize(
    ("shell", "first"), [("bash", "_onelog_completion"), ("zsh", "#compdef onelog"),
                         ("fish", "complete")],
)  # fmt: skip
def test_scripts_for_all_shells_are_printed(
    shell: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from onelog.cli.main import run

    assert run(["completion", shell]) == 0
    assert capsys.readouterr().out.startswith(first)
    assert run(["completion", "dos"]) == 2
