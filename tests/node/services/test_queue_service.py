"""Every call of the Queue service, and every feature of queues, through the API."""

import time
from pathlib import Path
from typing import Any

from onelog import errors
from onelog.v1 import queue_pb2 as q
from tests.node.services.nodes import eventually, refusal, run, single
from tests.node.services.queues import Jobs, headers, on_a_node

FAR_NS = 3600 * 10**9


def test_a_queue_is_created_configured_shown_listed_and_deleted(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        queue_id = (await jobs.info()).queue_id
        again = await refusal(jobs.create())
        assert isinstance(again, errors.AlreadyExists)
        assert again.reason == "QUEUE_EXISTS"
        dead = jobs.other("dead")
        await dead.create()
        config = q.QueueConfig(
            max_deliveries=3,
            dead_letter_queue="dead",
            visibility_ms=5_000,
            ageing_ms=60_000,
            ttl_ms=70_000,
            dedup_window_ms=80_000,
            dedup_max=9,
            messages_max=10,
            backoff_ms=[1, 2, 3],
        )
        await jobs.stub.ConfigureQueue(q.ConfigureQueueRequest(queue="jobs", config=config))
        info = await jobs.info()
        assert (info.queue, info.queue_id, info.config) == ("jobs", queue_id, config)
        in_use = await refusal(jobs.stub.DeleteQueue(q.DeleteQueueRequest(queue="dead")))
        assert in_use.reason == "QUEUE_IN_USE"
        assert in_use.message == "the queue 'jobs' sends its dead letters there (queue 'dead')"
        for name in ("jobs", "dead"):
            await jobs.stub.DeleteQueue(q.DeleteQueueRequest(queue=name))
        gone = await refusal(jobs.info())
        assert isinstance(gone, errors.NotFound)
        assert (gone.reason, gone.metadata["queue"]) == ("QUEUE_UNKNOWN", "jobs")
        assert await jobs.create() > queue_id

    on_a_node(tmp_path, test)


def test_queues_of_all_shards_are_listed_by_name_a_page_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=3) as node:
            names = sorted(f"queue {number}" for number in range(23))
            for name in (*names, "other"):
                await Jobs(node, name).create()
            for size in (1, 5, 23, 100):
                found, token = [], b""
                while True:
                    page = await node.queue.ListQueues(
                        q.ListQueuesRequest(prefix="queue ", page_size=size, page_token=token)
                    )
                    assert len(page.queues) <= size
                    found += [info.queue for info in page.queues]
                    token = page.next_page_token
                    if not token:
                        break
                assert found == names
            everything = await node.queue.ListQueues(q.ListQueuesRequest())
            assert [info.queue for info in everything.queues] == ["other", *names]

    run(test())


def test_a_lease_is_extended_released_and_runs_out(tmp_path: Path) -> None:
    """D1: a lease lasts, can be extended, and a message that is not settled comes again."""

    async def test(jobs: Jobs) -> None:
        (message_id,) = await jobs.send(b"work", headers=[q.Header(name="by", value=b"ann")])
        (message,) = await jobs.lease(visibility_ms=60_000)
        assert (message.message_id, message.body) == (message_id, b"work")
        assert headers(message) == {"by": b"ann"}
        assert (message.priority, message.delivery_count) == (8, 1)
        assert message.lease_expires_ns - message.enqueued_ns >= 60 * 10**9
        extended = await jobs.stub.Extend(
            q.ExtendRequest(**jobs.leased([message]), visibility_ms=3_600_000)
        )
        assert [result.reason for result in extended.results] == [""]
        (seen,) = await jobs.peek()
        assert seen.lease_expires_ns - message.lease_expires_ns > 3_000 * 10**9
        assert (seen.state, seen.token) == (q.MESSAGE_STATE_LEASED, message.token)
        assert await jobs.lease() == []
        await jobs.stub.Release(q.ReleaseRequest(**jobs.leased([message])))
        (again,) = await jobs.lease(visibility_ms=1)
        assert (again.delivery_count, again.message_id) == (1, message_id)
        (third,) = await jobs.lease(wait_ms=20_000)
        assert (third.delivery_count, third.body) == (2, b"work")
        assert third.token > again.token > message.token

    on_a_node(tmp_path, test)


def test_a_token_that_is_not_valid_any_more_settles_nothing(tmp_path: Path) -> None:
    """D2: ack, nack, extend and release are fenced by the token of the lease."""

    async def test(jobs: Jobs) -> None:
        await jobs.send(b"a", b"b")
        stale = await jobs.lease(2, visibility_ms=1)
        fresh = await eventually(lambda: _some(jobs, 2))
        for method, request in (
            ("Ack", q.AckRequest(**jobs.leased(stale[:1]))),
            ("Nack", q.NackRequest(**jobs.leased(stale[:1]))),
            ("Extend", q.ExtendRequest(**jobs.leased(stale[:1]))),
            ("Release", q.ReleaseRequest(**jobs.leased(stale[:1]))),
            ("Ack", q.AckRequest(**jobs.leased([*fresh, stale[1]]), strict=True)),
        ):
            error = await refusal(getattr(jobs.stub, method)(request))
            assert isinstance(error, errors.LeaseLost), (method, error)
            assert error.reason == "LEASE_TOKEN_STALE"
        mixed = await jobs.ack([fresh[0], stale[1]])
        assert mixed == ["", "LEASE_TOKEN_STALE"]
        gone = await refusal(jobs.stub.Ack(q.AckRequest(**jobs.leased(fresh[:1]))))
        assert isinstance(gone, errors.NotFound)
        assert gone.reason == "MESSAGE_UNKNOWN"
        assert await jobs.ack(fresh[1:]) == [""]

    on_a_node(tmp_path, test)


async def _some(jobs: Jobs, count: int) -> list[q.Message]:
    """Lease so many at once; what is too few is given back."""
    messages = await jobs.lease(count, visibility_ms=60_000)
    if messages and len(messages) < count:
        await jobs.stub.Release(q.ReleaseRequest(**jobs.leased(messages)))
    assert len(messages) == count
    return messages


def test_the_most_urgent_message_comes_first(tmp_path: Path) -> None:
    """D3: sixteen priorities; inside of one the oldest first."""

    async def test(jobs: Jobs) -> None:
        for body, priority in ((b"low", 15), (b"high", 0), (b"mid 1", 7), (b"mid 2", 7)):
            await jobs.send(body, priority=priority)
        await jobs.send(b"usual")
        assert await jobs.bodies() == [b"high", b"mid 1", b"mid 2", b"usual", b"low"]

    on_a_node(tmp_path, test)


def test_waiting_makes_up_for_priority_where_that_is_set(tmp_path: Path) -> None:
    """D4: with ageing an old message of low priority outranks a new one of high priority."""

    async def test(jobs: Jobs) -> None:
        aged, strict = jobs.other("aged"), jobs.other("strict")
        await aged.create(ageing_ms=1)
        await strict.create()
        for queue in (aged, strict):
            (first,) = await queue.send(b"old and low", priority=9)
            (old,) = await queue.peek(from_id=first)

            async def is_later(old: q.Message = old) -> None:
                (probe,) = await jobs.send(b"")
                (seen,) = await jobs.peek(from_id=probe, limit=1)
                assert seen.enqueued_ns > old.enqueued_ns + 9 * 10**6

            await eventually(is_later)
            await queue.send(b"new and high", priority=0)
        assert await aged.bodies() == [b"old and low", b"new and high"]
        assert await strict.bodies() == [b"new and high", b"old and low"]

    on_a_node(tmp_path, test)


def test_messages_wait_for_a_delay_or_a_time(tmp_path: Path) -> None:
    """D5: delay, absolute time."""

    async def test(jobs: Jobs) -> None:
        await jobs.send(b"delayed", delay_ms=20)
        await jobs.send(b"timed", at_ns=time.time_ns() + 60 * 10**6)
        await jobs.send(b"past", at_ns=1)
        await jobs.send(b"far", delay_ms=3_600_000)
        waiting = {each.body: each for each in await jobs.peek()}
        assert waiting[b"far"].state == q.MESSAGE_STATE_DELAYED
        assert waiting[b"far"].due_ns - waiting[b"far"].enqueued_ns == FAR_NS
        found = [body for _ in range(3) for body in await jobs.bodies(1, wait_ms=20_000)]
        assert sorted(found) == [b"delayed", b"past", b"timed"]
        assert (await jobs.info()).delayed_count == 1

    on_a_node(tmp_path, test)


def test_a_schedule_sends_its_message_when_its_minute_comes(tmp_path: Path) -> None:
    """D5: cron, in UTC."""

    async def test(jobs: Jobs) -> None:
        stub = jobs.stub
        message = q.NewMessage(body=b"tick", headers=[q.Header(name="h", value=b"v")])
        request = q.CreateScheduleRequest(queue="jobs", cron="*/5 * * * *", message=message)
        schedule = (await stub.CreateSchedule(request)).schedule_id
        listed = await stub.ListSchedules(q.ListSchedulesRequest(queue="jobs"))
        ((shown_id, cron, next_ns),) = [
            (each.schedule_id, each.cron, each.next_ns) for each in listed.schedules
        ]
        assert (shown_id, cron, next_ns % (300 * 10**9)) == (schedule, "*/5 * * * *", 0)
        # Minutes are not ours to wait for: the log's clock is put forward.
        log_time = jobs.node.context.drivers[0].shard.log_time
        log_time._now_ns = max(log_time._now_ns, next_ns)
        (tick,) = await jobs.lease(wait_ms=20_000)
        assert (tick.body, headers(tick)) == (b"tick", {"h": b"v"})
        assert tick.enqueued_ns >= next_ns
        delete = q.DeleteScheduleRequest(queue="jobs", schedule_id=schedule)
        await stub.DeleteSchedule(delete)
        assert not (await stub.ListSchedules(q.ListSchedulesRequest(queue="jobs"))).schedules
        assert (await refusal(stub.DeleteSchedule(delete))).reason == "SCHEDULE_UNKNOWN"

    on_a_node(tmp_path, test)


def test_failures_wait_longer_each_time(tmp_path: Path) -> None:
    """D6: the queue's backoff says when a failed message comes again."""

    async def test(jobs: Jobs) -> None:
        queue = jobs.other("retries")
        await queue.create(backoff_ms=[1, 3_600_000])
        await queue.send(b"flaky")
        (first,) = await queue.lease()
        assert await queue.nack([first], reason="no") == [False]
        (second,) = await queue.lease(wait_ms=20_000)
        assert second.delivery_count == 2
        await queue.nack([second])
        (waiting,) = await queue.peek()
        assert waiting.due_ns > waiting.enqueued_ns + FAR_NS // 2
        await queue.send(b"impatient")
        (third,) = await queue.lease()
        await queue.nack([third], delay_ms=0)
        assert await queue.bodies() == [b"impatient"]

    on_a_node(tmp_path, test)


def test_what_fails_too_often_is_kept_as_a_dead_letter(tmp_path: Path) -> None:
    """D7: after max_deliveries a message moves to the dead letters and is never lost there."""

    async def test(jobs: Jobs) -> None:
        dead, queue = jobs.other("dead"), jobs.other("work")
        await dead.create(messages_max=1)
        await queue.create(max_deliveries=2, dead_letter_queue="dead", ttl_ms=60_000)
        ids = await queue.send(b"x", b"y", headers=[q.Header(name="own", value=b"1")])
        assert await queue.nack(await queue.lease(2), reason="first") == [False, False]
        assert await queue.nack(await queue.lease(2), reason="last") == [True, True]
        letters = await dead.lease(10)
        assert [each.message_id for each in letters] == ids
        found = headers(letters[0])
        failed_ns = int(found.pop("dlq.last_failure"))
        assert failed_ns > letters[0].enqueued_ns
        assert found == {
            "own": b"1",
            "dlq.original_msg_id": str(ids[0]).encode(),
            "dlq.retry_count": b"2",
            "dlq.failure_reason": b"last",
        }
        info, dead_info = await queue.info(), await dead.info()
        assert (info.enqueued_count, info.dead_count) == (2, 2)
        assert (dead_info.arrived_count, dead_info.leased_count) == (2, 2)
        # Dead through leases that ran out, too.
        (lost,) = await queue.send(b"lost")
        for _ in range(2):
            await queue.lease(visibility_ms=1, wait_ms=20_000)
        (letter,) = await dead.lease(wait_ms=20_000)
        assert (letter.message_id, headers(letter)["dlq.failure_reason"]) == (
            lost, b"lease expired",
        )  # fmt: skip

    on_a_node(tmp_path, test)


def test_dead_letters_are_listed_and_redriven_with_a_filter_and_a_rate(tmp_path: Path) -> None:
    """D8: redrive by reason, limit and rate, to where they came from or elsewhere."""

    async def test(jobs: Jobs) -> None:
        dead, queue, spare = jobs.other("dead"), jobs.other("work"), jobs.other("spare")
        await dead.create()
        await spare.create()
        await queue.create(max_deliveries=1, dead_letter_queue="dead")
        for number in range(6):
            await queue.send(b"%d" % number)
            await queue.nack(await queue.lease(), reason="odd" if number % 2 else "even")
        peeked = await dead.peek(limit=100)
        assert [headers(each)["dlq.failure_reason"] for each in peeked] == [b"even", b"odd"] * 3
        stub = jobs.stub
        await stub.Redrive(q.RedriveRequest(queue="dead", failure_contains="odd", limit=2))
        back = await queue.lease(10)
        assert [(each.body, each.delivery_count) for each in back] == [(b"1", 1), (b"3", 1)]
        assert headers(back[0])["dlq.failure_reason"] == b"odd"
        await stub.Redrive(
            q.RedriveRequest(queue="dead", target_queue="spare", first_id=peeked[4].message_id)
        )
        assert await spare.bodies() == [b"4", b"5"]
        slow = await stub.Redrive(q.RedriveRequest(queue="dead", rate_per_s=1))
        assert slow.redrive_id == slow.header.index
        assert await queue.bodies() == [b"0"]
        cancel = q.CancelRedriveRequest(queue="dead", redrive_id=slow.redrive_id)
        await stub.CancelRedrive(cancel)
        assert (await refusal(stub.CancelRedrive(cancel))).reason == "REDRIVE_UNKNOWN"
        info = await dead.info()
        assert (info.arrived_count, info.moved_count, info.ready_count) == (6, 5, 1)

    on_a_node(tmp_path, test)


def test_running_redrives_are_listed_with_their_progress(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        dead, queue, gone = jobs.other("dead"), jobs.other("work"), jobs.other("gone")
        await dead.create()
        for each in (queue, gone):
            await each.create(max_deliveries=1, dead_letter_queue="dead")
            await each.send(*(b"%d" % number for number in range(6)))
            for number in range(6):
                await each.nack(await each.lease(), reason="odd" if number % 2 else "even")
        stub = jobs.stub
        await stub.DeleteQueue(q.DeleteQueueRequest(queue="gone"))
        listing = q.ListRedrivesRequest(queue="dead")
        assert not (await stub.ListRedrives(listing)).redrives
        asked: dict[str, Any] = {
            "failure_contains": "odd",
            "rate_per_s": 1,
            "limit": 9,
            "failed_from_ns": 5,
        }
        first = await stub.Redrive(q.RedriveRequest(queue="dead", **asked))
        ids = [each.message_id for each in await dead.peek(limit=100)]
        last = await stub.Redrive(
            q.RedriveRequest(queue="dead", target_queue="jobs", rate_per_s=1, last_id=ids[2])
        )
        one, two = (await stub.ListRedrives(listing)).redrives
        assert (one.redrive_id, two.redrive_id) == (first.redrive_id, last.redrive_id)
        for name, value in asked.items():
            assert getattr(one, name) == value
        assert (one.target_queue, one.target_queue_id, one.last_id, one.failed_until_ns) == (
            "", 0, 0, 0,
        )  # fmt: skip
        assert (two.target_queue, two.limit, two.last_id) == ("jobs", 0, ids[2])
        assert two.target_queue_id == (await jobs.info()).queue_id
        assert one.started_ns <= two.started_ns < two.next_ns
        # What died in a queue that is gone stays, unless it goes elsewhere.
        assert one.moved_count + one.remaining_count in (2, 3)
        assert one.remaining_count + one.moved_count + two.moved_count >= 3
        assert not one.remaining_is_partial
        await jobs.stub.DeleteQueue(q.DeleteQueueRequest(queue="jobs"))
        (two,) = [
            each
            for each in (await stub.ListRedrives(listing)).redrives
            if each.redrive_id == last.redrive_id
        ]
        assert (two.target_queue, two.remaining_count) == ("", 0)
        assert two.target_queue_id
        for each in (first, last):
            cancel = q.CancelRedriveRequest(queue="dead", redrive_id=each.redrive_id)
            await stub.CancelRedrive(cancel)
        assert not (await stub.ListRedrives(listing)).redrives

    on_a_node(tmp_path, test)


def test_dead_letters_are_shown_by_their_cause(tmp_path: Path) -> None:
    async def test(jobs: Jobs) -> None:
        dead, queue = jobs.other("dead"), jobs.other("work")
        await dead.create()
        await queue.create(max_deliveries=1, dead_letter_queue="dead")
        for number in range(6):
            await queue.send(b"%d" % number)
            reason = "timeout of 5 s" if number % 3 == 1 else "no such user"
            await queue.nack(await queue.lease(), reason=reason)
        await dead.send(b"no dead letter")
        found = await dead.peek(limit=100, failure_contains="timeout")
        assert [each.body for each in found] == [b"1", b"4"]
        page = await jobs.stub.Peek(
            q.PeekRequest(queue="dead", limit=1, failure_contains="timeout")
        )
        assert [each.body for each in page.messages] == [b"1"]
        assert found[0].message_id < page.next_id <= found[1].message_id
        assert not await dead.peek(limit=100, failure_contains="Timeout")
        assert len(await dead.peek(limit=100)) == 7
        long = q.PeekRequest(queue="dead", failure_contains="x" * 129)
        assert (await refusal(jobs.stub.Peek(long))).reason == "FAILURE_TOO_LARGE"

    on_a_node(tmp_path, test)


def test_a_dedup_id_makes_two_messages_one(tmp_path: Path) -> None:
    """D9: within the window the second message is the first."""

    async def test(jobs: Jobs) -> None:
        (first,) = await jobs.send(b"once", dedup_id=b"order 7")
        request = q.EnqueueRequest(
            queue="jobs",
            messages=[
                q.NewMessage(body=b"twice", dedup_id=b"order 7"),
                q.NewMessage(body=b"other", dedup_id=b"order 8"),
            ],
        )
        answer = await jobs.stub.Enqueue(request)
        assert [(each.message_id == first, each.deduplicated) for each in answer.results] == [
            (True, True), (False, False),
        ]  # fmt: skip
        assert await jobs.bodies() == [b"once", b"other"]
        assert (await jobs.info()).deduplicated_count == 1

    on_a_node(tmp_path, test)


def test_groups_are_in_order_and_side_by_side(tmp_path: Path) -> None:
    """D10: one message of a group at a time, groups at the same time."""

    async def test(jobs: Jobs) -> None:
        for body, group in ((b"a1", b"a"), (b"a2", b"a"), (b"b1", b"b"), (b"a3", b"a")):
            await jobs.send(body, group=group)
        first = await jobs.lease(10)
        assert [(each.body, each.group) for each in first] == [(b"a1", b"a"), (b"b1", b"b")]
        assert await jobs.lease() == []
        await jobs.ack(first[:1])
        (second,) = await jobs.lease(10)
        await jobs.nack([second], delay_ms=0)
        (again,) = await jobs.lease(10)
        assert (again.body, again.delivery_count) == (b"a2", 2)

    on_a_node(tmp_path, test)


def test_tenants_have_equal_shares(tmp_path: Path) -> None:
    """D11: the flood of one tenant delays its own messages only."""

    async def test(jobs: Jobs) -> None:
        await jobs.send(*(b"flood %d" % number for number in range(50)), tenant=b"big")
        await jobs.send(b"mine", tenant=b"small")
        taken = [message for _ in range(3) for message in await jobs.lease()]
        assert {b"mine", b"flood 0"} <= {each.body for each in taken}
        assert {each.tenant for each in taken} == {b"big", b"small"}

    on_a_node(tmp_path, test)


def test_tenants_have_shares_by_their_weights(tmp_path: Path) -> None:
    """D11: as configured, as shown, and as delivered; anything else is refused."""

    async def test(jobs: Jobs) -> None:
        def weights(*given: tuple[bytes, int]) -> q.QueueConfig:
            return q.QueueConfig(
                tenant_weights=[q.TenantWeight(tenant=each, weight=n) for each, n in given]
            )

        async def configure(*given: tuple[bytes, int]) -> None:
            request = q.ConfigureQueueRequest(queue="jobs", config=weights(*given))
            await jobs.stub.ConfigureQueue(request)

        await configure((b"c", 3), (b"a", 2), (b"b", 1), (b"", 2))
        shown = (await jobs.info()).config.tenant_weights
        assert [(each.tenant, each.weight) for each in shown] == [(b"", 2), (b"a", 2), (b"c", 3)]
        for tenant in (b"", b"a", b"b", b"c"):
            await jobs.send(*[b"job"] * 40, tenant=tenant)
        taken = [each.tenant for count in (1, 2, 5, 8, 80) for each in await jobs.lease(count)]
        counts = {tenant: taken.count(tenant) for tenant in (b"", b"a", b"b", b"c")}
        assert counts == {b"": 24, b"a": 24, b"b": 12, b"c": 36}
        await configure()
        assert not (await jobs.info()).config.tenant_weights
        for given in (
            [(b"a", 0)],
            [(b"a", 1_001)],
            [(b"x" * 129, 2)],
            [(b"a", 2), (b"a", 3)],
            [(b"%d" % number, 2) for number in range(101)],
        ):
            other = q.CreateQueueRequest(queue="other", config=weights(*given))
            error = await refusal(jobs.stub.CreateQueue(other))
            assert error.reason == "QUEUE_CONFIG_INVALID"

    on_a_node(tmp_path, test)


def test_messages_live_no_longer_than_their_time(tmp_path: Path) -> None:
    """D13: a lifetime of a message, or of all of a queue."""

    async def test(jobs: Jobs) -> None:
        queue = jobs.other("short")
        await queue.create(ttl_ms=5)
        await queue.send(b"as the queue says")
        await queue.send(b"its own", ttl_ms=3_600_000)
        await jobs.send(b"short", ttl_ms=5)

        async def are_gone() -> None:
            for each, left in ((queue, 1), (jobs, 0)):
                info = await each.info()
                assert (info.expired_count, info.ready_count) == (1, left)

        await eventually(are_gone)
        assert await queue.bodies() == [b"its own"]

    on_a_node(tmp_path, test)


def test_many_at_once_peek_purge_pause_and_depth(tmp_path: Path) -> None:
    """D14: batches, peek, purge, pause, depth by state, age of the oldest."""

    async def test(jobs: Jobs) -> None:
        bodies = [b"%d" % number for number in range(1000)]
        ids = await jobs.send(*bodies)
        leased = await jobs.lease(300)
        assert [each.body for each in leased] == bodies[:300]
        assert await jobs.ack(leased[:200]) == [""] * 200
        page = await jobs.stub.Peek(q.PeekRequest(queue="jobs", from_id=ids[250], limit=60))
        assert [each.body for each in page.messages] == bodies[250:310]
        assert page.next_id == ids[310]
        assert page.messages[0].state == q.MESSAGE_STATE_LEASED
        assert page.messages[-1].state == q.MESSAGE_STATE_READY
        late = await jobs.peek(from_ns=page.messages[0].enqueued_ns + 1)
        assert late == []
        info = await jobs.info()
        assert (info.ready_count, info.leased_count, info.acked_count) == (700, 100, 200)
        assert 0 < info.oldest_ns <= page.messages[0].enqueued_ns
        purged = await jobs.stub.Purge(q.PurgeRequest(queue="jobs", below_id=ids[500]))
        assert purged.purged_count == 200
        await jobs.stub.PauseQueue(q.PauseQueueRequest(queue="jobs", paused=True))
        index = jobs.last_index
        assert await jobs.lease() == []
        assert jobs.last_index == index
        assert (await jobs.info()).paused
        await jobs.stub.PauseQueue(q.PauseQueueRequest(queue="jobs"))
        assert len(await jobs.lease(3)) == 3
        rest = await jobs.stub.Purge(q.PurgeRequest(queue="jobs", leased_too=True))
        assert rest.purged_count == 600
        assert (await jobs.info()).purged_count == 800

    on_a_node(tmp_path, test)


def test_a_large_queue_is_purged_by_several_entries(tmp_path: Path) -> None:
    """D14: a purge takes what was there when it began, however much."""

    async def test(jobs: Jobs) -> None:
        for _ in range(11):
            await jobs.send(*[b""] * 1000)
        index = jobs.last_index
        purged = await jobs.stub.Purge(q.PurgeRequest(queue="jobs"))
        assert (purged.purged_count, purged.header.index) == (11_000, index + 1)
        assert jobs.last_index == index + 2

    on_a_node(tmp_path, test)


def test_a_waiting_message_is_cancelled_or_given_another_priority(tmp_path: Path) -> None:
    """D15: by its id, unless somebody has it."""

    async def test(jobs: Jobs) -> None:
        ids = await jobs.send(b"a", b"b", b"c", b"d")
        answer = await jobs.stub.Prioritise(
            q.PrioritiseRequest(queue="jobs", message_ids=[ids[2], 99], priority=1)
        )
        assert [each.reason for each in answer.results] == ["", "MESSAGE_UNKNOWN"]
        (urgent,) = await jobs.lease()
        assert (urgent.body, urgent.priority) == (b"c", 1)
        answer = await jobs.stub.Cancel(q.CancelRequest(queue="jobs", message_ids=[ids[0], ids[2]]))
        assert [each.reason for each in answer.results] == ["", "MESSAGE_LEASED"]
        assert await jobs.bodies() == [b"b", b"d"]
        assert (await jobs.info()).cancelled_count == 1

    on_a_node(tmp_path, test)
