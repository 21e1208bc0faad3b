"""One readable line about any entry of a log. It works for every entry, sound or not.

Each model describes its own commands. This module makes the text safe to show: names and values
come from files that anybody may have written, so unprintable characters are escaped, and the line
is cut to a bounded length.
"""

from collections.abc import Callable

from onelog.projections.codec import Reader, read_prefix
from onelog.projections.errors import BadPayload
from onelog.projections.kv.commands import describe_kv_entry
from onelog.projections.queue.commands import decode_command as decode_queue
from onelog.projections.queue.commands import describe_queue_entry
from onelog.projections.stream.commands import decode_command as decode_stream
from onelog.projections.stream.commands import describe_stream_command
from onelog.projections.system.commands import TYPES_OPAQUE, describe_system_entry
from onelog.projections.timeseries.commands import decode_command as decode_timeseries
from onelog.projections.timeseries.commands import describe_timeseries_command
from onelog.ual.entry import (
    OWNER_KV,
    OWNER_QUEUE,
    OWNER_STREAM,
    OWNER_SYSTEM,
    OWNER_TIMESERIES,
    Entry,
)
from onelog.ual.errors import DataError

DESCRIPTION_SIZE_MAX = 240  # characters

_DESCRIBERS: dict[int, Callable[[Entry], str]] = {
    OWNER_SYSTEM: describe_system_entry,
    OWNER_KV: describe_kv_entry,
    OWNER_QUEUE: describe_queue_entry,
    OWNER_STREAM: describe_stream_command,
    OWNER_TIMESERIES: describe_timeseries_command,
}

# The describers of these owners also return a line for a malformed entry. Only their decoders tell
# whether it is malformed.
_DECODERS: dict[int, Callable[[int, Reader], object]] = {
    OWNER_QUEUE: decode_queue,
    OWNER_STREAM: decode_stream,
    OWNER_TIMESERIES: decode_timeseries,
}


def describe_entry(entry: Entry) -> str:
    """Return one printable line about an entry, or why it is not a command."""
    try:
        return _describe(entry)
    except (BadPayload, DataError) as error:
        return _fit(f"not a command: {error}")


def describe_command(entry: Entry) -> str | None:
    """Return the line for an entry that is a command, None for any other."""
    try:
        return _describe(entry)
    except (BadPayload, DataError):
        return None


def _escape(text: str) -> str:
    """Replace unprintable characters by their numbers, so that a terminal does not obey them."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def _describe(entry: Entry) -> str:
    describer = _DESCRIBERS.get(entry.owner)
    if describer is None:
        raise DataError(f"no projection has owner 0x{entry.owner:02x}")
    if entry.entry_type in TYPES_OPAQUE:
        return _fit(describer(entry))
    prefix, reader = read_prefix(entry.plain_payload())
    decoder = _DECODERS.get(entry.owner)
    if decoder is not None:
        decoder(entry.entry_type & 0xFF, reader)
    session = prefix.session
    suffix = "" if session is None else f" [session {session.session} request {session.sequence}]"
    return _fit(describer(entry), suffix)


def _fit(text: str, suffix: str = "") -> str:
    """Escape and shorten a text; the suffix is kept whole."""
    room = DESCRIPTION_SIZE_MAX - len(suffix)
    escaped = _escape(text[: room + 1])  # escaping never makes it shorter
    return (escaped if len(escaped) <= room else f"{escaped[: room - 1]}…") + suffix
