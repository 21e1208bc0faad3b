"""What a projection is: the Protocol it inherits from, what it is given, and what it returns.

The router owns order and identity: it hands each entry over once, in index order, with the payload
decompressed and the session removed. A projection owns its state. To add one, write a class that
inherits from ``Projection`` and name it in shard_state.py.

The router guarantees: handlers are called with strictly rising indexes and never falling
timestamps; between ``begin_batch`` and its end only handlers are called; nothing else runs while a
``dump`` is being consumed. A projection guarantees: a handler is a pure function of state and
arguments and raises nothing because of a payload's content; equal states have equal ``state_hash``
and equal ``dump``.
"""
# ruff: noqa: ARG002 - what does nothing by default needs no arguments

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from onelog.projections.codec import Reader, SessionRef, encode_prefix, parse_namespace
from onelog.projections.errors import BadPayload
from onelog.projections.namespaces import Namespace
from onelog.projections.reasons import Reason
from onelog.projections.result import Outcome, Refused
from onelog.projections.undo import UndoLog
from onelog.ual.entry import Draft

Handler = Callable[[bytes, int, int, Sequence[bytes]], Sequence[Outcome]]
"""Apply a span of entries of one type: ``handler(prefix, index, timestamp_ns, payloads)``.

Payload k is that of the entry ``index + k``; all of them have the same time and open with
``prefix``, which holds no session. Return one outcome for each, in order. A malformed body is
refused in its place and the rest is applied. Inside a batch everything can be rolled back.
"""


def _left_out(*_: object) -> Any:
    raise AssertionError("the model has one function for all of its commands")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a model: the single description from which tables elsewhere are derived.

    Each model decides how ``decode``, ``encode``, ``execute`` and ``describe`` are called.
    A model with one function for all of its commands leaves that field out.
    """

    number: int  # the low byte of the entry's type; it is in logs: never change or reuse one
    command: type[Any]
    decode: Callable[..., Any]  # the body of an entry to a command or its fields
    encode: Callable[..., bytes] = _left_out
    execute: Callable[..., Any] = _left_out
    describe: Callable[..., str] = _left_out
    nested: bool = False  # allowed inside a transaction
    is_entry: bool = True  # allowed as an entry of its own
    # Whether success carries no information for this body, so it can be answered before apply.
    is_blind: Callable[[bytes], bool] | None = None
    is_self_describing: bool = False  # watchers read what it changes from the entry alone
    has_large_result: bool = (
        False  # a result may take more than RESULT_SIZE_SMALL (projections/system/sessions.py)
    )
    # What of its body is the same when a client repeats its request, if the leader decides the
    # rest; operations with the same bytes are one request. None: the type and all of the body.
    find_repeated: Callable[[bytes], bytes] | None = None
    # The operation that it stands for several times, and from its body the body of each.
    several: tuple[int, Callable[[bytes], Sequence[bytes]]] | None = None


CommandT = TypeVar("CommandT")


class Commands(Generic[CommandT]):
    """Encodes and decodes the commands of a model whose ``decode`` reads a whole body."""

    def __init__(
        self,
        owner: int,
        operations: Sequence[Operation],
        encode_body: Callable[[CommandT], bytes],
    ) -> None:
        self._encode_body = encode_body
        self._types = {each.command: owner << 8 | each.number for each in operations}
        self._by_number = {each.number: each for each in operations}

    def encode(self, command: CommandT, namespace: str, session: SessionRef | None = None) -> Draft:
        """Return the draft of the entry that carries ``command``."""
        payload = encode_prefix(namespace, session) + self._encode_body(command)
        return Draft(self._types[type(command)], payload)

    def decode(self, number: int, reader: Reader) -> CommandT:
        """Read the body of an entry with the low byte ``number``, to its end."""
        known = self._by_number.get(number)
        if known is None:
            raise BadPayload(Reason.OPERATION_UNKNOWN, number)
        command: CommandT = known.decode(reader)
        reader.finish()
        return command


OneHandler = Callable[[str, Reader, int, int], Outcome]
"""Apply one entry: (namespace, reader of its body, index, timestamp_ns). May raise ``BadPayload``
before it has changed anything."""


def one_by_one(execute: OneHandler) -> Handler:
    """Return a handler that applies the entries of a span one after the other."""

    def handle(
        prefix: bytes, index: int, timestamp_ns: int, payloads: Sequence[bytes]
    ) -> list[Outcome]:
        namespace, body = parse_namespace(prefix), len(prefix)
        outcomes: list[Outcome] = []
        for at, payload in enumerate(payloads, index):
            try:
                outcomes.append(execute(namespace, Reader(payload, body), at, timestamp_ns))
            except BadPayload as error:
                outcomes.append(Refused(error.reason, error.detail))
        return outcomes

    return handle


class Position:
    """The router's position in the log; the router writes it, projections read it."""

    __slots__ = ("applied_index", "log_time_ns")

    def __init__(self) -> None:
        self.applied_index = 0
        self.log_time_ns = 0


class Due(NamedTuple):
    """Something that is due: ``item`` is the argument for its owner's ``expire``."""

    deadline_ns: int
    owner: int
    item: bytes
    weight: int  # how much state its expiry touches; bounds what one entry may name


class SpillStore(Protocol):
    """A store for values evicted from memory. Derived data: it may vanish with the process.

    ``get`` returns exactly what was put or raises ``SpillLost``.
    """

    def put(self, value_id: int, value: bytes) -> None:
        """Store ``value`` under an unused id."""

    def get(self, value_id: int) -> bytes:
        """Return the value that was put under ``value_id``."""

    def delete(self, value_id: int) -> None:
        """Delete the value; the id is not used again."""


class Notes(Protocol):
    """What the log learns about entries once they are applied (``ual.segments.notes``)."""

    def add_record(self, stream_id: int, index: int) -> None:
        """The entry at ``index`` is a record of the stream."""

    def add_void(self, first_index: int, last_index: int) -> None:
        """The entries from first to last had no effect: they are no data."""


class DerivedKeys(Protocol):
    """Keys in KV that other projections write, under reserved names.

    They are ordinary versions: reads, history and as-of see them, a batch rolls them back.
    """

    def put_derived(self, namespace: str, items: Iterable[tuple[bytes, bytes]], index: int) -> None:
        """Write values to keys; their version is ``index``."""

    def delete_derived(self, namespace: str, key: bytes, index: int) -> None:
        """Delete the key, if it exists."""


class Projection(Protocol):
    """State that follows from the entries of one owner.

    A method with a body here is for projections with one undo log, and with nothing to do there.
    """

    owner: ClassVar[int]  # the high byte of the entry types that it owns
    operations: ClassVar[Sequence[Operation]]
    _undo: UndoLog

    @property
    def large_results(self) -> Collection[int]:
        """Types of entries whose result may take more than RESULT_SIZE_SMALL (system/sessions.py).

        In a session they are applied one by one: the session must have room before each.
        """
        return [self.owner << 8 | each.number for each in self.operations if each.has_large_result]

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each entry type that it owns."""

    def begin_batch(self) -> None:
        """Record every change from now on, so that it can be rolled back."""
        self._undo.begin()

    def commit_batch(self) -> None:
        """Keep what was applied since ``begin_batch``."""
        self._undo.commit()

    def rollback_batch(self) -> None:
        """Return to the state at ``begin_batch``."""
        self._undo.rollback()

    def namespace_created(self, namespace: Namespace) -> None:
        """Handle a new namespace."""

    def namespace_configured(self, namespace: Namespace) -> None:
        """Handle new limits of a namespace, which most projections do not have."""
        return

    def namespace_deleted(self, namespace: Namespace) -> None:
        """Drop everything in a deleted namespace."""

    def next_deadline(self) -> int | None:
        """Return the earliest log time at which something becomes due."""

    def due(self, now_ns: int, limit: int) -> list[Due]:
        """Return up to ``limit`` items that are due, earliest first; nothing is removed."""
        return []

    def expire(self, item: bytes, index: int, timestamp_ns: int) -> bool:
        """Expire ``item`` if it is due at ``timestamp_ns``; return whether it did."""
        return False

    def chores(self, now_ns: int, limit: int) -> list[Draft]:
        """Return up to ``limit`` entries that a leader should propose now, besides expiries.

        It may return the same entries until they are applied: applying one twice is harmless.
        While there are any, ``next_deadline`` is not after ``now_ns``.
        """
        return []

    def pinned(self, first_index: int, last_index: int) -> Sequence[int]:
        """Return the indexes from first to last whose entries must be kept, ascending."""
        return ()

    def state_hash(self) -> int:
        """Return the 64-bit hash of the logical content."""

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""

    def evict(self, size: int) -> int:
        """Move about ``size`` bytes out of memory; return the number moved."""
        return 0

    def counts(self) -> dict[str, int]:
        """Return the number of objects, by kind."""

    def dump(self) -> Iterator[bytes]:
        """Yield the snapshot section in chunks of bounded size."""

    def load(self, chunks: Iterable[bytes]) -> None:
        """Load a section into a fresh projection; raise ``CorruptSection`` if it is damaged."""

    def check(self) -> None:
        """Assert every invariant of the state; slow, for tests and verification."""
