"""Registers the files of an export as an Iceberg table, without copying them.

The table's metadata is in ``_iceberg/`` of the target; any catalog can register its newest file.
Each receipt becomes one snapshot, which names the receipt, so that none is added twice. The table
is partitioned by shard and day, which are in the names of the files.

Iceberg keeps absolute paths: a target that moves has to be registered again. pyiceberg (``pip
install 'onelogdb[iceberg]'``) writes the metadata, in directories only.
"""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.spark.columns.view import View
from onelog.spark.export.files import file_schema
from onelog.spark.export.receipt import FileFacts, Receipt
from onelog.spark.export.target import DirectoryTarget, Target

FOLDER = "_iceberg"
RECEIPT_PROPERTY = "onelog.receipt"
_NAMESPACE = "onelog"
_METADATA = re.compile(r"(\d+)-.*\.metadata\.json")
_DAY_ONE = "1970-01-01"


def check_iceberg(target: Target) -> None:
    """Refuse a target that pyiceberg cannot write; raise if pyiceberg is missing."""
    if not isinstance(target, DirectoryTarget):
        raise InvalidArgument(
            f"{target.name} is no directory: Iceberg tables can be registered in directories only",
            reason="TABLE_TARGET",
        )
    try:
        import pyiceberg  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise FailedPrecondition(
            f"{error.name} is missing; install it with: pip install 'onelogdb[iceberg]'",
            reason="ICEBERG_MISSING",
        ) from error


def register_iceberg(target: Target, view: View, receipts: Sequence[Receipt]) -> str:
    """Add the receipts that the table lacks; return the newest file of its metadata."""
    from pyiceberg.catalog.memory import InMemoryCatalog

    check_iceberg(target)
    assert isinstance(target, DirectoryTarget)
    location = f"file://{target.path}/{FOLDER}/{view.name}"
    # The catalog only writes metadata files; nothing else of it is kept.
    catalog = InMemoryCatalog("onelog", warehouse=location)
    try:
        catalog.create_namespace(_NAMESPACE)
        name = (_NAMESPACE, view.name)
        newest = _find_newest(target, view)
        if newest is not None:
            table = catalog.register_table(name, f"file://{target.path}/{newest}")
        else:
            table = _create(catalog, name, location, view, receipts[0])
        added = {
            (each.summary or {}).get(RECEIPT_PROPERTY, "") for each in table.metadata.snapshots
        }
        for receipt in receipts:
            if str(receipt.number) not in added:
                _add(table, target, receipt)
        return str(table.metadata_location)
    finally:
        catalog.close()


def _find_newest(target: Target, view: View) -> str | None:
    found = [
        (int(match[1]), name)
        for name in target.names(f"{FOLDER}/{view.name}/metadata")
        if (match := _METADATA.fullmatch(name.rpartition("/")[2]))
    ]
    return max(found)[1] if found else None


def _create(
    catalog: Any, name: tuple[str, str], location: str, view: View, receipt: Receipt
) -> Any:
    from pyiceberg.table import TableProperties

    columns = tuple(each for each, _ in receipt.contents.columns)
    fields = [
        pa.field("shard", pa.int32()), *file_schema(view, columns), pa.field("date", pa.date32())
    ]  # fmt: skip
    schema = pa.schema([each.with_nullable(True) for each in fields])
    with catalog.create_table_transaction(name, schema, location=location) as creation:
        with creation.update_spec() as spec:
            spec.add_identity("shard")
            spec.add_identity("date")
        # The files have no column ids: columns are found by name.
        mapping = creation.table_metadata.schema().name_mapping.model_dump_json()
        creation.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
    return catalog.load_table(name)


def _add(table: Any, target: DirectoryTarget, receipt: Receipt) -> None:
    properties = {RECEIPT_PROPERTY: str(receipt.number)}
    with table.transaction() as transaction:
        snapshot = transaction.update_snapshot(snapshot_properties=properties)
        with snapshot.fast_append() as append:
            for facts in receipt.files:
                append.append_data_file(_data_file(table, target, facts))


def _data_file(table: Any, target: DirectoryTarget, facts: FileFacts) -> Any:
    from datetime import date

    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    day = (date.fromisoformat(facts.date) - date.fromisoformat(_DAY_ONE)).days
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{target.path}/{facts.name}",
        file_format=FileFormat.PARQUET,
        partition=Record(facts.shard, day),
        file_size_in_bytes=facts.size_bytes,
        record_count=facts.rows,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        split_offsets=None,
    )
