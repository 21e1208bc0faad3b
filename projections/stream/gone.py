"""Streams that were deleted: what the entries about them need to be understood afterwards.

A record's entry says everything but its partition, which follows from how many its stream had, and
retention names a stream by its id. Whoever tells later what such entries did asks here for streams
that are gone. Like other notes this is no part of the state: a replica that began with a snapshot
knows of those that went since, and who is not told asks a state of the past (node/watch/past.py).

Invariant: whoever is forgotten went before everybody who is remembered. So of the streams that had
one name, the newest are known, and the one that had it at an index is never mistaken for another.
"""

from collections import OrderedDict
from typing import NamedTuple

STREAMS_MAX = 10_000  # that are remembered, 300 bytes each


class GoneStream(NamedTuple):
    """A stream that is gone."""

    id: int
    namespace: str
    name: str
    partition_count: int


class GoneStreams:
    """The streams of a shard that went last."""

    __slots__ = ("_by_id", "_ids", "streams_max")

    def __init__(self) -> None:
        # In the order in which they went; a plain dict would walk over those that were forgotten.
        self._by_id: OrderedDict[int, GoneStream] = OrderedDict()
        self._ids: dict[tuple[str, str], list[int]] = {}  # by namespace and name, rising
        self.streams_max = STREAMS_MAX

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, stream: GoneStream) -> None:
        """Remember a stream that goes."""
        self._by_id[stream.id] = stream
        self._ids.setdefault((stream.namespace, stream.name), []).append(stream.id)
        while len(self._by_id) > self.streams_max:
            self.take_back(next(iter(self._by_id)))

    def take_back(self, stream_id: int) -> None:
        """Forget a stream, if it is known: it is still there, or went too long ago."""
        stream = self._by_id.pop(stream_id, None)
        if stream is None:
            return
        name = stream.namespace, stream.name
        self._ids[name].remove(stream_id)
        if not self._ids[name]:
            del self._ids[name]

    def by_id(self, stream_id: int) -> GoneStream | None:
        """Return the stream that was created at an index."""
        return self._by_id.get(stream_id)

    def at(self, namespace: str, name: str, index: int) -> GoneStream | None:
        """Return the newest stream of a name that was created before an index."""
        ids = self._ids.get((namespace, name), ())
        newest = max((each for each in ids if each < index), default=None)
        return None if newest is None else self._by_id[newest]

    def check(self) -> None:
        """Assert that both indexes know the same."""
        named = {each: name for name, ids in self._ids.items() for each in ids}
        assert named == {each.id: (each.namespace, each.name) for each in self._by_id.values()}
        assert all(ids == sorted(ids) and ids for ids in self._ids.values())
        assert len(self._by_id) <= self.streams_max
