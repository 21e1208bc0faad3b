"""Numbers that no request could ever hold: every command says so, in one line."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from onelog import AsyncClient, Client, Message, Read
from onelog.cli import command
from onelog.cli.values import duration_s, lifetime_s, time_ns
from onelog.errors import InvalidArgument
from tests.onelog.cli.commands import Cli
from tests.onelog.cli.test_cli_help import ALL

# Beyond 64 bits, beyond 32 bits, below 0.
HUGE, WIDE, NEGATIVE = str(10**24), str(1 << 40), "-1"
# What arguments stand for, where "x" is no such thing.
ARGUMENTS = {
    "ID": "1", "ID...": "1", "SHARD": "0", "TIME": "1s", "TIME|none": "1s", "PRIORITY": "1",
    "N": "1", "ID:TOKEN...": "1:1", "PARTITION:OFFSET...": "0:1", "CRON": "* * * * *",
    "COMMAND...": "true", "NAME": "free", "FIELD": "v", "MEASUREMENT": "m",
}  # fmt: skip
OPTIONS = {"member": "1", "window": "1m", "aggregates": "mean"}
# What is said in an argument or in another way.
VALUES = {"kv put", "queue enqueue", "queue schedule add", "stream append"}
# These end after so many events.
WAITING = {"watch", "kv watch", "stream tail", "queue consume", "stream group consume"}
# What may come to be; whoever asks for it waits.
PATIENT = {("stream tail", "--from"), ("kv get", "--min-index")}
# Of all commands that read: the same code in each.
COMMON = ("min_index", "as_of", "max_staleness")


def values_of(parameter: Any) -> list[str]:
    """Return what to try for a parameter, if it is a number, a duration or a time."""
    parser = getattr(parameter.type, "func", None)
    if parser in (duration_s, lifetime_s):
        return [f"{HUGE}w", NEGATIVE]
    if parser is time_ns:
        return [HUGE, f"now+{HUGE}w", NEGATIVE]
    if parameter.type.name.removesuffix(" range") in ("int", "float"):
        return [HUGE, WIDE, NEGATIVE]
    return []


def lines_of(path: str) -> list[list[str]]:
    """Return command lines, each with a number that cannot be."""
    found = []
    for parameter in ALL[path].params:
        if parameter.name in COMMON and path != "kv get":
            continue
        for value in values_of(parameter):
            is_patient = (path, parameter.opts[0]) in PATIENT
            is_limit = path in WAITING and parameter.name == "limit"
            if value == NEGATIVE or not (is_limit or (is_patient and value == WIDE)):
                found.append(line_of(path, parameter, value))
    return found


def line_of(path: str, chosen: Any, value: str) -> list[str]:
    """Return a command line that has all that it must have, and the value."""
    words, behind = path.split(), ["--"]
    for parameter in ALL[path].params:
        is_argument = parameter.param_type_name == "argument"
        if parameter is chosen:
            behind += [value] if is_argument else []
            words += [] if is_argument else [parameter.opts[0], value]
        elif parameter.required and is_argument:
            behind.append(ARGUMENTS.get(parameter.metavar, "x"))
        elif parameter.required:
            words += [parameter.opts[0], OPTIONS.get(parameter.name, "x")]
    if path in WAITING and chosen.name != "limit":
        words += ["--limit", "1"]
    return words + behind + (["1"] if path in VALUES else [])


LINES = {path: lines for path in ALL if (lines := lines_of(path))}


class Kept(Client):
    """A client that commands share: to connect would take longer than all else."""

    def close(self) -> None:
        """Leave it to the one who made it."""


@pytest.fixture(scope="module")
def client(endpoint: str) -> Iterator[Client]:
    client = Kept(endpoint, timeout_s=60)
    client.queue("x").create()
    client.stream("x").create()
    client.stream("x").group("x").create()
    client.ts.create("m")
    client.admin.create_namespace("free")
    yield client
    Client.close(client)


@pytest.mark.parametrize("path", LINES)
def test_a_number_that_cannot_be_is_refused_in_one_line(
    path: str, cli: Cli, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "connect", lambda _: client)
    for line in LINES[path]:
        ran = cli(*line, code=None)
        assert ran.code in (0, 1, 2, 3, 4), (line, ran)


def test_a_number_beyond_its_field_has_a_reason_of_its_own(cli: Cli) -> None:
    for line in (
        ("kv", "put", "a", "1", "--expect", HUGE),
        ("kv", "list", "--limit", WIDE),
        ("queue", "create", "y", "--dead-letters", "--max-deliveries", WIDE),
        ("admin", "hash", HUGE),
    ):
        assert cli(*line, code=1).err.startswith("error: NUMBER_INVALID: "), line
    said = cli("queue", "create", "\udcff", code=1).err
    assert said.startswith("error: TEXT_INVALID: "), said


def test_programs_get_an_error_of_the_api(endpoint: str) -> None:
    async def ask() -> None:
        async with AsyncClient(endpoint, timeout_s=60) as client:
            queue, stream = client.queue("x"), client.stream("x")
            message = Message(-1, b"")
            for refused in (
                client.kv.put("a", "1", expected_version=-1),
                client.kv.put("a", "\udcff"),
                client.kv.put_many({"a": "1"}, ttl_s=1e30),
                client.kv.get("\udcff"),
                client.kv.get("a", read=Read(min_index=-1)),
                anext(client.kv.scan(limit=1 << 40)),
                queue.lease(1 << 40),
                queue.enqueue("\udcff"),
                queue.enqueue("1", ttl_s=1e30),
                queue.ack(message),
                anext(queue.consume(credit=1 << 40)),
                stream.append("\udcff"),
                stream.append("1", partition=1 << 40),
            ):
                with pytest.raises(InvalidArgument, match=r"(NUMBER|TEXT|DURATION)_INVALID"):
                    await refused
            with pytest.raises(InvalidArgument):
                client.transact().put("a", "1", expected_version=-1)
            assert await client.kv.get("a") is None

    asyncio.run(ask())
