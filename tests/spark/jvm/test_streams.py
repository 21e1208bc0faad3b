"""Real streaming queries over a real server: each entry once in the sink, across restarts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog import Client
from onelog.spark import register
from tests.onelog.client.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAIT_S = 120


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("streams"), "--shards", "2") as endpoint:
        yield endpoint


def put(endpoint: str, first: int, count: int) -> None:
    with Client(endpoint) as client:
        client.kv.put_many({f"key-{n}": b"value" for n in range(first, first + count)})
        with client.transact() as batch:
            batch.put("{t}one", str(first)).put("{t}two", str(first))


def query(spark: "SparkSession", endpoint: str, folder: Path, **options: str) -> "StreamingQuery":
    """Copy what is there into a table, and end."""
    register(spark)
    source = spark.readStream.format("onelog").options(endpoint=endpoint, **options).load()
    written = (
        source.writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert written.awaitTermination(WAIT_S)
    return written


def places(frame: "DataFrame") -> list[tuple[int, int, int]]:
    rows = frame.select("shard", "index", "position").collect()
    return sorted((row["shard"], row["index"], row["position"]) for row in rows)


def test_a_table_follows_the_log_across_restarts_with_each_row_once(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    """The hold follows the query, and its progress says how far the log goes."""
    put(endpoint, 0, 300)
    first = query(spark, endpoint, tmp_path, view="kv_operations", max_rows="12", hold="sink")
    put(endpoint, 300, 200)
    second = query(spark, endpoint, tmp_path, view="kv_operations", max_rows="12", hold="sink")
    table = spark.read.parquet(str(tmp_path / "table"))
    batch = spark.read.format("onelog").options(view="kv_operations", endpoint=endpoint).load()
    assert places(table) == places(batch)
    assert table.filter("key_text like 'key-%'").count() == 500
    assert table.filter("transaction is not null").count() == 4
    for each in (first, second):
        progress = each.lastProgress
        assert progress is not None
        (source,) = progress["sources"]
        ends = source["endOffset"], source["latestOffset"]
        end, latest = (json.loads(text) if isinstance(text, str) else text for text in ends)
        assert set(end) == {"cluster", "0", "1", "crc32c"}
        assert end["cluster"] == latest["cluster"]
        assert set(end["crc32c"]) == {"0", "1"}  # of the last entry of each shard
    with Client(endpoint) as client:
        stands = {each.shard: each.index for each in client.admin.list_holds()}
        assert all(1 <= stands[shard] <= int(end[str(shard)]) + 1 for shard in (0, 1))
        assert sum(stands.values()) > 2  # it has moved since the first query began


def test_a_checkpoint_of_another_database_stops_the_query(
    spark: "SparkSession", endpoint: str, tmp_path: Path
) -> None:
    put(endpoint, 0, 10)
    query(spark, endpoint, tmp_path, view="log")
    with serving(tmp_path / "another", "--shards", "2") as other:
        put(other, 0, 10)
        with pytest.raises(Exception, match="CHECKPOINT_OF_ANOTHER_CLUSTER"):
            query(spark, other, tmp_path, view="log")
