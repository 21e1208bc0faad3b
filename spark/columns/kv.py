"""The view ``kv_operations``: one row for each operation on keys in an entry.

* ``put_many`` has a row for each of its puts. ``transaction`` has one row for itself (position 0,
  with its conditions) and one for each operation of both branches, which ``branch`` names. Which
  branch was taken depends on the state, and the entry does not say it. Rows without ``branch`` took
  effect.
* ``operation`` is that of the row: a put in a transaction is a ``put``, a put in a ``put_many`` is
  a ``put_many``.
* ``value`` is what is written: by put, put_many, append, and the JSON text of json_set.
* ``expected`` is the version that the key must have; 0: the key must not exist.
* ``operand`` is the number of increment, min and max. Their result is in the state.
* ``lease`` is the lease that a put binds its key to, or that is granted, kept alive or revoked. A
  lease's id is the index of the entry that grants it.
* ``path`` is a list of steps. A step has a member's name or an element's number; if it has neither,
  it means one past the last element.
* ``key`` is the first key of delete_range, and ``end_key`` its end, excluded; null: it has no end.

Keys expire by entries of the system, which are in the view ``log``.

A selection by ``key_prefix`` keeps the rows whose key has the prefix, the ranges that can hold such
a key, and the row of a transaction if a condition or an operation in it is kept.

Nested lists are read in steps: one item of each entry at a time, at most 1,000 steps for each list.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.fields import Fields, Mask, Numbers, Spans, gather
from onelog.spark.columns.kv_bodies import (
    DELETE_RANGE,
    GET,
    PUT_MANY,
    STEP,
    TRANSACTION,
    Items,
    Operations,
    find_kind,
)
from onelog.spark.columns.operations import OWNERS, TYPES, find_types
from onelog.spark.columns.selection import is_one_of, starts_with
from onelog.spark.columns.view import ENTRY_FIELDS, Output, View
from onelog.ual.errors import CorruptPayload

CONDITIONS_MAX = 1_000
OPERATIONS_MAX = 1_000  # of each branch of a transaction
PUTS_MAX = 1_000  # of a put_many

_CONDITION = pa.struct(
    [
        ("key", pa.binary()),
        ("target", pa.string()),
        ("comparison", pa.string()),
        ("version", pa.int64()),
        ("value", pa.binary()),
    ]
)
_SCHEMA = pa.schema(
    [
        *ENTRY_FIELDS,
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("key_text", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("ttl_ns", pa.int64()),
        pa.field("lease", pa.int64()),
        pa.field("expected", pa.int64()),
        pa.field("operand", pa.int64()),
        pa.field("path", pa.list_(STEP)),
        pa.field("create_parents", pa.bool_()),
        pa.field("end_key", pa.binary()),
        pa.field("limit", pa.int64()),
        pa.field("branch", pa.string()),
        pa.field("conditions", pa.list_(_CONDITION)),
    ]
)

_OWNER = OWNERS.index("kv")
_BRANCHES = (None, "then", "else")
_TARGETS = (None, "exists", "missing", "version", "value")
_COMPARISONS = (None, "==", "!=", "<", "<=", ">", ">=")
_TARGET_VERSION, _TARGET_VALUE = 3, 4
_TYPES = find_types("kv")
# Operations on one key, which is their ``name`` in the view ``log``.
SINGLE_KEY_TYPES = _TYPES - find_types(
    "kv",
    "lease_grant", "lease_keepalive", "lease_revoke", "transaction", "delete_range", "put_many",
)  # fmt: skip


_NESTED_KINDS = np.array(
    [*range(find_kind("put"), find_kind("json_delete") + 1), DELETE_RANGE, GET], np.uint8
)


class _Transactions:
    """The conditions and operations of all transactions of a block."""

    def __init__(self, fields: Fields) -> None:
        self.conditions, operations = Items(), Items()
        for rows, part in fields.each(_read_count(fields, CONDITIONS_MAX)):
            targets, comparisons = part.u8(), part.u8()
            if (targets < 1).any() or (targets > _TARGET_VALUE).any():
                raise CorruptPayload("a condition has an unknown target")
            if (comparisons >= len(_COMPARISONS)).any():
                raise CorruptPayload("a condition has an unknown comparison")
            key = part.bytes16()
            version = part.u64(targets == _TARGET_VERSION)
            value = part.bytes32(targets == _TARGET_VALUE)
            self.conditions.add(rows, targets, comparisons, *key, version, *value)
        for branch in range(1, len(_BRANCHES)):
            for rows, part in fields.each(_read_count(fields, OPERATIONS_MAX)):
                kinds = part.u8()
                operations.add(rows, kinds, np.full(len(rows), branch, np.int8), *part.bytes32())
        fields.finish()
        # For each operation: its transaction, kind, branch and body.
        self.rows, self.kinds, self.branches, start, end = operations.columns(4)
        self.bodies = Spans(start, end)
        self.counts = np.bincount(self.rows, minlength=len(fields))
        if not np.isin(self.kinds, _NESTED_KINDS).all():
            raise CorruptPayload("a transaction holds an operation of an unknown kind")


def _read_count(fields: Fields, count_max: int) -> Numbers:
    counts: Numbers = fields.u16().astype(np.int64)
    if (counts > count_max).any():
        raise CorruptPayload(f"a list of more than {count_max} items")
    return counts


class _Rows:
    """The rows of the entries of a block, in order."""

    def __init__(self, block: Block) -> None:
        fields = Fields(block.data, block.start, block.end)
        self.namespace = fields.prefix()  # one for each entry
        kinds = (block.headers["entry_type"] & np.uint16(0xFF)).astype(np.uint8)
        many = np.flatnonzero(kinds == PUT_MANY)
        holding = np.flatnonzero(kinds == TRANSACTION)
        put_counts, puts = _read_put_many(fields.take(many))
        self._transactions = _Transactions(fields.take(holding))
        counts = np.ones(len(block), np.int64)
        counts[many] = put_counts
        counts[holding] += self._transactions.counts
        firsts = np.cumsum(counts) - counts
        self.entry = np.repeat(np.arange(len(block)), counts)
        self.position = np.arange(len(self.entry)) - firsts[self.entry]
        self.branch = np.zeros(len(self.entry), np.int8)
        kinds = kinds[self.entry]
        starts, ends = fields.at[self.entry], fields.end[self.entry]
        at = np.flatnonzero(kinds == PUT_MANY)
        starts[at], ends[at] = puts
        at = np.flatnonzero((kinds == TRANSACTION) & (self.position > 0))
        starts[at], ends[at] = self._transactions.bodies
        kinds[at] = self._transactions.kinds
        self.branch[at] = self._transactions.branches
        self._holding = firsts[holding]
        self.operations = Operations(block.data, kinds, Spans(starts, ends))
        granted = np.flatnonzero(kinds == find_kind("lease_grant"))
        indexes = block.headers["index"][self.entry[granted]]
        self.operations.set_numbers("lease", granted, indexes)

    def conditions(self) -> pa.Array:
        """Return the column of conditions; null in rows that are not transactions."""
        among, targets, comparisons, *spans = self._transactions.conditions.columns(7)
        key_start, key_end, version, value_start, value_end = spans
        data = self.operations.data
        items = pa.StructArray.from_arrays(
            [
                arrays.binary(data, Spans(key_start, key_end)),
                arrays.named(targets, _TARGETS),
                arrays.named(comparisons, _COMPARISONS),
                arrays.numbers(version, valid=targets == _TARGET_VERSION),
                arrays.binary(data, Spans(value_start, value_end), valid=targets == _TARGET_VALUE),
            ],
            fields=list(_CONDITION),
        )
        counts = np.bincount(self._holding[among], minlength=len(self.entry))
        return arrays.lists(counts, items, self.operations.kinds == TRANSACTION)

    def are_about(self, prefix: bytes) -> Mask:
        """Tell which rows concern keys with a prefix; a transaction does if anything in it does."""
        found = self.operations.are_about(prefix)
        among, _, _, start, end, *_ = self._transactions.conditions.columns(7)
        checked = starts_with(self.operations.data, Spans(start, end), prefix)
        found[self._holding[among[checked]]] = True
        inside = np.flatnonzero(found & (self.branch != 0))
        found[inside - self.position[inside]] = True
        return found


def _read_put_many(fields: Fields) -> tuple[Numbers, Spans]:
    """Return the number of puts in each payload, and the bodies of all puts."""
    counts = _read_count(fields, PUTS_MAX)
    table = fields.fixed(4 * counts)
    firsts = np.cumsum(counts) - counts
    rows = np.repeat(np.arange(len(counts)), counts)
    step = np.arange(len(rows)) - firsts[rows]
    sizes = gather(fields.data, table.start[rows] + 4 * step, np.dtype("<u4")).astype(np.int64)
    # Where each put ends, relative to the first one of its payload.
    totals = np.append(0, np.cumsum(sizes))
    fields.fixed(totals[firsts + counts] - totals[firsts])
    fields.finish()
    ends = table.end[rows] + totals[1:] - totals[firsts[rows]]
    return counts, Spans(ends - sizes, ends)


def _is_of_kv(block: Block) -> Mask:
    """Tell which entries have rows; operations unknown to this version have none."""
    types = block.headers["entry_type"]
    mask: Mask = (types >= min(_TYPES)) & (types <= max(_TYPES))
    return mask


def _count(block: Block) -> Numbers:
    """Return the number of rows of each entry."""
    counts: Numbers = _is_of_kv(block).astype(np.int64)
    for operation in ("put_many", "transaction"):
        rows = np.flatnonzero(block.headers["entry_type"] == TYPES["kv", operation])
        fields = Fields(block.data, block.start[rows], block.end[rows])
        fields.prefix()
        if operation == "put_many":
            counts[rows] = _read_count(fields, PUTS_MAX)
        else:
            counts[rows] += _Transactions(fields).counts
    return counts


def read_keys(types: NDArray[np.uint16], fields: Fields) -> Spans:
    """Return the keys of operations of ``SINGLE_KEY_TYPES``; the cursors are behind the prefix."""
    kinds = (types & np.uint16(0xFF)).astype(np.uint8)
    keys, valid = Operations(fields.data, kinds, Spans(fields.at, fields.end)).spans("key")
    assert valid.all(), "an operation without a key"
    return keys


def entries_with_prefix(block: Block, prefix: bytes) -> Mask:
    """Tell which entries of a block hold an operation that concerns keys with a prefix."""
    mask = _is_of_kv(block)
    among = np.flatnonzero(mask)
    rows = _Rows(block.select(among))
    about = rows.entry[rows.are_about(prefix)]
    mask[:] = False
    mask[among[about]] = True
    return mask


def _decode(block: Block, output: Output) -> None:
    selection = output.request.selection
    is_wanted = _is_of_kv(block)
    if selection.namespaces is not None:
        among = np.flatnonzero(is_wanted)
        namespace = Fields(block.data, block.start[among], block.end[among]).prefix()
        is_wanted[among] = is_one_of(block.data, namespace, selection.namespaces)
    if not is_wanted.all():
        block = block.select(np.flatnonzero(is_wanted))
    rows = _Rows(block)
    kept: NDArray[np.intp] | slice = slice(None)
    if selection.key_prefix is not None:
        kept = np.flatnonzero(rows.are_about(selection.key_prefix))
    _add_columns(block, output, rows, kept)


def _add_columns(block: Block, output: Output, rows: _Rows, kept: NDArray[np.intp] | slice) -> None:
    operations, entry = rows.operations, rows.entry[kept]
    types = operations.kinds[kept].astype(np.uint16) | np.uint16(_OWNER << 8)
    output.add_entry_columns(block, entry, rows.position[kept], types)

    def add_spans(column: str, make: Callable[..., pa.Array], field: str) -> None:
        def make_column() -> pa.Array:
            spans, valid = operations.spans(field)
            return make(block.data, spans.take(kept), valid=valid[kept])

        output.add(column, make_column)

    def add_numbers(column: str) -> None:
        def make_column() -> pa.Array:
            values, valid = operations.numbers(column)
            return arrays.numbers(values[kept], _SCHEMA.field(column).type, valid[kept])

        output.add(column, make_column)

    def of_kept(lists: pa.Array) -> pa.Array:
        return lists if isinstance(kept, slice) else lists.take(pa.array(kept))

    output.add("namespace", lambda: arrays.text(block.data, rows.namespace, rows=entry))
    add_spans("key", arrays.binary, "key")
    add_spans("key_text", arrays.text, "key")
    add_spans("value", arrays.binary, "value")
    add_spans("end_key", arrays.binary, "end_key")
    for column in ("ttl_ns", "lease", "expected", "operand", "create_parents", "limit"):
        add_numbers(column)
    output.add("path", lambda: of_kept(operations.paths()))
    output.add("branch", lambda: arrays.named(rows.branch[kept], _BRANCHES))
    output.add("conditions", lambda: of_kept(rows.conditions()))


VIEW = View("kv_operations", _SCHEMA, _TYPES, _count, _decode)
