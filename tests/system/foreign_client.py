"""A program that knows onelog by its protos alone: one operation of every call.

It is run as a script, with stubs that were generated for it and nothing of onelog in reach:
``foreign_client.py ENDPOINT JOINER_ID JOINER_ADDRESS``, the latter of a node that wants to join. It
prints a line of JSON: the calls that it made, and those that the server's reflection lists.
"""

import importlib
import json
import sys
import time
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    FileDescriptorProto,
)
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]
    reflection_pb2,
    reflection_pb2_grpc,
)

SERVICES = {
    "KV": "kv", "Queue": "queue", "Stream": "stream", "TimeSeries": "timeseries",
    "Pipeline": "pipeline", "Log": "log", "Admin": "admin",
}  # fmt: skip
TIMEOUT_S = 20
POLL_S = 0.1


class Server:
    """Calls by name; remembers which were made."""

    def __init__(self, channel: Any) -> None:
        self.called: set[str] = set()
        self._stubs: dict[str, Any] = {}
        self._methods: dict[str, Any] = {}
        for service, module in SERVICES.items():
            messages = importlib.import_module(f"onelog.v1.{module}_pb2")
            stubs = importlib.import_module(f"onelog.v1.{module}_pb2_grpc")
            self._stubs[service] = getattr(stubs, f"{service}Stub")(channel)
            for method in messages.DESCRIPTOR.services_by_name[service].methods:
                self._methods[f"{service}/{method.name}"] = method

    def call(self, path: str, /, wanted: str = "", **fields: Any) -> Any:
        """Make a call and return its answer; of a stream, the first, or the first with something.

        A stream may begin with a word that it has begun.
        """
        method = self._methods[path]
        service, name = path.split("/")
        request = method.input_type._concrete_class(**fields)
        send = getattr(self._stubs[service], name)
        self.called.add(path)
        if method.client_streaming:
            return next(send(iter([request]), timeout=TIMEOUT_S))
        if method.server_streaming:
            answers = send(request, timeout=TIMEOUT_S)
            answer = next(each for each in answers if not wanted or getattr(each, wanted))
            answers.cancel()
            return answer
        return send(request, timeout=TIMEOUT_S)


def status(call: Any, *arguments: Any, **fields: Any) -> str:
    """Make a call and return the name of its status."""
    try:
        call(*arguments, **fields)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def insist(call: Any, *arguments: Any, **fields: Any) -> Any:
    """Make a call again and again until it is not refused any more, and return its answer."""
    until_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return call(*arguments, **fields)
        except grpc.RpcError:
            if time.monotonic() > until_s:
                raise
        time.sleep(POLL_S)


def keys(server: Server) -> None:
    """The calls of KV."""

    def kv(name: str, **fields: Any) -> Any:
        return server.call(f"KV/{name}", **fields)

    put = kv("Put", key=b"k", value=b"1")
    assert kv("Get", key=b"k").item.version == put.header.index
    assert len(kv("BatchGet", keys=[b"k", b"nothing"]).items) == 1
    assert kv("BatchPut", keys=[b"{b}1", b"{b}2"], values=[b"1", b"2"]).header.index
    assert kv("Count", key=b"n", add=5).number == 5
    assert kv("Append", key=b"text", data=b"abc").size == 3
    kv("Touch", key=b"text", ttl_ms=3_600_000)
    kv("SetJson", key=b"doc", json=b'{"a": 1}')
    assert kv("GetJson", key=b"doc", path={"steps": [{"member": "a"}]}).json == b"1"
    assert len(kv("List", range={"prefix": b"k"}).items) == 1
    assert len(kv("Scan", range={"prefix": b"k"}).items) == 1
    assert [each.value for each in kv("GetHistory", key=b"k").versions] == [b"1"]
    put = {"put": {"key": b"k", "value": b"2"}}
    txn = kv("Txn", conditions=[{"key": b"k", "exists": True}], then=[put])
    assert txn.succeeded
    lease_id = kv("GrantLease", ttl_ms=60_000, routing_key=b"k").lease_id
    kv("KeepLease", lease_id=lease_id, routing_key=b"k")
    assert kv("GetLease", lease_id=lease_id, routing_key=b"k").ttl_ms == 60_000
    kv("RevokeLease", lease_id=lease_id, routing_key=b"k")
    assert kv("Delete", key=b"k").deleted
    assert kv("DeleteRange", range={"prefix": b"te"}).deleted_count == 1


def queues(server: Server) -> None:
    """The calls of Queue."""

    def queue(name: str, of: str = "jobs", **fields: Any) -> Any:
        return server.call(f"Queue/{name}", queue=of, **fields)

    queue("CreateQueue", "dead{jobs}")
    dead = {"max_deliveries": 1, "dead_letter_queue": "dead{jobs}"}
    queue("CreateQueue")
    queue("DeleteQueue")
    queue("CreateQueue", "{jobs}", config=dead)
    of = "{jobs}"
    queue("ConfigureQueue", of, config={"visibility_ms": 60_000, **dead})
    bodies = [{"body": b"%d" % number} for number in range(6)]
    ids = [each.message_id for each in queue("Enqueue", of, messages=bodies).results]
    leased = queue("Lease", of, count=3).messages
    assert [each.body for each in leased] == [b"0", b"1", b"2"]
    first, second, third = ({"message_id": each.message_id, "token": each.token} for each in leased)
    assert not queue("Extend", of, messages=[first], visibility_ms=90_000).results[0].reason
    assert not queue("Ack", of, messages=[first]).results[0].reason
    assert queue("Nack", of, messages=[second], reason="no").results[0].dead
    assert not queue("Release", of, messages=[third]).results[0].reason
    queue("Prioritise", of, message_ids=[ids[3]], priority=1)
    queue("Cancel", of, message_ids=[ids[4]])
    assert [each.body for each in queue("Peek", of).messages] == [b"2", b"3", b"5"]
    (consumed,) = queue("Consume", of, wanted="messages", credit=1).messages
    assert consumed.body == b"3"
    redrive = queue("Redrive", "dead{jobs}", limit=0, rate_per_s=1)
    running = queue("ListRedrives", "dead{jobs}").redrives
    assert [each.redrive_id for each in running] in ([], [redrive.redrive_id])
    cancel = {"redrive_id": redrive.redrive_id}
    # It may be done by then.
    assert status(queue, "CancelRedrive", "dead{jobs}", **cancel) in ("OK", "NOT_FOUND")
    queue("PauseQueue", of, paused=True)
    assert queue("GetQueue", of).queue.paused
    schedule = queue("CreateSchedule", of, cron="0 0 1 1 *", message={"body": b"new year"})
    assert len(queue("ListSchedules", of).schedules) == 1
    queue("DeleteSchedule", of, schedule_id=schedule.schedule_id)
    assert queue("Purge", of, leased_too=True).purged_count >= 2
    names = [each.queue for each in server.call("Queue/ListQueues").queues]
    assert names == ["dead{jobs}", "{jobs}"]


def streams(server: Server) -> None:
    """The calls of Stream."""

    def stream(name: str, **fields: Any) -> Any:
        return server.call(f"Stream/{name}", stream="events", **fields)

    def group(name: str, **fields: Any) -> Any:
        return stream(name, group="g", **fields)

    stream("CreateStream")
    stream("DeleteStream")
    stream("CreateStream")
    stream("ConfigureStream", retention={"count_max": 1_000})
    values = [{"value": b"%d" % number} for number in range(4)]
    offsets = [each.offset for each in stream("AppendRecords", records=values).results]
    assert [each.offset for each in stream("ReadRecords").records] == offsets
    tail = server.call("Stream/Tail", "records", streams=[{"stream": "events", "from_offset": 0}])
    assert tail.records[0].value == b"0"
    group("CreateGroup", from_offset=0, config={"shared": True})
    group("ConfigureGroup", config={"shared": True})
    member = group("JoinGroup", session_ms=60_000)
    who = {"member_id": member.member_id}
    now = {**who, "generation": member.generation}
    group("HeartbeatGroup", **who)
    fetched = group("FetchRecords", **now, limit=2).records
    assert [each.offset for each in fetched] == offsets[:2]
    assert group("AckRecords", **who, places=[{"offset": offsets[0]}]).acked_count == 1
    assert group("NackRecords", **who, places=[{"offset": offsets[1]}]).nacked_count == 1
    group("ClaimRecords", **now, idle_ms=1)
    group("SeekGroup", offset=offsets[2])
    assert group("GetGroup").members[0].member_id == member.member_id
    group("LeaveGroup", **who)
    group("DeleteGroup")
    stream("CreateGroup", group="own", from_offset=0)
    member = stream("JoinGroup", group="own", session_ms=60_000)
    stream("FetchRecords", group="own", member_id=member.member_id, generation=member.generation)
    stream(
        "CommitOffsets",
        group="own",
        member_id=member.member_id,
        generation=member.generation,
        places=[{"offset": offsets[1]}],
    )
    stream("Trim", below_offset=offsets[1], past_groups=True)
    assert stream("GetStream").stream.partitions[0].first_offset == offsets[1]
    assert [each.stream for each in server.call("Stream/ListStreams").streams] == ["events"]


def series(server: Server) -> None:
    """The calls of TimeSeries."""

    def ts(name: str, **fields: Any) -> Any:
        return server.call(f"TimeSeries/{name}", measurement="{cpu}", **fields)

    ts("CreateMeasurement")
    ts("DeleteMeasurement")
    ts("CreateMeasurement", config={"series_max": 10})
    ts("ConfigureMeasurement", config={"series_max": 20})
    times = [1_700_000_000_000_000_000 + number * 1_000_000_000 for number in range(3)]
    column = {"field": "load", "doubles": {"values": [1.0, 2.0, 3.0]}}
    points = {"tags": {"host": "a"}, "times_ns": times, "columns": [column]}
    assert ts("WritePoints", series=[points]).written_count == 3
    (found,) = ts("Query", field="load", from_ns=times[0], to_ns=times[2] + 1, aggregate=2).groups
    assert list(found.columns[0].doubles.values) == [6.0]
    assert [dict(each.tags) for each in ts("ListSeries").series] == [{"host": "a"}]
    minute_ns = 60_000_000_000
    target = {"aggregates": [1], "target_measurement": "{cpu}.m"}
    rule = {"name": "r", "window_ns": minute_ns, **target}
    ts("SetRule", rule=rule)
    assert ts("GetMeasurement").measurement.rules[0].name == "r"
    ts("DeleteRule", rule="r")
    assert ts("DeletePoints", matchers=[{"tag": "host", "operator": 1, "value": "a"}]).series_count
    names = [each.measurement for each in server.call("TimeSeries/ListMeasurements").measurements]
    assert "{cpu}" in names


def together(server: Server) -> None:
    """The calls of Pipeline."""

    def pipeline(name: str, **fields: Any) -> Any:
        return server.call(f"Pipeline/{name}", **fields)

    put = {"put": {"key": b"p", "value": b"v"}}
    assert pipeline("Execute", request_id=7, operations=[put]).request_id == 7
    assert len(pipeline("ExecuteOnce", operations=[put, put]).results) == 2
    assert len(pipeline("Transact", operations=[put]).results) == 1
    batch = {"transact": {"operations": [put, {"count": {"key": b"{p}n", "add": 2}}]}}
    (done, _) = pipeline("ExecuteOnce", operations=[batch, put]).results
    assert done.transact.results[1].count.number == 2
    session_id = pipeline("OpenSession", shard=0).session_id
    pipeline("KeepSession", shard=0, session_id=session_id)
    pipeline("CloseSession", shard=0, session_id=session_id)
    watched = pipeline("Watch", cursor={"positions": [{"shard": 0}, {"shard": 1}]}, progress_ms=100)
    assert watched.cursor.positions


def bulk(server: Server) -> None:
    """The calls of Log."""
    described = server.call("Log/DescribeLog", shard=0)
    assert described.spans[-1].last_index == described.cut_index
    frame = server.call("Log/ReadLogFrames", first_index=1, last_index=described.cut_index)
    assert frame.offsets[:4] == bytes(4)
    assert frame.data
    assert server.call("Admin/TakeSnapshot", shard=0).index
    assert server.call("Log/ReadSnapshot", shard=0).data


def operators(server: Server, joiner_id: str, joiner_address: str) -> None:
    """The calls of Admin."""

    def admin(name: str, /, **fields: Any) -> Any:
        return server.call(f"Admin/{name}", **fields)

    assert admin("GetStatus").shards
    assert admin("GetTopology").shard_count == 2
    assert admin("TakeSnapshot", shard=0).index
    assert admin("GetStateHash", shard=0).state_hash
    assert admin("ListLogRanges", shard=0).ranges
    assert not admin("ListDamage").segments
    assert admin("ReadLog", shard=0, first_index=1).entries
    admin("CreateNamespace", namespace="tenant")
    admin("ConfigureNamespace", namespace="tenant", limits={"keys_max": 100})
    assert "tenant" in [each.namespace for each in admin("ListNamespaces").namespaces]
    admin("DeleteNamespace", namespace="tenant")
    assert set(admin("SetHold", name="export").indexes)
    assert "export" in [each.name for each in admin("ListHolds").holds]
    admin("ReleaseHold", name="export")
    # Who is no member cannot vote, and there is nobody else to lead.
    assert status(admin, "PromoteMember", node_id=joiner_id) == "NOT_FOUND"
    assert status(admin, "TransferLeadership") == "FAILED_PRECONDITION"
    admin("AddMember", node_id=joiner_id, node_name="n2", peer_address=joiner_address)
    learners = [each.node_id for each in admin("ListMembers").shards[0].members if each.is_learner]
    assert learners == [joiner_id]
    insist(admin, "PromoteMember", node_id=joiner_id)  # as soon as it has caught up
    for shard in insist(admin, "ListMembers").shards:
        assert [each.is_learner for each in shard.members] == [False, False]
    moved = insist(admin, "TransferLeadership", shard=1, node_id=joiner_id)
    assert moved.leader_id == joiner_id
    insist(admin, "RemoveMember", node_id=joiner_id)
    assert len(insist(admin, "ListMembers").shards[1].members) == 1


def listed(channel: Any) -> list[str]:
    """Return the calls that reflection lists."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest
    (answer,) = stub.ServerReflectionInfo(iter([request(list_services="")]), timeout=TIMEOUT_S)
    found = []
    for each in answer.list_services_response.service:
        if each.name.startswith("onelog.v1."):
            ask = request(file_containing_symbol=each.name)
            (files,) = stub.ServerReflectionInfo(iter([ask]), timeout=TIMEOUT_S)
            for data in files.file_descriptor_response.file_descriptor_proto:
                for service in FileDescriptorProto.FromString(data).service:
                    if f"onelog.v1.{service.name}" == each.name:
                        found += [f"{service.name}/{method.name}" for method in service.method]
    return sorted(found)


def main(endpoint: str, joiner_id: str, joiner_address: str) -> None:
    """Use everything once."""
    with grpc.insecure_channel(endpoint) as channel:
        server = Server(channel)
        for use in (keys, queues, streams, series, together, bulk):
            use(server)
        operators(server, joiner_id, joiner_address)
        print(json.dumps({"called": sorted(server.called), "listed": listed(channel)}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
