"""Cron: the next minute of an expression. Integers and UTC only, the same on every replica.

Five fields: minute (0-59), hour (0-23), day of month (1-31), month (1-12), day of week (0-7,
0 and 7 are Sunday). A field is a list of ``*``, ``a``, ``a-b``, each with an optional ``/step``;
``a/step`` is ``a-highest/step``. When both days are restricted (do not start with ``*``), a day
that fits either of them fits, as in crontab. There is no daylight saving in UTC, so no minute
is repeated or skipped.

Leap seconds do not exist in log time: a day has 86,400 seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onelog.projections.queue.limits import CRON_DAYS_MAX, SECOND_NS

_MINUTE_NS = 60 * SECOND_NS
_DAY_MINUTES = 1_440
_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_NAMES = ("minute", "hour", "day of the month", "month", "day of the week")
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_TO_EPOCH = 719_468  # from 0000-03-01 to 1970-01-01
_DAYS_PER_ERA = 146_097  # four hundred years
_EPOCH_WEEKDAY = 4  # 1970-01-01 was a Thursday


class BadCron(ValueError):
    """The expression cannot be read; ``field`` says where, counted from 0."""

    def __init__(self, field: int, words: str) -> None:
        super().__init__(words)
        self.field = field


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression: the values of each field, as bits."""

    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    either_day: bool  # a day needs to fit only one of the two day fields

    def next_after(self, moment_ns: int) -> int | None:
        """Return the first fitting minute after ``moment_ns``, None beyond CRON_DAYS_MAX."""
        minute = moment_ns // _MINUTE_NS + 1
        day, minute_of_day = divmod(minute, _DAY_MINUTES)
        for candidate in self._days_from(day):
            found = self._minute_from(minute_of_day if candidate == day else 0)
            if found is not None:
                return (candidate * _DAY_MINUTES + found) * _MINUTE_NS
        return None

    def _days_from(self, first: int) -> Iterator[int]:
        year, month, day_of_month = to_civil_date(first)
        length = _month_length(year, month)
        for day in range(first, first + CRON_DAYS_MAX):
            if self.months >> month & 1 and self._fits(day, day_of_month):
                yield day
            day_of_month += 1
            if day_of_month > length:
                day_of_month, month = 1, month + 1
                if month > 12:
                    month, year = 1, year + 1
                length = _month_length(year, month)

    def _fits(self, day: int, day_of_month: int) -> bool:
        by_month = bool(self.days >> day_of_month & 1)
        by_week = bool(self.weekdays >> ((day + _EPOCH_WEEKDAY) % 7) & 1)
        return by_month or by_week if self.either_day else by_month and by_week

    def _minute_from(self, minute_of_day: int) -> int | None:
        first_hour, first_minute = divmod(minute_of_day, 60)
        for hour in range(first_hour, 24):
            if self.hours >> hour & 1:
                minutes = self.minutes
                if hour == first_hour:
                    minutes = minutes >> first_minute << first_minute
                if minutes:
                    return hour * 60 + _lowest_bit(minutes)
        return None


def parse_cron(text: bytes) -> Cron:
    """Parse an expression; raise ``BadCron`` if it is malformed."""
    fields = text.split(b" ")
    if len(fields) != len(_FIELDS):
        words = (
            f"the cron expression has {len(fields)} fields; it has {len(_FIELDS)}, with one space "
            f"between: {', '.join(_NAMES)}"
        )
        raise BadCron(min(len(fields), len(_FIELDS)), words)
    masks = [_parse_field(number, field) for number, field in enumerate(fields)]
    minutes, hours, days, months, weekdays = masks
    weekdays = (weekdays | weekdays >> 7) & 0x7F
    either_day = not fields[2].startswith(b"*") and not fields[4].startswith(b"*")
    return Cron(minutes, hours, days, months, weekdays, either_day)


def to_civil_date(day: int) -> tuple[int, int, int]:
    """Return year, month and day of month of a day counted from 1970-01-01."""
    era, day_of_era = divmod(day + _DAYS_TO_EPOCH, _DAYS_PER_ERA)
    leap_days = day_of_era // 1_460 - day_of_era // 36_524 + day_of_era // 146_096
    year_of_era = (day_of_era - leap_days) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153  # counted from March
    day_of_month = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return era * 400 + year_of_era + (month <= 2), month, day_of_month


def _month_length(year: int, month: int) -> int:
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if month == 2 and is_leap else _MONTH_DAYS[month - 1]


def _lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _parse_field(number: int, field: bytes) -> int:
    lowest, highest = _FIELDS[number]
    mask = 0
    for part in field.split(b","):
        span, slash, step_text = part.partition(b"/")
        step = _parse_number(number, step_text, 1, highest) if slash else 1
        first_text, dash, last_text = span.partition(b"-")
        if span == b"*":
            first, last = lowest, highest
        else:
            first = _parse_number(number, first_text, lowest, highest)
            last = _parse_number(number, last_text, first, highest) if dash else first
            if slash and not dash:
                last = highest
        for value in range(first, last + 1, step):
            mask |= 1 << value
    return mask


def _parse_number(number: int, text: bytes, lowest: int, highest: int) -> int:
    value = int(text) if 1 <= len(text) <= 2 and text.isdigit() else -1
    if not lowest <= value <= highest:
        shown = text.decode(errors="replace")
        words = f"the {_NAMES[number]} of the cron expression is {shown!r}; allowed: "
        raise BadCron(number, f"{words}{lowest} to {highest}")
    return value
