"""What entries did to keys and messages, by replay: exact before and after, nothing left out."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import pytest

from onelog.projections.conditions import Condition, Target
from onelog.projections.kv.commands import (
    Append,
    Delete,
    DeleteRange,
    Increment,
    JsonSet,
    LeaseGrant,
    LeaseRevoke,
    Put,
    PutMany,
    Touch,
    Transaction,
    encode_command,
    put_bodies,
)
from onelog.projections.limits import VALUE_SIZE_MAX
from onelog.projections.namespaces import Limits
from onelog.projections.queue.commands import Cancel, QueueCreate, QueueDelete
from onelog.projections.queue.commands import encode_command as encode_queue
from onelog.projections.queue.message import Enqueue, QueueConfig
from onelog.projections.queue.store import INCOMING, OUTGOING
from onelog.projections.shard_state import Projections
from onelog.projections.system import commands
from onelog.projections.system.commands import encode_batch
from onelog.snapshot.changes import KeyChange, QueueEvent, key_changes, queue_events
from onelog.snapshot.errors import LogGap
from onelog.snapshot.offline import fresh_projections
from onelog.snapshot.past import Entries, PastState
from onelog.ual.entry import Entry
from tests.projections.histories import Writer
from tests.projections.world import SECOND, World

STEPS = 350
Keys = dict[tuple[str, bytes], tuple[bytes, int, int | None, int | None]]
Messages = dict[int, tuple[int, tuple[Any, ...]]]  # queue, and what is known of the message


def source_of(entries: Iterable[Entry]) -> Entries:
    everything = list(entries)
    return lambda first, last: (each for each in everything if first <= each.index <= last)


def empty() -> PastState:
    return PastState(fresh_projections(), 0, (), ())


def group_ends(world: World) -> Iterator[int]:
    for end, _ in groupby(world.entries, lambda entry: entry.index + entry.group_left):
        yield end


def keys_of(state: Projections) -> Keys:
    found: Keys = {}
    for namespace, store in state.kv.stores.items():
        for key in store.order.walk(b"", None):
            if (there := store.find(key)) is not None:
                newest = there[1]
                bound = newest.expires_ns or None, newest.lease or None
                found[namespace, key] = (store.value(*there), newest.version, *bound)
    return found


def fold_keys(keys: Keys, changes: Iterable[KeyChange]) -> None:
    """Take changes over; each says what it found."""
    for each in changes:
        before = keys.get((each.namespace, each.key), (None, None))
        assert (each.previous_value, each.previous_version) == before[:2], each
        assert (each.value is None) == (each.change in ("delete", "expire")), each
        if each.value is None:
            keys.pop((each.namespace, each.key), None)
        else:
            assert each.version is not None
            assert (each.version == each.index) == (each.change == "put"), each
            bound = each.expires_ns, each.lease
            keys[each.namespace, each.key] = (each.value, each.version, *bound)


@pytest.mark.parametrize("seed", range(3))
def test_changes_lead_from_the_empty_state_to_all_keys_at_every_group_end(seed: int) -> None:
    world = Writer(seed).write(STEPS)
    past, entries = empty(), source_of(world.entries)
    keys: Keys = {}
    kinds: Counter[str] = Counter()
    for end in group_ends(world):
        changes = list(key_changes(past, entries, end))
        kinds.update(each.change for each in changes)
        fold_keys(keys, changes)
        assert keys == keys_of(past.projections), end
        places = [(each.index, each.position) for each in changes]
        assert places == sorted(set(places))
    assert set(kinds) == {"put", "delete", "expire", "touch"}
    # Noting everything takes other paths; the state must not differ by it.
    assert past.projections.router.state_hash() == world.state.router.state_hash()
    past.projections.router.check()


@pytest.mark.parametrize("seed", range(2))
def test_changes_from_the_middle_are_the_rest_of_all_changes(seed: int) -> None:
    world = Writer(seed).write(STEPS)
    entries, last = source_of(world.entries), world.index
    everything = list(key_changes(empty(), entries, last))
    events = list(queue_events(empty(), entries, last))
    for start in list(group_ends(world))[3 :: world.index // 20]:
        past = empty()
        past.advance(entries, start)
        found = list(key_changes(past, entries, last))
        assert found == [each for each in everything if each.index > start], start
        past = empty()
        past.advance(entries, start)
        rest = list(queue_events(past, entries, last))
        assert rest == [each for each in events if each.index > start], start


def test_a_value_before_is_known_where_only_one_version_is_kept() -> None:
    """Nothing but the value of now is in such a state: it is read where it is replaced."""
    world = World()
    room = "one"
    world.system(commands.NamespaceCreate(Limits(1, 2_000, 0, 0)), room)
    world.put(b"a", b"1", room)
    world.kv(Increment(b"a", 4), room)
    world.kv(Append(b"a", b"0"), room)
    world.kv(PutMany(put_bodies([b"a", b"b"], [b"x", b"{}"], None)), room)
    world.kv(JsonSet(b"b", ("f",), b"1"), room)
    world.kv(Transaction((), (Put(b"b", b"y"), Delete(b"b"), Put(b"b", b"z")), ()), room)
    world.kv(LeaseGrant(90 * SECOND), room)
    lease = world.index
    world.kv(Put(b"l", b"held", lease=lease), room)
    world.kv(Put(b"t", b"short", ttl_ns=SECOND), room)
    world.kv(Touch(b"t", 5 * SECOND), room)
    world.pass_time(6 * SECOND)
    world.kv(LeaseRevoke(lease), room)
    world.kv(DeleteRange(b"a", b"b", 10), room)
    world.put(b"b", b"last", room)
    world.system(commands.NamespaceDelete(), room)
    found = key_changes(empty(), source_of(world.entries), world.index)
    assert [
        (each.key, each.change, each.previous_value, each.value, each.position) for each in found
    ] == [
        (b"a", "put", None, b"1", 0),
        (b"a", "put", b"1", b"5", 0),
        (b"a", "put", b"5", b"50", 0),
        (b"a", "put", b"50", b"x", 0),
        (b"b", "put", None, b"{}", 1),
        (b"b", "put", b"{}", b'{"f":1}', 0),
        (b"b", "put", b'{"f":1}', b"z", 0),
        (b"l", "put", None, b"held", 0),
        (b"t", "put", None, b"short", 0),
        (b"t", "touch", b"short", b"short", 0),
        (b"t", "expire", b"short", None, 0),
        (b"l", "delete", b"held", None, 0),
        (b"a", "delete", b"x", None, 0),
        (b"b", "put", b"z", b"last", 0),
        (b"b", "delete", b"last", None, 0),
    ]


def test_what_was_refused_changed_nothing() -> None:
    world = World()
    world.put(b"a", b"1")
    refused = [Condition(b"a", Target.MISSING)]
    inner = [encode_command(Put(b"a", b"2"), "default")]
    world.group(encode_batch(inner, refused, "default"))
    # Refused by its second operation, after the first one has left a note.
    number = encode_command(Increment(b"text", 1), "default")
    world.put(b"text", b"no number")
    world.group(encode_batch([*inner, number], [], "default"))
    world.kv(Transaction((), (Put(b"a", b"3"), Increment(b"text", 1)), ()))
    world.kv(PutMany(put_bodies([b"a", b"b"], [b"4", bytes(VALUE_SIZE_MAX + 1)], None)))
    world.group(encode_batch(inner, [], "default"))
    found = list(key_changes(empty(), source_of(world.entries), world.index))
    assert [(each.key, each.previous_value, each.value) for each in found] == [
        (b"a", None, b"1"),
        (b"text", None, b"no number"),
        (b"a", b"1", b"2"),
    ]
    last = found[-1]
    assert (last.index, last.transaction) == (world.index, world.index - 1)
    assert {each.transaction for each in found[:-1]} == {0}


def fold_events(messages: Messages, events: Iterable[QueueEvent]) -> None:
    """Take events over; each says what it found."""
    for each in events:
        after = (each.state, each.priority, each.deliveries, each.since_ns)
        before = (
            each.previous_state,
            each.previous_priority,
            each.previous_deliveries,
            each.previous_since_ns,
        )
        if each.event == "deleted":
            for number in [at for at, (queue, _) in messages.items() if queue == each.queue_id]:
                del messages[number]
        if each.message_id is None:
            assert after == before == (None,) * 4
            continue
        known = messages.get(each.message_id)
        expected = known[1] if known is not None and known[0] == each.queue_id else (None,) * 4
        assert before == expected, each
        if each.state is not None:
            messages[each.message_id] = each.queue_id, after
        elif known is not None and known[0] == each.queue_id:
            del messages[each.message_id]


def test_events_lead_to_all_messages_and_add_up_to_the_law() -> None:
    world = Writer(3).write(2 * STEPS)
    past, entries = empty(), source_of(world.entries)
    messages: Messages = {}
    counts: Counter[tuple[int, str]] = Counter()
    events_of_all = list(queue_events(empty(), entries, world.index))
    end_of = {entry.index: entry.index + entry.group_left for entry in world.entries}
    for end, grouped in groupby(events_of_all, lambda each: end_of[each.index]):
        past.advance(entries, end)
        events = list(grouped)
        fold_events(messages, events)
        counts.update((each.queue_id, each.event) for each in events)
        assert messages == {
            row.id: (queue.id, (row.state, row.priority, row.deliveries, row.since_ns))
            for queue in past.projections.queue.all_queues()
            for row in queue.table.rows()
        }, end
        for queue in past.projections.queue.all_queues():
            for total in (*INCOMING, *OUTGOING):
                assert queue.totals[total] == counts[queue.id, total.name.lower()], total
    kinds = {event for _, event in counts}
    assert kinds > {"enqueued", "leased", "acked", "failed", "dead", "arrived", "moved", "redriven"}
    assert kinds > {"lease_expired", "due", "expired", "cancelled", "created", "prioritised"}


def test_queues_that_go_have_an_event_with_or_without_their_namespace() -> None:
    world = World()
    world.system(commands.NamespaceCreate(Limits()), "room")
    world.draft(encode_queue(QueueCreate("jobs", QueueConfig()), "room"))
    first = world.index
    world.draft(encode_queue(QueueCreate("more", QueueConfig()), "room"))
    second = world.index
    world.draft(encode_queue(Enqueue(first, b"body"), "room"))
    message = world.index
    inner = [encode_queue(Enqueue(second, b"body"), "room")]
    inner.append(encode_queue(Cancel(second, (world.index + 2,)), "room"))
    world.group(encode_batch(inner, [], "room"))
    world.draft(encode_queue(QueueDelete(second), "room"))
    world.system(commands.NamespaceDelete(), "room")
    found = list(queue_events(empty(), source_of(world.entries), world.index))
    assert [(each.queue, each.event, each.message_id) for each in found] == [
        ("jobs", "created", None),
        ("more", "created", None),
        ("jobs", "enqueued", message),
        ("more", "enqueued", message + 2),
        ("more", "cancelled", message + 2),
        ("more", "deleted", None),
        ("jobs", "deleted", None),
    ]
    # At the end of its batch the message was gone already.
    assert [each.state for each in found if each.message_id == message + 2] == [None, None]
    assert found[3].transaction == found[4].transaction == message + 1


def test_a_hole_in_the_log_is_no_end() -> None:
    world = Writer(1).write(50)
    holed = [each for each in world.entries if each.index != 20]
    with pytest.raises(LogGap, match="20"):
        list(key_changes(empty(), source_of(holed), world.index))
    with pytest.raises(LogGap, match=str(world.index)):
        list(key_changes(empty(), source_of(world.entries[:-1]), world.index))
