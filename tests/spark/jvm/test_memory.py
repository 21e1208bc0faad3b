"""Memory of a worker of Spark: large files, large entries, entries of many rows."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from bench.spark_data import NAMESPACE, cut_groups, kv_drafts, write_groups
from onelog.projections.codec import encode_prefix
from onelog.projections.kv.commands import Put, PutMany, encode_body, encode_command
from onelog.spark.columns.views import VIEWS
from onelog.spark.options import ReadOptions
from onelog.spark.table import load_table
from onelog.ual.entry import PAYLOAD_SIZE_MAX, Draft

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_KIB = 300 << 10
PUT = 0x0101
FILE_BYTES_MIN = 60 << 20
USED = "ONELOG_TEST_WORKER_USED"  # set in a worker that has run a task of ours


def groups() -> Iterator[list[Draft]]:
    """Yield a file with everything in it, then one of small entries alone."""
    draw = Random(1)
    head = encode_prefix(NAMESPACE) + b"\x00" + (1).to_bytes(2, "little") + b"k"
    large = PAYLOAD_SIZE_MAX - len(head)
    yield from cut_groups(kv_drafts(60_000))
    yield [Draft(PUT, head + draw.randbytes(large))]
    for letter in b"abc":  # small in the file, and large where they are read
        yield [Draft(PUT, head + bytes([letter]) * large)]
    bodies = tuple(encode_body(Put(b"%d" % n, draw.randbytes(10_000))) for n in range(1_000))
    yield [encode_command(PutMany(bodies), NAMESPACE)]
    yield [Draft(PUT, head + draw.randbytes(large))]
    yield from cut_groups(kv_drafts(400_000))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_groups(tmp_path_factory.mktemp("memory") / "data", groups())
    sizes = [each.stat().st_size for each in path.rglob("*.flseg")]
    assert max(sizes) > FILE_BYTES_MIN
    return path


@pytest.mark.spark_long
@pytest.mark.parametrize("view", ["log", "kv_operations"])
def test_a_worker_stays_within_its_memory(
    spark: "SparkSession", directory: Path, view: str
) -> None:
    """Each view in a worker of its own: one that another view has warmed has grown already."""
    table = load_table(ReadOptions.parse({"view": view, "path": str(directory)}, VIEWS))
    splits = table.splits()

    def grown(_number: int) -> tuple[int, int, bool]:
        def peak() -> int:
            lines = Path("/proc/self/status").read_text().splitlines()
            (found,) = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
            return found

        is_fresh = USED not in os.environ
        os.environ[USED] = "yes"
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        start = peak()
        rows = 0
        for split in splits:
            for batch in table.batches(split, None):
                rows += batch.num_rows
        return peak() - start, rows, is_fresh

    # Spark starts other workers for tasks with other variables.
    spark.sparkContext.environment["ONELOG_TEST_VIEW"] = view
    try:
        (found,) = spark.sparkContext.parallelize([0], 1).map(grown).collect()
    finally:
        del spark.sparkContext.environment["ONELOG_TEST_VIEW"]
    memory_kib, rows, is_fresh = found
    assert is_fresh
    assert rows >= 460_000
    assert memory_kib <= LIMIT_KIB
