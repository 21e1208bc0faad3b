"""Parses what people type: keys, durations, times, numbers, and values from stdin and files.

Everything is checked here, before any server is called: a wrong argument ends the command with a
usage error that names it. Keys and values are bytes. Bytes of the command line that are not UTF-8
arrive as they were typed; with ``--escaped`` arguments may hold any byte (``\\x00``).
"""

import codecs
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import typer

from onelog.cli.failure import CommandFailed
from onelog.client.options import parse_endpoint as to_endpoint
from onelog.client.times import find_mistaken, parse_duration_ns, parse_time_ns
from onelog.errors import InvalidArgument

STDIN = "-"

# ASCII digits, and no more than any number of the API has: int() refuses very long ones.
_NUMBER = r"[0-9]{1,20}"
_SIZE = re.compile(rf"({_NUMBER})(B|KiB|MiB|GiB|TiB)?", re.IGNORECASE)
_SIZES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_STEP = re.compile(rf"\.?([^.\[\]]+)|\[(-?{_NUMBER})\]")
_MEMBER = re.compile(rf"({_NUMBER}):({_NUMBER})")
U64_MAX = (1 << 64) - 1  # the largest number of the API


def duration_ns(text: str) -> int:
    """Parse ``1h30m``, ``250ms``, … or a number of seconds; return nanoseconds."""
    try:
        return parse_duration_ns(text)
    except InvalidArgument as error:
        raise typer.BadParameter(error.message) from None


def duration_s(text: str) -> float:
    """Parse a duration; return seconds."""
    return duration_ns(text) / 1e9


def lifetime_s(text: str) -> float:
    """Parse a duration; return seconds, 0 for ``none``."""
    return 0.0 if text == "none" else duration_s(text)


def size_bytes(text: str) -> int:
    """Parse ``16GiB``, ``500MiB``, …; return bytes."""
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _SIZES[(found[2] or "B").lower()] if found else U64_MAX + 1
    if size > U64_MAX:
        raise typer.BadParameter(f"'{text}' is no size like 16GiB, 500MiB or a number of bytes")
    return size


def shown_size(size: int) -> str:
    """Format a number of bytes for people, in the largest unit that it fills."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _SIZES[unit.lower()]:
            return f"{size / _SIZES[unit.lower()]:.4g} {unit}"
    return f"{size} B"


def time_ns(text: str) -> int:
    """Parse a time: RFC 3339, ``now``, ``now-1h``, or nanoseconds since 1970."""
    try:
        found = parse_time_ns(text)
    except InvalidArgument as error:
        raise typer.BadParameter(error.message) from None
    if found > U64_MAX:
        raise typer.BadParameter(f"{text} is no number of nanoseconds")
    if text.isdigit() and (mistaken := find_mistaken(found, found)):
        unit, factor = mistaken
        raise typer.BadParameter(
            f"{text} looks like {unit}; a number is nanoseconds since 1970 (times {factor:,})"
        )
    if found < 0 and not text.startswith("now"):
        raise typer.BadParameter(f"'{text}' is before 1970")
    return max(0, found)


def offset_number(text: str) -> int:
    """Parse an offset of a stream: a number, or ``start``, which is 0."""
    if re.fullmatch(_NUMBER, text):
        return int(text)
    if text == "start":
        return 0
    try:
        parse_time_ns(text)
    except InvalidArgument:
        raise typer.BadParameter(f"'{text}' is no offset: a number, or start") from None
    raise typer.BadParameter(f"'{text}' is a time, which has a flag of its own, and no offset")


def shown_time(moment_ns: int) -> str:
    """Format a time as RFC 3339 in UTC, with as many digits as it needs."""
    seconds, fraction = divmod(moment_ns, 10**9)
    if seconds >= 253_402_300_800:  # the year 10,000
        return str(moment_ns)
    shown = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return shown + (f".{fraction:09d}".rstrip("0") if fraction else "") + "Z"


def shown_duration(seconds: float) -> str:
    """Format a duration as a user would type it."""
    left, shown = round(seconds * 1000), ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        shown += f"{count}{unit}" if count else ""
    return shown or "0"


def parse_endpoint(text: str) -> str:
    """Return an endpoint as ``host:port``; without a port it is 7400."""
    try:
        return to_endpoint(text)
    except InvalidArgument as error:
        raise typer.BadParameter(error.message.replace("pass tls=Tls()", "add --tls")) from None


def to_bytes(text: str, *, escaped: bool = False) -> bytes:
    """Return an argument as bytes, with escapes resolved if ``escaped``."""
    data = os.fsencode(text)
    if not escaped:
        return data
    try:
        found, _ = codecs.escape_decode(data)
    except ValueError as error:
        raise typer.BadParameter(f"'{text}' has a bad escape: {error}") from None
    return bytes(found)


def read_value(text: str | None, file: Path | None, *, escaped: bool = False) -> bytes:
    """Return a value from the argument, from stdin (``-``) or from a file; exactly one of them."""
    if (text is None) == (file is None):
        raise CommandFailed("USAGE", "give a value, - for stdin, or --file")
    if file is not None:
        return read_file(file)
    assert text is not None
    return sys.stdin.buffer.read() if text == STDIN else to_bytes(text, escaped=escaped)


def read_file(file: Path) -> bytes:
    """Return the content of a file; ``-`` is stdin."""
    return sys.stdin.buffer.read() if str(file) == STDIN else file.read_bytes()


def read_lines(file: Path | None) -> Iterator[bytes]:
    """Yield the lines of a file, or of stdin, without their ends."""
    if file is None or str(file) == STDIN:
        yield from _stripped(sys.stdin.buffer)
        return
    with file.open("rb") as source:
        yield from _stripped(source)


def _stripped(source: BinaryIO) -> Iterator[bytes]:
    for line in source:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def parse_json(data: bytes, what: str) -> Any:
    """Parse a JSON document; ``what`` names it in errors."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise CommandFailed("JSON_INVALID", f"{what} is no JSON: {error}") from None
    except RecursionError:
        raise CommandFailed("JSON_INVALID", f"{what} is nested too deeply") from None


def parse_path(text: str) -> list[str | int]:
    """Parse the path ``tags[0].name``; with dots or brackets in names ``["a.b", 0]``."""
    if text in ("", "."):
        return []
    if text.startswith(("[", '"')) and not re.match(r"\[-?\d+\](?:$|[.\[])", text):
        steps = parse_json(text.encode(), f"the path {text}")
        steps = steps if isinstance(steps, list) else [steps]
        if all(type(step) in (str, int) for step in steps):
            return steps
        raise CommandFailed("USAGE", f"the path {text} has a step that is no name and no number")
    steps, at = [], 0
    for found in _STEP.finditer(text):
        if found.start() != at:
            break
        at = found.end()
        steps.append(found[1] if found[1] is not None else int(found[2]))
    if at != len(text):
        raise CommandFailed("USAGE", f"'{text}' is no path like tags[0].name")
    return steps


def parse_pairs(texts: Sequence[str] | None, what: str) -> dict[str, str]:
    """Parse ``NAME=VALUE`` arguments."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise CommandFailed("USAGE", f"{what} '{text}' is not NAME=VALUE")
        pairs[name] = value
    return pairs


def parse_headers(texts: Sequence[str] | None) -> dict[str, str | bytes]:
    """Parse headers, whose values may be any bytes."""
    return {name: to_bytes(value) for name, value in parse_pairs(texts, "header").items()}


def dead_letters_name(name: str) -> str:
    """Return the name of the queue or stream that takes the dead letters of one, in its shard."""
    from onelog.routing import routing_key

    tag = routing_key(name.encode()).decode()
    if set("{}") & set(tag):
        raise CommandFailed("USAGE", f"name the dead letters of {name}: it has stray braces")
    base = name.replace(f"{{{tag}}}", "")
    return f"{base or tag}.dead{{{tag}}}"


def parse_number_pairs(texts: Iterable[str], what: str) -> list[tuple[int, int]]:
    """Parse arguments like ``12:3``: a message and its token, a partition and an offset."""
    pairs = []
    for text in texts:
        found = _MEMBER.fullmatch(text)
        if found is None or max(int(found[1]), int(found[2])) > U64_MAX:
            raise CommandFailed("USAGE", f"'{text}' is not {what}")
        pairs.append((int(found[1]), int(found[2])))
    return pairs
