"""What happened, as watchers are told: events made of applied entries.

An entry that says itself what it did (a put, a record, points) is read. What only apply knew
(which keys a range took away, what a counter became) was noted when it was applied, as far back as
notes are kept (``projections/kv/changes.py``). Where neither can tell, the answer is COMPACTED:
never a wrong event. So an event is the same whether it is made at once, later from the log, or by
another replica, except for the value before, which is there if the state still keeps it. Who asks
a state of the past that has just replayed the entry (node/watch/past.py) is told either way.

A change of a lifetime (Touch) is no new version and no event; nor are the keys of a namespace that
is deleted as a whole.

Another model adds its maker to ``MAKERS``, by the owner of its entries.
"""

from collections.abc import Callable, Container, Iterable
from typing import Any

from onelog.errors import OutOfRange
from onelog.node.edge.messages import put_item
from onelog.node.watch.events_queue import expiry_events, queue_events
from onelog.node.watch.events_series import series_events
from onelog.node.watch.events_stream import is_repetition, stream_events
from onelog.node.watch.happening import Happening
from onelog.projections.codec import read_prefix
from onelog.projections.kv.changes import Change
from onelog.projections.kv.commands import (
    OPERATIONS,
    LeaseGrant,
    LeaseKeepalive,
    Put,
    PutMany,
    Touch,
    deadline,
)
from onelog.projections.kv.commands import decode_command as decode_kv
from onelog.projections.kv.projection import TYPES_TOLD
from onelog.projections.kv.reads import KeyValue
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import TYPE_EXPIRE
from onelog.ual.entry import (
    OWNER_KV,
    OWNER_QUEUE,
    OWNER_STREAM,
    OWNER_SYSTEM,
    OWNER_TIMESERIES,
    Entry,
)
from onelog.v1 import pipeline_pb2

# Operations on keys that write no version.
_QUIET = frozenset(
    OWNER_KV << 8 | OPERATIONS[each].number for each in (Touch, LeaseGrant, LeaseKeepalive)
)


class KeyHappening(Happening):
    """A key got a version, or went."""

    __slots__ = ("_change", "_previous", "_projections")

    def __init__(self, entry: Entry, change: Change, projections: Projections) -> None:
        size = 0 if change.value is None else len(change.key) + len(change.value)
        super().__init__(entry, OWNER_KV, change.namespace, change.key, size)
        self._change = change
        self._projections: Projections | None = projections  # None: settled
        self._previous: KeyValue | None = None

    def settle(self, *, with_previous: bool) -> bool:
        """See ``Happening``."""
        projections, change = self._projections, self._change
        if projections is None:
            return True
        if with_previous:
            kv = projections.kv
            found = kv.get(change.namespace, change.key, as_of=self.index - 1)
            if isinstance(found, KeyValue):
                self._previous = found
                self.size += len(found.key) + len(found.value)
            elif _is_forgotten(found) and kv.stores[change.namespace].versions_max > 1:
                return False  # where one version is kept, no state ever knows the one before
        self._projections = None
        return True

    def put_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:
        """See ``Happening``."""
        change, target = self._change, event.key
        target.key = change.key
        if change.value is not None:
            item = target.item
            item.key, item.value, item.version = change.key, change.value, self.index
            item.expires_ns, item.lease_id = change.expires_ns, change.lease
        target.expired = change.expired
        if with_previous:
            self.settle(with_previous=True)
            if self._previous is not None:
                put_item(target.previous, self._previous)


def _is_forgotten(found: object) -> bool:
    return isinstance(found, Refused) and found.reason is Reason.COMPACTED


Maker = Callable[[Projections, Entry], Iterable[Happening]]


def _key_events(projections: Projections, entry: Entry) -> Iterable[Happening]:
    """Return what puts did; everything else that is done to keys was noted."""
    if entry.entry_type not in TYPES_TOLD:
        return ()
    prefix, reader = read_prefix(entry.plain_payload())
    command: Any = decode_kv(entry.entry_type & 0xFF, reader)
    puts: list[Put] = command.puts() if isinstance(command, PutMany) else [command]
    changes: dict[bytes, Change] = {}  # the last word on each key, in the order of first touch
    for put in puts:
        expires_ns = 0 if put.ttl_ns is None else deadline(entry.timestamp_ns, put.ttl_ns)
        changes[put.key] = Change(prefix.namespace, put.key, put.value, expires_ns, put.lease or 0)
    return [KeyHappening(entry, change, projections) for change in changes.values()]


MAKERS: dict[int, Maker] = {
    OWNER_KV: _key_events,
    OWNER_QUEUE: queue_events,
    OWNER_STREAM: stream_events,
    OWNER_TIMESERIES: series_events,
}


def events_of(projections: Projections, entry: Entry, owners: Container[int]) -> list[Happening]:
    """Return what an entry did that took effect, to the models that somebody wants to hear of."""
    found: list[Happening] = []
    maker = MAKERS.get(entry.owner) if entry.owner in owners else None
    if maker is not None:
        found += maker(projections, entry)
    if entry.entry_type == TYPE_EXPIRE and OWNER_QUEUE in owners:
        found += expiry_events(projections, entry)
    if OWNER_KV in owners and entry.entry_type not in TYPES_TOLD:
        changes = projections.kv.changes
        if entry.index < changes.complete_from and _may_change_keys(entry):
            raise OutOfRange(
                f"what index {entry.index} did to keys is not known any more",
                reason="COMPACTED",
                metadata={"first_index": str(changes.complete_from)},
            )
        for change in changes.get(entry.index):
            found.append(KeyHappening(entry, change, projections))
    return found


def took_effect(entry: Entry, result: Result) -> bool:
    """Tell whether an entry did something, as the log's voids will tell those who read it later."""
    return isinstance(result, Applied) and not is_repetition(entry, result)


def _may_change_keys(entry: Entry) -> bool:
    if entry.owner == OWNER_SYSTEM:
        return entry.entry_type == TYPE_EXPIRE
    return entry.entry_type not in _QUIET
