"""Every bound of queues gives its reason, and whatever an entry holds, nothing breaks."""

from random import Random
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import U64, encode_prefix
from onelog.projections.errors import CorruptSection
from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.queue import commands
from onelog.projections.queue.commands import (
    Ack,
    Cancel,
    Command,
    Extend,
    Lease,
    Nack,
    Prioritise,
    Purge,
    QueueConfigure,
    QueueCreate,
    Redrive,
    encode_command,
)
from onelog.projections.queue.limits import (
    BACKOFF_STEPS_MAX,
    DEDUP_ENTRIES_MAX,
    DELAY_NS_MAX,
    HEADER_NAME_SIZE_MAX,
    HEADER_VALUE_SIZE_MAX,
    HEADERS_MAX,
    ITEMS_MAX,
    MESSAGE_KEY_SIZE_MAX,
    MESSAGE_SIZE_MAX,
    VISIBILITY_NS_MAX,
)
from onelog.projections.queue.message import Enqueue, QueueConfig, ScheduleCreate
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused
from onelog.projections.shard_state import build_projections
from onelog.projections.system.commands import Expire
from onelog.projections.system.commands import encode_command as encode_system
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, Draft
from tests.projections.queue import queue_samples
from tests.projections.queue.queue_histories import answers, random_commands
from tests.projections.queue.queue_world import QueueWorld
from tests.projections.world import NAMESPACE, VoidNotes, World, cut

PREFIX = encode_prefix(NAMESPACE)
Q = 1


@pytest.mark.parametrize(
    ("command", "reason", "detail"),
    [
        (Enqueue(9, b""), Reason.QUEUE_UNKNOWN, 9),
        (Enqueue(Q, b"", priority=16), Reason.PRIORITY_INVALID, 16),
        (Enqueue(Q, b"", delay_ns=DELAY_NS_MAX + 1), Reason.DELAY_INVALID, DELAY_NS_MAX + 1),
        (Enqueue(Q, b"", ttl_ns=0), Reason.TTL_INVALID, 0),
        (Enqueue(Q, b"", ttl_ns=TTL_NS_MAX + 1), Reason.TTL_INVALID, TTL_NS_MAX + 1),
        (Enqueue(Q, b"", group=b"x" * 129), Reason.MESSAGE_KEY_INVALID, 129),
        (Enqueue(Q, b"", tenant=b"x" * 129), Reason.MESSAGE_KEY_INVALID, 129),
        (Enqueue(Q, b"", dedup=b"x" * 129), Reason.MESSAGE_KEY_INVALID, 129),
        (Enqueue(Q, bytes(MESSAGE_SIZE_MAX + 1)), Reason.MESSAGE_TOO_LARGE, MESSAGE_SIZE_MAX + 1),
        (Enqueue(Q, b"", headers=((b"dlq.x", b""),)), Reason.HEADER_INVALID, 5),
        (Enqueue(Q, b"", headers=((b"", b""),)), Reason.HEADER_INVALID, 0),
        (
            Enqueue(Q, b"", headers=((b"x" * (HEADER_NAME_SIZE_MAX + 1), b""),)),
            Reason.HEADER_INVALID,
            HEADER_NAME_SIZE_MAX + 1,
        ),
        (
            Enqueue(Q, b"", headers=((b"x", bytes(HEADER_VALUE_SIZE_MAX + 1)),)),
            Reason.HEADER_INVALID,
            HEADER_VALUE_SIZE_MAX + 1,
        ),
        (
            Enqueue(Q, b"", headers=((b"x", b""),) * (HEADERS_MAX + 1)),
            Reason.PAYLOAD_COUNT_TOO_LARGE,
            HEADERS_MAX + 1,
        ),
        (Enqueue(Q, b"", delay_ns=1, at_ns=1), Reason.PAYLOAD_FIELD_INVALID, 3),
        (Lease(Q, 0), Reason.LIMIT_INVALID, 0),
        (Lease(Q, 1, 0, b"c" * (MESSAGE_KEY_SIZE_MAX + 1)), Reason.MESSAGE_KEY_INVALID, 129),
        (Lease(Q, ITEMS_MAX + 1), Reason.LIMIT_INVALID, ITEMS_MAX + 1),
        (Lease(Q, 1, VISIBILITY_NS_MAX + 1), Reason.VISIBILITY_INVALID, VISIBILITY_NS_MAX + 1),
        (Ack(Q, ()), Reason.LIMIT_INVALID, 0),
        (Ack(Q, ((1, 1),) * 1_001), Reason.PAYLOAD_COUNT_TOO_LARGE, 1_001),
        (Nack(Q, ((1, 1),), DELAY_NS_MAX + 1), Reason.DELAY_INVALID, DELAY_NS_MAX + 1),
        (Nack(Q, ((1, 1),), None, b"x" * 257), Reason.FAILURE_TOO_LARGE, 257),
        (Extend(Q, ((1, 1),), VISIBILITY_NS_MAX + 1), Reason.VISIBILITY_INVALID, None),
        (Cancel(Q, ()), Reason.LIMIT_INVALID, 0),
        (Prioritise(Q, (1,), 16), Reason.PRIORITY_INVALID, 16),
        (Purge(Q, limit=0), Reason.LIMIT_INVALID, 0),
        (Purge(Q, limit=10_001), Reason.LIMIT_INVALID, 10_001),
        (Redrive(Q, failure=b"x" * 129), Reason.FAILURE_TOO_LARGE, 129),
        (QueueCreate("", QueueConfig()), Reason.QUEUE_NAME_INVALID, 0),
        (QueueCreate("x" * 129, QueueConfig()), Reason.QUEUE_NAME_INVALID, 129),
        (QueueCreate("jobs", QueueConfig()), Reason.QUEUE_EXISTS, Q),
        (QueueConfigure(Q, QueueConfig(visibility_ns=0)), Reason.QUEUE_CONFIG_INVALID, 0),
        (
            QueueConfigure(Q, QueueConfig(dedup_max=DEDUP_ENTRIES_MAX + 1)),
            Reason.QUEUE_CONFIG_INVALID,
            DEDUP_ENTRIES_MAX + 1,
        ),
        (
            QueueConfigure(Q, QueueConfig(backoff_ns=(1,) * (BACKOFF_STEPS_MAX + 1))),
            Reason.QUEUE_CONFIG_INVALID,
            BACKOFF_STEPS_MAX + 1,
        ),
    ],
)
def test_each_bound_has_its_reason(command: Command, reason: Reason, detail: int | None) -> None:
    world = QueueWorld()
    world.create("jobs")
    before = world.state.router.state_hashes()
    result = world.queue(command)

    assert isinstance(result, Refused)
    assert result.reason is reason
    assert detail is None or result.detail == detail
    assert result.message
    assert world.state.router.state_hashes() == before


def test_a_time_a_hundred_years_away_is_refused() -> None:
    world = QueueWorld()
    queue_id = world.create("jobs")
    at_ns = world.now_ns + DELAY_NS_MAX

    assert world.queue(Enqueue(queue_id, b"", at_ns=at_ns)) == Applied()
    refused = Refused(Reason.DELAY_INVALID, DELAY_NS_MAX + 1)
    assert world.queue(Enqueue(queue_id, b"", at_ns=at_ns + 1)) == refused


def test_limits_that_take_many_messages_to_reach() -> None:
    """The same code with smaller numbers: a million leases would take a minute."""
    world = QueueWorld()
    queue_id = world.create("jobs", QueueConfig(messages_max=6))
    with (
        mock.patch.object(commands, "GROUPS_MAX", 2),
        mock.patch.object(commands, "TENANTS_MAX", 2),
        mock.patch.object(commands, "SCHEDULES_MAX", 1),
        mock.patch.object(commands, "LEASED_MAX", 3),
        mock.patch.object(commands, "QUEUES_MAX", 1),
    ):
        for name in (b"a", b"b", b"a", b"b"):
            world.send(Enqueue(queue_id, b"", group=name, tenant=name))
        for command, refused in (
            (Enqueue(queue_id, b"", group=b"c"), Refused(Reason.GROUPS_FULL, 2)),
            (Enqueue(queue_id, b"", tenant=b"c"), Refused(Reason.TENANTS_FULL, 2)),
            (QueueCreate("other", QueueConfig()), Refused(Reason.QUEUES_FULL, 1)),
        ):
            assert world.queue(command) == refused
        assert isinstance(world.queue(ScheduleCreate(queue_id, b"* * * * *", b"")), Applied)
        full = Refused(Reason.SCHEDULES_FULL, 1)
        assert world.queue(ScheduleCreate(queue_id, b"* * * * *", b"")) == full
        for _ in range(2):
            world.send(Enqueue(queue_id, b""))
        assert world.queue(Enqueue(queue_id, b"")) == Refused(Reason.QUEUE_FULL, 6)
        assert len(world.lease(queue_id, 10).messages) == 3
        assert world.queue(Lease(queue_id)) == Refused(Reason.QUEUE_LEASES_FULL, 3)


def assert_harmless(world: World, draft: Draft) -> None:
    router = world.state.router
    before, voids = router.state_hashes(), len(world.notes.voids)
    refused = router.counts()["refused"]
    result = world.draft(draft)
    if isinstance(result, Refused):
        assert router.state_hashes() == before
        assert len(world.notes.voids) == voids + 1
        assert router.counts()["refused"] == refused + 1
        assert result.message
    else:
        assert isinstance(result, Applied)
    router.check()


def busy_world() -> QueueWorld:
    world = QueueWorld()
    draw = Random(7)
    for _ in range(30):
        for draft in random_commands(draw, world.state.queue):
            world.draft(draft)
    return world


@given(
    operation=st.integers(0, 0x18),
    body=st.binary(max_size=80),
    prefix=st.sampled_from([b"", PREFIX, PREFIX + U64.pack(1), PREFIX + U64.pack(2)]),
    flags=st.sampled_from([0, 0, 0, FLAG_ZSTD, FLAG_CONDITIONAL]),
)
@settings(max_examples=150, deadline=None)
def test_random_bytes_never_raise(operation: int, body: bytes, prefix: bytes, flags: int) -> None:
    assert_harmless(busy_world(), Draft(0x0200 | operation, prefix + body, flags))


@given(name=st.sampled_from(sorted(queue_samples.COMMANDS)), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_valid_payload_with_any_change_never_raises(name: str, data: st.DataObject) -> None:
    draft = queue_samples.samples()[name]
    payload = bytearray(draft.payload)
    at = len(PREFIX)
    if name != "queue_create":
        payload[at : at + 8] = U64.pack(data.draw(st.integers(1, 3)))
    for _ in range(data.draw(st.integers(0, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(payload)) | st.just(len(payload)))
    extra = data.draw(st.binary(max_size=3))

    assert_harmless(busy_world(), Draft(draft.entry_type, bytes(payload[:end]) + extra))


@pytest.mark.parametrize("name", sorted(queue_samples.COMMANDS))
def test_a_payload_cut_at_any_byte_never_raises(name: str) -> None:
    draft = queue_samples.samples()[name]
    world = World()
    for end in range(len(draft.payload)):
        assert_harmless(world, Draft(draft.entry_type, draft.payload[:end]))


@given(
    item=st.binary(max_size=20)
    | st.builds(
        lambda kind, queue_id, message: bytes((kind,)) + U64.pack(queue_id) + U64.pack(message),
        st.integers(0, 4),
        st.integers(0, 3),
        st.integers(0, 60),
    )
)
@settings(max_examples=150, deadline=None)
def test_an_expiry_of_what_is_not_due_changes_nothing(item: bytes) -> None:
    world = busy_world()
    before = world.state.router.state_hashes()
    due = {each.item for each in world.state.queue.due(world.now_ns, 1_000)}
    result = world.draft(encode_system(Expire(((2, item),))))

    assert result == Applied(int(item in due))
    assert (world.state.router.state_hashes() == before) == (item not in due)
    world.state.router.check()


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_section_is_refused_by_name(data: st.DataObject) -> None:
    world = busy_world()
    sections = world.sections()
    section = bytearray(sections[2])
    at = data.draw(st.integers(0, len(section) - 1))
    section[at] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(section)) | st.just(len(section)))
    fresh = build_projections(VoidNotes())
    damaged = {**sections, 2: bytes(section[:end])}

    with pytest.raises(CorruptSection):
        fresh.router.load({owner: cut(part, 100) for owner, part in damaged.items()})


def test_a_saved_world_answers_the_same() -> None:
    world = busy_world()

    assert repr(answers(world.reloaded().state.queue)) == repr(answers(world.state.queue))


def test_a_draft_of_every_sample_can_be_encoded_again() -> None:
    for name, command in queue_samples.COMMANDS.items():
        assert encode_command(command, NAMESPACE) == queue_samples.samples()[name]
