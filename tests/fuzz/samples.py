"""A valid request of every call, and what has to exist for it to be valid."""

from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import UUID

from tests.fuzz.calls import Calls

Fields = dict[str, Any]

POINT_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60_000_000_000
HOUR_MS = 3_600_000
_numbers = count(1)


class World:
    """A namespace of its own, in which every name occurs once in the run of the test."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        number = next(_numbers)
        self.namespace = f"w{number}"
        self.queue = f"q{number}{{w}}"
        self.dead = f"dead{number}{{w}}"
        self.stream = f"s{number}{{w}}"
        self.dead_stream = f"deads{number}{{w}}"
        self.measurement = f"m{number}{{w}}"
        self.hold = f"h{number}"
        self.node_id = str(UUID(int=number))
        calls.ask("Admin/CreateNamespace", namespace=self.namespace)

    def ask(self, path: str, /, **fields: Any) -> Any:
        """Make a call in the namespace and return its answer."""
        return self.calls.ask(path, namespace=self.namespace, **fields)

    def end(self) -> None:
        """Delete what there is, by whichever call it came; sessions end by themselves."""
        for each in self.calls.ask("Admin/ListNamespaces").namespaces:
            if each.namespace != "default":
                self.calls.ask("Admin/DeleteNamespace", namespace=each.namespace)
        for name in {each.name for each in self.calls.ask("Admin/ListHolds").holds}:
            self.calls.ask("Admin/ReleaseHold", name=name)
        for each in self.calls.ask("Admin/ListMembers").shards[0].members:
            if each.is_learner:
                self.calls.ask("Admin/RemoveMember", node_id=each.node_id)

    # What several samples need

    def make_queue(self) -> Fields:
        self.ask("Queue/CreateQueue", queue=self.dead)
        config = {"max_deliveries": 1, "dead_letter_queue": self.dead}
        self.ask("Queue/CreateQueue", queue=self.queue, config=config)
        messages = [{"body": b"%d" % number} for number in range(4)]
        results = self.ask("Queue/Enqueue", queue=self.queue, messages=messages).results
        self.message_ids = [each.message_id for each in results]
        return {"queue": self.queue}

    def make_leases(self) -> Fields:
        queue = self.make_queue()
        leased = self.ask("Queue/Lease", queue=self.queue, count=3, visibility_ms=HOUR_MS).messages
        pairs = [{"message_id": each.message_id, "token": each.token} for each in leased]
        return {**queue, "messages": pairs}

    def make_redrive(self) -> Fields:
        of = self.make_leases()
        self.ask("Queue/Nack", **of)
        return {"queue": self.dead}

    def make_stream(self) -> Fields:
        self.ask("Stream/CreateStream", stream=self.dead_stream)
        self.ask("Stream/CreateStream", stream=self.stream, partition_count=2)
        records = [
            {"value": b"%d" % number, "key": b"k", "headers": [{"name": "h", "value": b"v"}]}
            for number in range(4)
        ]
        written = self.ask("Stream/AppendRecords", stream=self.stream, records=records).results
        self.places = [{"partition": each.partition, "offset": each.offset} for each in written]
        return {"stream": self.stream}

    def make_group(self, **config: Any) -> Fields:
        stream = self.make_stream()
        self.ask("Stream/CreateGroup", **stream, group="g", from_offset=0, config=config)
        return {**stream, "group": "g"}

    def make_member(self, *, shared: bool = True) -> Fields:
        group = self.make_group(shared=shared)
        member = self.ask("Stream/JoinGroup", **group, session_ms=HOUR_MS)
        self.generation = member.generation
        return {**group, "member_id": member.member_id}

    def make_pending(self) -> Fields:
        member = self.make_member()
        self.ask("Stream/FetchRecords", **member, generation=self.generation, limit=3)
        return {**member, "places": self.places[:2]}

    def make_measurement(self) -> Fields:
        name = {"measurement": self.measurement}
        self.ask("TimeSeries/CreateMeasurement", **name)
        self.ask("TimeSeries/WritePoints", **name, **points())
        return name

    def make_rule(self) -> Fields:
        name = self.make_measurement()
        self.ask("TimeSeries/SetRule", **name, rule=rule(self))
        return name

    def make_lease(self) -> Fields:
        granted = self.ask("KV/GrantLease", ttl_ms=HOUR_MS, routing_key=b"k")
        return {"lease_id": granted.lease_id, "routing_key": b"k"}

    def make_session(self) -> Fields:
        opened = self.calls.ask("Pipeline/OpenSession", shard=0, ttl_ms=HOUR_MS)
        return {"shard": 0, "session_id": opened.session_id}

    def make_hold(self) -> Fields:
        self.calls.ask("Admin/SetHold", name=self.hold, ttl_ms=HOUR_MS)
        return {"name": self.hold}

    def make_learner(self) -> Fields:
        address = "127.0.0.1:1"
        self.calls.ask("Admin/AddMember", node_id=self.node_id, peer_address=address)
        return {"node_id": self.node_id}

    def put(self, key: bytes = b"k", value: bytes = b"1") -> Fields:
        self.ask("KV/Put", key=key, value=value)
        return {"key": key}


def points() -> Fields:
    """Return points of one series, of a field of each type."""
    times = [POINT_NS + number * 1_000_000_000 for number in range(3)]
    columns = [
        {"field": "load", "doubles": {"values": [1.0, 2.0, 3.0]}},
        {"field": "count", "integers": {"values": [1, 2, 3]}},
        {"field": "up", "bools": {"values": [True, False, True]}},
    ]
    return {"series": [{"tags": {"host": "a"}, "times_ns": times, "columns": columns}]}


def rule(world: World) -> Fields:
    """Return a downsampling rule."""
    target = f"t{world.measurement}"
    return {
        "name": "r", "window_ns": MINUTE_NS, "aggregates": [1, 2], "target_measurement": target,
    }  # fmt: skip


def operations(world: World) -> list[Fields]:
    """Return an operation of each kind that a message of the pipeline takes."""
    leased = world.make_leases()["messages"]
    member = world.make_pending()
    one = {"namespace": world.namespace}
    queue = {**one, "queue": world.queue}
    world.put(b"k")
    put = {"put": {**one, "key": b"k", "value": b"v"}}
    return [
        put,
        {"get": {**one, "key": b"k"}},
        {"touch": {**one, "key": b"k", "ttl_ms": HOUR_MS}},
        {"count": {**one, "key": b"n", "add": 2}},
        {"append": {**one, "key": b"text", "data": b"abc"}},
        {"set_json": {**one, "key": b"doc", "json": b'{"a": 1}'}},
        {"txn": {**one, **_txn()}},
        {"batch_put": {**one, "keys": [b"{b}1", b"{b}2"], "values": [b"1", b"2"]}},
        {"transact": {**one, "operations": [{"put": {"key": b"{t}", "value": b"v"}}]}},
        {"enqueue": {**queue, "messages": [{"body": b"x"}]}},
        {"lease": {**queue, "count": 1}},
        {"ack": {**queue, "messages": leased[:1]}},
        {"nack": {**queue, "messages": leased[1:2]}},
        {"extend": {**queue, "messages": leased[2:], "visibility_ms": HOUR_MS}},
        {"release": {**queue, "messages": leased[2:]}},
        {"append_records": {**one, "stream": world.stream, "records": [{"value": b"v"}]}},
        {"ack_records": {**one, **member}},
        {"write_points": {**one, "measurement": world.measurement, **points()}},
        {"query": {**one, "measurement": world.measurement, **_query()}},
        {"delete": {**one, "key": b"k"}},
    ]


def transaction(world: World) -> Fields:
    """Return a transaction of an operation of each kind."""
    leased = world.make_leases()["messages"]
    member = world.make_pending()
    key, queue = b"{w}k", {"queue": world.queue}
    return {
        "conditions": [
            {"key": key, "exists": False},
            {"key": b"{w}l", "version": {"comparison": 1, "version": 0}},
        ],
        "operations": [
            {"put": {"key": key, "value": b"v"}},
            {"touch": {"key": key, "ttl_ms": HOUR_MS}},
            {"count": {"key": b"{w}n", "add": 2}},
            {"append": {"key": key, "data": b"abc"}},
            {"set_json": {"key": b"{w}doc", "json": b"[1]"}},
            {"delete": {"key": key}},
            {"enqueue": {**queue, "messages": [{"body": b"x"}]}},
            {"ack": {**queue, "messages": leased[:1]}},
            {"nack": {**queue, "messages": leased[1:2]}},
            {"append_records": {"stream": world.stream, "records": [{"value": b"v"}]}},
            {"ack_records": member},
            {"write_points": {"measurement": world.measurement, **points()}},
        ],
    }


def _txn() -> Fields:
    one = {"key": b"{k}1"}
    return {
        "conditions": [{**one, "value": {"comparison": 2, "value": b"no"}}],
        "then": [
            {"put": {**one, "value": b"1"}},
            {"get": one},
            {"count": {**one, "add": 1}},
            {"append": {**one, "data": b"0"}},
            {"touch": {**one, "ttl_ms": HOUR_MS}},
            {"set_json": {"key": b"{k}2", "json": b"1"}},
            {"delete": one},
            {"delete_range": {"range": {"prefix": b"{k}"}, "routing_key": b"{k}1"}},
        ],
        "otherwise": [{"get": one}],
    }


def _query() -> Fields:
    return {
        "field": "load", "from_ns": POINT_NS, "to_ns": POINT_NS + MINUTE_NS, "aggregate": 9,
        "parameter": 50.0, "window_ns": 1_000_000_000, "group_by": ["host"], "limit": 100,
        "matchers": [{"tag": "host", "operator": 3, "value": "a|b.*"}],
    }  # fmt: skip


def _own_group(world: World) -> Fields:
    member = world.make_member(shared=False)
    of = {**member, "generation": world.generation}
    world.ask("Stream/FetchRecords", **of)
    return {**of, "places": world.places[:1]}


def _tail(world: World) -> Fields:
    world.make_stream()
    return {
        "streams": [{"stream": world.stream, "from_offset": 0}],
        "filter": {"keys": [b"k"], "headers": [{"name": "h", "value": b"v"}]},
    }


def _json(world: World) -> Fields:
    world.ask("KV/SetJson", key=b"doc", json=b'{"a": [1, {"b": 2}]}')
    steps = [{"member": "a"}, {"element": 1}, {"member": "b"}]
    return {"key": b"doc", "path": {"steps": steps}}


def _redrive_cancel(world: World) -> Fields:
    of = world.make_redrive()
    redrive = world.ask("Queue/Redrive", **of, rate_per_s=1, target_queue=world.queue)
    return {**of, "redrive_id": redrive.redrive_id}


def _schedule(world: World) -> Fields:
    message = {"body": b"new year", "headers": [{"name": "h", "value": b"v"}]}
    return {**world.make_queue(), "cron": "0 0 1 1 *", "message": message}


def _schedule_made(world: World) -> Fields:
    made = world.ask("Queue/CreateSchedule", **_schedule(world))
    return {"queue": world.queue, "schedule_id": made.schedule_id}


def _watch(world: World) -> Fields:
    world.put()
    cursor = {"positions": [{"shard": 0}, {"shard": 1}]}
    one = {"namespace": world.namespace, "owner": 1, "name": b"k", "is_prefix": True}
    return {"cursor": cursor, "filters": [one], "progress_ms": 100, "with_previous": True}


def _session_write(world: World) -> Fields:
    """Return the options of a write in a session of the shard of every name with the tag w."""
    shard = world.ask("KV/Put", key=b"{w}").header.shard
    opened = world.calls.ask("Pipeline/OpenSession", shard=shard, ttl_ms=HOUR_MS)
    session = {"session_id": opened.session_id, "sequence": 1, "first_unacknowledged": 1}
    return {"options": {"session": session, "durability": 1, "with_cost": True}}


def _symbol(_: World) -> Fields:
    return {"file_containing_symbol": "onelog.v1.KV"}


READ = {"options": {"level": 1, "with_cost": True}}
LIMITS = {"versions_max": 4, "value_size_max": 1_000, "keys_max": 100, "tombstones_max": 100}

SAMPLES: dict[str, Callable[[World], Fields]] = {
    "KV/Get": lambda w: {**w.put(), **READ},
    "KV/BatchGet": lambda w: {"keys": [w.put()["key"], b"nothing"], **READ},
    "KV/Put": lambda w: {"key": b"{w}", "value": b"1", "ttl_ms": HOUR_MS, **_session_write(w)},
    "KV/BatchPut": lambda w: {"keys": [b"{b}1", b"{b}2"], "values": [b"1", b"2"]},
    "KV/Delete": lambda w: w.put(),
    "KV/DeleteRange": lambda w: {"range": {"prefix": w.put()["key"]}, "limit": 10},
    "KV/Touch": lambda w: {**w.put(), "ttl_ms": HOUR_MS},
    "KV/Count": lambda w: {**w.put(), "add": 5},
    "KV/Append": lambda w: {**w.put(), "data": b"abc"},
    "KV/GetJson": _json,
    "KV/SetJson": lambda w: {**_json(w), "json": b'{"c": [null]}', "create_parents": True},
    "KV/List": lambda w: {"range": {"prefix": w.put()["key"]}, "limit": 10, **READ},
    "KV/Scan": lambda w: {"range": {"start": w.put()["key"], "end": b"l"}, "limit": 10, **READ},
    "KV/GetHistory": lambda w: w.put(),
    "KV/Txn": lambda w: _txn(),
    "KV/GrantLease": lambda w: {"ttl_ms": HOUR_MS, "routing_key": b"k"},
    "KV/KeepLease": World.make_lease,
    "KV/RevokeLease": World.make_lease,
    "KV/GetLease": World.make_lease,
    "Queue/CreateQueue": lambda w: {
        "queue": w.queue,
        "config": {
            "visibility_ms": 60_000, "ageing_ms": 1_000, "ttl_ms": HOUR_MS,
            "dedup_window_ms": 60_000, "dedup_max": 10, "messages_max": 100, "backoff_ms": [1, 2],
            "tenant_weights": [{"tenant": b"ann", "weight": 3}, {"weight": 2}],
        },
    },
    "Queue/ConfigureQueue": lambda w: {
        **w.make_queue(), "config": {"visibility_ms": 60_000, "dead_letter_queue": w.dead},
    },
    "Queue/DeleteQueue": World.make_queue,
    "Queue/GetQueue": World.make_queue,
    "Queue/ListQueues": lambda w: {"prefix": w.make_queue()["queue"][:1], "page_size": 1},
    "Queue/PauseQueue": lambda w: {**w.make_queue(), "paused": True},
    "Queue/Enqueue": lambda w: {
        **w.make_queue(),
        "messages": [
            {"body": b"1", "dedup_id": b"d", "headers": [{"name": "h", "value": b"v"}]},
            {"body": b"2", "priority": 3, "delay_ms": HOUR_MS, "ttl_ms": 2 * HOUR_MS},
            {"body": b"3", "group": b"g", "tenant": b"t"},
        ],
    },
    "Queue/Lease": lambda w: {**w.make_queue(), "count": 2, "visibility_ms": HOUR_MS},
    "Queue/Consume": lambda w: {**w.make_queue(), "credit": 1, "visibility_ms": HOUR_MS},
    "Queue/Ack": World.make_leases,
    "Queue/Nack": lambda w: {**w.make_leases(), "delay_ms": 0, "reason": "no", "strict": True},
    "Queue/Extend": lambda w: {**w.make_leases(), "visibility_ms": HOUR_MS},
    "Queue/Release": World.make_leases,
    "Queue/Cancel": lambda w: {**w.make_queue(), "message_ids": w.message_ids[:2]},
    "Queue/Prioritise": lambda w: {
        **w.make_queue(), "message_ids": w.message_ids[:2], "priority": 1,
    },
    "Queue/Peek": lambda w: {**w.make_queue(), "limit": 2, "failure_contains": "no"},
    "Queue/Purge": lambda w: {**w.make_queue(), "below_id": w.message_ids[2], "leased_too": True},
    "Queue/Redrive": lambda w: {
        **w.make_redrive(), "target_queue": w.queue, "limit": 2, "failure_contains": "no",
    },
    "Queue/CancelRedrive": _redrive_cancel,
    "Queue/ListRedrives": lambda w: {"queue": _redrive_cancel(w)["queue"]},
    "Queue/CreateSchedule": _schedule,
    "Queue/DeleteSchedule": _schedule_made,
    "Queue/ListSchedules": lambda w: {"queue": _schedule_made(w)["queue"]},
    "Stream/CreateStream": lambda w: {
        "stream": w.stream, "partition_count": 2,
        "retention": {"age_ms": HOUR_MS, "size_max": 1_000_000, "count_max": 1_000},
    },
    "Stream/ConfigureStream": lambda w: {**w.make_stream(), "retention": {"count_max": 10}},
    "Stream/DeleteStream": World.make_stream,
    "Stream/GetStream": World.make_stream,
    "Stream/ListStreams": lambda w: {"prefix": w.make_stream()["stream"][:1], "page_size": 1},
    "Stream/AppendRecords": lambda w: {
        **w.make_stream(),
        "records": [
            {"value": b"1", "key": b"k", "headers": [{"name": "h", "value": b"v"}]},
            {"value": b"2", "partition": 1, "tag": "t"},
        ],
        "producer": {"producer_id": 7, "epoch": 1, "sequence": 1},
    },
    "Stream/ReadRecords": lambda w: {
        **w.make_stream(), "partition": w.places[0]["partition"], "limit": 2,
        "filter": {"keys": [b"k"], "tags": [""]},
    },
    "Stream/Tail": _tail,
    "Stream/Trim": lambda w: {
        **w.make_stream(), "partition": w.places[0]["partition"],
        "below_offset": w.places[1]["offset"],
    },
    "Stream/CreateGroup": lambda w: {
        **w.make_stream(), "group": "g", "from_offset": 0,
        "config": {"shared": True, "max_deliveries": 2, "dead_letter_stream": w.dead_stream},
    },
    "Stream/ConfigureGroup": lambda w: {
        **w.make_group(shared=True),
        "config": {"shared": True, "max_deliveries": 3, "dead_letter_stream": w.dead_stream},
    },
    "Stream/DeleteGroup": World.make_group,
    "Stream/GetGroup": lambda w: {"stream": w.make_pending()["stream"], "group": "g"},
    "Stream/JoinGroup": lambda w: {**w.make_group(), "session_ms": HOUR_MS},
    "Stream/LeaveGroup": World.make_member,
    "Stream/HeartbeatGroup": World.make_member,
    "Stream/FetchRecords": lambda w: {
        **w.make_member(), "generation": w.generation, "limit": 2,
    },
    "Stream/AckRecords": World.make_pending,
    "Stream/NackRecords": lambda w: {**w.make_pending(), "delay_ms": 1, "reason": "no"},
    "Stream/ClaimRecords": lambda w: {
        **w.make_member(), "generation": w.generation, "idle_ms": 1, "limit": 2,
    },
    "Stream/CommitOffsets": _own_group,
    "Stream/SeekGroup": lambda w: {
        **w.make_group(), "partition": w.places[0]["partition"], "offset": w.places[1]["offset"],
    },
    "TimeSeries/CreateMeasurement": lambda w: {
        "measurement": w.measurement,
        "config": {"duplicates": 1, "retention_ms": HOUR_MS, "series_max": 10},
    },
    "TimeSeries/ConfigureMeasurement": lambda w: {
        **w.make_measurement(), "config": {"series_max": 20},
    },
    "TimeSeries/DeleteMeasurement": World.make_measurement,
    "TimeSeries/GetMeasurement": World.make_measurement,
    "TimeSeries/ListMeasurements": lambda w: {
        "prefix": w.make_measurement()["measurement"][:1], "page_size": 1,
    },
    "TimeSeries/WritePoints": lambda w: {**w.make_measurement(), **points()},
    "TimeSeries/ListSeries": lambda w: {
        **w.make_measurement(), "matchers": [{"tag": "host", "operator": 1, "value": "a"}],
    },
    "TimeSeries/DeletePoints": lambda w: {
        **w.make_measurement(), "matchers": [{"tag": "host", "operator": 1, "value": "a"}],
        "first_ns": POINT_NS, "last_ns": POINT_NS + 1,
    },
    "TimeSeries/Query": lambda w: {**w.make_measurement(), **_query()},
    "TimeSeries/SetRule": lambda w: {**w.make_measurement(), "rule": rule(w)},
    "TimeSeries/DeleteRule": lambda w: {**w.make_rule(), "rule": "r"},
    "Pipeline/Execute": lambda w: {
        "request_id": 7, "operations": operations(w), "more": [{"request_id": 9}],
    },
    "Pipeline/ExecuteOnce": lambda w: {"operations": operations(w), "with_cost": True},
    "Pipeline/Transact": transaction,
    "Pipeline/OpenSession": lambda w: {"shard": 1, "ttl_ms": HOUR_MS},
    "Pipeline/KeepSession": World.make_session,
    "Pipeline/CloseSession": World.make_session,
    "Pipeline/Watch": _watch,
    "Log/DescribeLog": lambda w: {"shard": 1},
    "Log/ReadLogFrames": lambda w: {"shard": 0, "first_index": 1, "last_index": 5, "owners": [0]},
    "Log/ReadSnapshot": lambda w: {"shard": 0},
    "Admin/GetStatus": lambda w: {},
    "Admin/ListDamage": lambda w: {},
    "Admin/GetTopology": lambda w: {},
    "Admin/ListMembers": lambda w: {},
    "Admin/AddMember": lambda w: {
        "node_id": w.node_id, "node_name": "n", "peer_address": "127.0.0.1:1",
    },
    "Admin/PromoteMember": World.make_learner,
    "Admin/RemoveMember": World.make_learner,
    "Admin/TransferLeadership": lambda w: {"shard": 1},
    "Admin/TakeSnapshot": lambda w: {"shard": 0},
    "Admin/GetStateHash": lambda w: {"shard": 1},
    "Admin/ListLogRanges": lambda w: {"shard": 1},
    "Admin/ReadLog": lambda w: {
        "shard": 0, "first_index": 1, "last_index": 5, "with_voids": True, "owners": [0, 1],
    },
    "Admin/CreateNamespace": lambda w: {"namespace": f"x{w.namespace}", "limits": LIMITS},
    "Admin/ConfigureNamespace": lambda w: {"namespace": w.namespace, "limits": LIMITS},
    "Admin/DeleteNamespace": lambda w: {"namespace": w.namespace},
    "Admin/ListNamespaces": lambda w: {},
    "Admin/SetHold": lambda w: {
        "name": w.hold, "from_start": True, "ttl_ms": HOUR_MS, "bytes_max": 1 << 30,
    },
    "Admin/ListHolds": lambda w: {},
    "Admin/ReleaseHold": World.make_hold,
    "Health/Check": lambda w: {"service": "onelog.v1.KV"},
    "Health/List": lambda w: {},
    "Health/Watch": lambda w: {"service": "onelog.v1.KV"},
    "ServerReflection/ServerReflectionInfo": _symbol,
}  # fmt: skip

# What a cluster of one node cannot do: a valid request is refused all the same.
NEVER_ACCEPTED = frozenset(("Admin/PromoteMember", "Admin/TransferLeadership"))
