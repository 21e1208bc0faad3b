"""Receipts: every bit counts, and nothing that somebody changed is believed."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from crc32c import crc32c

from onelog.errors import DataLoss, FailedPrecondition
from onelog.spark.columns.selection import Selection
from onelog.spark.export.mix import compute_mix
from onelog.spark.export.receipt import (
    Contents,
    FileFacts,
    RangeFacts,
    Receipt,
    Since,
    decode_receipt,
)
from onelog.spark.origin import Range, ShardCut
from onelog.ual.segments.tables import ENTRY_DTYPE
from tests.documents import blocks_of

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
    ranges=(RangeFacts(0, 101, 900, 700, (1 << 64) - 1, 7), RangeFacts(1, 5, 4, 0, 0)),
    missing=(Range(0, 51, 100),),
    files=(FileFacts("kv/x.parquet", 0, "2026-11-18", 9, 7, 101, 120, 999, 0xFF, 0xABC),),
)


# The example of docs/export.md.
SHOWN = Receipt(
    number=1,
    contents=Contents(
        cluster_id="4dd29b23-6a3c-4d58-a1a5-29a0d8a2d1a7",
        shard_count=1,
        view="kv_operations",
        columns=(("index", "int64"), ("key", "binary")),
        format="parquet",
        selection=Selection(types=frozenset((257, 258))),
    ),
    since=None,
    cut=(ShardCut(0, 1, 12_345, 1_795_000_000_000_000_000, 0),),
    ranges=(RangeFacts(0, 1, 12_345, 11_800, 0x3F0A6C1D9B2E4857, 0x51C0DE07),),
    missing=(),
    files=(
        FileFacts(
            "kv_operations/shard=00000/date=2026-11-18/00000-0000000001-0000012345.parquet",
            0, "2026-11-18", 11_950, 11_800, 3, 12_345, 402_117, 0x9D41C0A2, 0x3F0A6C1D9B2E4857,
        ),
    ),
)  # fmt: skip


def test_the_receipt_of_the_document_is_one() -> None:
    (block,) = blocks_of("docs/export.md", "json")
    assert block.text.encode() == SHOWN.encode()


def test_the_mix_of_the_document_is_the_mix() -> None:
    def mixed(x: int) -> int:
        z = (x + 0x9E3779B97F4A7C15) % (1 << 64)
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % (1 << 64)
        return z ^ (z >> 31)

    rng = Random(1)
    headers = np.zeros(500, ENTRY_DTYPE)
    headers["index"] = [rng.randrange(1 << 63) for _ in headers]
    headers["crc"] = [rng.randrange(1 << 32) for _ in headers]
    wanted = sum(mixed(mixed(int(each["index"])) ^ int(each["crc"])) for each in headers)
    assert compute_mix(headers) == wanted % (1 << 64)


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
