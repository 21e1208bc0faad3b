"""What refusals say to people: the thing, its value, and what would be allowed."""

from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]

from onelog import errors
from onelog.status import error_of_result
from onelog.v1 import pipeline_pb2
from tests.node.services.nodes import Node, refusal, run, single

HUGE = 2**64 - 1
CENTURY_MS = 3_153_600_000_000
MATCHERS = [{"tag": "host", "operator": 1, "value": "a"}] * 33
POINT = {"tags": {"host": "a"}, "times_ns": [1], "columns": [
    {"field": "load", "doubles": {"values": [1.0]}}]}  # fmt: skip
QUERY = {"measurement": "cpu", "field": "load", "from_ns": 1, "to_ns": 9}
RULE = {"name": "r", "window_ns": 10**9, "aggregates": [1], "target_measurement": "cpu2"}

REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("kv.BatchPut", {}, "the number of keys is 0; allowed: 1 to 1000"),
    ("kv.BatchPut", {"keys": [b"k"]}, "0 values for 1 keys"),
    ("kv.List", {"limit": 20_000}, "limit is 20000; allowed: 1 to 10000"),
    ("kv.Put", {"key": b""}, "a key of 0 bytes; keys have 1 to 4096"),
    ("kv.Put", {"key": b"cg:x"}, "written by the database only (key 'cg:x')"),
    ("kv.Put", {"key": b"k", "ttl_ms": HUGE}, f"ttl_ms is {HUGE}; allowed: 1 to {CENTURY_MS}"),
    ("kv.Put", {"key": b"k", "expected_version": 7}, "does not exist, and a version"),
    ("kv.Put", {"key": b"k", "namespace": "no"}, "create it first (namespace 'no')"),
    ("kv.Touch", {"key": b"nobody", "ttl_ms": 1}, "the key does not exist (key 'nobody')"),
    ("kv.Count", {"key": b"k"}, "none of add, lower_to and raise_to is given"),
    ("kv.Count", {"key": b"text", "add": 1}, "decimal integer of 64 bits (key 'text')"),
    ("kv.SetJson", {"key": b"k", "json": b"1", "path": {"steps": [{"element": -2}]}},
     "step 0 of the path is element -2; the lowest is -1"),
    ("kv.Get", {"key": b"k", "options": {"level": 9}}, "there is no level 9; they are 0 to 3"),
    ("kv.Get", {"key": b"k", "options": {"max_staleness_ms": 5}}, "needs the level READ_LEVEL"),
    ("kv.Put", {"key": b"k", "options": {"session": {"session_id": 1, "sequence": 4,
     "first_unacknowledged": 5}}}, "sequence is 4, which is below first_unacknowledged, 5"),
    ("kv.GrantLease", {"ttl_ms": 1, "options": {"durability": 2}}, "with DURABILITY_SYNC"),
    ("queue.CreateQueue", {"queue": "q", "config": {"max_deliveries": 3}},
     "max_deliveries is 3, which needs a dead_letter_queue"),
    ("queue.CreateQueue", {"queue": "q", "config": {"visibility_ms": 10**12}},
     "visibility_ms is 1000000000000; allowed: 1 to 604800000"),
    ("queue.CreateQueue", {"queue": "q", "config": {"backoff_ms": [1] * 17}},
     "the number of backoff_ms is 17; allowed: 0 to 16"),
    ("queue.ConfigureQueue", {"queue": "jobs", "config": {"dead_letter_queue": "jobs"}},
     "'jobs' cannot take its own dead letters"),
    ("queue.Enqueue", {"queue": "jobs"}, "the number of messages is 0; allowed: 1 to 1000"),
    ("queue.Enqueue", {"queue": "jobs", "messages": [{"tenant": b"t" * 129}]},
     "the size of tenant is 129; allowed: 1 to 128"),
    ("queue.Enqueue", {"queue": "jobs", "messages": [{"headers": [{"name": "dlq.x"}]}]},
     "headers that begin with dlq. are written by the server only"),
    ("queue.Lease", {"queue": "jobs", "wait_ms": 60_001}, "wait_ms is 60001; allowed: 0 to 60000"),
    ("queue.CreateSchedule", {"queue": "jobs", "cron": "* 24 * * *"},
     "the hour of the cron expression is '24'; allowed: 0 to 23"),
    ("queue.CreateSchedule", {"queue": "jobs", "cron": "@daily"}, "has 1 fields; it has 5"),
    ("stream.CreateStream", {"stream": "s", "partition_count": 300},
     "partition_count is 300; allowed: 1 to 256"),
    ("stream.GetStream", {"stream": "nobody"}, "create it first (stream 'nobody')"),
    ("stream.Trim", {"stream": "events", "keep_count": 0}, "keep_count is 0; allowed: 1 to"),
    ("stream.CreateGroup", {"stream": "events", "group": "g", "config": {"max_deliveries": 3}},
     "max_deliveries is 3, which needs a dead_letter_stream"),
    ("stream.CreateGroup", {"stream": "events", "group": "g", "config": {
     "max_deliveries": 3, "dead_letter_stream": "no"}}, "not exist (dead_letter_stream 'no')"),
    ("stream.JoinGroup", {"stream": "events", "group": "g", "session_ms": 1},
     "session_ms is 1; allowed: 1000 to 86400000"),
    ("stream.AppendRecords", {"stream": "events", "records": [{}], "producer": {"epoch": 1}},
     "the producer's sequence is 0; they begin with 1"),
    ("stream.ReadRecords", {"stream": "events", "partition": 1},
     "partition is 1; allowed: 0 to 0"),
    ("ts.Query", {**QUERY, "matchers": MATCHERS}, "number of matchers is 33; allowed: 0 to 32"),
    ("ts.Query", {**QUERY, "matchers": [{"tag": "host", "operator": 3, "value": "a("}]},
     "the pattern 'a(' is not understood at character 2"),
    ("ts.Query", {**QUERY, "matchers": [{"tag": "host", "operator": 3, "value": "a{300}"}]},
     "the pattern 'a{300}' repeats something more than 200 times at character 5"),
    ("ts.Query", {**QUERY, "to_ns": 1}, "to_ns is 1, which is not above from_ns, 1"),
    ("ts.Query", {**QUERY, "aggregate": 9, "parameter": 101.0}, "a percentile is 0 to 100"),
    ("ts.Query", {**QUERY, "field": "none"}, "no such field; it has load (field 'none')"),
    ("ts.Query", {"measurement": "wide", "field": "none", "from_ns": 1, "to_ns": 9},
     "no such field; it has f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, … (field 'none')"),
    ("ts.Query", {**QUERY, "measurement": "none"}, "not exist (measurement 'none')"),
    ("ts.SetRule", {"measurement": "cpu", "rule": {**RULE, "window_ns": 5}},
     "window_ns is 5; allowed: 1000000 to"),
    ("ts.SetRule", {"measurement": "cpu", "rule": {**RULE, "aggregates": [11]}},
     "DELTA is no aggregate of a rule; they are MEAN, SUM"),
    ("ts.SetRule", {"measurement": "cpu", "rule": {**RULE, "target_measurement": "cpu"}},
     "'cpu' cannot be its own target"),
    ("ts.CreateMeasurement", {"measurement": "m", "config": {"series_max": 10**9}},
     "series_max is 1000000000; allowed: 1 to 10000000"),
    ("ts.CreateMeasurement", {"measurement": "m" * 129}, "has 129 bytes; allowed: 1 to 128"),
    ("ts.ListSeries", {"measurement": "cpu", "page_size": 10_001},
     "page_size is 10001; allowed: 1 to 10000"),
    ("pipeline.OpenSession", {"ttl_ms": 5}, "ttl_ms is 5; allowed: 1000 to 86400000"),
    ("pipeline.OpenSession", {"shard": 9}, "there is no shard 9; they are 0 to 0"),
    ("pipeline.Transact", {}, "the number of operations is 0; allowed: 1 to 1000"),
    ("pipeline.Transact", {"conditions": [{"key": b"text", "exists": True},
     {"key": b"text", "exists": False}], "operations": [{"put": {"key": b"text"}}]},
     "the condition on key 'text' does not hold (condition 2 of 2)"),
    ("pipeline.Transact", {"conditions": [{"key": b"text", "exists": False}],
     "operations": [{"put": {"key": b"text"}}]}, "the condition on key 'text' does not hold"),
    ("pipeline.Transact", {"operations": [
        {"append_records": {"stream": "events", "records": [{}, {}]}},
        {"ack": {"queue": "jobs", "messages": [{"message_id": 1}] * 3, "strict": True}}]},
     "operation 2, counted from 0, was refused: MESSAGE_UNKNOWN (queue 'jobs')"),
    ("pipeline.Transact", {"operations": [
        {"count": {"key": b"other", "add": 1}}, {"count": {"key": b"text", "add": 1}}]},
     "operation 1, counted from 0, was refused: NOT_A_NUMBER (key 'text')"),
    ("pipeline.Transact", {"operations": [{"write_points": {"measurement": "cpu", "series": [
        {**POINT, "columns": [{"field": "load", "bools": {"values": [True]}}]}]}}]},
     "operation 0, counted from 0, was refused: FIELD_TYPE_MISMATCH (field 'load')"),
    ("ts.WritePoints", {"measurement": "cpu", "series": [{"times_ns": [1], "columns": [
        {"field": "idle", "doubles": {"values": [1.0]}},
        {"field": "load", "integers": {"values": [1]}}]}]},
     "keeps its first type, F64 (floats); the values are I64 (integers) (field 'load')"),
    ("ts.WritePoints", {"measurement": "one", "series": [POINT, {**POINT, "tags": {"host": "b"}}]},
     "holds 1 series, which is its cardinality limit (measurement 'one')"),
    ("stream.AppendRecords", {"stream": "events", "records": [{"partition": 7}]},
     "the stream has no partition 7 (stream 'events')"),
    ("admin.CreateNamespace", {"namespace": "n", "limits": {"versions_max": 300}},
     "versions_max is 300; allowed: 1 to 255"),
    ("admin.SetHold", {"name": "h", "ttl_ms": HUGE}, f"allowed: 1 to {CENTURY_MS}"),
    ("admin.ReleaseHold", {"name": "h"}, "there is no hold of that name (name 'h')"),
    ("admin.AddMember", {"node_id": "x"}, "'x' is not the id of a node"),
    ("admin.TransferLeadership", {}, "no other member of shard 0 can vote"),
]  # fmt: skip


async def prepare(node: Node) -> None:
    """Make what the requests name."""
    await node.kv.Put(asked("kv.Put", {"key": b"text", "value": b"x"}))
    await node.queue.CreateQueue(asked("queue.CreateQueue", {"queue": "jobs"}))
    await node.stream.CreateStream(asked("stream.CreateStream", {"stream": "events"}))
    points = {"measurement": "cpu", "series": [POINT]}
    await node.ts.WritePoints(asked("ts.WritePoints", points))
    columns = [{"field": f"f{number}", "doubles": {"values": [1.0]}} for number in range(11)]
    points = {"measurement": "wide", "series": [{**POINT, "columns": columns}]}
    await node.ts.WritePoints(asked("ts.WritePoints", points))
    one = {"measurement": "one", "config": {"series_max": 1}}
    await node.ts.CreateMeasurement(asked("ts.CreateMeasurement", one))


def asked(call: str, fields: dict[str, Any]) -> Any:
    """Return the request of a call."""
    service, method = call.split(".")
    module = {"ts": "timeseries"}.get(service, service)
    messages: Any = __import__(f"onelog.v1.{module}_pb2", fromlist=["x"])
    return getattr(messages, f"{method}Request")(**fields)


def test_a_refusal_names_the_thing_its_value_and_what_is_allowed(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await prepare(node)
            wrong = []
            for call, fields, words in REFUSALS:
                service, method = call.split(".")
                error = await refusal(getattr(getattr(node, service), method)(asked(call, fields)))
                if words not in error.message:
                    wrong.append((call, error.message, words))
            assert wrong == []

    run(test())


def test_operations_of_a_message_are_refused_in_the_same_words(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            operations: list[Any] = [
                {"touch": {"key": b"one", "ttl_ms": 1}},
                {"touch": {"key": b"two", "ttl_ms": 1}},
                {"get": {"key": b"k", "namespace": "no"}},
                {"append_records": {"stream": "nobody", "records": [{"value": b"v"}]}},
                {"lease": {"queue": "nobody"}},
                {"put": {"key": b"k", "ttl_ms": HUGE}},
            ]
            request = pipeline_pb2.ExecuteRequest(operations=operations)
            answer = await node.pipeline.ExecuteOnce(request)
            found = [error_of_result(each.error).message for each in answer.results]
            assert found[0].endswith("(key 'one')")
            assert found[1].endswith("(key 'two')")
            assert found[2].endswith("(namespace 'no')")
            assert found[4] == "there is no queue 'nobody'; create it first"
            assert found[5].startswith(f"ttl_ms is {HUGE}; allowed: 1 to ")

    run(test())


def test_producers_learn_their_next_sequence_as_they_count(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await prepare(node)

            def append(sequence: int) -> Any:
                fields: dict[str, Any] = {"stream": "events", "records": [{"value": b"v"}]}
                fields["producer"] = {"producer_id": 1, "epoch": 1, "sequence": sequence}
                return node.stream.AppendRecords(asked("stream.AppendRecords", fields))

            unknown = await refusal(append(5))
            assert unknown.reason == "PRODUCER_UNKNOWN"
            assert unknown.message.endswith("begin again at sequence 1 (stream 'events')")
            for sequence in (1, 2):
                await append(sequence)
            gap = await refusal(append(9))
            assert gap.reason == "PRODUCER_SEQUENCE_GAP"
            assert gap.message == "the producer's next sequence is 3 (stream 'events')"
            assert gap.metadata["detail"] == "3"
            await append(3)

    run(test())


@pytest.mark.parametrize("size", [100, 5_000, 70_000])
def test_a_long_name_in_a_message_does_not_break_the_status(tmp_path: Path, size: int) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            check = node.channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            )
            error = await refusal(check(health_pb2.HealthCheckRequest(service="é" * size)))
            assert (type(error), error.reason) == (errors.NotFound, "SERVICE_UNKNOWN")
            assert len(error.message.encode()) <= 1_100

    run(test())
