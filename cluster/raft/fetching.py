"""Fetching one piece, a snapshot or a sealed range, chunk by chunk: no I/O, no clock of its own.

The receiver asks for bytes by their place and has a bounded number of them on the way. What does
not come is asked for again, what comes twice or unasked is dropped. So loss, repetition, another
order and a new connection need no handling of their own. If the sender's piece turns out to be
another one than at the start (it was restarted, or its segments have changed), the piece begins
again.
"""

from dataclasses import dataclass
from enum import Enum

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.messages import Chunk, Fetch


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is fetched; see ``Fetch``."""

    is_snapshot: bool
    first_index: int
    last_index: int
    proposal: int


class Taken(Enum):
    """What became of a chunk."""

    DROPPED = "dropped"
    KEPT = "kept"
    CHANGED = "changed"  # the sender has another piece now: everything again


class PieceFetch:
    """One piece on its way. ``size`` is known with the first chunk."""

    __slots__ = (
        "_asked", "_config", "_next", "_tag", "last_s", "piece_first", "piece_last",
        "received_bytes", "size", "wanted",
    )  # fmt: skip

    def __init__(self, wanted: Wanted, config: ShippingConfig, now_s: float) -> None:
        self.wanted = wanted
        self.size: int | None = None
        self.piece_first = self.piece_last = 0
        self.received_bytes = 0
        self.last_s = now_s  # when the last chunk came
        self._config = config
        self._tag = 0
        self._next = 0
        self._asked: dict[int, float] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every byte has come."""
        return self.size is not None and self.received_bytes == self.size

    def due(self, term: int, now_s: float, held: int) -> list[Fetch]:
        """Return what to ask for now; ``held``: chunks that came and are not written yet."""
        config = self._config
        offsets = [at for at, asked_s in self._asked.items() if now_s - asked_s >= config.retry_s]
        if self.size is None:
            if not self._asked:
                offsets.append(0)
        else:
            while self._next < self.size and len(self._asked) + held < config.window_chunks:
                offsets.append(self._next)
                self._asked[self._next] = now_s
                self._next += config.chunk_bytes
        wanted = self.wanted
        fetches = []
        for offset in offsets:
            self._asked[offset] = now_s
            fetches.append(
                Fetch(
                    term,
                    wanted.is_snapshot,
                    wanted.first_index,
                    wanted.last_index,
                    wanted.proposal,
                    offset,
                    config.chunk_bytes,
                )
            )
        return fetches

    def is_for(self, chunk: Chunk) -> bool:
        """Tell whether a chunk belongs to this piece."""
        wanted = self.wanted
        return (chunk.is_snapshot, chunk.first_index, chunk.last_index) == (
            wanted.is_snapshot,
            wanted.first_index,
            wanted.last_index,
        )

    def take(self, chunk: Chunk, now_s: float) -> Taken:
        """Look at a chunk; if it is kept, its data belongs at its offset in the piece."""
        if not self.is_for(chunk) or chunk.offset not in self._asked:
            return Taken.DROPPED
        config = self._config
        if len(chunk.data) != min(config.chunk_bytes, chunk.size - chunk.offset):
            return Taken.DROPPED
        facts = (chunk.piece_first, chunk.piece_last, chunk.size, chunk.tag)
        if self.size is None:
            self.piece_first, self.piece_last, self.size, self._tag = facts
            self._next = config.chunk_bytes
        elif facts != (self.piece_first, self.piece_last, self.size, self._tag):
            return Taken.CHANGED
        del self._asked[chunk.offset]
        self.received_bytes += len(chunk.data)
        self.last_s = now_s
        return Taken.KEPT
