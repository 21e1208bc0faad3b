"""What people try first, from other programs or by guessing, works or says what would."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onelog import Client, ClientOptions
from onelog.cli.command import ALIASES, Group
from onelog.cli.program import tree
from onelog.client.admin import AsyncAdmin
from onelog.client.options import LONG_TIMEOUT_S
from onelog.v1 import pipeline_pb2
from tests.onelog.cli.commands import Cli
from tests.onelog.cli.terminals import Terminal
from tests.onelog.client.serving import serving

ANY_BYTES = bytes(range(256)) + b"\n\r\n"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server as most people start it: with one shard."""
    with serving(tmp_path_factory.mktemp("alone")) as endpoint:
        with Client(endpoint, timeout_s=60) as client:
            client.connect()
        yield endpoint


def groups(node: object) -> Iterator[object]:
    for name in list(getattr(node, "commands", ())):
        child = node.get_command(None, name)  # type: ignore[attr-defined]
        if hasattr(child, "commands"):
            yield child
            yield from groups(child)


# Names and flags


def test_commands_have_the_names_that_other_programs_give_them(cli: Cli) -> None:
    assert re.fullmatch(r"version \d+\n", cli("kv", "set", "al", "1").out)
    assert "al" in cli("kv", "ls", "al").out
    assert cli("kv", "incr", "al").out == "2\n"
    assert cli("kv", "del", "al").out == "1 key deleted\n"
    cli("queue", "add", "al")
    cli("queue", "send", "al", "x")
    assert cli.json("queue", "info", "al")["ready"] == 1
    cli("queue", "rm", "al")
    cli("stream", "add", "al")
    cli("stream", "pub", "al", "x")
    cli("stream", "group", "add", "al", "g", "--from", 0)
    assert cli("stream", "group", "sub", "al", "g", "--limit", 1, "--raw").out == "x"
    assert "Did you mean" in cli("kv", "gett", "al", code=2).err


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ("put a 1", "'onelog kv put'"),
        ("set a 1", "'onelog kv set'"),
        ("send q x", "'onelog queue send'"),
        ("status", "'onelog admin status' or 'onelog cluster status'"),
    ],
)
def test_a_command_without_its_group_is_told_where_it_is(line: str, there: str, cli: Cli) -> None:
    said = cli(*line.split(), code=2).err
    assert f"No such command '{line.split()[0]}'. Did you mean " in said
    assert there in said


def test_a_start_is_a_word_and_a_time_is_no_offset(cli: Cli) -> None:
    for name in ("begun{b}", "other{b}"):
        cli("stream", "create", name)
        cli("stream", "append", name, "one")
    tail = ("stream", "tail", "begun{b}", "other{b}")
    assert len(cli.lines(*tail, "--from", "start", "--limit", 2)) == 2
    assert "--from start --cursor" in cli(*tail, "--from", "start", "--limit", 2).err
    (first,) = cli.lines("stream", "read", "begun{b}", "--from", "start")
    cli("stream", "group", "create", "begun{b}", "g", "--from", "start")
    for offset in ("start", first["offset"]):
        cli("stream", "group", "seek", "begun{b}", "g", "--to", offset)
        assert "one" in cli("stream", "group", "consume", "begun{b}", "g", "--limit", 1).out
    for line in (
        (*tail, "--from", "now-1h"),
        ("stream", "read", "begun{b}", "--from", "2026-11-16T12:00:00Z"),
        ("stream", "group", "create", "begun{b}", "h", "--from", "now"),
        ("stream", "group", "seek", "begun{b}", "g", "--to", "now-1h"),
    ):
        assert "is a time, which has a flag of its own" in cli(*line, code=2).err
    assert "'x' is no offset" in cli("stream", "read", "begun{b}", "--from", "x", code=2).err


def test_an_alias_hides_no_command_and_help_lists_it(cli: Cli) -> None:
    for group in groups(tree()):
        for alias, names in ALIASES.items():
            found = group.get_command(None, alias)  # type: ignore[attr-defined]
            if alias in group.commands:  # type: ignore[attr-defined]
                assert found.name == alias
            elif found is not None:
                assert found.name in names
    said = cli("kv", "--help").out
    assert re.search(r"Aliases:\n(?s:.*)del, rm +delete\n(?s:.*)set +put\n", said)


def test_every_group_passes_on_the_flags_that_stand_before_a_command(cli: Cli) -> None:
    """One that does not would drop them without a word."""
    assert all(isinstance(group, Group) for group in groups(tree()))
    assert cli("--json", "config", "show", "--shards", 5).json["cluster.shards"]["value"] == "5"


def test_a_number_without_a_unit_is_seconds(cli: Cli) -> None:
    cli("kv", "put", "five", "1", "--ttl", "600", "--timeout", "60")
    lease = cli("kv", "lease", "grant", "90", "--key", "five").out.strip()
    assert cli.json("kv", "lease", "show", lease, "--key", "five")["ttl_s"] == 90
    assert "no duration" in cli("kv", "put", "five", "1", "--ttl", "5 s", code=2).err


@pytest.mark.parametrize(
    ("number", "unit"),
    [("1794830400", "seconds"), ("1794830400000", "milliseconds"),
     ("1794830400000000", "microseconds")],
)  # fmt: skip
def test_a_time_in_another_unit_is_not_taken_for_1970(number: str, unit: str, cli: Cli) -> None:
    for line in (
        ("ts", "query", "cpu", "load", "--from", number),
        ("queue", "enqueue", "q", "x", "--at", number),
        ("queue", "purge", "q", "--before", number),
        ("stream", "tail", "s", "--since", number),
        ("ts", "write", f"cpu load=1 {number}"),
    ):
        said = cli(*line, code=None)
        assert said.code in (1, 2)
        assert f"{number} looks like {unit}" in said.err


# What is created


@pytest.mark.parametrize(
    "what", [("queue",), ("stream",), ("ts",), ("admin", "namespaces")], ids=lambda each: each[-1]
)
def test_what_exists_is_created_if_it_is_missing(what: tuple[str, ...], cli: Cli) -> None:
    assert cli(*what, "create", "maybe", "--if-missing").out.endswith(" maybe created\n")
    assert "maybe" in cli(*what, "list").out
    cli(*what, "create", "maybe", code=4)
    assert cli(*what, "create", "maybe", "--if-missing").out.endswith(" maybe exists\n")


def test_groups_are_created_if_they_are_missing_listed_and_kept_alive(cli: Cli) -> None:
    cli("stream", "create", "grouped")
    assert "has no group" in cli("stream", "group", "list", "grouped").err
    for done in ("created", "exists"):
        said = cli("stream", "group", "create", "grouped", "billing", "--if-missing", "--from", 0)
        assert said.out == f"group billing {done}\n"
    cli("stream", "append", "grouped", "one")
    member = cli("stream", "group", "join", "grouped", "billing").out.strip()
    assert (
        "partitions: 0"
        in cli("stream", "group", "heartbeat", "grouped", "billing", "--member", member).out
    )
    titles, row = cli("stream", "group", "list", "grouped").rows
    assert titles[:3] == ["group", "members", "pending"]
    assert row[:3] == ["billing", "1", "0"]
    (listed,) = cli.lines("stream", "group", "list", "grouped")
    assert (listed["group"], len(listed["members"])) == ("billing", 1)
    cli("stream", "group", "leave", "grouped", "billing", "--member", member)
    cli("stream", "group", "heartbeat", "grouped", "billing", "--member", member, code=3)


def test_the_first_guess_at_dead_letters_works(cli: Cli, alone: str) -> None:
    at = ("-e", alone)
    create = ("queue", "create", "work", "--max-deliveries", 1, "--dead-letters")
    cli(*at, *create, "work-dead")
    cli(*at, "queue", "enqueue", "work", "x")
    cli(*at, "queue", "consume", "work", "--limit", 1, "--", "false")
    assert "false ended with 1" in cli(*at, "queue", "peek", "work-dead").out
    cli(*at, "stream", "create", "ev")
    cli(*at, "stream", "group", "create", "ev", "g", "--max-deliveries", 1,
        "--dead-letters", "ev-dead")  # fmt: skip
    assert "ev-dead" in cli(*at, "stream", "list").out


def test_settings_of_dead_letters_that_do_not_fit_leave_nothing_behind(cli: Cli) -> None:
    said = cli("queue", "create", "half", "--max-deliveries", 4, code=2).err
    assert "--max-deliveries needs --dead-letters" in said
    wrong = ("--max-deliveries", 4, "--dead-letters", "--tenant-weight", "x")
    cli("queue", "create", "half", *wrong, code=2)
    cli("queue", "show", "half.dead{half}", code=3)
    cli("stream", "create", "half")
    group = ("stream", "group", "create", "half", "g")
    for flags in (("--max-deliveries", 4), ("--dead-letters",)):
        assert "need each other" in cli(*group, *flags, code=2).err
    cli("stream", "show", "half.dead{half}", code=3)
    cli(*group, "--max-deliveries", 4, "--dead-letters")
    configure = ("stream", "group", "configure", "half", "g")
    cli(*configure, "--max-deliveries", 0)
    assert "no limit" in cli("stream", "group", "show", "half", "g").out
    assert "need each other" in cli(*configure, "--max-deliveries", 3, code=2).err
    cli(*configure, "--max-deliveries", 3, "--dead-letters")


def test_dead_letters_in_another_shard_are_refused_before_anything_is_made(cli: Cli) -> None:
    create = ("queue", "create", "far", "--max-deliveries", 1, "--dead-letters")
    said = cli(*create, "far-dead", code=1).err
    assert said.startswith("error: SEVERAL_SHARDS: the queues far and far-dead ")
    assert "far-dead{far}" in said
    assert "far.dead{far}" in said
    assert "far" not in cli("queue", "list").out
    cli(*create)
    assert "far.dead{far}" in cli("queue", "list").out
    cli("stream", "create", "far")
    group = ("stream", "group", "create", "far", "g", "--max-deliveries", 1, "--dead-letters")
    assert "SEVERAL_SHARDS" in cli(*group, "far-dead", code=1).err
    assert "far-dead" not in cli("stream", "list").out


# What is printed


def test_bodies_are_printed_byte_by_byte(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "any").write_bytes(ANY_BYTES)
    cli("kv", "put", "any", "--file", "any")
    assert cli("kv", "get", "any", "--raw").data == ANY_BYTES
    cli("kv", "put", "any", "-", stdin=ANY_BYTES)
    assert cli("kv", "get", "any", "--raw").data == ANY_BYTES
    cli("kv", "put", "any", "-", stdin=b"\x00\xff\n")
    assert cli("kv", "get", "any").data == b"\x00\xff\n\n"
    cli("queue", "create", "any")
    for _ in range(2):
        cli("queue", "enqueue", "any", "--file", "any")
    assert cli("queue", "peek", "any", "--raw").data == 2 * ANY_BYTES
    assert cli("queue", "lease", "any", "--raw").data == ANY_BYTES
    assert cli("queue", "consume", "any", "--limit", 1, "--raw").data == ANY_BYTES
    cli("stream", "create", "any")
    cli("stream", "append", "any", "-", stdin=ANY_BYTES)
    cli("stream", "append", "any", "--file", "any")
    assert cli("stream", "read", "any", "--raw").data == 2 * ANY_BYTES
    assert cli("stream", "tail", "any", "--from", 0, "--limit", 2, "--raw").data == 2 * ANY_BYTES
    cli("stream", "group", "create", "any", "g", "--from", 0)
    consume = ("stream", "group", "consume", "any", "g", "--limit", 1, "--raw")
    assert cli(*consume).data == ANY_BYTES
    member = cli("stream", "group", "join", "any", "g").out.strip()
    fetch = ("stream", "group", "fetch", "any", "g", "--member", member, "--wait", "30s", "--raw")
    assert cli(*fetch).data == ANY_BYTES


def test_raw_bytes_are_what_a_terminal_gets_too(cli: Cli, endpoint: str) -> None:
    """Who asks for the very bytes gets them; without --raw nothing reaches a terminal unescaped."""
    cli("kv", "put", "-x", "colour", r"\x1b[1mbold")
    with Terminal("-e", endpoint, "kv", "get", "colour", "--raw") as shown:
        assert shown.end() == 0
        assert shown.shown == "\x1b[1mbold"
    with Terminal("-e", endpoint, "kv", "get", "colour") as shown:
        assert shown.end() == 0
        assert shown.shown == "\\x1b[1mbold\r\n"


@pytest.mark.parametrize(
    "words",
    ["kv get a --raw --json", "kv get a b --raw", "kv get a --raw --details",
     "queue lease q --raw --receipts", "queue consume q --raw -- cat", "queue peek q --raw --json",
     "stream read s --raw --json", "stream group consume s g --raw --json"],
)  # fmt: skip
def test_raw_goes_with_no_other_form(words: str, cli: Cli) -> None:
    assert "--raw" in cli(*words.split(), code=2).err


def test_dead_letters_say_when_they_died_as_people_do(cli: Cli) -> None:
    cli("queue", "create", "mortal", "--max-deliveries", 1, "--dead-letters")
    cli("queue", "enqueue", "mortal", "x")
    cli("queue", "consume", "mortal", "--limit", 1, "--", "false")
    dead = "mortal.dead{mortal}"
    assert re.search(r"dlq.last_failure=20\d\d-\d\d-\d\dT[\d:.]+Z", cli("queue", "peek", dead).out)
    (letter,) = cli.lines("queue", "peek", dead)
    assert letter["headers"]["dlq.last_failure"].isdigit()
    done = cli.json("queue", "redrive", dead)
    assert (done["moved"], done["there"], done["done"]) == (1, 1, True)
    assert re.search(r"dead letters moved +1", cli("queue", "show", dead).out)
    assert cli("queue", "redrive", dead).out.endswith(": 0 messages moved back\n")


def test_an_empty_stream_has_no_first_offset(cli: Cli) -> None:
    cli("stream", "create", "empty")
    assert cli("stream", "show", "empty").rows[-1] == ["0", "0", "0"]
    offset = cli.json("stream", "append", "empty", "x")["offset"]
    assert cli("stream", "show", "empty").rows[-1][1:3] == [str(offset), str(offset)]
    left = cli("stream", "trim", "empty", "--below", offset + 1).rows[-1]
    assert left == ["0", "0", "0"]


def test_a_tail_says_its_start_as_people_do(cli: Cli) -> None:
    cli("stream", "create", "since")
    cli("stream", "append", "since", "x")
    said = cli("stream", "tail", "since", "--since", "now-1h", "--limit", 1).err
    assert re.search(r"--since 20\d\d-\d\d-\d\dT[\d:.]+Z --cursor ", said)


def test_keys_of_the_database_are_not_among_those_of_the_user(cli: Cli) -> None:
    """What `kv list` prints can be imported: nobody may write the others."""
    cli("admin", "namespaces", "create", "mixed")
    ours = ("-n", "mixed")
    cli(*ours, "kv", "put", "{t}a", "1")
    cli(*ours, "kv", "put", "{t}b", "2")
    cli(*ours, "ts", "write", "cpu load=1")
    listed = cli(*ours, "--json", "kv", "list")
    assert [line["key"] for line in listed.lines] == ["{t}a", "{t}b"]
    assert cli(*ours, "kv", "import", stdin=listed.data).out == "2 keys imported\n"
    assert [line["key"] for line in cli.lines(*ours, "kv", "list", "--limit", 1)] == ["{t}a"]
    assert "_ts:" in cli(*ours, "kv", "list", "--reserved").out
    assert "_ts:" in cli(*ours, "kv", "list", "_ts:").out


# Calls without a command of their own


def test_a_ping_asks_every_node(cli: Cli, endpoint: str) -> None:
    (row,) = cli.lines("ping")
    assert row["endpoint"] == endpoint
    assert row["ms"] > 0
    assert re.search(r"\d ms", cli("ping").out)


def test_a_session_is_opened_renewed_used_and_closed(cli: Cli) -> None:
    session = cli("admin", "session", "open", "--ttl", "1h").out.strip()
    assert cli("admin", "session", "keep", session).out == f"session {session} renewed\n"
    put = f'{{"operations": [{{"put": {{"key": "%s", "value": "1"}}}}], "session": ' \
        f'{{"session_id": {session}, "sequence": 1}}}}'  # fmt: skip
    for key in (f"{{{number}}}once" for number in range(100)):
        first = cli("call", "Pipeline/ExecuteOnce", put % key, code=None)
        if "error" not in first.json["results"][0]:
            break  # it is a key of the session's shard
    again = cli.json("call", "Pipeline/ExecuteOnce", put % key)
    (result,) = again["results"]
    assert result["put"]["header"]["duplicate"] is True
    assert cli("admin", "session", "close", session).out == f"session {session} closed\n"
    assert "SESSION_EXPIRED" in cli("admin", "session", "keep", session, code=1).err


def test_any_call_is_made_from_json_and_answers_in_the_same_form(cli: Cli) -> None:
    cli("call", "KV/Put", '{"key": "called", "value_base64": "/w=="}')
    item = cli.json("call", "KV/Get", "-", stdin=b'{"key": "called"}')["item"]
    assert (item["key"], item["value_base64"]) == ("called", "/w==")
    many = cli.json("call", "KV/BatchGet", '{"keys": ["called", {"base64": "Y2FsbGVk"}]}')
    assert [each["key"] for each in many["items"]] == ["called", "called"]
    config = '{"measurement": "called", "config": {"duplicates": "first"}}'
    cli("call", "TimeSeries/CreateMeasurement", config)
    assert cli.json("ts", "show", "called")["config"]["duplicates"] == "first"
    held = '{"name": "called", "indexes": {"0": 1}, "ttl_ms": 60000, "bytes_max": 1000000}'
    assert "0" in cli.json("call", "Admin/SetHold", held)["indexes"]


@pytest.mark.parametrize(
    ("method", "request_", "said"),
    [
        ("KV/Gett", "{}", "'KV/Gett' is no call; there are KV/Get,"),
        ("Key/Get", "{}", "there are Admin/…, KV/…"),
        ("KV/Scan", "{}", "KV/Scan is a stream"),
        ("KV/Get", '{"ky": "a"}', "ky is not one of namespace, key"),
        ("KV/Get", '{"key": 1}', "request.key is no text"),
        ("KV/Get", '{"options": 1}', "options is no object"),
        ("KV/Get", '{"options": {"level": "often"}}', "options.level is not one of"),
        ("KV/BatchGet", '{"keys": "a"}', "keys is no list"),
        ("KV/GetHistory", '{"key": "a", "limit": "x"}', "limit"),
        ("KV/Get", "[]", "the request is no object"),
        ("KV/Get", "{", "the request is no JSON"),
    ],
)
def test_a_request_that_cannot_be_is_refused_with_its_place(
    method: str, request_: str, said: str, cli: Cli
) -> None:
    assert said in cli("call", method, request_, "-e", "127.0.0.1:1", code=None).err


def test_the_log_and_snapshots_are_copied_as_they_are_stored(cli: Cli, tmp_path: Path) -> None:
    made = cli.json("admin", "snapshot", 0)
    assert str(made["index"]) in cli("admin", "describe-log", 0).out
    described = cli.json("admin", "describe-log", 0)
    assert described["snapshots"][-1]["index"] == made["index"]
    copied = cli.json("admin", "fetch-snapshot", 0, "-o", "copy")
    assert copied["size"] == made["size"] == (tmp_path / "copy").stat().st_size
    first = described["first_index"]
    cli("admin", "fetch-log", 0, "--from", first, "--to", first + 1, "-o", "log")
    stored = (tmp_path / "log").read_bytes()
    cli("admin", "fetch-log", 0, "-o", "all")
    assert len(stored) >= 80  # two headers
    assert (tmp_path / "all").read_bytes().startswith(stored)


def test_a_call_of_the_client_takes_the_message_of_its_method(endpoint: str) -> None:
    with Client(endpoint, options=ClientOptions(timeout_s=60)) as client:
        opened = client.call("Pipeline/OpenSession", pipeline_pb2.OpenSessionRequest(), shard=0)
        assert opened.session_id
        with pytest.raises(Exception, match="takes a OpenSessionRequest"):
            client.call("Pipeline/OpenSession", pipeline_pb2.KeepSessionRequest())
        with pytest.raises(Exception, match="no call with one answer"):
            client.call("KV/Scan", pipeline_pb2.KeepSessionRequest())


# Time


def test_a_snapshot_may_take_its_time_unless_somebody_says_otherwise(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it takes longer than other calls, and its outcome must not be unknown."""
    given: list[float] = []
    snapshot = AsyncAdmin.take_snapshot

    async def record(admin: AsyncAdmin, shard: int, **named: object) -> object:
        given.append(named["timeout_s"])  # type: ignore[arg-type]
        return await snapshot(admin, shard, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(AsyncAdmin, "take_snapshot", record)
    monkeypatch.delenv("ONELOG_CLIENT_TIMEOUT")
    cli("admin", "snapshot", 0)
    cli("admin", "snapshot", 0, "--timeout", "61s")
    assert given == [LONG_TIMEOUT_S, 61]
    assert LONG_TIMEOUT_S >= 3600
