"""``onelog watch``, ``transact`` and ``admin`` against a real server."""

import json
from typing import Any

import pytest

from tests.onelog.cli.commands import Cli


def test_a_watch_sees_what_happened_and_goes_on_without_a_gap(cli: Cli) -> None:
    for number in range(4):
        cli("kv", "put", f"w1:{number}{{w}}", number)
    cli("kv", "delete", "w1:0{w}")
    ran = cli("watch", "kv:w1:*", "--from", "start", "--limit", 2)
    assert [row[1:] for row in ran.rows] == [
        ["kv", "put", f"w1:{number}{{w}}", str(number)] for number in range(2)
    ]
    cursor = ran.err.split()[-1]
    rest = cli.lines("kv", "watch", "w1:", "--from", cursor, "--limit", 3, "--previous")
    assert [(each["kind"], each["name"]) for each in rest] == [
        ("put", "w1:2{w}"), ("put", "w1:3{w}"), ("deleted", "w1:0{w}"),
    ]  # fmt: skip
    assert rest[2]["previous"]["value"] == "0"
    (last,) = cli.lines("watch", "kv:w1:*", "--from", rest[1]["cursor"], "--limit", 1)
    assert last["kind"] == "deleted"
    ran = cli("kv", "watch", "--key", "w1:0{w}", "--from", "start", "--limit", 2, "--previous")
    assert ran.rows[1][1:] == ["kv", "deleted", "w1:0{w}", "(was", "0)"]


def test_a_watch_that_is_wrong_is_refused(cli: Cli) -> None:
    assert "does not begin with one of kv" in cli("watch", "disk:a", code=2).err
    for cursor in ("nowhere!", "é", "\udcff"):
        assert "no cursor" in cli("watch", "--from", cursor, code=2).err
    assert "CURSOR_INVALID" in cli("watch", "--from", "AAAA", code=1).err
    assert "USAGE" in cli("kv", "watch", "a", "--key", "b", code=2).err


def test_a_watch_sees_all_models(cli: Cli) -> None:
    cli("queue", "create", "w2")
    cli("queue", "enqueue", "w2", "x")
    cli("stream", "create", "w2")
    cli("stream", "append", "w2", "y")
    cli("ts", "write", "w2 load=1")
    events = cli.lines("watch", "queue:w2", "stream:w2", "ts:w2", "--from", "start", "--limit", 5)
    seen = {(each["model"], each["kind"]): each for each in events}
    assert len(seen[("queue", "enqueued")]["message_ids"]) == 1
    assert seen[("stream", "appended")]["record"]["value"] == "y"
    assert seen[("ts", "written")]["points"][0]["fields"] == {"load": [1.0]}
    ran = cli("watch", "queue:w2", "stream:w2", "ts:w2", "--from", "start", "--limit", 5)
    assert "1 point of no tags" in ran.out


def document(**parts: Any) -> bytes:
    return json.dumps(parts).encode()


def test_a_batch_happens_as_a_whole_or_not_at_all(cli: Cli) -> None:
    batch = document(
        when=[{"key": "order{b1}", "exists": False}],
        do=[
            {"op": "put", "key": "order{b1}", "value_base64": "/w=="},
            {"op": "increment", "key": "orders{b1}"},
        ],
    )
    done = cli.json("transact", "-", stdin=batch)
    assert done["results"] == [None, 1]
    assert cli("kv", "get", "order{b1}", "--raw").data == b"\xff"
    assert "CONDITION_FAILED" in cli("transact", "-", stdin=batch, code=4).err
    assert cli("kv", "get", "orders{b1}").out == "1\n"
    several = document(
        do=[{"op": "delete", "key": key} for key in ("a{1}", "b{2}", "c{3}", "d{4}")]
    )
    assert "SEVERAL_SHARDS" in cli("transact", "-", stdin=several, code=1).err


def test_a_batch_changes_all_models_at_one_place(cli: Cli) -> None:
    cli("queue", "create", "mails{b2}")
    cli("stream", "create", "audit{b2}")
    cli("stream", "append", "audit{b2}", "first")
    cli("stream", "group", "create", "audit{b2}", "g", "--from", 0)
    member = cli("stream", "group", "join", "audit{b2}", "g").out.strip()
    place = cli("stream", "group", "fetch", "audit{b2}", "g", "--member", member, "--places").out
    cli("queue", "enqueue", "mails{b2}", "--lines", stdin=b"1\n2\n")
    first, second = cli("queue", "lease", "mails{b2}", "--count", 2, "--receipts").out.split()
    batch = document(
        do=[
            {"op": "put", "key": "order{b2}", "value": "1", "ttl": "1h"},
            {"op": "set_json", "key": "doc{b2}", "path": [], "value": {"a": 1, "b": 2}},
            {"op": "delete_json", "key": "doc{b2}", "path": ["b"]},
            {"op": "touch", "key": "doc{b2}", "ttl": "1h"},
            {"op": "append", "key": "log{b2}", "data": "x"},
            {"op": "delete", "key": "nothing{b2}"},
            {"op": "enqueue", "queue": "mails{b2}", "body": "3", "headers": {"h": "v"},
             "priority": 1, "delay": "1h"},
            {"op": "ack", "queue": "mails{b2}", "messages": [[int(n) for n in first.split(":")]]},
            {"op": "nack", "queue": "mails{b2}", "reason": "busy", "delay": "1h",
             "messages": [[int(n) for n in second.split(":")]]},
            {"op": "append_record", "stream": "audit{b2}", "value": "x", "key": "k", "tag": "t"},
            {"op": "ack_records", "stream": "audit{b2}", "group": "g", "member_id": int(member),
             "records": [[int(n) for n in place.strip().split(":")]]},
            {"op": "write_points", "measurement": "cpu{b2}", "times": [1, 2],
             "fields": {"load": [0.5, 1.5]}, "tags": {"host": "a"}},
        ]
    )  # fmt: skip
    ran = cli("transact", "-", stdin=batch)
    assert ran.out.startswith("done at index ")
    assert "write_points: 2" in ran.out
    assert json.loads(cli("kv", "json", "get", "doc{b2}").out) == {"a": 1}
    info = cli.json("queue", "show", "mails{b2}")
    assert (info["acked"], info["delayed"]) == (1, 2)
    record = cli.lines("stream", "read", "audit{b2}")[-1]
    assert (record["value"], record["key"], record["tag"]) == ("x", "k", "t")
    (points,) = cli.lines("ts", "query", "cpu{b2}", "load", "--from", "0", "--to", "9")
    assert points["values"] == [0.5, 1.5]


def test_a_batch_appends_for_a_producer_and_commits_offsets(cli: Cli) -> None:
    """Copying records exactly once, from the command line."""
    for name in ("in{b3}", "out{b3}"):
        cli("stream", "create", name)
    cli("stream", "append", "in{b3}", "--lines", stdin=b"a\nb\n")
    cli("stream", "group", "create", "in{b3}", "copy", "--from", 0)
    record = cli.lines("stream", "read", "in{b3}")[0]
    generation = cli.json("stream", "group", "show", "in{b3}", "copy")["generation"]
    producer = {"id": 7, "epoch": 1, "sequence": 1}
    append = {"op": "append_record", "stream": "out{b3}", "value": "a", "producer": producer}
    commit = {"op": "commit_offsets", "stream": "in{b3}", "group": "copy",
              "records": [[0, record["offset"]]], "generation": generation}  # fmt: skip
    (first, _) = cli.json("transact", "-", stdin=document(do=[append, commit]))["results"]
    (again,) = cli.json("transact", "-", stdin=document(do=[append]))["results"]
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert again["offset"] == first["offset"]
    assert [each["value"] for each in cli.lines("stream", "read", "out{b3}")] == ["a"]
    (partition,) = cli.json("stream", "group", "show", "in{b3}", "copy")["partitions"]
    assert partition["committed_offset"] == record["offset"] + 1
    late = commit | {"generation": generation + 1}
    refused = cli("transact", "-", stdin=document(do=[append, late]), code=4).err
    assert "BATCH_REFUSED" in refused


@pytest.mark.parametrize(
    ("operation", "what"),
    [
        ({"op": "append_record", "stream": "s", "value": "x", "producer": 7}, "is no object with"),
        ({"op": "append_record", "stream": "s", "value": "x",
          "producer": {"id": 7, "epoch": 1, "sequence": "1"}}, "producer.sequence is no whole"),
        ({"op": "commit_offsets", "stream": "s", "group": "g", "records": [1]}, "no list of pairs"),
        ({"op": "get", "key": "a"}, "do[0].op is not one of put"),
        ({"op": "enqueue", "queue": "q", "body": "x", "headers": []}, "headers is no object"),
        ({"op": "enqueue", "queue": 1, "body": "x"}, "do[0].queue is no text"),
        ({"op": "enqueue", "queue": "q", "body": "x", "at": "soon"}, "do[0].at 'soon' is no time"),
        ({"op": "ack", "queue": "q", "messages": [[1]]}, "is no list of pairs"),
        ({"op": "write_points", "measurement": "m", "times": ["x"], "fields": {}}, "list of int"),
        ({"op": "write_points", "measurement": "m", "times": [1], "fields": {"f": ["x"]}},
         "do[0].fields.f is no list"),
        ({"op": "write_points", "measurement": "m", "times": [1], "fields": {}, "tags": {"a": 1}},
         "is no object of texts"),
        ({"op": "set_json", "key": "k", "path": [None], "value": 1}, "do[0].path is no name"),
    ],
)  # fmt: skip
def test_an_operation_that_is_wrong_is_refused_with_the_place(
    operation: dict[str, Any], what: str, cli: Cli
) -> None:
    ran = cli("transact", "-", stdin=document(do=[operation]), code=1)
    assert ran.err.startswith("error: DOCUMENT_INVALID: ")
    assert what in ran.err


def test_operators_see_nodes_shards_and_the_log(cli: Cli, endpoint: str) -> None:
    cli("kv", "put", "a", "1")
    (node,) = cli.json("admin", "status")["nodes"]
    assert node["endpoint"] == endpoint
    assert {shard["role"] for shard in node["shards"]} == {"leader"}
    assert node["shards"][0]["commit_index"] > 0
    assert "leader" in cli("admin", "status", "--node", endpoint).out
    topology = cli.json("admin", "topology")
    assert topology["shards"][0]["leader_id"] == node["node_id"]
    assert endpoint in cli("admin", "topology").out
    assert cli("admin", "members", "list", "--ids").out.split() == [node["node_id"]]
    members = cli.lines("admin", "members", "list")
    assert [row["shard"] for row in members] == list(range(topology["shard_count"]))
    assert "voter" in cli("admin", "members", "list").out
    assert cli("admin", "transfer", 0, "--to", node["node_id"]).out.strip() == node["node_id"]
    snapshot = cli.json("admin", "snapshot", 0)
    state = cli.json("admin", "hash", 0, "--node", endpoint)
    assert snapshot["state_hash"] == state["state_hash"]
    assert len(state["state_hash"]) == 16
    assert state["state_hash"] in cli("admin", "hash", 0).out
    assert cli("admin", "snapshot", 0).out.startswith("index ")
    ranges = cli.json("admin", "log-ranges", 0)
    assert ranges["ranges"][0]["first_index"] == 1
    assert "committed up to" in cli("admin", "log-ranges", 0).out
    entries = cli.lines("admin", "read-log", 0, "--from", 2, "--to", 3, "--voids")
    assert [entry["index"] for entry in entries] == [2, 3]
    assert len(cli("admin", "read-log", 0, "--limit", 2).rows) == 2


def test_what_an_operator_gets_wrong_is_refused(cli: Cli) -> None:
    assert "SHARD_UNKNOWN" in cli("admin", "hash", 99, code=3).err
    assert "USAGE" in cli("admin", "hash", "first", code=2).err
    for command in (["add", "x", "127.0.0.1:1"], ["promote", "x"], ["remove", "x"]):
        assert "NODE_ID_INVALID" in cli("admin", "members", *command, code=1).err
    ran = cli("admin", "status", "--node", "127.0.0.1:1", "--timeout", "500ms", code=5)
    assert "no answer" in ran.out


def test_holds_are_set_moved_listed_and_released(cli: Cli) -> None:
    cli("kv", "put", "a", "1")
    assert "keeps the log from index" in cli("admin", "hold", "set", "h1", "--from-start").out
    assert "HOLD_EXISTS" in cli("admin", "hold", "set", "h1", code=4).err
    rows = [row for row in cli.lines("admin", "hold", "list") if row["name"] == "h1"]
    assert [(row["shard"], row["index"], row["cause"]) for row in rows] == [
        (shard, 1, "unspecified") for shard in range(len(rows))
    ]
    cli("admin", "hold", "set", "h1", "--move", "--index", "2", "--for", "3d")
    rows = [row for row in cli.lines("admin", "hold", "list") if row["name"] == "h1"]
    assert {(row["index"], row["ttl_ms"]) for row in rows} == {(2, 3 * 86_400_000)}
    back = cli("admin", "hold", "set", "h1", "--move", "--index", "0=1", code=1)
    assert "HOLD_INDEX_INVALID" in back.err
    assert "hold h1 in shard 0: from index 2 on, " in cli("admin", "status").out
    assert "16 GiB" in cli("admin", "hold", "list").out
    cli("admin", "hold", "release", "h1")
    assert "HOLD_UNKNOWN" in cli("admin", "hold", "release", "h1", code=3).err


def test_namespaces_are_made_changed_and_deleted(cli: Cli) -> None:
    cli("admin", "namespaces", "create", "n1", "--versions", 3, "--keys", 2)
    assert "NAMESPACE_EXISTS" in cli("admin", "namespaces", "create", "n1", code=4).err
    cli("admin", "namespaces", "configure", "n1", "--value-size", 5)
    (row,) = [row for row in cli.lines("admin", "namespaces", "list") if row["namespace"] == "n1"]
    assert (row["versions_max"], row["keys_max"], row["value_size_max"]) == (3, 2, 5)
    assert "VALUE_TOO_LARGE" in cli("kv", "put", "a", "123456", "-n", "n1", code=1).err
    assert "n1" in cli("admin", "namespaces", "list").out
    cli("admin", "namespaces", "delete", "n1")
    for command in ("configure", "delete"):
        assert "NAMESPACE_UNKNOWN" in cli("admin", "namespaces", command, "n1", code=3).err
