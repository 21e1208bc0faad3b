"""What a queue is set to do: retries, dead letters, lifetimes, dedup window, limits.

A configuration is replaced whole. It is looked at when something happens, so a change never
walks over messages: a lower ``max_deliveries`` concerns the next failure, a default lifetime
the next message.
"""

import struct
from dataclasses import dataclass
from typing import Any

from onelog.projections.codec import U8, U64, Reader
from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.queue.limits import (
    BACKOFF_STEPS_MAX,
    DEDUP_ENTRIES_DEFAULT,
    DEDUP_ENTRIES_MAX,
    DEDUP_WINDOW_NS_DEFAULT,
    DELAY_NS_MAX,
    DELIVERIES_MAX,
    VISIBILITY_NS_DEFAULT,
    VISIBILITY_NS_MAX,
)
from onelog.projections.section import SectionReader

# max_deliveries, dead_queue, visibility, ageing, ttl, dedup window, dedup entries, messages
CONFIG = struct.Struct("<HQQQQQIQ")
CONFIG_SIZE = 54
assert CONFIG.size == CONFIG_SIZE


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Settings of one queue."""

    max_deliveries: int = 0  # failures after which a message is dead; 0: never
    dead_queue: int = 0  # id of the queue that takes dead letters; needed with max_deliveries
    visibility_ns: int = VISIBILITY_NS_DEFAULT  # length of a lease that asks for none
    ageing_ns: int = 0  # waiting that makes up for one step of priority; 0: priority is strict
    ttl_ns: int = 0  # lifetime of a message that brings none; 0: none
    dedup_window_ns: int = DEDUP_WINDOW_NS_DEFAULT
    dedup_max: int = DEDUP_ENTRIES_DEFAULT  # ids remembered; 0: no dedup
    messages_max: int = 0  # live messages; 0: no limit
    backoff_ns: tuple[int, ...] = ()  # delay after the first, second, … failure; the last repeats

    def invalid(self) -> int | None:
        """Return the first setting that is outside its bounds, None if all are inside."""
        bounds = (
            (self.max_deliveries, 0, DELIVERIES_MAX),
            (self.visibility_ns, 1, VISIBILITY_NS_MAX),
            (self.ageing_ns, 0, TTL_NS_MAX),
            (self.ttl_ns, 0, TTL_NS_MAX),
            (self.dedup_window_ns, 0, TTL_NS_MAX),
            (self.dedup_max, 0, DEDUP_ENTRIES_MAX),
            *((delay_ns, 0, DELAY_NS_MAX) for delay_ns in self.backoff_ns),
        )
        for value, lowest, highest in bounds:
            if not lowest <= value <= highest:
                return value
        return len(self.backoff_ns) if len(self.backoff_ns) > BACKOFF_STEPS_MAX else None

    def backoff_after(self, failures: int) -> int:
        """Return how long a message waits after that many failures."""
        if not self.backoff_ns:
            return 0
        return self.backoff_ns[min(max(failures, 1), len(self.backoff_ns)) - 1]

    def encode(self) -> bytes:
        """Return the bytes of docs/queue.md."""
        fixed = CONFIG.pack(
            self.max_deliveries,
            self.dead_queue,
            self.visibility_ns,
            self.ageing_ns,
            self.ttl_ns,
            self.dedup_window_ns,
            self.dedup_max,
            self.messages_max,
        )
        delays = b"".join(map(U64.pack, self.backoff_ns))
        return fixed + U8.pack(len(self.backoff_ns)) + delays


def read_config(reader: Reader | SectionReader) -> QueueConfig:
    """Read a configuration; whether it is valid is for the caller to ask."""
    fixed = reader.fields(CONFIG)
    fields: list[Any] = [*fixed, tuple(reader.number(U64) for _ in range(reader.number(U8)))]
    return QueueConfig(*fields)
