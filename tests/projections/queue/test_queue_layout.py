"""What is not state: columns, heaps, lists and short cuts. None of it may show."""

from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import SessionRef
from onelog.projections.queue.commands import (
    Ack,
    Cancel,
    Command,
    Lease,
    Prioritise,
    Release,
    encode_command,
)
from onelog.projections.queue.deadlines import (
    LEASE_ENDS,
    RUN_SIZE,
    TTL_ENDS,
    PackedDeadlines,
    pack_deadline,
    unpack_deadline,
)
from onelog.projections.queue.limits import BLOCK_ROWS, GARBAGE_MAX, ITEMS_MAX
from onelog.projections.queue.message import Enqueue, QueueConfig, decode_leased
from onelog.projections.queue.projection import Queue
from onelog.projections.queue.reads import Peeked
from onelog.projections.queue.store import QueueState, Total
from onelog.projections.queue.table import DELAYED, LEASED, READY, Dead, Group, Row, Span, pack_meta
from onelog.projections.result import Applied, Duplicate, Refused
from onelog.projections.system.commands import SessionOpen
from onelog.projections.undo import UndoLog
from onelog.ual.entry import FLAG_ZSTD, Draft
from tests.projections.queue.queue_histories import draw_command
from tests.projections.queue.queue_world import QueueWorld
from tests.projections.world import NAMESPACE, SECOND, World

ids = st.integers(1, 1_500)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    state = draw(st.sampled_from([READY, READY, DELAYED, LEASED]))
    number = st.integers(1, 2**64 - 1)
    return Row(
        draw(ids),
        draw(st.integers(0, 2**64 - 1)),
        state,
        draw(st.integers(0, 15)),
        draw(st.integers(0, 65_535)),
        draw(number) if state != READY else 0,
        draw(number) if state == LEASED else 0,
        draw(st.just(0) | number),
        draw(st.just(0) | number),
        draw(st.sampled_from([b"", b"", b"a", b"b"])),
        draw(st.sampled_from([b"", b"", b"a", b"t"])),
        draw(st.none() | st.just(Dead(1, 2, 3, b"no"))),
    )


def open_queue() -> QueueState:
    return QueueState(1, "n", "q", QueueConfig(), UndoLog(), lambda *_: None)


def span_of(queue: QueueState, message_id: int) -> Span:
    place = queue.table.find(message_id)
    assert place is not None, message_id
    return (*place, place[1] + 1)


@given(
    seed=st.integers(0, 2**32), first=st.integers(0, 1_400), changes=st.lists(rows(), max_size=30)
)
@settings(max_examples=40, deadline=None)
def test_a_queue_is_a_sorted_dict_of_rows(seed: int, first: int, changes: list[Row]) -> None:
    draw = Random(seed)
    queue, model = open_queue(), dict[int, Row]()
    table = queue.table
    for number in range(1, first):
        queue.append(number * 2, number, pack_meta(Row(number * 2, number, READY, 3)))
        model[number * 2] = Row(number * 2, number, READY, 3)
    for message_id in draw.sample(sorted(model), len(model) * draw.choice([0, 1, 3]) // 4):
        queue.remove([span_of(queue, message_id)])
        del model[message_id]
    table.check()
    inserted: list[int] = []
    for row in changes:
        if inserted and draw.random() < 0.6:  # most of what is drawn is not here yet
            row = row._replace(id=draw.choice(inserted))
        held = {each.group for each in model.values() if each.state == LEASED and each.group}
        kept = model.get(row.id)
        if kept is None and (row.group not in held or row.state != LEASED):
            queue.insert(row)
            model[row.id] = row
            inserted.append(row.id)
        elif kept is not None and draw.random() < 0.5:
            assert queue.take_out([span_of(queue, row.id)]) == [kept]
            del model[row.id]
        elif kept is not None and (row.state != LEASED or kept.group not in held):
            row = kept._replace(
                state=row.state,
                priority=row.priority,
                deliveries=row.deliveries,
                due_ns=row.due_ns,
                token=row.token,
            )
            queue.change_rows(span_of(queue, row.id), [pack_meta(row)], row.due_ns, row.token)
            model[row.id] = row
    queue.totals[Total.ENQUEUED] = len(model)
    queue.check()

    assert list(table.rows()) == [model[key] for key in sorted(model)]
    assert len(table) == len(model)
    assert [row.id for row in table.rows(700)] == sorted(key for key in model if key >= 700)
    assert all(table.get(key) == model.get(key) for key in range(1, 1_500, 7))


def test_a_queue_that_empties_lets_go_of_its_blocks() -> None:
    queue = open_queue()
    table = queue.table
    for number in range(1, 20 * BLOCK_ROWS):
        queue.append(number, 1, pack_meta(Row(number, 1, READY, 3)))
    for number in range(1, 20 * BLOCK_ROWS):
        if number % 100:
            queue.remove([span_of(queue, number)])
    table.check()
    kept = 20 * BLOCK_ROWS // 100

    assert len(table) == kept
    assert len(table.blocks) <= 4 + 4 * kept // BLOCK_ROWS, "one message must not hold a block"


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "add all", "cancel", "cancel all"]), st.integers(0, 40), ids
        )
    ),
    now=st.integers(0, 45),
    limit=st.integers(1, 9),
)
@settings(max_examples=200, deadline=None)
def test_packed_deadlines_are_a_sorted_set(
    steps: list[tuple[str, int, int]], now: int, limit: int
) -> None:
    deadlines, model = PackedDeadlines(), set[int]()
    for what, time_ns, message_id in steps:
        kind = 1 + message_id % 3
        if what.startswith("add"):
            several = range(message_id % 5, message_id % 5 + (3 if what == "add all" else 1))
            keys = {pack_deadline(time_ns, each, kind) for each in several}
            if keys & model:
                continue
            if what == "add all":
                deadlines.add_all(time_ns, array("Q", several), kind)
            else:
                deadlines.add(time_ns, several[0], kind)
            model |= keys
        elif model:
            key = sorted(model)[message_id % len(model)]
            same = [key for key in sorted(model) if unpack_deadline(key)[2] == kind]
            if what == "cancel":
                deadlines.cancel(*unpack_deadline(key))
                model.remove(key)
            elif same:
                gone = same[time_ns % len(same) :][:3] if time_ns % 2 else same[:3]
                times, several_ids, _ = zip(*map(unpack_deadline, gone), strict=True)
                deadlines.cancel_all(array("Q", times), array("Q", several_ids), kind)
                model -= set(gone)
        deadlines.check(model)
    wanted = [key for key in sorted(model) if unpack_deadline(key)[0] <= now][:limit]

    for _ in range(2):
        assert deadlines.due(now, limit) == wanted
        assert deadlines.first() == min((unpack_deadline(key)[0] for key in model), default=None)
    deadlines.check(model)


def test_cancelled_deadlines_do_not_pile_up() -> None:
    deadlines = PackedDeadlines()
    deadlines.add(0, 1, 1)
    for number in range(20 * GARBAGE_MAX):
        deadlines.add(1_000_000 - number, number + 2, 1)
        deadlines.cancel(1_000_000 - number, number + 2, 1)
    deadlines.check([pack_deadline(0, 1, 1)])


def test_leases_that_end_a_little_out_of_order_leave_no_garbage() -> None:
    deadlines = PackedDeadlines()
    for number in range(4 * GARBAGE_MAX):
        deadlines.add(number, number, LEASE_ENDS)
        if number > 100 and number % 2:
            for done in (number - 100, number - 101):
                deadlines.cancel(done, done, LEASE_ENDS)
    assert len(deadlines) == 100
    assert deadlines.memory() < 2 * GARBAGE_MAX * RUN_SIZE


def test_cancelled_deadlines_do_not_outlast_the_live_ones() -> None:
    """Cancelled from the end first: what is left in the middle must go with the last live one."""
    deadlines = PackedDeadlines()
    live = [pack_deadline(number, number, 1) for number in range(1, 4 * GARBAGE_MAX)]
    for key in live:
        deadlines.add(*unpack_deadline(key))
    half = len(live) // 2
    for key in [*live[half:], *live[:half]]:
        deadlines.cancel(*unpack_deadline(key))
        live.remove(key)
        if len(live) % 100 == 0:
            deadlines.check(live)
    assert deadlines.memory() < 10_000


def test_lifetimes_do_not_keep_the_ends_of_leases_from_their_run() -> None:
    """Kinds have runs of their own: a deadline far away does not send all others to the heap."""
    deadlines = PackedDeadlines()
    for number in range(1_000):
        deadlines.add(10**15 + number, number, TTL_ENDS)
        deadlines.add(10**9 + number, number, LEASE_ENDS)
    assert deadlines.memory() < 40 * 1_000
    assert [unpack_deadline(key)[2] for key in deadlines.due(10**15, 1_001)] == (
        [LEASE_ENDS] * 1_000 + [TTL_ENDS]
    )


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=200))
def test_a_group_is_a_sorted_list_of_ids(steps: list[tuple[bool, int]]) -> None:
    group, model = Group(), set[int]()
    for is_first, message_id in steps:
        if is_first and model:
            message_id = min(model)
        if message_id in model:
            group.remove(message_id)
            model.remove(message_id)
        else:
            group.add(message_id)
            model.add(message_id)
        assert group.ids() == sorted(model)
        assert group.turn() == min(model, default=0)


@pytest.mark.parametrize("seed", range(8))
def test_spans_and_entries_one_by_one_agree(seed: int) -> None:
    """Handlers take entries that follow each other at once; nobody may tell."""
    draw = Random(seed)
    grouped, single = World(), World()
    for step in range(60):
        drafts: list[Draft] = []
        for _ in range(draw.choice([1, 2, 5])):
            command: Command = draw_command(draw, grouped.state.queue)
            if isinstance(command, Enqueue) and draw.random() < 0.5:
                command = Enqueue(command.queue, command.body, draw.choice([8, 8, 8, 2]))
            count = draw.choice([1, 1, 4]) if isinstance(command, Enqueue | Lease | Ack) else 1
            drafts += [encode_command(command, NAMESPACE)] * count
        # Acks of one message each, as many consumers send them.
        drafts += acks_of_one(draw, grouped.state.queue)
        results = grouped.group(drafts)
        single.now_ns = grouped.now_ns
        assert results == [single.draft(draft) for draft in drafts], f"seed {seed}, step {step}"
        hashes = grouped.state.router.state_hashes()
        assert hashes == single.state.router.state_hashes(), f"seed {seed}, step {step}"
        notes = grouped.state.queue.changes, single.state.queue.changes
        for entry in grouped.entries[-len(drafts) :]:
            assert notes[0].get(entry.index) == notes[1].get(entry.index)
        grouped.state.router.check()
        grouped.now_ns += draw.choice([0, SECOND])
    assert grouped.sections() == single.sections()


def acks_of_one(draw: Random, queues: Queue) -> list[Draft]:
    """Return acks of messages that are leased, of some that are not, and of one twice."""
    drafts: list[Draft] = []
    for queue in sorted(queues._queues):
        peeked = queues.peek(NAMESPACE, queue, limit=1_000)
        assert isinstance(peeked, Peeked)
        rows = draw.sample(peeked.messages, min(len(peeked.messages), draw.choice([0, 0, 3, 9])))
        if rows and draw.random() < 0.2:
            rows.append(rows[0])
        drafts += (
            encode_command(Ack(queue, ((row.id, row.token),), draw.random() < 0.1), NAMESPACE)
            for row in rows
        )
    return drafts


SHAPES: dict[str, dict[str, object]] = {
    "plain": {},
    "group": {"group": b"g"},
    "tenant": {"tenant": b"t"},
    "ttl": {"ttl_ns": 9 * SECOND},
    "all": {"group": b"g", "tenant": b"t", "ttl_ns": 9 * SECOND},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_commands_about_many_messages_do_what_they_say(seed: int, shape: str) -> None:
    """Over several blocks, in any order, with items that are wrong and items that come twice."""
    draw = Random(seed)
    world = QueueWorld()
    queue = world.create("jobs", QueueConfig())
    ready: list[int] = []
    held: dict[int, int] = {}

    def send() -> None:
        more = {
            name: value + b"%d" % world.index if isinstance(value, bytes) else value
            for name, value in SHAPES[shape].items()
        }
        if shape == "tenant":
            more = SHAPES[shape]
        sent = Enqueue(queue, b"", **more)  # type: ignore[arg-type]
        assert world.draft(encode_command(sent, NAMESPACE)) == Applied()
        ready.append(world.index)

    for _ in range(3 * BLOCK_ROWS):
        send()
    for step in range(60):
        if draw.random() < 0.4:
            count = draw.choice([1, 2, 30, 300, ITEMS_MAX])
            result = world.draft(encode_command(Lease(queue, count), NAMESPACE))
            assert isinstance(result, Applied)
            leased = decode_leased(result)
            got = [message.id for message in leased.messages]
            assert len(got) == min(count, len(ready))
            if shape != "all":  # else the tenants take turns
                assert got == sorted(ready)[:count]
            held |= dict.fromkeys(got, leased.token)
            ready = sorted(set(ready) - set(got))
        elif held:
            ids = draw.sample(sorted(held), min(len(held), draw.choice([1, 2, 20, 200, 700])))
            if draw.random() < 0.5:
                ids.sort()
            items = [(each, held[each]) for each in ids]
            if draw.random() < 0.3:
                items.append(draw.choice([items[0], (items[0][0], 1), (1, 1)]))
            strict, is_released = draw.random() < 0.3, draw.random() < 0.25
            kind = Release if is_released else Ack
            settle = kind(queue, tuple(items), strict=strict)
            result = world.draft(encode_command(settle, NAMESPACE))
            is_done = len(items) == len(ids) or not strict
            assert isinstance(result, Applied if is_done else Refused)
            if is_done:
                assert isinstance(result, Applied)
                assert result.number == len(ids)
                for each in ids:
                    del held[each]
                if is_released:
                    ready += ids
        for _ in range(draw.randrange(20)):
            send()
        stats = world.stats(queue)
        assert (stats.ready, stats.leased) == (len(ready), len(held))
        if step % 20 == 0:
            world.state.router.check()
    world.state.router.check()


@pytest.mark.parametrize(
    ("at", "bytes_"),
    [(0, b"\x02"), (1, b"\x01\x00"), (1, b"\x03\x00"), (1, b"\x00\x00")],
    ids=["options", "too few", "too many", "none"],
)
def test_an_ack_of_several_with_bad_fields_is_refused(at: int, bytes_: bytes) -> None:
    world = QueueWorld()
    queue = world.create("jobs")
    for _ in range(2):
        world.send(Enqueue(queue, b""))
    leased = world.lease(queue, 2)
    items = tuple((message.id, leased.token) for message in leased.messages)
    draft = encode_command(Ack(queue, items), NAMESPACE)
    start = len(draft.payload) - 3 - 2 * 16 + at
    bad = draft.payload[:start] + bytes_ + draft.payload[start + len(bytes_) :]

    assert isinstance(world.draft(draft._replace(payload=bad)), Refused)
    assert world.stats(queue).leased == 2
    assert world.draft(draft) == Applied(2)


@pytest.mark.parametrize("strict", [False, True])
def test_an_ack_of_many_that_is_compressed_is_applied(strict: bool) -> None:  # noqa: FBT001
    world = QueueWorld()
    queue = world.create("jobs")
    for _ in range(300):
        world.send(Enqueue(queue, b""))
    leased = world.lease(queue, 300)
    items = tuple((message.id, leased.token) for message in leased.messages)

    assert world.draft(encode_command(Ack(queue, items, strict), NAMESPACE)) == Applied(300)
    assert world.entries[-1].flags & FLAG_ZSTD
    assert world.stats(queue).leased == 0
    world.state.router.check()


def test_a_session_repeats_the_answer_of_a_lease() -> None:
    """A consumer whose answer was lost asks again and gets the same messages, not others."""
    world = QueueWorld()
    queue = world.create("jobs")
    first, _ = (world.send(Enqueue(queue, b"")) for _ in range(2))
    world.system(SessionOpen(30 * SECOND))
    session = SessionRef(world.index, 1, 0)
    draft = encode_command(Lease(queue), NAMESPACE, session)
    result, index = world.draft(draft), world.index
    assert isinstance(result, Applied)

    assert decode_leased(result).messages[0].id == first
    assert world.draft(draft) == Duplicate(index, result)
    assert world.stats(queue).leased == 1


def test_outdated_entries_of_ready_messages_do_not_pile_up() -> None:
    queues = QueueWorld()
    queue = queues.create("jobs")
    message = queues.send(Enqueue(queue, b""))
    state = queues.state.queue._queues[queue]
    for number in range(3 * GARBAGE_MAX):
        queues.draft(encode_command(Prioritise(queue, (message,), number % 16), NAMESPACE))
    assert len(state.ready.entries()) < 2 * GARBAGE_MAX
    for _ in range(3 * GARBAGE_MAX):
        queues.draft(encode_command(Lease(queue), NAMESPACE))
        leased = ((message, queues.index),)
        assert queues.draft(encode_command(Release(queue, leased), NAMESPACE)) == Applied(1)
    assert state.ready.memory() < 200 * GARBAGE_MAX
    for _ in range(3 * GARBAGE_MAX):
        queues.draft(encode_command(Enqueue(queue, b""), NAMESPACE))
        queues.draft(encode_command(Cancel(queue, (queues.index,)), NAMESPACE))
    assert state.ready.memory() < 200 * GARBAGE_MAX
    queues.state.router.check()
