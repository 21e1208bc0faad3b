"""Results: what applying an entry returns. A refusal is a result, not an exception.

* ``Applied``   the entry took effect. What it wrote has the entry's index as its version.
* ``Refused``   it did not, for a stable reason; the state is unchanged, on every replica.
* ``Duplicate`` a session sent it before; the first result is repeated, nothing was done again.
* ``Skipped``   the entry is at or below the applied index: a replay met an entry again.
* ``Pending``   the entry belongs to a batch whose last entry has not come yet.

Sessions and snapshots store results, so they have an encoding (docs/payloads.md). It holds no
text: a message is made from reason and number when it is read.
"""

import struct
from dataclasses import dataclass

from onelog.projections.errors import BadResult
from onelog.projections.reasons import Reason


@dataclass(frozen=True, slots=True)
class Applied:
    """The entry took effect; each operation defines what the fields mean."""

    number: int = 0
    value: bytes | None = None
    results: tuple["Applied | Refused", ...] = ()


class Repeated(Applied):
    """An ``Applied`` whose entry is void: an earlier entry brought the same data.

    It equals the plain ``Applied`` that is read back from a session or a snapshot.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Applied):
            return NotImplemented
        return (self.number, self.value, self.results) == (
            other.number,
            other.value,
            other.results,
        )

    __hash__ = Applied.__hash__


@dataclass(frozen=True, slots=True)
class Refused:
    """The entry (or a read) was refused; ``detail`` is the number in its message."""

    reason: Reason
    detail: int = 0
    cause: Reason | None = None  # of the operation that made a batch or transaction fail

    @property
    def message(self) -> str:
        """The reason as text."""
        return self.reason.message(self.detail, "" if self.cause is None else self.cause.name)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A repeated request of a session: ``first`` is its result at ``index``."""

    index: int
    first: Applied | Refused


@dataclass(frozen=True, slots=True)
class Skipped:
    """The entry was applied before."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The batch of the entry is not complete yet."""


Outcome = Applied | Refused
Result = Applied | Refused | Duplicate | Skipped | Pending

# Building a frozen dataclass costs as much as the rest of a put: the common result is shared.
APPLIED = Applied()
SKIPPED = Skipped()
PENDING = Pending()

_new = Applied.__new__
_set_number = Applied.number.__set__  # type: ignore[misc, attr-defined]
_set_value = Applied.value.__set__  # type: ignore[misc, union-attr]
_set_results = Applied.results.__set__  # type: ignore[misc, attr-defined]


def applied(number: int, value: bytes | None = None) -> Applied:
    """Return an ``Applied`` in half the time that its frozen constructor takes."""
    result = _new(Applied)
    _set_number(result, number)
    _set_value(result, value)
    _set_results(result, ())
    return result


_KIND_APPLIED = 1
_KIND_REFUSED = 2
_HAS_VALUE = 0x01
_HAS_RESULTS = 0x02
_DEPTH_MAX = 2  # a batch's results, of which one may be a transaction's

_APPLIED = struct.Struct("<BBq")  # kind, fields, number
_REFUSED = struct.Struct("<BBB16s")  # kind, reason, cause, detail (signed)
_SIZE = struct.Struct("<I")
_COUNT = struct.Struct("<H")
_PLAIN = _APPLIED.pack(_KIND_APPLIED, 0, 0)  # what most operations of a batch get


def encode_result(result: Outcome) -> bytes:
    """Encode a result for a session or a snapshot."""
    if isinstance(result, Refused):
        cause = 0 if result.cause is None else int(result.cause)
        # A detail may be any 64-bit field, signed or not: 64 bits do not hold both.
        detail = result.detail.to_bytes(16, "little", signed=True)
        return _REFUSED.pack(_KIND_REFUSED, int(result.reason), cause, detail)
    if result.value is None and not result.results:
        return _APPLIED.pack(_KIND_APPLIED, 0, result.number)
    fields = (_HAS_VALUE if result.value is not None else 0) | (
        _HAS_RESULTS if result.results else 0
    )
    parts = [_APPLIED.pack(_KIND_APPLIED, fields, result.number)]
    if result.value is not None:
        parts += (_SIZE.pack(len(result.value)), result.value)
    if result.results:
        parts.append(_COUNT.pack(len(result.results)))
        parts += [_PLAIN if each is APPLIED else encode_result(each) for each in result.results]
    return b"".join(parts)


def decode_result(data: bytes) -> Outcome:
    """Decode a result; raise ``BadResult`` for any other bytes."""
    try:
        result, end = _decode(data, 0, 0)
    except (struct.error, IndexError, ValueError) as error:
        raise BadResult(f"{len(data)} bytes are not a result: {error}") from error
    if end != len(data):
        raise BadResult(f"{len(data) - end} bytes follow a result")
    return result


def _decode(data: bytes, at: int, depth: int) -> tuple[Outcome, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deep")
    if data[at] == _KIND_REFUSED:
        _, reason, cause, raw = _REFUSED.unpack_from(data, at)
        detail = int.from_bytes(raw, "little", signed=True)
        refused = Refused(Reason(reason), detail, Reason(cause) if cause else None)
        return refused, at + _REFUSED.size
    kind, fields, number = _APPLIED.unpack_from(data, at)
    if kind != _KIND_APPLIED or fields & ~(_HAS_VALUE | _HAS_RESULTS):
        raise ValueError(f"kind {kind} with fields {fields}")
    at += _APPLIED.size
    value: bytes | None = None
    if fields & _HAS_VALUE:
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        value = data[at : at + size]
        if len(value) != size:
            raise ValueError("the value is cut")
        at += size
    results: list[Outcome] = []
    if fields & _HAS_RESULTS:
        (count,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        for _ in range(count):
            result, at = _decode(data, at, depth + 1)
            results.append(result)
    return Applied(number, value, tuple(results)), at
