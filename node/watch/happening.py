"""What an event is to those who pass it on, whatever its model; see node/watch/events.py.

``size`` is how many bytes the event takes in a message, at most: pages are bounded by it, and what
waits for watchers.
"""

from onelog.ual.entry import Entry
from onelog.v1 import pipeline_pb2

# Numbers, tags and lengths of an event, the value before included.
EVENT_OVERHEAD = 200


class Happening:
    """One event, before it is known who wants it. Subclasses fill in their part."""

    __slots__ = ("index", "name", "namespace", "owner", "size", "timestamp_ns")

    def __init__(self, entry: Entry, owner: int, namespace: str, name: bytes, size: int) -> None:
        """``size``: bytes of what the event holds besides namespace and name."""
        self.index = entry.index
        self.timestamp_ns = entry.timestamp_ns
        self.owner = owner
        self.namespace = namespace
        self.name = name
        self.size = EVENT_OVERHEAD + len(namespace) + len(name) + size

    def put(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:
        """Write the event."""
        event.index = self.index
        event.timestamp_ns = self.timestamp_ns
        event.namespace = self.namespace
        self.put_own(event, with_previous=with_previous)

    def settle(self, *, with_previous: bool) -> bool:  # noqa: ARG002
        """Look up what a state forgets, and let go of the state; False if it is forgotten."""
        return True

    def put_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:
        """Write the part of the model."""
        raise NotImplementedError
