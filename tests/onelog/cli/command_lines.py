"""Every command of the program as a command line, with what it prints when it works.

The lines of a scene are run one after the other; scenes do not know of each other, and can be run
at the same time. What a line printed can be kept for those that follow it: ``$NAME`` is that.
"""

from typing import Any, NamedTuple
from unittest.mock import ANY

STRANGER = "018f3c5e-0000-7000-8000-000000000004"
LETTERS = 120  # at one in a second a redrive of them is still under way when it is stopped


class Step(NamedTuple):
    """A command line that works."""

    line: str
    prints: str | dict[str, Any]
    """A part of the text, or fields of one of the JSON documents."""
    keeps: tuple[str, str] = ("", "")
    """A name, and how each document is written under it: ``{field}``."""
    stdin: str = ""


KV = (
    Step("kv put greeting hello --json", {"version": ANY}),
    Step("kv get greeting --json", {"key": "greeting", "value": "hello"}),
    Step("kv append greeting ! --json", {"size": 6}),
    Step("kv touch greeting 1h --json", {"version": ANY}),
    Step("kv history greeting --json", {"value": "hello!"}),
    Step("kv list gree --json", {"key": "greeting", "value": "hello!"}),
    Step("kv increment visits --by 2 --json", {"number": 2}),
    Step("kv import --json", {"imported": 1}, stdin='{"key": "imported", "value": "1"}\n'),
    Step("kv txn - --json", {"succeeded": True},
         stdin='{"when": [{"key": "visits", "value": "2"}], '
         '"then": [{"op": "get", "key": "visits"}]}'),
    Step("kv watch greeting --from start --limit 1 --json", {"kind": "put", "name": "greeting"}),
    Step("kv lock nightly -- echo 'only one of us'", "only one of us\n"),
    Step("kv delete-range vis --json", {"deleted": 1}),
    Step("kv delete greeting --json", {"deleted": 1}),
    Step("kv json set profile tags[-1] 1 --json", {"version": ANY}),
    Step("kv json get profile", {"tags": [1]}),
    Step("kv json delete profile tags[0] --json", {"version": ANY}),
    Step("kv lease grant 1h --key online{ann} --json", {"ttl_s": 3600.0}, ("LEASE", "{lease_id}")),
    Step("kv put online{ann} yes --lease $LEASE --json", {"version": ANY}),
    Step("kv lease keep $LEASE --key online{ann} --json", {"lease_id": ANY}),
    Step("kv lease show $LEASE --key online{ann} --json", {"keys": ["online{ann}"]}),
    Step("kv lease revoke $LEASE --key online{ann} --json", {"deleted": 1}),
)  # fmt: skip
QUEUE = (
    Step("queue create dead{q} --json", {"queue": "dead{q}"}),
    Step("queue create jobs{q} --max-deliveries 1 --dead-letters dead{q} --json",
         {"queue": "jobs{q}"}),
    Step("queue configure jobs{q} --visibility 2m --json", {"queue": "jobs{q}"}),
    Step("queue enqueue jobs{q} first --json", {"deduplicated": False}, ("ID", "{message_id}")),
    Step("queue prioritise jobs{q} 2 $ID --json", {"reason": ""}),
    Step("queue peek jobs{q} --json", {"body": "first", "priority": 2}),
    Step("queue lease jobs{q} --json", {"body": "first"}, ("RECEIPT", "{message_id}:{token}")),
    Step("queue extend jobs{q} --visibility 5m $RECEIPT --json", {"reason": ""}),
    Step("queue release jobs{q} $RECEIPT --json", {"reason": ""}),
    Step("queue lease jobs{q} --json", {"body": "first"}, ("RECEIPT", "{message_id}:{token}")),
    Step("queue ack jobs{q} $RECEIPT --json", {"reason": "", "dead": False}),
    Step("queue enqueue jobs{q} second --json", {"message_id": ANY}, ("ID", "{message_id}")),
    Step("queue cancel jobs{q} $ID --json", {"reason": ""}),
    Step("queue enqueue jobs{q} --lines --json", {"enqueued": LETTERS}, stdin="x\n" * LETTERS),
    Step(f"queue lease jobs{{q}} --count {LETTERS} --json", {"body": "x"},
         ("RECEIPT", "{message_id}:{token}")),
    Step("queue nack jobs{q} --reason no $RECEIPT --json", {"reason": "", "dead": True}),
    Step("queue redrive dead{q} --rate 1 --json", {"redrive_id": ANY}, ("ID", "{redrive_id}")),
    Step("queue redrives dead{q} --json", {"redrive_id": ANY}),
    Step("queue consume jobs{q} --limit 1 --json", {"body": "x"}),
    Step("queue redrives dead{q} --json", {"redrive_id": ANY}),
    Step("queue cancel-redrive dead{q} $ID --json", {"redrive_id": ANY}),
    Step("queue pause jobs{q} --json", {"paused": True}),
    Step("queue show jobs{q} --json", {"paused": True, "dead": LETTERS}),
    Step("queue resume jobs{q} --json", {"paused": False}),
    Step("queue list jobs --json", {"queue": "jobs{q}", "paused": False}),
    Step("queue purge dead{q} --leased-too --json", {"purged": ANY}),
    Step("queue schedule add jobs{q} '30 3 * * *' x --json", {"schedule_id": ANY},
         ("ID", "{schedule_id}")),
    Step("queue schedule list jobs{q} --json", {"cron": "30 3 * * *"}),
    Step("queue schedule delete jobs{q} $ID --json", {"schedule_id": ANY}),
    Step("queue delete jobs{q} --json", {"queue": "jobs{q}"}),
)  # fmt: skip
STREAM = (
    Step("stream create events --json", {"stream": "events"}),
    Step("stream configure events --count 1000 --json", {"stream": "events"}),
    Step("stream append events up --key ann --json", {"partition": 0}, ("OFFSET", "{offset}")),
    Step("stream read events --json", {"key": "ann", "value": "up"}),
    Step("stream tail events --from 0 --limit 1 --json", {"key": "ann", "value": "up"}),
    Step("stream list ev --json", {"stream": "events"}),
    Step("stream trim events --below $OFFSET --json", {"stream": "events"}),
    Step("stream show events --json", {"stream": "events", "groups": []}),
    Step("stream delete events --json", {"stream": "events"}),
)
GROUP = (
    Step("stream create clicks --json", {"stream": "clicks"}),
    Step("stream append clicks --lines --json", {"appended": 4}, stdin="a\nb\nc\nd\n"),
    Step("stream group create clicks billing --from 0 --json", {"group": "billing"}),
    Step("stream group configure clicks billing --shared --json", {"group": "billing"}),
    Step("stream group consume clicks billing --limit 1 --json", {"value": "a"}),
    Step("stream group join clicks billing --json", {"member_id": ANY}, ("ID", "{member_id}")),
    Step("stream group fetch clicks billing --member $ID --limit 1 --json", {"value": "b"},
         ("PLACE", "{partition}:{offset}")),
    Step("stream group heartbeat clicks billing --member $ID --json", {"member_id": ANY}),
    Step("stream group list clicks --json", {"group": "billing"}),
    Step("stream group nack clicks billing --member $ID $PLACE --json", {"nacked": 1}),
    Step("stream group claim clicks billing --member $ID --json", {"value": "b"}),
    Step("stream group ack clicks billing --member $ID $PLACE --json", {"acked": 1}),
    Step("stream group leave clicks billing --member $ID --json", {"member_id": ANY}),
    Step("stream group seek clicks billing --to 0 --json", {"group": "billing"}),
    Step("stream group commit clicks billing $PLACE --json", {"group": "billing"}),
    Step("stream group show clicks billing --json", {"members": []}),
    Step("stream group delete clicks billing --json", {"group": "billing"}),
)  # fmt: skip
TS = (
    Step("ts create cpu{m} --keep 30d --json", {"measurement": "cpu{m}"}),
    Step("ts configure cpu{m} --keep 90d --json", {"measurement": "cpu{m}"}),
    Step("ts write 'cpu{m},host=a load=0.5' --json", {"points": 1, "values": 1}),
    Step("ts import cpu{m} --tag host --json", {"points": 1}, stdin="time,host,load\nnow-1m,b,2\n"),
    Step("ts query cpu{m} load --where host=a --json", {"tags": {"host": "a"}, "values": [0.5]}),
    Step("ts series cpu{m} --json", {"tags": {"host": "b"}}),
    Step(
        "ts rule set cpu{m} hourly --window 1h -a mean --into hours{m} --json", {"name": "hourly"}
    ),
    Step("ts rule list cpu{m} --json", {"name": "hourly", "window_s": 3600.0}),
    Step("ts rule delete cpu{m} hourly --json", {"rule": "hourly"}),
    Step("ts list cpu --json", {"measurement": "cpu{m}", "series_count": 2}),
    Step("ts show cpu{m} --json", {"measurement": "cpu{m}", "fields": {"load": "f64"}}),
    Step("ts delete-points cpu{m} --where host=b --json", {"series": 1}),
    Step("ts delete cpu{m} --json", {"measurement": "cpu{m}"}),
)
ADMIN = (
    Step("admin status --json", {"nodes": [ANY]}, ("NODE", "{nodes[0][node_id]}")),
    Step("explain QUEUE_FULL", "QUEUE_FULL"),
    Step("ping --json", {"error": "", "ms": ANY}),
    Step("call Admin/GetTopology --json", {"cluster_id": ANY}),
    Step("admin topology --json", {"shards": ANY, "nodes": [ANY]}),
    Step("admin members list --json", {"shard": 0, "is_learner": False}),
    Step("admin transfer 0 --to $NODE --json", {"shard": 0, "leader_id": ANY}),
    Step("admin snapshot 0 --json", {"state_hash": ANY, "size": ANY}),
    Step("admin describe-log 0 --json", {"shard": 0, "first_index": ANY}),
    Step("admin fetch-snapshot 0 --output 0.snapshot --json", {"path": "0.snapshot"}),
    Step("admin fetch-log 0 --output 0.log --json", {"path": "0.log", "last_index": ANY}),
    Step("admin session open --json", {"session_id": ANY}, ("ID", "{session_id}")),
    Step("admin session keep $ID --json", {"session_id": ANY}),
    Step("admin session close $ID --json", {"session_id": ANY}),
    Step("admin hash 0 --json", {"state_hash": ANY, "index": ANY}),
    Step("admin config --json", {"setting": "timeout", "origin": "ONELOG_CLIENT_TIMEOUT"}),
    Step("admin log-ranges 0 --json", {"ranges": ANY, "commit_index": ANY}),
    Step("admin damage --json", {"segments": []}),
    Step("admin read-log 0 --limit 1 --json", {"index": ANY, "term": ANY}),
    Step("admin namespaces create shop --keys 10 --json", {"namespace": "shop"}),
    Step("admin namespaces configure shop --versions 20 --json", {"namespace": "shop"}),
    Step("admin namespaces list --json", {"namespace": "shop", "versions_max": 20}),
    Step("admin namespaces delete shop --json", {"namespace": "shop"}),
    Step(
        "admin hold set nightly --from-start --for 2d --max-bytes 4GiB --json",
        {"name": "nightly", "indexes": ANY},
    ),
    Step("admin hold list --json", {"name": "nightly", "bytes_max": 4 << 30, "ttl_ms": 172800000}),
    Step("admin hold release nightly --json", {"name": "nightly"}),
)
OTHERS = (
    Step("transact - --json", {"results": [ANY, ANY]},
         stdin='{"when": [{"key": "order{7}", "exists": false}], "do": [{"op": "put", "key": '
         '"order{7}", "value": "apples"}, {"op": "increment", "key": "orders{7}"}]}'),
    Step("watch kv:order* --from start --limit 1 --json", {"model": "kv", "name": "order{7}"}),
    Step("bench put --count 4 --callers 2 --json", {"workload": "put", "calls": 4, "errors": 0}),
    Step("completion bash", "_onelog_completion"),
    Step("spark zip executors.zip --json", {"path": "executors.zip", "modules": ANY}),
    Step("config show --shards 5 --json",
         {"cluster.shards": {"value": "5", "origin": "--shards"}}),
)  # fmt: skip
SCENES = (QUEUE, KV, GROUP, TS, ADMIN, STREAM, OTHERS)

# With servers of their own; $JOINING is the node that has joined, $PEER where its peers find it.
MEMBERS = (
    Step("kv put greeting hello --json", {"version": ANY}),
    Step("admin members add $JOINING $PEER --name n2 --json", {"node_id": ANY}),
    Step("admin members promote $JOINING --json", {"node_id": ANY}),
    Step("admin members remove $JOINING --json", {"node_id": ANY}),
)
LOG = (
    Step("log inspect $DIR --json", {"shards": [ANY, ANY]}),
    Step("log dump $DIR --shard 1 --all --json", {"index": 1}),
    Step("log verify $DIR --json", {"findings": ANY}),
    Step("log repair $DIR --json", {"repairs": []}),
    Step("log replay $DIR --key greeting --json", {"shards": [ANY]}),
    Step("log snapshot $DIR --json", {"shards": [ANY, ANY]}),
    Step("log prove $DIR --json", {"shards": [ANY, ANY]}),
)
CLUSTER = (
    Step("cluster up --dir $DIR --nodes 1 --shards 1 --port $PORT --detach", "is up: 1 node,"),
    Step("cluster certs $DIR/certs --node n1=localhost --client app", "n1.key\n"),
    Step("cluster status --dir $DIR --json", {"whole": True}),
    Step("cluster kill 1 --dir $DIR", "node 1 was killed, process "),
    Step("cluster restart 1 --dir $DIR", "node 1 is ready, process "),
    Step("cluster logs 1 --dir $DIR", "onelog.node.server: ready\n"),
    Step("cluster down --dir $DIR", "1 node has ended\n"),
)
STEPS = tuple(step for scene in (*SCENES, MEMBERS, LOG, CLUSTER) for step in scene)

# What a test of another file runs as a process; it takes too long to do so twice.
ELSEWHERE = {
    "demo": "tests.onelog.cli.demo.test_demo:"
    "test_a_tour_that_is_ended_in_the_middle_leaves_nothing",
    "serve": "tests.onelog.cli.test_cli_binary:"
    "test_servers_are_joined_ended_in_order_and_read_offline",
    "import": "tests.onelog.cli.test_import_command:test_the_document_works_when_pasted",
    "export run": "tests.spark.jvm.test_export_long:"
    "test_the_lines_of_the_document_work_when_pasted",
    "export verify": "tests.spark.jvm.test_export_long:"
    "test_the_lines_of_the_document_work_when_pasted",
}


class Wrong(NamedTuple):
    """A command line that fails."""

    line: str
    code: int
    reason: str
    stdin: str = ""


# A name that does not exist, or that cannot be one.
NAMES = (
    Wrong("kv get nobody", 3, "KEY_NOT_FOUND"),
    Wrong("kv put a 1 --namespace nowhere", 3, "NAMESPACE_UNKNOWN"),
    Wrong("kv get", 2, "USAGE"),
    Wrong("kv json get nobody", 3, "KEY_NOT_FOUND"),
    Wrong("kv lease show 7 --key nobody", 4, "LEASE_LOST"),
    Wrong("queue enqueue nobody x", 3, "QUEUE_UNKNOWN"),
    Wrong("queue create ''", 1, "QUEUE_NAME_INVALID"),
    Wrong("queue schedule list nobody", 3, "QUEUE_UNKNOWN"),
    Wrong("stream tail nobody", 3, "STREAM_UNKNOWN"),
    Wrong("stream group show nobody billing", 3, "STREAM_UNKNOWN"),
    Wrong("ts query nobody load", 3, "MEASUREMENT_UNKNOWN"),
    Wrong("ts rule list nobody", 3, "MEASUREMENT_UNKNOWN"),
    Wrong("watch dance", 2, "USAGE"),
    Wrong("transact -", 3, "QUEUE_UNKNOWN",
          '{"do": [{"op": "enqueue", "queue": "nobody", "body": "x"}]}'),
    Wrong("transact nowhere.json", 1, "ENOENT"),
    Wrong("admin hash 99", 3, "SHARD_UNKNOWN"),
    Wrong("admin session keep 7", 1, "SESSION_EXPIRED"),
    Wrong("call KV/Gett", 2, "USAGE"),
    Wrong("admin members promote nobody", 1, "NODE_ID_INVALID"),
    Wrong("admin transfer 0", 4, "TRANSFER_FAILED"),
    Wrong("explain nobody", 3, "NOT_FOUND"),
    Wrong("admin namespaces delete nowhere", 3, "NAMESPACE_UNKNOWN"),
    Wrong("admin hold set nobody --move", 3, "HOLD_UNKNOWN"),
    Wrong("admin hold set nobody --move --from-start", 2, "USAGE"),
    Wrong("admin hold release nobody", 3, "HOLD_UNKNOWN"),
    Wrong("import nowhere.csv --to keys", 3, "FILE_UNKNOWN"),
    Wrong("export dance out --data .", 1, "VIEW_UNKNOWN"),
    Wrong("export verify nowhere", 3, "NO_RECEIPT"),
    Wrong("spark zip nowhere/executors.zip", 1, "ENOENT"),
    Wrong("bench dance", 2, "USAGE"),
    Wrong("completion dos", 2, "USAGE"),
    Wrong("cluster kill 1 --dir nowhere", 1, "NO_CLUSTER"),
    Wrong("log inspect nowhere", 1, "NOT_A_DATA_DIRECTORY"),
    Wrong("serve --listen nowhere", 1, "BAD_CONFIG"),
    Wrong("config show --config nowhere.toml", 1, "BAD_CONFIG"),
    Wrong("dance", 2, "USAGE"),
    # What libraries would say beside it, for none of which there is room in one line.
    Wrong("kv get greeting --tls --timeout 1s", 5, "TLS_MISMATCH"),
    Wrong("kv get greeting --token secret", 2, "USAGE"),
    Wrong("admin hash 0 --node ''", 2, "USAGE"),
    Wrong("queue consume jobs -- /no/such/program", 1, "ENOENT"),
)  # fmt: skip
# A number that is none, or that is out of range.
NUMBERS = (
    Wrong("kv list --limit ten", 2, "USAGE"),
    Wrong("kv get a --timeout soon", 2, "USAGE"),
    Wrong("kv put a 1 --expect 18446744073709551616", 1, "NUMBER_INVALID"),
    Wrong("kv json get a --as-of -1", 2, "USAGE"),
    Wrong("kv lease show one --key a", 2, "USAGE"),
    Wrong("queue prioritise jobs 16 1", 2, "USAGE"),
    Wrong("queue ack jobs 12", 2, "USAGE"),
    Wrong("queue schedule delete jobs 0", 2, "USAGE"),
    Wrong("stream read events --from -1", 2, "USAGE"),
    Wrong("stream group leave events billing --member x", 2, "USAGE"),
    Wrong("ts query cpu load --window 5x", 2, "USAGE"),
    Wrong("ts query cpu load --from 1794830400", 2, "USAGE"),
    Wrong("admin session keep 0", 2, "USAGE"),
    Wrong("call KV/Get --shard x", 2, "USAGE"),
    Wrong("ts rule set cpu r --window x -a mean --into y", 2, "USAGE"),
    Wrong("watch --limit 1.5", 2, "USAGE"),
    Wrong("transact -", 1, "DOCUMENT_INVALID",
          '{"do": [{"op": "increment", "key": "n", "by": "x"}]}'),
    Wrong("admin hash one", 2, "USAGE"),
    Wrong(f"admin members add {STRANGER} 127.0.0.1:99999", 1, "ADDRESS_INVALID"),
    Wrong("admin namespaces create shop --versions 256", 2, "USAGE"),
    Wrong("admin hold set nightly --index 0=1,2", 2, "USAGE"),
    Wrong("admin hold set nightly --max-bytes 16GB", 2, "USAGE"),
    Wrong("admin hold set nightly --max-bytes 0", 2, "USAGE"),
    Wrong("admin hold set nightly --index 0=18446744073709551615", 1, "INDEX_IN_FUTURE"),
    Wrong("import rows.csv --to keys --retry-for 5x", 2, "USAGE"),
    Wrong("export run log out --bytes-per-second-max 0", 2, "USAGE"),
    Wrong("bench put --callers 0", 2, "USAGE"),
    Wrong("cluster kill one", 2, "USAGE"),
    Wrong("log dump . --from x", 2, "USAGE"),
    Wrong("serve --shards none", 1, "BAD_CONFIG"),
    Wrong("config show --shards 0", 1, "BAD_CONFIG"),
)  # fmt: skip
