"""Cron against a search through the calendar, and schedules that fire through the log."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onelog.projections.codec import read_prefix
from onelog.projections.queue.commands import ScheduleDelete, ScheduleFire, decode_command
from onelog.projections.queue.cron import BadCron, parse_cron, to_civil_date
from onelog.projections.queue.limits import CRON_DAYS_MAX
from onelog.projections.queue.message import Enqueue, QueueConfig, ScheduleCreate
from onelog.projections.queue.reads import QueueInfo
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from tests.projections.queue.queue_world import QueueWorld
from tests.projections.world import NAMESPACE, SECOND

MINUTE = 60 * SECOND
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BOUNDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]


def ns_of(moment: datetime) -> int:
    return int((moment - EPOCH).total_seconds()) * SECOND


@st.composite
def fields(draw: st.DrawFn, number: int) -> str:
    lowest, highest = BOUNDS[number]
    parts = []
    for _ in range(draw(st.integers(1, 2))):
        first = draw(st.integers(lowest, highest))
        last = draw(st.integers(first, highest))
        step = draw(st.integers(1, highest))
        parts.append(
            draw(
                st.sampled_from(
                    ["*", "*", f"{first}", f"{first}-{last}", f"*/{step}", f"{first}-{last}/{step}"]
                )
            )
        )
    return ",".join(parts)


expressions = st.tuples(*(fields(number) for number in range(5))).map(" ".join)


def values(text: str, number: int) -> set[int]:
    """The numbers that a field names, spelled out."""
    lowest, highest = BOUNDS[number]
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        start = lowest if span == "*" else int(first)
        end = highest if span == "*" else int(last or first)
        found |= {value for value in range(start, end + 1) if (value - start) % int(step or 1) == 0}
    return found


def fits(expression: str, moment: datetime) -> bool:
    texts = expression.split()
    minute, hour, day, month, weekday = (values(text, at) for at, text in enumerate(texts))
    by_month = moment.day in day
    by_week = bool({moment.isoweekday(), moment.isoweekday() % 7} & weekday)
    restricted = not texts[2].startswith("*") and not texts[4].startswith("*")
    fits_day = by_month or by_week if restricted else by_month and by_week
    return moment.minute in minute and moment.hour in hour and moment.month in month and fits_day


@given(
    expression=expressions,
    moment=st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)),
)
@example("59 23 31 12 *", datetime(2023, 12, 31, 23, 58, 59))
@example("0 0 1 1 *", datetime(2023, 12, 31, 23, 59, 59))
@settings(max_examples=80, deadline=None)
def test_the_next_minute_is_the_first_that_fits(expression: str, moment: datetime) -> None:
    start = moment.replace(tzinfo=UTC)
    found_ns = parse_cron(expression.encode()).next_after(ns_of(start))
    candidate = start.replace(second=0, microsecond=0) + timedelta(minutes=1)
    for _ in range(1_440):
        if fits(expression, candidate):
            assert found_ns == ns_of(candidate)
            return
        candidate += timedelta(minutes=1)
    assert found_ns is None or found_ns >= ns_of(candidate)
    if found_ns is not None:
        assert fits(expression, EPOCH + timedelta(seconds=found_ns // SECOND))


@given(day=st.integers(0, 200_000))
def test_days_have_the_dates_of_the_calendar(day: int) -> None:
    date = EPOCH.date() + timedelta(days=day)

    assert to_civil_date(day) == (date.year, date.month, date.day)


def test_the_29th_of_february_is_found_over_a_century_without_one() -> None:
    cron = parse_cron(b"0 0 29 2 *")
    found = cron.next_after(ns_of(datetime(2096, 3, 1, tzinfo=UTC)))

    assert found == ns_of(datetime(2104, 2, 29, tzinfo=UTC))
    assert parse_cron(b"0 0 30 2 *").next_after(0) is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"", 1),
        (b"* * * *", 4),
        (b"* * * * * *", 5),
        (b"60 * * * *", 0),
        (b"* 24 * * *", 1),
        (b"* * 0 * *", 2),
        (b"* * * 13 *", 3),
        (b"* * * * 8", 4),
        (b"5-3 * * * *", 0),
        (b"*/0 * * * *", 0),
        (b"1,,2 * * * *", 0),
        (b"-1 * * * *", 0),
        (b"+1 * * * *", 0),
        (b"1_0 * * * *", 0),
        (b"\xd9\xa1 * * * *", 0),
        (b"001 * * * *", 0),
        (b"MON * * * *", 0),
        (b"*  * * * *", 5),
    ],
)
def test_what_is_no_expression_says_where(text: bytes, field: int) -> None:
    with pytest.raises(BadCron) as caught:
        parse_cron(text)
    assert caught.value.field == field


@given(text=st.binary(max_size=30))
def test_any_bytes_are_an_expression_or_a_named_mistake(text: bytes) -> None:
    field = 0
    try:
        parse_cron(text).next_after(0)
    except BadCron as error:
        field = error.field
    assert 0 <= field <= 5


def test_a_schedule_fires_through_the_log(world: QueueWorld) -> None:
    queue = world.create("jobs")
    schedule = ScheduleCreate(queue, b"*/5 * * * *", b"tick", 2, 90 * SECOND, b"g", b"t")
    assert world.queue(schedule) == Applied(world.index)
    made = world.index
    first_ns = 1_200 * SECOND
    assert world.state.router.next_deadline() == first_ns
    assert world.pass_time(first_ns - 1 - world.now_ns) == []
    (result,) = world.pass_time(1)

    assert result == Applied(world.index)
    (row,) = world.rows(queue)
    assert (row.id, row.body_index, row.since_ns) == (world.index, made, first_ns)
    assert (row.priority, row.group, row.tenant) == (2, b"g", b"t")
    assert row.expires_ns == first_ns + 90 * SECOND
    assert world.state.router.next_deadline() == row.expires_ns
    assert world.state.router.pinned(0, 100) == [made]
    world.queue(ScheduleDelete(queue, made))
    assert world.state.router.pinned(0, 100) == [made], "the message needs its body"
    assert world.lease(queue).messages[0].body_index == made


def test_times_that_passed_meanwhile_are_not_made_up_for(world: QueueWorld) -> None:
    queue = world.create("jobs")
    world.queue(ScheduleCreate(queue, b"* * * * *", b"tick"))

    assert len(world.pass_time(600 * SECOND)) == 1
    assert world.state.router.next_deadline() == world.now_ns // MINUTE * MINUTE + MINUTE


def test_a_firing_is_verified(world: QueueWorld) -> None:
    queue = world.create("jobs")
    world.queue(ScheduleCreate(queue, b"* * * * *", b"tick"))
    schedule, next_ns = world.index, 1_020 * SECOND

    early = ScheduleFire(queue, schedule, next_ns)
    assert world.queue(early) == Refused(Reason.SCHEDULE_NOT_DUE, next_ns)
    world.now_ns = next_ns
    wrong = ScheduleFire(queue, schedule, next_ns - 1)
    assert world.queue(wrong) == Refused(Reason.SCHEDULE_NOT_DUE, next_ns)
    (draft,) = world.state.router.due(world.now_ns, 10)
    assert decode_command(draft.entry_type & 0xFF, read_prefix(draft.payload)[1]) == early
    assert world.draft(draft) == Applied(world.index)
    twice = Refused(Reason.SCHEDULE_NOT_DUE, next_ns + MINUTE)
    assert world.draft(draft) == twice, "proposed twice, fired once"
    assert world.stats(queue).ready == 1
    unknown = Refused(Reason.SCHEDULE_UNKNOWN, 999)
    assert world.queue(ScheduleFire(queue, 999, 1)) == unknown
    assert world.queue(ScheduleDelete(queue, 999)) == unknown


def test_a_full_queue_misses_a_firing_and_counts_it(world: QueueWorld) -> None:
    """Refused, the leader would propose it again and again."""
    queue = world.create("jobs", QueueConfig(messages_max=1))
    world.send(Enqueue(queue, b""))
    world.queue(ScheduleCreate(queue, b"* * * * *", b"tick"))

    assert world.pass_time(MINUTE) == [APPLIED]
    assert world.stats(queue).totals["missed"] == 1
    assert world.state.router.next_deadline() == 1_080 * SECOND


def test_a_schedule_that_cannot_be_is_refused(world: QueueWorld) -> None:
    queue = world.create("jobs")

    never = ScheduleCreate(queue, b"0 0 31 2 *", b"")
    assert world.queue(never) == Refused(Reason.CRON_NEVER, CRON_DAYS_MAX)
    wrong = ScheduleCreate(queue, b"* * * * mon", b"")
    assert world.queue(wrong) == Refused(Reason.CRON_INVALID, 4)


def test_schedules_are_listed(world: QueueWorld) -> None:
    queue = world.create("jobs")
    world.queue(ScheduleCreate(queue, b"* * * * *", b"tick"))
    info = world.reloaded().state.queue.describe_queue(NAMESPACE, queue)

    assert isinstance(info, QueueInfo)
    assert [(each.id, each.cron_text) for each in info.schedules] == [(2, b"* * * * *")]


@pytest.fixture
def world() -> QueueWorld:
    return QueueWorld()
