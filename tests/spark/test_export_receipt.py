"""Receipts: every bit counts, and nothing that somebody changed is believed."""

import json
from dataclasses import replace
from random import Random

import pytest
from crc32c import crc32c

from onelog.errors import DataLoss, FailedPrecondition
from onelog.spark.columns.selection import Selection
from onelog.spark.export.receipt import (
    Contents,
    FileFacts,
    RangeFacts,
    Receipt,
    Since,
    decode_receipt,
)
from onelog.spark.origin import Range, ShardCut

CONTENTS = Contents(
    cluster_id="a7f9",
    shard_count=3,
    view="kv_operations",
    columns=(("index", "int64"), ("key", "binary")),
    format="parquet",
    selection=Selection(
        types=frozenset((257, 258)),
        owners=frozenset((1,)),
        from_time_ns=5,
        to_time_ns=(1 << 64) - 1,
        namespaces=frozenset((b"default", b"a,b\x00\xff\\")),
        key_prefix=b"user:\xfe",
    ),
    queues=("jobs", "größe"),
)
RECEIPT = Receipt(
    number=2,
    contents=CONTENTS,
    since=Since(1, 0x00ABCDEF),
    cut=(ShardCut(0, 1, 900, 10**18, 7), ShardCut(1, 5, 4, 0, 0)),
    ranges=(RangeFacts(0, 101, 900, 700, (1 << 64) - 1), RangeFacts(1, 5, 4, 0, 0)),
    missing=(Range(0, 51, 100),),
    files=(FileFacts("kv/x.parquet", 0, "2026-11-18", 9, 7, 101, 120, 999, 0xFF, 0xABC),),
)


def test_a_receipt_is_read_as_it_was_written() -> None:
    assert decode_receipt("receipt", RECEIPT.encode()) == RECEIPT
    first = replace(RECEIPT, since=None, contents=replace(CONTENTS, selection=Selection()))
    assert decode_receipt("receipt", first.encode()) == first


def test_a_receipt_of_which_one_bit_was_changed_is_refused() -> None:
    data = RECEIPT.encode()
    rng = Random(1)
    for position in rng.sample(range(8 * len(data)), 400):
        changed = bytearray(data)
        changed[position >> 3] ^= 1 << (position & 7)
        with pytest.raises(DataLoss) as caught:
            decode_receipt("receipt", bytes(changed))
        assert caught.value.reason == "RECEIPT_EDITED"


def test_a_receipt_that_was_edited_and_made_pretty_again_is_refused() -> None:
    fields = json.loads(RECEIPT.encode())
    fields["files"][0]["rows"] = 10
    text = json.dumps(fields, sort_keys=True, indent=2) + "\n"
    with pytest.raises(DataLoss, match="RECEIPT_EDITED"):
        decode_receipt("receipt", text.encode())


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("version", 2, "RECEIPT_VERSION_UNKNOWN"),
        ("format", "xml", "RECEIPT_EDITED"),
        ("more", 1, "RECEIPT_EDITED"),
        ("files", {}, "RECEIPT_EDITED"),
        ("cut", [{"shard": -1}], "RECEIPT_EDITED"),
    ],
)
def test_a_checksum_that_was_made_to_fit_helps_nobody(
    name: str, value: object, reason: str
) -> None:
    fields = json.loads(RECEIPT.encode())
    del fields["crc32c"]
    fields[name] = value
    canonical = (json.dumps(fields, sort_keys=True, indent=2) + "\n").encode()
    fields["crc32c"] = f"{crc32c(canonical):08x}"
    data = (json.dumps(fields, sort_keys=True, indent=2) + "\n").encode()
    with pytest.raises((DataLoss, FailedPrecondition)) as caught:
        decode_receipt("receipt", data)
    assert caught.value.reason == reason
