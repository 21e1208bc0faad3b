"""Pages of the log for ``Admin.ReadLog``, made beside the loop: entries are read and expanded here.

Invariants: a page has at least one entry if there is one to send, at most ``READ_ENTRIES_MAX``, and
is never larger than a message may be. What counts is what is sent: the log stores payloads
compressed, and a megabyte of zeros takes a few bytes there.
"""

from onelog.node.public_errors import answer_too_large
from onelog.ual.entry import Entry
from onelog.ual.errors import PayloadTooLarge
from onelog.ual.log import Log
from onelog.v1 import admin_pb2, log_pb2

READ_ENTRIES_MAX = 1_000
READ_BYTES_MAX = 1 << 20  # a single entry may be larger
# The numbers of an entry and of its page, encoded, at most.
ENTRY_OVERHEAD_MAX = 128


def read_page(
    log: Log,
    shard: int,
    first_index: int,
    last_index: int,
    with_voids: bool,  # noqa: FBT001 - called by an executor
    owners: frozenset[int],
    message_bytes_max: int,
) -> admin_pb2.ReadLogResponse:
    """Return the next entries, and up to where that is all: before ``first_index`` if nothing is.

    Raises TooLarge if the first one alone is above what a message may be.
    """
    end = min(last_index, log.commit_index if with_voids else log.applied_index)
    page = admin_pb2.ReadLogResponse(last_index=end)
    left = min(READ_BYTES_MAX, message_bytes_max - ENTRY_OVERHEAD_MAX)
    for entry in log.scan(first_index, end, skip_voids=not with_voids):
        if owners and entry.owner not in owners:
            continue
        size_max = left if page.entries else message_bytes_max - ENTRY_OVERHEAD_MAX
        try:
            payload = entry.plain_payload(size_max)  # what does not fit is not even expanded
            size = len(payload)
        except PayloadTooLarge as error:
            size = error.size
        if size > size_max:
            if not page.entries:
                raise _entry_too_large(shard, entry, size, message_bytes_max)
            page.last_index = entry.index - 1
            break
        _put_entry(page.entries.add(), shard, entry, payload)
        left -= size + ENTRY_OVERHEAD_MAX
        if len(page.entries) >= READ_ENTRIES_MAX or left <= 0:
            page.last_index = entry.index
            break
    return page


def _put_entry(target: log_pb2.Entry, shard: int, entry: Entry, payload: bytes) -> None:
    target.shard = shard
    target.index = entry.index
    target.term = entry.term
    target.timestamp_ns = entry.timestamp_ns
    target.entry_type = entry.entry_type
    target.group_left = entry.group_left
    target.payload = payload


def _entry_too_large(shard: int, entry: Entry, size: int, limit: int) -> Exception:
    return answer_too_large(
        f"entry {entry.index} of shard {shard} has {size} bytes, and a message {limit}; go on "
        "behind it, or raise limits.message_bytes_max",
        limit,
        index=entry.index,
        size=size,
    )
