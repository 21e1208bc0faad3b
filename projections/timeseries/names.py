"""Names of series, and the matchers that select them.

A series is a measurement and its tags. Its name in canonical form is one text::

    measurement{tag=value,tag=value}

Tags stand in ascending order, each once; values are not empty (no tag and an empty one are the
same thing to a matcher); a series without tags ends in ``{}``. A backslash stands before each of
``\\ , = { }`` that belongs to a name. So equal series have equal bytes, and a known series is
found by them without parsing. Any other form is SERIES_NAME_INVALID.

A matcher compares the value of one tag; a series without the tag has the empty value. All
matchers of a selection must hold. Patterns match whole values (regex.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from onelog.projections.codec import U8, U16, Reader, encode_sized
from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.timeseries.limits import (
    MATCHERS_MAX,
    NAME_SIZE_MAX,
    SERIES_NAME_SIZE_MAX,
    TAG_VALUE_SIZE_MAX,
    TAGS_MAX,
)
from onelog.projections.timeseries.regex import Pattern

_SPECIAL = frozenset("\\,={}")
_DELIMITERS = frozenset(",={}")
_ESCAPES = {ord(character): f"\\{character}" for character in "\\,={}"}
_CONTROLS = frozenset(map(chr, (*range(0x20), 0x7F)))

Tags = tuple[tuple[str, str], ...]


class SeriesName(NamedTuple):
    """A parsed series name."""

    measurement: str
    tags: Tags


def series_name(measurement: str, tags: Mapping[str, str] | None = None) -> bytes:
    """Return the canonical name of a series; tags with empty values are omitted."""
    pairs = sorted((tag, value) for tag, value in (tags or {}).items() if value)
    return format_series(SeriesName(measurement, tuple(pairs)))


def format_series(name: SeriesName) -> bytes:
    """Return the canonical bytes of a name whose tags are sorted."""
    measurement, tags = name
    text = f"{measurement}{{{','.join([f'{tag}={value}' for tag, value in tags])}}}"
    is_plain = (
        "\\" not in text
        and text.count("{") == text.count("}") == 1
        and text.count("=") == len(tags)
        and text.count(",") == max(0, len(tags) - 1)
    )
    if not is_plain:
        escaped = ",".join(f"{_escape(tag)}={_escape(value)}" for tag, value in tags)
        text = f"{_escape(measurement)}{{{escaped}}}"
    return text.encode()


def parse_series(raw: bytes) -> SeriesName:
    """Parse a canonical name; raise ``BadPayload`` for any other."""
    if len(raw) > SERIES_NAME_SIZE_MAX:
        words = f"a series name of {len(raw)} bytes, limit {SERIES_NAME_SIZE_MAX}"
        raise BadPayload(Reason.SERIES_NAME_INVALID, SERIES_NAME_SIZE_MAX, words)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise BadPayload(Reason.PAYLOAD_NOT_UTF8) from error
    return _parse_plain(text) or _parse_escaped(text)


def find_tags(name: bytes) -> Tags:
    """Return the tags of a canonical name that needs no check, such as that of a series."""
    text = name.decode()
    if "\\" in text:
        return _parse_escaped(text).tags
    rest = text.partition("{")[2]
    return () if rest == "}" else _split_tags(rest)


def _parse_plain(text: str) -> SeriesName | None:
    """Parse a name without escapes, in half the time of ``_parse_escaped``; None for others.

    Most names have no escapes, and each new series is parsed. A name with escapes or errors is left
    to ``_parse_escaped``, which reports the position.
    """
    measurement, _, rest = text.partition("{")
    if "\\" in text or rest[-1:] != "}" or not _CONTROLS.isdisjoint(text):
        return None
    if not 0 < len(measurement.encode()) <= NAME_SIZE_MAX or not _DELIMITERS.isdisjoint(
        measurement
    ):
        return None
    if rest == "}":
        return SeriesName(measurement, ())
    tags = _split_tags(rest)
    previous = ""
    for tag, value in tags:
        if (
            tag <= previous
            or not 0 < len(tag.encode()) <= NAME_SIZE_MAX
            or not 0 < len(value.encode()) <= TAG_VALUE_SIZE_MAX
            or not _DELIMITERS.isdisjoint(tag)
            or not _DELIMITERS.isdisjoint(value)
        ):
            return None
        previous = tag
    return SeriesName(measurement, tags) if len(tags) <= TAGS_MAX else None


def _split_tags(rest: str) -> Tags:
    """Return the tags of a name without escapes: what follows its measurement, and is not `}`."""
    return tuple(
        [(tag, value) for tag, _, value in [pair.partition("=") for pair in rest[:-1].split(",")]]
    )


def _parse_escaped(text: str) -> SeriesName:
    measurement, at = _token(text, 0, "{")
    check_name(measurement)
    tags: list[tuple[str, str]] = []
    if text[at : at + 1] != "}":
        while True:
            tag, at = _token(text, at, "=")
            value, at = _token(text, at, ",}")
            if tags and tag <= tags[-1][0]:
                raise BadPayload(Reason.SERIES_NAME_INVALID, at)
            tags.append((check_name(tag), _check_value(value)))
            if text[at - 1] == "}":
                at -= 1
                break
    if len(tags) > TAGS_MAX:
        words = f"a series of {len(tags)} tags, limit {TAGS_MAX}"
        raise BadPayload(Reason.SERIES_NAME_INVALID, at, words)
    if at != len(text) - 1:
        raise BadPayload(Reason.SERIES_NAME_INVALID, at)
    return SeriesName(measurement, tuple(tags))


def check_name(name: str) -> str:
    """Check the name of a measurement, a tag or a field, and return it."""
    if not 0 < len(name.encode()) <= NAME_SIZE_MAX or not _CONTROLS.isdisjoint(name):
        words = f"the name {name!r:.70} of a measurement, tag or field has {_words(name)}"
        raise BadPayload(Reason.SERIES_NAME_INVALID, len(name), f"{words}{NAME_SIZE_MAX}")
    return name


def read_name(reader: Reader) -> str:
    """Read a name that is preceded by its size."""
    return check_name(reader.text(U8))


def encode_name(name: str) -> bytes:
    """Return a name preceded by its size."""
    return encode_sized(U8, name.encode())


class Operator(IntEnum):
    """How a matcher compares."""

    EQUAL = 1
    NOT_EQUAL = 2
    MATCHES = 3
    MATCHES_NOT = 4


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on the value of one tag."""

    tag: str
    operator: Operator
    value: str


class CompiledMatcher:
    """A compiled matcher."""

    __slots__ = ("_pattern", "_value", "_wanted", "tag")

    def __init__(self, matcher: Matcher) -> None:
        operator = matcher.operator
        self.tag = matcher.tag
        self._value = matcher.value
        self._wanted = operator in (Operator.EQUAL, Operator.MATCHES)
        self._pattern: Pattern | None = None
        if operator in (Operator.MATCHES, Operator.MATCHES_NOT):
            self._pattern = Pattern(matcher.value)

    @property
    def only_value(self) -> str | None:
        """The single value that it distinguishes from all others and from a missing tag, if any."""
        return self._value if self._pattern is None and self._value else None

    @property
    def is_pattern(self) -> bool:
        """Whether it is a regular expression."""
        return self._pattern is not None

    @property
    def effort(self) -> int:
        """The cost of its pattern so far, in positions."""
        return 0 if self._pattern is None else self._pattern.effort

    def passes(self, value: str) -> bool:
        """Return whether a value passes; an empty one means that the tag is missing."""
        if self._pattern is None:
            return (value == self._value) is self._wanted
        return self._pattern.matches(value) is self._wanted


def compile_matchers(matchers: Iterable[Matcher]) -> list[CompiledMatcher]:
    """Compile matchers; raise ``BadPayload`` for an invalid pattern."""
    return [CompiledMatcher(matcher) for matcher in matchers]


def passes_all(tests: Iterable[CompiledMatcher], tags: Tags) -> bool:
    """Return whether a series with these tags is selected."""
    values = dict(tags)
    return all(test.passes(values.get(test.tag, "")) for test in tests)


# The highest bit of the count of matchers is a flag of the command that they are of.
MARK = 0x80
assert MATCHERS_MAX < MARK


def encode_matchers(matchers: tuple[Matcher, ...], *, is_marked: bool) -> bytes:
    """Return the bytes of matchers: count u8, then operator u8, tag bytes8, value bytes16."""
    parts = [U8.pack(len(matchers) | (MARK if is_marked else 0))]
    for matcher in matchers:
        value = encode_sized(U16, matcher.value.encode())
        parts += (U8.pack(matcher.operator), encode_name(matcher.tag), value)
    return b"".join(parts)


def read_matchers(reader: Reader) -> tuple[tuple[Matcher, ...], bool]:
    """Read matchers, make sure that their patterns compile, and whether they are marked."""
    number = reader.number(U8)
    count = number & ~MARK
    if count > MATCHERS_MAX:
        raise BadPayload(Reason.PAYLOAD_COUNT_TOO_LARGE, count)
    matchers: list[Matcher] = []
    for _ in range(count):
        operator = reader.number(U8)
        if not 1 <= operator <= len(Operator):
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, operator)
        tag, value = read_name(reader), reader.text(U16)
        if len(value.encode()) > TAG_VALUE_SIZE_MAX:
            words = f"{len(value.encode())} bytes to match {tag!r} with, limit {TAG_VALUE_SIZE_MAX}"
            raise BadPayload(Reason.MATCHER_INVALID, TAG_VALUE_SIZE_MAX, words)
        matchers.append(Matcher(tag, Operator(operator), value))
    compile_matchers(matchers)
    return tuple(matchers), number != count


def _words(text: str) -> str:
    if not _CONTROLS.isdisjoint(text):
        return "control characters; allowed are others, up to bytes: "
    return f"{len(text.encode())} bytes; allowed: 1 to "


def _escape(name: str) -> str:
    return name.translate(_ESCAPES)


def _check_value(value: str) -> str:
    if not 0 < len(value.encode()) <= TAG_VALUE_SIZE_MAX or not _CONTROLS.isdisjoint(value):
        words = f"the value {value!r:.70} of a tag has {_words(value)}"
        raise BadPayload(Reason.SERIES_NAME_INVALID, len(value), f"{words}{TAG_VALUE_SIZE_MAX}")
    return value


def _token(text: str, at: int, ends: str) -> tuple[str, int]:
    """Return the unescaped text up to one of ``ends``, and the position just past that."""
    start = at
    size = len(text)
    escaped = False
    while at < size:
        character = text[at]
        if character == "\\":
            if text[at + 1 : at + 2] not in _SPECIAL:  # also at the end: there it is empty
                raise BadPayload(Reason.SERIES_NAME_INVALID, at)
            escaped = True
            at += 2
            continue
        if character in _SPECIAL:
            if character not in ends:
                break
            token = text[start:at]
            return (_unescape(token) if escaped else token), at + 1
        at += 1
    raise BadPayload(Reason.SERIES_NAME_INVALID, at)


def _unescape(token: str) -> str:
    parts = iter(token)
    return "".join(next(parts) if part == "\\" else part for part in parts)
