"""Registers the files of an export as a Delta table, without copying them.

The table is the folder of the view. Version N of its log adds the files of receipt N + 1, so each
continuation is the next version. The bytes of a version follow from the receipt alone: writing it
again changes nothing, and a version that something else wrote is never replaced.

The table is partitioned by shard and day, which are in the names of the files.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa

from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.spark.columns.view import View
from onelog.spark.export.files import PARTITION_COLUMNS, file_schema
from onelog.spark.export.receipt import Receipt
from onelog.spark.export.target import Target

# Only the types that views have.
_SIMPLE = {
    pa.int32(): "integer", pa.int64(): "long", pa.float64(): "double", pa.bool_(): "boolean",
    pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
}  # fmt: skip


def check_format(file_format: str) -> None:
    """Refuse a table of files that are not Parquet."""
    if file_format != "parquet":
        raise InvalidArgument(
            f"a table needs Parquet files, not {file_format}", reason="TABLE_FORMAT"
        )


def register_delta(target: Target, view: View, receipts: Sequence[Receipt]) -> str:
    """Write the missing versions of the table; return the table's folder."""
    for receipt in receipts:
        version = receipt.number - 1
        name = f"{view.name}/_delta_log/{version:020d}.json"
        wanted = _encode_version(view, receipt)
        found = target.read(name)
        if found is None:
            target.write(name, wanted)
        elif found != wanted:
            raise FailedPrecondition(
                f"{target.name}/{name} was written by somebody else; the table is left as it is",
                reason="TABLE_CHANGED",
            )
    return f"{target.name.rstrip('/')}/{view.name}"


def _encode_version(view: View, receipt: Receipt) -> bytes:
    """Return one commit of the table's log: JSON lines."""
    # Log time, not this machine's clock: the same receipt gives the same bytes.
    moment_ms = max((each.timestamp_ns for each in receipt.cut), default=0) // 10**6
    actions: list[dict[str, Any]] = []
    if receipt.number == 1:
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": _metadata(view, receipt, moment_ms)},
        ]
    for each in receipt.files:
        actions.append(
            {
                "add": {
                    "path": quote(each.name.removeprefix(f"{view.name}/"), safe="/="),
                    "partitionValues": {"shard": str(each.shard), "date": each.date},
                    "size": each.size_bytes,
                    "modificationTime": moment_ms,
                    "dataChange": True,
                    "stats": json.dumps({"numRecords": each.rows}),
                }
            }
        )
    actions.append(
        {"commitInfo": {"timestamp": moment_ms, "operation": "WRITE", "operationParameters": {}}}
    )
    return b"".join(json.dumps(each, sort_keys=True).encode() + b"\n" for each in actions)


def _metadata(view: View, receipt: Receipt, moment_ms: int) -> dict[str, Any]:
    contents = receipt.contents
    name = f"onelog:{contents.cluster_id}/{view.name}/{sha256(receipt.encode()).hexdigest()}"
    return {
        "id": str(uuid5(NAMESPACE_URL, name)),
        "name": view.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_schema(view, tuple(name for name, _ in contents.columns))),
        "partitionColumns": list(PARTITION_COLUMNS),
        "configuration": {},
        "createdTime": moment_ms,
    }


def _schema(view: View, columns: tuple[str, ...]) -> dict[str, Any]:
    fields = [
        pa.field("shard", pa.int32()), *file_schema(view, columns), pa.field("date", pa.date32())
    ]  # fmt: skip
    return {"type": "struct", "fields": [_field(each) for each in fields]}


def _field(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}}


def _type(kind: pa.DataType) -> Any:
    """Return an Arrow type as Spark writes it in JSON."""
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type),
            "valueType": _type(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(each) for each in kind]}
    return _SIMPLE[kind]
