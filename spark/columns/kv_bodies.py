"""Bodies of operations on keys, many at a time and kind by kind.

docs/payloads.md has the byte tables. A body is an entry's payload behind its prefix, one put of a
``put_many``, or an operation in a transaction: their layouts are the same. A body that breaks its
layout raises ``CorruptPayload``. Limits of values are not checked, since apply refused what broke
them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.fields import Fields, Mask, Numbers, Spans
from onelog.spark.columns.operations import TYPES
from onelog.spark.columns.selection import compare, starts_with
from onelog.ual.errors import CorruptPayload

STEPS_MAX = 64  # in a path

STEP = pa.struct([("member", pa.string()), ("element", pa.int64())])

GET = 0x20  # only in a transaction: the key is the body
_MEMBER, _ELEMENT, _PAST_END = 1, 2, 3
_OPTION_TTL, _OPTION_LEASE, _OPTION_EXPECTED, _OPTION_VERSION = 1, 2, 4, 8


def find_kind(operation: str) -> int:
    """Return the number of an operation on keys within its owner."""
    return TYPES["kv", operation] & 0xFF


PUT_MANY, TRANSACTION = find_kind("put_many"), find_kind("transaction")
DELETE_RANGE = find_kind("delete_range")
_JSON = (find_kind("json_set"), find_kind("json_delete"))


class Items:
    """Items of nested lists: added one item of each list at a time, returned list by list."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[Any], ...]] = []

    def add(self, rows: NDArray[np.intp], *fields: NDArray[Any]) -> None:
        """Add the next item of the lists of some rows."""
        self._parts.append((rows, *fields))

    def columns(self, count: int) -> tuple[NDArray[Any], ...]:
        """Return the row of each item, then ``count`` fields; the items of a row in order."""
        if not self._parts:
            return (np.empty(0, np.int64),) * (count + 1)
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return tuple(column[order] for column in columns)


class Operations:
    """The fields of many operations, as spans and numbers with a mask each.

    If a kind of operation does not have a field, the mask of that field is false.
    """

    def __init__(self, data: NDArray[np.uint8], kinds: NDArray[np.uint8], body: Spans) -> None:
        count = len(kinds)
        self.data = data
        self.kinds = kinds
        self._spans: dict[str, tuple[Spans, Mask]] = {}
        self._numbers: dict[str, tuple[NDArray[Any], Mask]] = {}
        self._steps = Items()
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            read = _READERS.get(kind)
            if read is None:
                raise CorruptPayload(f"an operation on keys of the unknown kind 0x{kind:02x}")
            rows = np.flatnonzero(kinds == kind)
            fields = Fields(data, body.start[rows], body.end[rows])
            read(fields, self, rows)
        self._count = count

    def set_spans(self, name: str, rows: NDArray[np.intp], found: Spans) -> None:
        """Set where a field of some rows is."""
        count = len(self.kinds)
        if name not in self._spans:
            if len(rows) == count:
                self._spans[name] = found, np.ones(count, np.bool_)
                return
            empty = Spans(np.zeros(count, np.int64), np.zeros(count, np.int64))
            self._spans[name] = empty, np.zeros(count, np.bool_)
        spans, valid = self._spans[name]
        spans.start[rows], spans.end[rows] = found
        valid[rows] = True

    def set_numbers(
        self, name: str, rows: NDArray[np.intp], found: NDArray[Any], where: Mask | None = None
    ) -> None:
        """Set a number of some rows, ``where`` they have it."""
        if where is not None:
            rows, found = rows[where], found[where]
        if not len(rows):
            return
        if name not in self._numbers:
            count = len(self.kinds)
            self._numbers[name] = np.zeros(count, found.dtype), np.zeros(count, np.bool_)
        numbers, valid = self._numbers[name]
        numbers[rows] = found
        valid[rows] = True

    def add_steps(self, rows: NDArray[np.intp], *fields: NDArray[Any]) -> None:
        """Add the next step of the paths of some rows."""
        self._steps.add(rows, *fields)

    def spans(self, name: str) -> tuple[Spans, Mask]:
        """Return where a field of each row is, and which rows have it."""
        if name in self._spans:
            return self._spans[name]
        nowhere = np.zeros(self._count, np.int64)
        return Spans(nowhere, nowhere), np.zeros(self._count, np.bool_)

    def numbers(self, name: str) -> tuple[NDArray[Any], Mask]:
        """Return a number of each row, and which rows have it."""
        if name in self._numbers:
            return self._numbers[name]
        return np.zeros(self._count, np.int64), np.zeros(self._count, np.bool_)

    def paths(self) -> pa.Array:
        """Return the column of paths."""
        rows, kinds, start, end, elements = self._steps.columns(4)
        members = arrays.text(self.data, Spans(start, end), valid=kinds == _MEMBER)
        steps = pa.StructArray.from_arrays(
            [members, arrays.numbers(elements, valid=kinds == _ELEMENT)], fields=list(STEP)
        )
        counts = np.bincount(rows, minlength=self._count)
        return arrays.lists(counts, steps, np.isin(self.kinds, _JSON))

    def are_about(self, prefix: bytes) -> Mask:
        """Tell which operations concern, or can concern, keys with a prefix."""
        keys, valid = self.spans("key")
        found = starts_with(self.data, keys, prefix) & valid
        rows = np.flatnonzero((self.kinds == DELETE_RANGE) & ~found)
        if len(rows):
            ends, has_end = self.spans("end_key")
            before = compare(self.data, keys.take(rows), prefix) < 0
            beyond = compare(self.data, ends.take(rows), prefix) > 0
            found[rows] = before & (beyond | ~has_end[rows])
        return found


def _read_put(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    _read_written(fields, found, rows, _OPTION_TTL | _OPTION_LEASE | _OPTION_EXPECTED)
    found.set_spans("value", rows, fields.rest())


def _read_one_of_many(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    _read_written(fields, found, rows, _OPTION_TTL)
    found.set_spans("value", rows, fields.rest())


def _read_delete(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    _read_written(fields, found, rows, _OPTION_EXPECTED)
    fields.finish()


def _read_touch(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    options, size = _read_options(fields, _OPTION_EXPECTED | _OPTION_VERSION)
    found.set_numbers("ttl_ns", rows, fields.u64())
    _read_optional(fields, found, rows, options)
    found.set_spans("key", rows, fields.fixed(size))
    fields.finish()


def _read_written(fields: Fields, found: Operations, rows: NDArray[np.intp], known: int) -> None:
    """Read the options of a put or delete, the optional fields, and the key."""
    options, size = _read_options(fields, known)
    _read_optional(fields, found, rows, options)
    found.set_spans("key", rows, fields.fixed(size))


def _read_options(fields: Fields, known: int) -> tuple[NDArray[np.uint8], Numbers]:
    options, size = fields.u8(), fields.u16()
    if (options & np.uint8(0xFF ^ known)).any():
        raise CorruptPayload("an operation on a key has an unknown option")
    return options, size.astype(np.int64)


def _read_optional(
    fields: Fields, found: Operations, rows: NDArray[np.intp], options: NDArray[np.uint8]
) -> None:
    if not options.any():  # most operations
        return
    for option, name in (
        (_OPTION_TTL, "ttl_ns"),
        (_OPTION_LEASE, "lease"),
        (_OPTION_EXPECTED, "expected"),
    ):
        where = (options & np.uint8(option)) != 0
        found.set_numbers(name, rows, fields.u64(where), where)


def _read_number(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    found.set_numbers("operand", rows, fields.i64())
    found.set_spans("key", rows, fields.rest())


def _read_append(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    found.set_spans("key", rows, fields.bytes16())
    found.set_spans("value", rows, fields.rest())


def _read_json_set(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    options = fields.u8()
    if (options > 1).any():
        raise CorruptPayload("a json_set has an unknown option")
    found.set_numbers("create_parents", rows, options == 1)
    found.set_spans("key", rows, fields.bytes16())
    _read_path(fields, found, rows)
    found.set_spans("value", rows, fields.rest())


def _read_json_delete(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    found.set_spans("key", rows, fields.bytes16())
    _read_path(fields, found, rows)
    fields.finish()


def _read_path(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    counts = fields.u8()
    if (counts > STEPS_MAX).any():
        raise CorruptPayload("a path has too many steps")
    for among, part in fields.each(counts):
        kinds = part.u8()
        if (kinds < _MEMBER).any() or (kinds > _PAST_END).any():
            raise CorruptPayload("a path has a step of an unknown kind")
        name = part.bytes16(kinds == _MEMBER)
        element = part.u32(kinds == _ELEMENT)
        found.add_steps(rows[among], kinds, *name, element)


def _read_lease_grant(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    found.set_numbers("ttl_ns", rows, fields.u64())
    fields.finish()


def _read_lease(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    found.set_numbers("lease", rows, fields.u64())
    fields.finish()


def _read_delete_range(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    found.set_numbers("limit", rows, fields.u32())
    found.set_spans("key", rows, fields.bytes16())
    ends = fields.rest()
    has_end = np.flatnonzero(ends.size)
    found.set_spans("end_key", rows[has_end], ends.take(has_end))


def _read_key(fields: Fields, found: Operations, rows: NDArray[np.intp]) -> None:
    found.set_spans("key", rows, fields.rest())


def _read_nothing(_fields: Fields, _found: Operations, _rows: NDArray[np.intp]) -> None:
    """Read nothing: the operations in a transaction have rows of their own."""


_READERS: dict[int, Callable[[Fields, Operations, NDArray[np.intp]], None]] = {
    find_kind("put"): _read_put,
    find_kind("delete"): _read_delete,
    find_kind("touch"): _read_touch,
    find_kind("increment"): _read_number,
    find_kind("min"): _read_number,
    find_kind("max"): _read_number,
    find_kind("append"): _read_append,
    find_kind("json_set"): _read_json_set,
    find_kind("json_delete"): _read_json_delete,
    find_kind("lease_grant"): _read_lease_grant,
    find_kind("lease_keepalive"): _read_lease,
    find_kind("lease_revoke"): _read_lease,
    TRANSACTION: _read_nothing,
    DELETE_RANGE: _read_delete_range,
    PUT_MANY: _read_one_of_many,
    GET: _read_key,
}
