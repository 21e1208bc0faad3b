"""Arrow columns as text, for JSON lines and CSV: no loop over rows.

How a value is written (docs/export.md has the table for users):

* bytes as base64, numbers and booleans as they are, timestamps as RFC 3339 in UTC;
* a float that is no JSON number as the text ``NaN``, ``Infinity`` or ``-Infinity``;
* a list as an array, a struct as an object, a map with text keys as an object.
"""

import binascii
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# What JSON escapes: quote, backslash and everything below the space.
_ESCAPED = r'["\\\x00-\x1f]'
_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_NOT_NUMBERS = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_TEXT = pa.large_string()  # the text of a batch may need offsets of more than 32 bits


def json_lines(batch: pa.RecordBatch) -> pa.Buffer:
    """Return one line of JSON for each row; every line has all columns, also null ones."""
    parts: list[pa.Array | pa.Scalar] = []
    for number, field in enumerate(batch.schema):
        name = _quoted(pa.array([field.name], _TEXT))[0].as_py()
        parts.append(_scalar(("{" if not number else ",") + name + ":"))
        parts.append(to_json(batch.column(number)))
    parts.append(_scalar("}\n"))
    return _joined(parts, batch.num_rows)


def csv_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with columns that a CSV writer supports: numbers, booleans and texts."""
    columns, fields = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        columns.append(_to_cell(column))
        fields.append(pa.field(field.name, columns[-1].type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def csv_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of ``csv_columns``."""
    return pa.schema(
        [pa.field(each.name, _to_cell(pa.array([], each.type)).type) for each in schema]
    )


def to_json(values: pa.Array) -> pa.Array:
    """Return the JSON of each value, ``null`` for nulls."""
    return pc.fill_null(_encode(values), "null")


def base64_text(values: pa.Array) -> pa.Array:
    """Return the base64 of each value; nulls stay.

    Each value is padded to a multiple of three bytes, so that one call encodes all of them at once;
    then the characters that stand for the padding are replaced by ``=``.
    """
    values = values.cast(pa.large_binary())
    sizes = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    lacking = (-sizes) % 3
    fillings = pa.array([b"", b"\0", b"\0\0"], pa.large_binary()).take(pa.array(lacking))
    empty = pa.scalar(b"", pa.large_binary())
    filled = pc.binary_join_element_wise(pc.fill_null(values, b""), fillings, empty)
    offsets = np.append(0, np.cumsum(sizes + lacking)) // 3 * 4
    buffer = filled.buffers()[2]
    plain = b"" if buffer is None else memoryview(buffer)[: int((sizes + lacking).sum())]
    encoded = np.frombuffer(bytearray(binascii.b2a_base64(plain, newline=False)), np.uint8)
    ends = offsets[1:]
    encoded[ends[lacking >= 1] - 1] = ord("=")
    encoded[ends[lacking == 2] - 2] = ord("=")
    found = pa.Array.from_buffers(
        _TEXT, len(values), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(encoded)]
    )
    return pc.if_else(values.is_valid(), found, pa.scalar(None, _TEXT))


def _to_cell(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _is_text(kind):
        return values
    if pa.types.is_floating(kind):
        return values
    if pa.types.is_timestamp(kind):
        return _moments(values)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64_text(values)
    return _encode(values)


def _encode(values: pa.Array) -> pa.Array:
    """Return the JSON of each value; nulls stay nulls."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(_TEXT)
    if _is_text(kind):
        return _quoted(values)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _in_quotes(base64_text(values))
    if pa.types.is_timestamp(kind):
        return _in_quotes(_moments(values))
    if pa.types.is_floating(kind):
        return _floats(values)
    if pa.types.is_map(kind):
        return _maps(values)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _bracketed(values, to_json(values.flatten()), "[", "]")
    if pa.types.is_struct(kind):
        return _structs(values)
    raise AssertionError(f"no view has a column of {kind}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _quoted(values: pa.Array) -> pa.Array:
    values = values.cast(_TEXT)
    if pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
        values = pc.replace_substring(values, "\\", "\\\\")
        values = pc.replace_substring(values, '"', '\\"')
        for code in range(0x20):
            character = chr(code)
            if pc.any(pc.match_substring(values, character)).as_py():
                escape = _SHORT_ESCAPES.get(character, f"\\u{code:04x}")
                values = pc.replace_substring(values, character, escape)
    return _in_quotes(values)


def _in_quotes(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_scalar('"'), values, _scalar('"'), _scalar(""))


def _moments(values: pa.Array) -> pa.Array:
    return pc.replace_substring(values.cast(_TEXT), " ", "T")


def _floats(values: pa.Array) -> pa.Array:
    found = values.cast(_TEXT)
    if not pc.all(pc.fill_null(pc.is_finite(values), fill_value=True)).as_py():
        for theirs, ours in _NOT_NUMBERS.items():
            found = pc.if_else(pc.equal(found, theirs), _scalar(ours), found)
    return found


def _maps(values: pa.Array) -> pa.Array:
    lists = values.cast(pa.list_(pa.struct([
        pa.field("key", values.type.key_type, nullable=False),
        pa.field("value", values.type.item_type),
    ])))  # fmt: skip
    pairs = lists.flatten()
    keys, items = _encode(pc.struct_field(pairs, [0])), to_json(pc.struct_field(pairs, [1]))
    elements = pc.binary_join_element_wise(keys, items, _scalar(":"))
    return _bracketed(lists, elements, "{", "}")


def _structs(values: pa.Array) -> pa.Array:
    parts: list[pa.Array | pa.Scalar] = []
    for number, field in enumerate(values.type):
        name = _quoted(pa.array([field.name], _TEXT))[0].as_py()
        parts.append(_scalar(("{" if not number else ",") + name + ":"))
        parts.append(to_json(pc.struct_field(values, [number])))
    joined = pc.binary_join_element_wise(*parts, _scalar("}"), _scalar(""))
    return pc.if_else(values.is_valid(), joined, pa.scalar(None, _TEXT))


def _bracketed(lists: pa.Array, elements: pa.Array, opening: str, closing: str) -> pa.Array:
    """Return each list's elements, which are JSON already, with commas and brackets."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.append(0, np.cumsum(counts)), pa.int64())
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _scalar(","))
    found = pc.binary_join_element_wise(_scalar(opening), joined, _scalar(closing), _scalar(""))
    return pc.if_else(lists.is_valid(), found, pa.scalar(None, _TEXT))


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def _joined(parts: Sequence[pa.Array | pa.Scalar], count: int) -> pa.Buffer:
    """Return the rows of some columns of text, joined into one buffer."""
    if not count:
        return pa.py_buffer(b"")
    rows = pc.binary_join_element_wise(*parts, _scalar(""))
    offsets = np.frombuffer(rows.buffers()[1], np.int64, count + 1, rows.offset * 8)
    start, end = int(offsets[0]), int(offsets[-1])
    return rows.buffers()[2].slice(start, end - start)
