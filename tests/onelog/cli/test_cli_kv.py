"""``onelog kv`` against a real server: every command, what it prints, and how it fails."""

import json
import threading
import time
from pathlib import Path

import pytest

from onelog import Client, Watched
from tests.onelog.cli.commands import Cli


def test_a_value_is_written_and_read_byte_by_byte(cli: Cli, tmp_path: Path) -> None:
    binary = bytes(range(256))
    (tmp_path / "in").write_bytes(binary)
    assert cli("kv", "put", "kv:1", "hello").out.startswith("version ")
    assert cli("kv", "get", "kv:1").data == b"hello\n"
    cli("kv", "put", "kv:bin", "--file", "in")
    assert cli("kv", "get", "kv:bin", "--raw").data == binary
    cli("kv", "put", "kv:bin", "-", stdin=binary[::-1])
    assert cli("kv", "get", "kv:bin", "--raw").data == binary[::-1]
    cli("kv", "put", "-x", r"kv:\x00\xff", r"\x01")
    assert cli("kv", "get", "-x", r"kv:\x00\xff", "--raw").data == b"\x01"
    (found,) = cli.lines("kv", "list", "-x", r"kv:\x00")
    assert (found["key_base64"], found["value"]) == ("a3Y6AP8=", "\x01")


def test_a_missing_key_has_an_exit_code_of_its_own(cli: Cli) -> None:
    ran = cli("kv", "get", "kv:missing", code=3)
    assert ran.data == b""
    assert ran.err == "error: KEY_NOT_FOUND: there is no key kv:missing\n"
    cli("kv", "put", "kv:there", "1")
    ran = cli("kv", "get", "kv:there", "kv:missing", "--json", code=3)
    assert [each["key"] for each in ran.lines] == ["kv:there"]
    assert "KEY_NOT_FOUND" in cli("kv", "history", "kv:missing", code=3).err
    assert "KEY_NOT_FOUND" in cli("kv", "touch", "kv:missing", "1h", code=3).err
    assert cli.json("kv", "delete", "kv:missing", code=3) == {"deleted": 0}


def test_versions_make_writes_conditional(cli: Cli) -> None:
    version = cli.json("kv", "put", "kv:cas", "1", "--expect", "0")["version"]
    assert "ALREADY_EXISTS" in cli("kv", "put", "kv:cas", "2", "--expect", "0", code=4).err
    newer = cli.json("kv", "put", "kv:cas", "2", "--expect", version)["version"]
    assert "CONDITION_FAILED" in cli("kv", "put", "kv:cas", "3", "--expect", version, code=4).err
    cli("kv", "delete", "kv:cas", "--expect", version, code=4)
    past = cli.lines("kv", "history", "kv:cas")
    assert [each["value"] for each in past] == ["2", "1"]
    assert cli("kv", "get", "kv:cas", "--as-of", version, "--min-index", newer).out == "1\n"
    assert cli("kv", "get", "kv:cas", "--stale", "--max-staleness", "1h").out == "2\n"
    assert cli("kv", "get", "kv:cas", "--by-lease", "--min-index", newer).out == "2\n"
    assert "LEVEL_INVALID" in cli("kv", "get", "kv:cas", "--by-lease", "--stale", code=1).err
    cli("kv", "delete", "kv:cas", "--expect", newer)
    assert [row[1] for row in cli("kv", "history", "kv:cas").rows[1:]] == ["deleted", "put", "put"]


def test_a_lifetime_is_set_changed_and_taken_away(cli: Cli) -> None:
    cli("kv", "put", "kv:ttl", "x", "--ttl", "1h")
    found = cli.json("kv", "get", "kv:ttl")
    assert 3500 < found["expires_ns"] / 1e9 - time.time() < 3700
    cli("kv", "touch", "kv:ttl", "none")
    assert cli.json("kv", "get", "kv:ttl")["expires_ns"] == 0
    assert "TTL" in cli("kv", "get", "kv:ttl", "--details").out.upper()


def test_keys_are_listed_in_ranges(cli: Cli) -> None:
    for number in range(5):
        cli("kv", "put", f"list:{number}", number)
    keys = [row[0] for row in cli("kv", "list", "list:").rows[1:]]
    assert keys == [f"list:{number}" for number in range(5)]
    chosen = cli.lines(
        "kv", "list", "--from", "list:1", "--to", "list:4", "--reverse", "--limit", 2
    )
    assert [each["value"] for each in chosen] == ["3", "2"]
    assert [
        sorted(each) for each in cli.lines("kv", "list", "list:", "--keys-only", "--limit", 1)
    ] == [["key", "version"]]
    assert "no key" in cli("kv", "list", "nothing:").err
    assert "USAGE" in cli("kv", "list", "a", "--from", "b", code=2).err
    assert cli.json("kv", "delete-range", "list:") == {"deleted": 5}
    assert "--all" in cli("kv", "delete-range", code=2).err


def test_what_is_listed_can_be_imported(cli: Cli) -> None:
    cli("kv", "put", "-x", r"imp:\xff", r"\x00\xfe")
    cli("kv", "put", "imp:1", "grün")
    listed = cli("kv", "list", "imp:", "--json").data
    cli("kv", "delete-range", "imp:")
    assert cli.json("kv", "import", stdin=listed) == {"imported": 2}
    before, after = (
        [{name: row[name] for name in row if name != "version"} for row in map(json.loads, lines)]
        for lines in (listed.splitlines(), cli("kv", "list", "imp:", "--json").data.splitlines())
    )
    assert before == after


@pytest.mark.parametrize(
    ("line", "what"),
    [(b"no", "line 2 is no JSON"), (b"[]", "line 2 is no object"),
     (b'{"key": 1, "value": "x"}', "line 2.key"), (b'{"key": "a"}', "line 2.value"),
     (b'{"key_base64": "?", "value": ""}', "is no base64"),
     ('{"key_base64": "é", "value": ""}'.encode(), "is no base64"),
     (b'{"key": "\\ud800", "value": ""}', "line 2.key is no text"),
     (b'{"key": "a", "value_json": ["\\ud800"]}', "line 2.value_json is no text")],
)  # fmt: skip
def test_a_line_that_cannot_be_imported_is_named(line: bytes, what: str, cli: Cli) -> None:
    ran = cli("kv", "import", stdin=b'{"key": "imp2:1", "value": "1"}\n' + line, code=1)
    assert what in ran.err


def test_numbers_are_changed(cli: Cli) -> None:
    assert cli("kv", "increment", "count").out == "1\n"
    assert cli.json("kv", "increment", "count", "--by", "-3") == {"number": -2}
    assert cli("kv", "increment", "count", "--raise-to", "9").out == "9\n"
    assert cli("kv", "increment", "count", "--lower-to", "4").out == "4\n"
    assert "USAGE" in cli("kv", "increment", "count", "--by", 1, "--raise-to", 2, code=2).err
    assert "USAGE" in cli("kv", "increment", "count", "--by", "many", code=2).err
    cli("kv", "put", "count:text", "abc")
    assert cli("kv", "increment", "count:text", code=1).err.startswith("error: ")


def test_values_are_appended_to(cli: Cli) -> None:
    assert cli.json("kv", "append", "jottings", "ab") == {"size": 2}
    assert cli("kv", "append", "-x", "jottings", r"\n").out == "3 bytes\n"
    assert cli("kv", "get", "jottings", "--raw").data == b"ab\n"


def test_documents_are_changed_in_parts(cli: Cli) -> None:
    cli("kv", "json", "set", "doc", ".", '{"name": "Ann", "tags": []}')
    cli("kv", "json", "set", "doc", "tags[-1]", '"new"')
    cli("kv", "json", "set", "doc", "address.city", "--text", "Oslo")
    cli("kv", "json", "set", "doc", '["a.b"]', "-", stdin=b"[1, null]")
    assert json.loads(cli("kv", "json", "get", "doc").out) == {
        "name": "Ann", "tags": ["new"], "address": {"city": "Oslo"}, "a.b": [1, None],
    }  # fmt: skip
    assert cli("kv", "json", "get", "doc", "tags[0]").out == '"new"\n'
    assert cli("kv", "json", "get", "doc", '["a.b", 1]').out == "null\n"
    cli("kv", "json", "delete", "doc", "address")
    assert "address" not in cli("kv", "json", "get", "doc").out
    assert "JSON_INVALID" in cli("kv", "json", "set", "doc", "x", "{", code=1).err
    assert "USAGE" in cli("kv", "json", "set", "doc", "a[", "1", code=2).err
    assert "KEY_NOT_FOUND" in cli("kv", "json", "get", "doc:missing", code=3).err
    ran = cli("kv", "json", "set", "doc", "q.r", "1", "--no-parents", code=3)
    assert "JSON_PATH_NOT_FOUND" in ran.err


def test_keys_go_with_their_lease(cli: Cli) -> None:
    grant = cli.json("kv", "lease", "grant", "1m", "--key", "online{ann}")
    lease = grant["lease_id"]
    cli("kv", "put", "online{ann}", "yes", "--lease", lease)
    shown = cli.json("kv", "lease", "show", lease, "--key", "online{ann}")
    assert (shown["ttl_s"], shown["keys"]) == (60, ["online{ann}"])
    assert "1m" in cli("kv", "lease", "show", lease, "--key", "online{ann}").out
    kept = cli.json("kv", "lease", "keep", lease, "--key", "online{ann}")
    assert kept == {"lease_id": lease}
    later = cli.json("kv", "lease", "show", lease, "--key", "online{ann}")
    assert later["expires_ns"] > shown["expires_ns"]
    assert cli.json("kv", "lease", "revoke", lease, "--key", "online{ann}") == {"deleted": 1}
    cli("kv", "get", "online{ann}", code=3)
    for what in ("show", "keep", "revoke"):
        assert "LEASE_LOST" in cli("kv", "lease", what, lease, "--key", "online{ann}", code=4).err


def test_a_command_runs_while_its_lock_is_held(cli: Cli, tmp_path: Path) -> None:
    script = 'test -n "$ONELOG_LOCK_TOKEN" && echo "$ONELOG_LOCK_TOKEN" > token; exit 7'
    cli("kv", "lock", "lock:1", "--", "sh", "-c", script, code=7)
    first = int((tmp_path / "token").read_text())
    cli("kv", "lock", "lock:1", "--wait", "0", "--", "sh", "-c", script, code=7)
    assert int((tmp_path / "token").read_text()) > first
    cli("kv", "get", "lock:1", code=3)
    cli("kv", "put", "lock:2", "somebody")
    for wait in ("0", "50ms"):
        ran = cli("kv", "lock", "lock:2", "--wait", wait, "--", "touch", "ran", code=4)
        assert ran.err == "error: LOCK_BUSY: somebody else holds lock:2\n"
    assert not (tmp_path / "ran").exists()
    assert "ENOENT" in cli("kv", "lock", "lock:1", "--", "no-such-program", code=1).err
    cli("kv", "get", "lock:1", code=3)
    cli("kv", "lock", "lock:1", "--", "sh", "-c", "kill -9 $$", code=128 + 9)


def test_a_command_is_ended_when_its_lock_is_lost(cli: Cli, endpoint: str) -> None:
    """It must not go on while somebody else believes to be alone."""

    def take_away() -> None:
        with (
            Client(endpoint, timeout_s=30) as client,
            client.watch(Watched("kv", "lock:3")) as watch,
        ):
            watching.set()
            item = next(watch).item
            assert item is not None
            client.kv.find_lease(item.lease_id, key="lock:3").revoke()

    watching = threading.Event()
    other = threading.Thread(target=take_away)
    other.start()
    assert watching.wait(30)
    ran = cli("kv", "lock", "lock:3", "--ttl", "1s", "--", "sleep", "60", code=4)
    other.join()
    assert ran.err.startswith("error: LEASE_LOST: the lock lock:3 was lost")


def test_a_transaction_takes_one_of_two_ways(cli: Cli) -> None:
    document = json.dumps(
        {
            "when": [{"key": "txn{txn}", "exists": False}],
            "then": [
                {"op": "put", "key": "txn{txn}", "value_json": {"n": [1]}},
                {"op": "increment", "key": "n{txn}", "by": 5},
                {"op": "append", "key": "log{txn}", "data": "xyz"},
            ],
            "otherwise": [
                {"op": "get", "key": "txn{txn}"},
                {"op": "set_json", "key": "txn{txn}", "path": ["n", -1], "value": 2},
                {"op": "delete_json", "key": "txn{txn}", "path": ["n", 0]},
                {"op": "touch", "key": "n{txn}", "ttl": "1h"},
                {"op": "delete", "key": "log{txn}"},
            ],
        }
    ).encode()
    done = cli.json("kv", "txn", "-", stdin=document)
    assert done["succeeded"] is True
    assert done["results"] == [None, 5, 3]
    ran = cli("kv", "txn", "-", stdin=document, code=4)
    assert ran.out.startswith("otherwise was done at version ")
    assert '"value": "{\\"n\\":[1]}"' in ran.out
    assert cli("kv", "json", "get", "txn{txn}", "n").out.split() == ["[", "2", "]"]


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ("{", "JSON_INVALID"),
        ("[]", "the document is no object"),
        ('{"if": []}', "if is not one of when, then, otherwise"),
        ('{"then": {}}', "then is no list"),
        ('{"then": [{"op": "fly"}]}', "then[0].op is not one of get, put"),
        ('{"then": [{"op": "put", "key": "a"}]}', "then[0].value is missing"),
        ('{"then": [{"op": "get", "key": "a", "x": 1}]}', "then[0].x is not one of key"),
        ('{"then": [{"op": "get", "key": 5}]}', "then[0].key is no text"),
        ('{"then": [{"op": "touch", "key": "a", "ttl": "x"}]}', "then[0].ttl 'x' is no duration"),
        ('{"then": [{"op": "increment", "key": "a", "by": true}]}', "then[0].by is no whole"),
        ('{"when": [{"key": "a"}]}', "CONDITION_INVALID"),
        ('{"when": [{"key": "a", "version": 1, "is": "~"}]}', "COMPARISON_INVALID"),
        ('{"when": [{"key": "a", "exists": 1}]}', "when[0].exists is no true or false"),
        ("{}", "BATCH_EMPTY"),
    ],
)
def test_a_document_that_is_wrong_is_refused_with_the_place(
    document: str, what: str, cli: Cli
) -> None:
    assert what in cli("kv", "txn", "-", stdin=document.encode(), code=1).err


def test_values_come_from_one_place(cli: Cli) -> None:
    assert "USAGE" in cli("kv", "put", "a", code=2).err
    assert "USAGE" in cli("kv", "put", "a", "b", "--file", "c", code=2).err
    assert "ENOENT: nowhere" in cli("kv", "put", "a", "--file", "nowhere", code=1).err
    assert "no duration" in cli("kv", "put", "a", "b", "--ttl", "soon", code=2).err
    assert "USAGE" in cli("kv", "put", "a", "b", "--expect", "-1", code=2).err
    assert "USAGE" in cli("kv", "fly", code=2).err
