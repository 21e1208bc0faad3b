"""Running out of memory: what the process says when it ends for that.

An allocation may fail anywhere. In a call it is the answer of that call; in the work of a replica,
or in a callback of the loop, nobody knows how far it came, so the process ends, as after any other
error there. The log has every acknowledged write, and the next start replays it.

Some bytes are kept in reserve, so that the process can still end in order and say what it held:
without them that would fail like everything else.
"""

import resource
from pathlib import Path

from onelog.node.context import NodeContext
from onelog.node.edge.gate import Gate
from onelog.ual.entry import OWNER_KV, OWNER_QUEUE, OWNER_STREAM, OWNER_SYSTEM, OWNER_TIMESERIES

RESERVE_BYTES = 8 << 20
_MIB = 1 << 20
_MODELS = {
    OWNER_SYSTEM: "sessions and holds",
    OWNER_KV: "keys",
    OWNER_QUEUE: "queues",
    OWNER_STREAM: "streams",
    OWNER_TIMESERIES: "time series",
}


class MemoryReserve:
    """Bytes that are released when there are no others: for the end, then for the last words."""

    def __init__(self) -> None:
        self._parts = [bytearray(RESERVE_BYTES), bytearray(RESERVE_BYTES)]

    def release(self) -> None:
        """Make room; a third call does nothing."""
        if self._parts:
            self._parts.pop()

    def release_all(self) -> None:
        """Free all parts; ``release`` has no more to give."""
        self._parts.clear()


def describe_held(context: NodeContext | None, gate: Gate) -> str:
    """Return what the process held, in words, and what to do about it."""
    held = {"calls in progress": gate.bytes_under_way}
    if context is not None:
        held["states of the past"] = context.past.memory_bytes
        for driver in context.drivers.values():
            log, router = driver.shard.log, driver.shard.router
            held["log rings"] = held.get("log rings", 0) + log.ring.size
            for owner, kinds in router.memory().items():
                model = _MODELS[owner]
                held[model] = held.get(model, 0) + sum(kinds.values())
    largest = sorted(held.items(), key=lambda each: -each[1])
    parts = ", ".join(f"{name} {size / _MIB:.0f} MiB" for name, size in largest)
    return (
        f"{_describe_process()}; of that about: {parts}. Acknowledged writes are in the log. Start "
        "it again with more memory, or lower log.ring_bytes, limits.in_flight_bytes_max or "
        "as_of.memory_bytes_max"
    )


def _describe_process() -> str:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    used = pages * resource.getpagesize() // _MIB
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    allowed = "" if limit == resource.RLIM_INFINITY else f", {limit // _MIB} MiB may be addressed"
    return f"no more memory: {used} MiB are used{allowed}"
