"""Bad input for every call of the Queue service: a stable reason, and nothing written."""

from pathlib import Path
from typing import Any, cast

from onelog import errors
from onelog.errors import choose_class
from onelog.projections.reasons import Reason
from onelog.reasons import find_class
from onelog.v1 import common_pb2
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import refusal
from tests.node.services.queues import Jobs, on_a_node

LONG_NAME = "n" * 129
CENTURY_MS = 101 * 366 * 86_400_000
WEEK_MS = 8 * 86_400_000
HUGE = 2**64 - 1
JOBS: dict[str, Any] = {"queue": "jobs"}
ONE = [q.Leased(message_id=1, token=1)]
MANY = [q.Leased(message_id=1, token=1)] * 1001
BAD_SESSION = common_pb2.WriteOptions(session=common_pb2.Session(session_id=3))
AS_OF = common_pb2.ReadOptions(as_of_index=10**9)

OF_A_QUEUE: list[tuple[str, type, dict[str, Any]]] = [
    ("ConfigureQueue", q.ConfigureQueueRequest, {}),
    ("DeleteQueue", q.DeleteQueueRequest, {}),
    ("GetQueue", q.GetQueueRequest, {}),
    ("PauseQueue", q.PauseQueueRequest, {}),
    ("Enqueue", q.EnqueueRequest, {"messages": [q.NewMessage()]}),
    ("Lease", q.LeaseRequest, {}),
    ("Lease", q.LeaseRequest, {"wait_ms": 50_000}),
    ("Ack", q.AckRequest, {"messages": ONE}),
    ("Nack", q.NackRequest, {"messages": ONE}),
    ("Extend", q.ExtendRequest, {"messages": ONE}),
    ("Release", q.ReleaseRequest, {"messages": ONE}),
    ("Cancel", q.CancelRequest, {"message_ids": [1]}),
    ("Prioritise", q.PrioritiseRequest, {"message_ids": [1]}),
    ("Peek", q.PeekRequest, {}),
    ("Purge", q.PurgeRequest, {}),
    ("Redrive", q.RedriveRequest, {}),
    ("CancelRedrive", q.CancelRedriveRequest, {"redrive_id": 1}),
    ("CreateSchedule", q.CreateScheduleRequest, {"cron": "* * * * *"}),
    ("DeleteSchedule", q.DeleteScheduleRequest, {"schedule_id": 1}),
    ("ListSchedules", q.ListSchedulesRequest, {}),
    ("ListRedrives", q.ListRedrivesRequest, {}),
]
NAMES = [
    (method, make(**fields, **name), reason)
    for method, make, fields in [*OF_A_QUEUE, ("CreateQueue", q.CreateQueueRequest, {})]
    for name, reason in (
        ({"queue": ""}, "QUEUE_NAME_INVALID"),
        ({"queue": LONG_NAME}, "QUEUE_NAME_INVALID"),
        ({"queue": "jobs", "namespace": LONG_NAME}, "NAMESPACE_NAME_INVALID"),
    )
]
UNKNOWN = [
    (method, make(**fields, **name), reason)
    for method, make, fields in OF_A_QUEUE
    for name, reason in (
        ({"queue": "nowhere"}, "QUEUE_UNKNOWN"),
        ({"queue": "jobs", "namespace": "nowhere"}, "NAMESPACE_UNKNOWN"),
    )
]
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"priority": 16}, "PRIORITY_INVALID"),
    ({"priority": 2**32 - 1}, "PRIORITY_INVALID"),
    ({"ttl_ms": CENTURY_MS}, "TTL_INVALID"),
    ({"ttl_ms": HUGE}, "TTL_INVALID"),
    ({"group": b"g" * 129}, "MESSAGE_KEY_INVALID"),
    ({"tenant": b"t" * 300}, "MESSAGE_KEY_INVALID"),
    ({"headers": [q.Header(name="dlq.x")]}, "HEADER_INVALID"),
    ({"headers": [q.Header()]}, "HEADER_INVALID"),
    ({"headers": [q.Header(name="n" * 129)]}, "HEADER_INVALID"),
    ({"headers": [q.Header(name="n", value=bytes(4097))]}, "HEADER_INVALID"),
    ({"headers": [q.Header(name="n")] * 65}, "HEADER_INVALID"),
    ({"body": bytes((8 << 20) - (64 << 10) + 1)}, "MESSAGE_TOO_LARGE"),
]
DELAYS: list[tuple[dict[str, Any], str]] = [
    ({"dedup_id": b"d" * 129}, "MESSAGE_KEY_INVALID"),
    ({"delay_ms": CENTURY_MS}, "DELAY_INVALID"),
    ({"delay_ms": HUGE}, "DELAY_INVALID"),
    ({"at_ns": HUGE}, "DELAY_INVALID"),
    ({"at_ns": 1, "delay_ms": 1}, "DELAY_INVALID"),
]
BAD_MESSAGES = [
    (
        "Enqueue",
        q.EnqueueRequest(**JOBS, messages=[q.NewMessage(body=b"good"), q.NewMessage(**fields)]),
        reason,
    )
    for fields, reason in (*MESSAGES, *DELAYS)
]
BAD_SCHEDULES = [
    (
        "CreateSchedule",
        q.CreateScheduleRequest(**JOBS, cron=cron, message=q.NewMessage(**fields)),
        reason,
    )
    for cron, fields, reason in [
        *(("* * * * *", fields, reason) for fields, reason in MESSAGES),
        *(("* * * * *", fields, "SCHEDULE_MESSAGE_INVALID") for fields, _ in DELAYS),
        ("", {}, "CRON_INVALID"),
        ("60 * * * *", {}, "CRON_INVALID"),
        ("* * * *", {}, "CRON_INVALID"),
        ("every day", {}, "CRON_INVALID"),
        ("*" * 300, {}, "CRON_INVALID"),
    ]
]
BAD_CONFIGS = [
    (method, make(queue="new" if method == "CreateQueue" else "jobs", config=config), reason)
    for method, make in (
        ("CreateQueue", q.CreateQueueRequest),
        ("ConfigureQueue", q.ConfigureQueueRequest),
    )
    for config, reason in (
        (q.QueueConfig(max_deliveries=2), "DEAD_QUEUE_INVALID"),
        (q.QueueConfig(dead_letter_queue="nowhere"), "DEAD_QUEUE_INVALID"),
        (q.QueueConfig(dead_letter_queue=LONG_NAME), "QUEUE_NAME_INVALID"),
        (
            q.QueueConfig(max_deliveries=65_536, dead_letter_queue="jobs"),
            "QUEUE_CONFIG_INVALID",
        ),
        (q.QueueConfig(visibility_ms=WEEK_MS), "QUEUE_CONFIG_INVALID"),
        (q.QueueConfig(visibility_ms=HUGE), "QUEUE_CONFIG_INVALID"),
        (q.QueueConfig(ageing_ms=HUGE), "QUEUE_CONFIG_INVALID"),
        (q.QueueConfig(ttl_ms=CENTURY_MS), "QUEUE_CONFIG_INVALID"),
        (q.QueueConfig(dedup_window_ms=HUGE), "QUEUE_CONFIG_INVALID"),
        (q.QueueConfig(dedup_max=1_000_001), "QUEUE_CONFIG_INVALID"),
        (q.QueueConfig(backoff_ms=[HUGE]), "QUEUE_CONFIG_INVALID"),
        (q.QueueConfig(backoff_ms=[1] * 17), "QUEUE_CONFIG_INVALID"),
        (q.QueueConfig(backoff_ms=[1] * 300), "QUEUE_CONFIG_INVALID"),
    )
]
BAD_SETTLES = [
    (method, cast(Any, make)(**JOBS, **{field: items}), "LIMIT_INVALID")
    for method, make, field in (
        ("Ack", q.AckRequest, "messages"),
        ("Nack", q.NackRequest, "messages"),
        ("Extend", q.ExtendRequest, "messages"),
        ("Release", q.ReleaseRequest, "messages"),
        ("Cancel", q.CancelRequest, "message_ids"),
        ("Prioritise", q.PrioritiseRequest, "message_ids"),
    )
    for items in ([], MANY if field == "messages" else [1] * 1001)
]
OTHERS = [
    ("Enqueue", q.EnqueueRequest(**JOBS), "LIMIT_INVALID"),
    ("Enqueue", q.EnqueueRequest(**JOBS, messages=[q.NewMessage()] * 1001), "LIMIT_INVALID"),
    (
        "Enqueue",
        q.EnqueueRequest(**JOBS, messages=[q.NewMessage(body=bytes(3 << 20))] * 3),
        "TOO_LARGE",
    ),
    ("Enqueue", q.EnqueueRequest(**JOBS, messages=[q.NewMessage()], options=BAD_SESSION),
     "SEQUENCE_INVALID"),
    ("Enqueue", q.EnqueueRequest(
        **JOBS, messages=[q.NewMessage()],
        options=common_pb2.WriteOptions(durability=cast(Any, 9)),
    ), "DURABILITY_INVALID"),
    ("Lease", q.LeaseRequest(**JOBS, count=1001), "LIMIT_INVALID"),
    ("Lease", q.LeaseRequest(**JOBS, visibility_ms=WEEK_MS), "VISIBILITY_INVALID"),
    ("Lease", q.LeaseRequest(**JOBS, visibility_ms=HUGE), "VISIBILITY_INVALID"),
    ("Lease", q.LeaseRequest(**JOBS, wait_ms=60_001), "WAIT_INVALID"),
    ("Lease", q.LeaseRequest(**JOBS, wait_ms=HUGE), "WAIT_INVALID"),
    ("Extend", q.ExtendRequest(**JOBS, messages=ONE, visibility_ms=HUGE), "VISIBILITY_INVALID"),
    ("Nack", q.NackRequest(**JOBS, messages=ONE, delay_ms=HUGE), "DELAY_INVALID"),
    ("Nack", q.NackRequest(**JOBS, messages=ONE, reason="r" * 257), "FAILURE_TOO_LARGE"),
    ("Prioritise", q.PrioritiseRequest(**JOBS, message_ids=[1], priority=16), "PRIORITY_INVALID"),
    ("Peek", q.PeekRequest(**JOBS, limit=1001), "LIMIT_INVALID"),
    ("Peek", q.PeekRequest(**JOBS, options=AS_OF), "INDEX_IN_FUTURE"),
    ("GetQueue", q.GetQueueRequest(**JOBS, options=AS_OF), "INDEX_IN_FUTURE"),
    ("Redrive", q.RedriveRequest(**JOBS, target_queue="nowhere"), "QUEUE_UNKNOWN"),
    ("Redrive", q.RedriveRequest(**JOBS, target_queue=LONG_NAME), "QUEUE_NAME_INVALID"),
    ("Redrive", q.RedriveRequest(**JOBS, failure_contains="f" * 129), "FAILURE_TOO_LARGE"),
    ("ListQueues", q.ListQueuesRequest(page_size=1001), "LIMIT_INVALID"),
    ("ListQueues", q.ListQueuesRequest(prefix=LONG_NAME), "QUEUE_NAME_INVALID"),
    ("ListQueues", q.ListQueuesRequest(namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    ("ListQueues", q.ListQueuesRequest(namespace="nowhere"), "NAMESPACE_UNKNOWN"),
    *(
        ("ListQueues", q.ListQueuesRequest(page_token=token), "PAGE_TOKEN_INVALID")
        for token in (b"x", b"\x01", b"\x01\xff", b"\x01" + b"n" * 129, b"\x02name")
    ),
]  # fmt: skip
CLASSES = {
    "UNKNOWN": errors.NotFound,
    "INVALID": errors.InvalidArgument,
    "LARGE": errors.TooLarge,
    "FUTURE": errors.OutOfRange,
}


def test_bad_input_has_a_stable_reason_and_nothing_is_written(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        before = jobs.last_index
        for method, request, reason in [
            *NAMES, *UNKNOWN, *BAD_MESSAGES, *BAD_SCHEDULES, *BAD_CONFIGS, *BAD_SETTLES, *OTHERS,
        ]:  # fmt: skip
            error = await refusal(getattr(jobs.stub, method)(request))
            assert error.reason == reason, (method, request, error)
            assert isinstance(error, CLASSES[reason.rpartition("_")[2]]), error
            assert jobs.last_index == before, (method, request)
        error = await refusal(jobs.stub.Enqueue(BAD_MESSAGES[0][1]))
        assert error.metadata["position"] == "1"

    on_a_node(tmp_path, test)


def test_streams_refuse_bad_input_too(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        before = jobs.last_index
        for request, reason in (
            (q.ConsumeRequest(), "QUEUE_NAME_INVALID"),
            (q.ConsumeRequest(queue="nowhere"), "QUEUE_UNKNOWN"),
            (q.ConsumeRequest(**JOBS, namespace="nowhere"), "NAMESPACE_UNKNOWN"),
            (q.ConsumeRequest(**JOBS, namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
            (q.ConsumeRequest(**JOBS, credit=10_001), "LIMIT_INVALID"),
            (q.ConsumeRequest(**JOBS, consumer_id=b"c" * 129), "MESSAGE_KEY_INVALID"),
            (q.ConsumeRequest(**JOBS, visibility_ms=HUGE), "VISIBILITY_INVALID"),
        ):
            assert (await refusal(jobs.stub.Consume(request).read())).reason == reason
        assert jobs.last_index == before

    on_a_node(tmp_path, test)


def test_bad_operations_of_a_message_are_refused_one_by_one(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        cases = {
            "QUEUE_UNKNOWN": {"lease": q.LeaseRequest(queue="nowhere")},
            "WAIT_INVALID": {"lease": q.LeaseRequest(**JOBS, wait_ms=1)},
            "LIMIT_INVALID": {"ack": q.AckRequest(**JOBS)},
            "PRIORITY_INVALID": {
                "enqueue": q.EnqueueRequest(**JOBS, messages=[q.NewMessage(priority=99)])
            },
            "QUEUE_NAME_INVALID": {"enqueue": q.EnqueueRequest()},
        }
        operations = [pipeline.Operation(**cast(Any, case)) for case in cases.values()]
        good = q.EnqueueRequest(**JOBS, messages=[q.NewMessage(body=b"good")])
        operations.append(pipeline.Operation(enqueue=good))
        before = jobs.last_index
        answer = await jobs.node.pipeline.ExecuteOnce(
            pipeline.ExecuteRequest(operations=operations)
        )
        reasons = [result.error.reason for result in answer.results]
        assert reasons == [*cases, ""]
        assert jobs.last_index == before + 1
        assert answer.results[-1].enqueue.results[0].message_id == before + 1

    on_a_node(tmp_path, test)


def test_reasons_are_the_same_class_on_both_sides() -> None:
    for reason in Reason:
        kind = find_class(reason.name)
        assert choose_class(kind.code, reason.name) is kind, reason.name
