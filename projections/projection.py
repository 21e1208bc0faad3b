"""What a projection is, what it is given, and what it gives back.

The router owns order and identity: it feeds each entry once, in index order, with its payload
decompressed and its session cut out. A projection owns its state and answers for it. To add one,
write a class with these methods and name it in shard_state.py.

Guarantees the router gives: handlers are called with strictly rising indexes and never falling
timestamps; between ``begin_batch`` and its end only handlers are called; nothing else runs while
a ``dump`` is being consumed. Guarantees a projection gives: a handler is a pure function of state
and arguments, and raises nothing on account of a payload's content; equal state has equal
``state_hash`` and equal ``dump``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from onelog.projections.codec import Reader, namespace_of
from onelog.projections.errors import BadPayload
from onelog.projections.namespaces import Namespace
from onelog.projections.result import Outcome, Refused
from onelog.ual.entry import Draft

Handler = Callable[[bytes, int, int, Sequence[bytes]], Sequence[Outcome]]
"""Apply a span of entries of one type: ``handler(prefix, index, timestamp_ns, payloads)``.

Payload k is that of the entry ``index + k``; all of them have the same time and open with
``prefix``, which holds no session. Return one outcome for each, in order. A malformed body is
refused in its place and the rest is applied. Inside of a batch everything can be taken back.
"""


def _left_out(*_: object) -> Any:
    raise AssertionError("the model has one function for all of its commands")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a model; what others need to know of it is derived from here.

    How ``decode``, ``encode``, ``execute`` and ``describe`` are called is the model's own affair.
    A model that has one function for all of its commands leaves it out here.
    """

    number: int  # the low byte of the entry's type; it is in logs: never change or reuse one
    command: type[Any]
    decode: Callable[..., Any]  # the body of an entry to a command or its fields
    encode: Callable[..., bytes] = _left_out
    execute: Callable[..., Any] = _left_out
    describe: Callable[..., str] = _left_out
    nested: bool = False  # it may stand in a transaction
    is_entry: bool = True  # it may be an entry of its own
    # Whether the answer to this body says nothing, so that it can be given before apply.
    is_blind: Callable[[bytes], bool] | None = None
    tells_itself: bool = False  # watchers read what it changes from the entry alone
    has_large_result: bool = (
        False  # a result may take more than RESULT_SIZE_SMALL (projections/system/sessions.py)
    )


OneHandler = Callable[[str, Reader, int, int], Outcome]
"""Apply one entry: (namespace, reader of its body, index, timestamp_ns). May raise ``BadPayload``
before it has changed anything."""


def one_by_one(execute: OneHandler) -> Handler:
    """Return a handler that applies the entries of a span one after the other."""

    def handle(
        prefix: bytes, index: int, timestamp_ns: int, payloads: Sequence[bytes]
    ) -> list[Outcome]:
        namespace, body = namespace_of(prefix), len(prefix)
        outcomes: list[Outcome] = []
        for at, payload in enumerate(payloads, index):
            try:
                outcomes.append(execute(namespace, Reader(payload, body), at, timestamp_ns))
            except BadPayload as error:
                outcomes.append(Refused(error.reason, error.detail))
        return outcomes

    return handle


class Position:
    """Where the router stands in the log; it writes, projections read."""

    __slots__ = ("applied_index", "log_time_ns")

    def __init__(self) -> None:
        self.applied_index = 0
        self.log_time_ns = 0


class Due(NamedTuple):
    """Something whose time has come: ``item`` is what its owner's ``expire`` understands."""

    deadline_ns: int
    owner: int
    item: bytes
    weight: int  # how much state its expiry touches; bounds what one entry may name


class SpillStore(Protocol):
    """Where values go that memory has no room for. Derived data: it may vanish with the process.

    ``get`` returns exactly what was put or raises ``SpillLost``.
    """

    def put(self, value_id: int, value: bytes) -> None:
        """Keep ``value`` under an id that is in use nowhere else."""

    def get(self, value_id: int) -> bytes:
        """Return the value that was put under ``value_id``."""

    def delete(self, value_id: int) -> None:
        """Forget the value; the id is not used again."""


class Notes(Protocol):
    """What the log wants to know about entries once they are applied (``ual.segments.notes``)."""

    def add_record(self, stream_id: int, index: int) -> None:
        """The entry at ``index`` is a record of the stream."""

    def add_void(self, first_index: int, last_index: int) -> None:
        """The entries from first to last had no effect: they are no data."""


class DerivedKeys(Protocol):
    """Keys that other projections write, under names that are reserved for them (KV).

    They are versions like any other: reads, history and as-of see them, a batch takes them back.
    """

    def put_derived(self, namespace: str, key: bytes, value: bytes, index: int) -> None:
        """Write ``value``; its version is ``index``."""

    def delete_derived(self, namespace: str, key: bytes, index: int) -> None:
        """Delete the key, if it is there."""


class Projection(Protocol):
    """State that follows from the entries of one owner."""

    @property
    def owner(self) -> int:
        """The high byte of the entry types that it answers for."""

    @property
    def large_results(self) -> Collection[int]:
        """Types of entries whose result may take more than RESULT_SIZE_SMALL (system/sessions.py).

        In a session they are handed over one by one: before each, the session must have room.
        """

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each type of entry that it answers for."""

    def begin_batch(self) -> None:
        """From now on, be able to take everything back."""

    def commit_batch(self) -> None:
        """Keep what was applied since ``begin_batch``."""

    def rollback_batch(self) -> None:
        """Return to the state at ``begin_batch``."""

    def namespace_created(self, namespace: Namespace) -> None:
        """A namespace appeared."""

    def namespace_configured(self, namespace: Namespace) -> None:
        """Limits of a namespace changed."""

    def namespace_deleted(self, namespace: Namespace) -> None:
        """A namespace is gone, and all that is in it."""

    def next_deadline(self) -> int | None:
        """Return the earliest log time at which something becomes due."""

    def due(self, now_ns: int, limit: int) -> list[Due]:
        """Return up to ``limit`` things that are due, earliest first; they stay in place."""

    def expire(self, item: bytes, index: int, timestamp_ns: int) -> bool:
        """Let ``item`` expire if it is due at ``timestamp_ns``; say whether it did."""

    def chores(self, now_ns: int, limit: int) -> list[Draft]:
        """Return up to ``limit`` entries that a leader should propose now, besides expiries.

        Asked again before they are applied it may answer the same: applying one twice is harmless.
        While there are any, ``next_deadline`` is not after ``now_ns``.
        """

    def first_pinned(self) -> int | None:
        """Return the lowest index of an entry whose bytes the state refers to."""

    def pinned(self, first_index: int, last_index: int) -> Sequence[int]:
        """Return the indexes from first to last whose entries must be kept, ascending."""

    def state_hash(self) -> int:
        """Return the 64-bit hash of the logical content."""

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""

    def evict(self, size: int) -> int:
        """Move about ``size`` bytes out of memory; return how many it were."""

    def counts(self) -> dict[str, int]:
        """Return how many things there are, by kind."""

    def dump(self) -> Iterator[bytes]:
        """Yield the snapshot section in chunks of bounded size."""

    def load(self, chunks: Iterable[bytes]) -> None:
        """Take the state of a section into a fresh projection; raise ``CorruptSection``."""

    def check(self) -> None:
        """Assert every invariant of the state; slow, for tests and verification."""
