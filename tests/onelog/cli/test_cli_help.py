"""The tree of commands: everything of the API is in it, and every example of its help works."""

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from onelog import Client
from onelog.cli.program import tree
from onelog.v1 import (
    admin_pb2,
    kv_pb2,
    log_pb2,
    pipeline_pb2,
    queue_pb2,
    stream_pb2,
    timeseries_pb2,
)
from tests.onelog.cli.forking import forking

TIMEOUT_S = 120
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
)
ALL = dict(commands(tree()))
OURS = {path: each for path, each in ALL.items() if path.split()[0] in TALKING}


def examples(path: str) -> str:
    found = re.search(r"^Examples:\n((?:  .*\n?)+)", OURS[path].help, re.MULTILINE)
    assert found is not None, path
    return found[1]


# Each call, and the command that makes it; of several that do, the plainest.
CALLS = {
    "Admin": {
        "AddMember": "admin members add", "ConfigureNamespace": "admin namespaces configure",
        "CreateNamespace": "admin namespaces create", "DeleteNamespace": "admin namespaces delete",
        "GetStateHash": "admin hash", "GetStatus": "admin status", "GetTopology": "admin topology",
        "ListDamage": "admin damage",
        "ListLogRanges": "admin log-ranges", "ListMembers": "admin members list",
        "ListNamespaces": "admin namespaces list", "PromoteMember": "admin members promote",
        "ReadLog": "admin read-log", "RemoveMember": "admin members remove",
        "TakeSnapshot": "admin snapshot", "TransferLeadership": "admin transfer",
        "SetHold": "admin hold set", "ListHolds": "admin hold list",
        "ReleaseHold": "admin hold release",
    },
    "KV": {
        "Append": "kv append", "BatchGet": "kv get", "BatchPut": "kv import",
        "Count": "kv increment",
        "Delete": "kv delete", "DeleteRange": "kv delete-range", "Get": "kv get",
        "GetHistory": "kv history", "GetJson": "kv json get", "GetLease": "kv lease show",
        "GrantLease": "kv lease grant", "KeepLease": "kv lease keep", "List": "kv list",
        "Put": "kv put", "RevokeLease": "kv lease revoke", "Scan": "kv list",
        "SetJson": "kv json set", "Touch": "kv touch", "Txn": "kv txn",
    },
    "Pipeline": {
        "Transact": "transact", "Watch": "watch",
        # What the client sends operations and keeps sessions with, whatever the command.
        "CloseSession": "kv put", "Execute": "kv put", "ExecuteOnce": "kv put",
        "KeepSession": "kv put", "OpenSession": "kv put",
    },
    "Queue": {
        "Ack": "queue ack", "Cancel": "queue cancel", "CancelRedrive": "queue cancel-redrive",
        "ConfigureQueue": "queue configure", "Consume": "queue consume",
        "CreateQueue": "queue create", "CreateSchedule": "queue schedule add",
        "DeleteQueue": "queue delete", "DeleteSchedule": "queue schedule delete",
        "Enqueue": "queue enqueue", "Extend": "queue extend", "GetQueue": "queue show",
        "Lease": "queue lease", "ListQueues": "queue list", "ListRedrives": "queue redrives",
        "ListSchedules": "queue schedule list", "Nack": "queue nack", "PauseQueue": "queue pause",
        "Peek": "queue peek", "Prioritise": "queue prioritise", "Purge": "queue purge",
        "Redrive": "queue redrive", "Release": "queue release",
    },
    "Stream": {
        "AckRecords": "stream group ack", "AppendRecords": "stream append",
        "ClaimRecords": "stream group claim", "CommitOffsets": "stream group commit",
        "ConfigureGroup": "stream group configure", "ConfigureStream": "stream configure",
        "CreateGroup": "stream group create", "CreateStream": "stream create",
        "DeleteGroup": "stream group delete", "DeleteStream": "stream delete",
        "FetchRecords": "stream group fetch", "GetGroup": "stream group show",
        "GetStream": "stream show", "HeartbeatGroup": "stream group fetch",
        "JoinGroup": "stream group join", "LeaveGroup": "stream group leave",
        "ListStreams": "stream list", "NackRecords": "stream group nack",
        "ReadRecords": "stream read", "SeekGroup": "stream group seek", "Tail": "stream tail",
        "Trim": "stream trim",
    },
    "TimeSeries": {
        "ConfigureMeasurement": "ts configure", "CreateMeasurement": "ts create",
        "DeleteMeasurement": "ts delete", "DeletePoints": "ts delete-points",
        "DeleteRule": "ts rule delete", "GetMeasurement": "ts show",
        "ListMeasurements": "ts list", "ListSeries": "ts series", "Query": "ts query",
        "SetRule": "ts rule set", "WritePoints": "ts write",
    },
}  # fmt: skip
# Stored bytes, which programs read: nothing for a terminal.
PROGRAMS_ONLY = {"Log"}


def test_every_call_of_the_api_has_a_command() -> None:
    modules = (
        admin_pb2, kv_pb2, log_pb2, pipeline_pb2, queue_pb2, stream_pb2, timeseries_pb2,
    )  # fmt: skip
    services = {
        name: {method.name for method in service.methods}
        for module in modules
        for name, service in module.DESCRIPTOR.services_by_name.items()
    }
    assert {name: set(calls) for name, calls in CALLS.items()} == {
        name: calls for name, calls in services.items() if name not in PROGRAMS_ONLY
    }
    assert set(services) >= PROGRAMS_ONLY
    missing = {path for calls in CALLS.values() for path in calls.values()} - set(OURS)
    assert not missing


@pytest.mark.parametrize("path", ALL)
def test_a_command_says_what_it_does(path: str) -> None:
    command = ALL[path]
    assert re.match(r"[A-Z]", command.help)
    # What needs a cluster, or dead letters that take their time, only says how it is used.
    assert re.search(r"(Examples|Usage):\n  \S", command.help)
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
    """Let the things of the examples exist, and something happen to them all the time."""
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


@pytest.mark.parametrize("path", [path for path in OURS if "Examples:" in (OURS[path].help or "")])
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
