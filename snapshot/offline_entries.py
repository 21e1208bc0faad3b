"""What the state of a shard only refers to, read from the log of a data directory.

Bodies of messages, records and blocks stay in the log for as long as the present state needs them.
An older state may need more than that: what is gone since then is ``NotKept``, which is an answer
and no failure. Damage is something else and is raised as it is.
"""

from typing import Any

from onelog.projections.errors import BadPayload
from onelog.ual.entry import Entry
from onelog.ual.errors import IndexDropped
from onelog.ual.offline.offline_log import OfflineLog


class NotKept(Exception):
    """The log does not keep the entry any more."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the log no longer keeps entry {index}")
        self.index = index


def read_entry(source: OfflineLog, index: int) -> Entry:
    """Return one entry; raise ``NotKept`` if its file, or its place in one, has been given up."""
    try:
        for entry in source.entries(index, index):
            return entry
    except IndexDropped as error:
        raise NotKept(index) from error
    raise NotKept(index)  # a compacted file has only some of its entries


def bytes_fields(name: str, data: bytes) -> dict[str, Any]:
    """Return bytes as text if all of it is printable, else as hex under another name."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {name: text} if text.isprintable() else {f"{name}_hex": data.hex()}


def unreadable(error: NotKept | BadPayload) -> dict[str, Any]:
    """Return what stands in place of what cannot be read."""
    return {"error": str(error)}
