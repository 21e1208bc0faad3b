"""Real Spark writes: batches to every target, and a query that is killed and comes again."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog import Client
from onelog.spark import register
from tests.documents import blocks_of
from tests.onelog.client.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READY_S = 60


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("written"), "--shards", "2") as endpoint:
        with Client(endpoint, timeout_s=READY_S) as client:
            client.kv.put("ready", "")
        yield endpoint


@pytest.fixture(scope="module")
def client(endpoint: str) -> Iterator[Client]:
    with Client(endpoint, timeout_s=READY_S) as client:
        yield client


@pytest.fixture(scope="module")
def registered(spark: "SparkSession") -> "SparkSession":
    register(spark)
    return spark


def save(frame: "DataFrame", endpoint: str, **options: str) -> None:
    frame.write.format("onelog").mode("append").options(endpoint=endpoint, **options).save()


def document(number: int, endpoint: str) -> str:
    """Return a block of docs/import.md that writes to this server."""
    blocks = [each.text for each in blocks_of("docs/import.md") if each.language == "python"]
    found = blocks[number]
    return found.replace("127.0.0.1:7400", endpoint)


def test_frames_are_written_to_every_target(
    registered: "SparkSession", endpoint: str, client: Client
) -> None:
    client.stream("events").create()
    client.queue("messages").create()
    numbers = registered.range(0, 3_000, numPartitions=2)
    save(numbers.selectExpr("concat('k:', id) AS key", "CAST(id AS STRING) AS value"),
         endpoint, to="keys")  # fmt: skip
    assert {item.key: item.value for item in client.kv.scan("k:")} == {
        f"k:{number}".encode(): str(number).encode() for number in range(3_000)
    }
    frame = numbers.selectExpr(
        "CAST(id AS STRING) AS value",
        "map('n', CAST(CAST(id AS STRING) AS BINARY)) AS headers",
        "'t' AS tag",
    )
    for _ in range(2):  # the second time it is the same job, and nothing is written
        exec(document(0, endpoint), {"frame": frame})
    with pytest.raises(Exception, match="WRITE_ROWS_CHANGED"):
        exec(document(0, endpoint), {"frame": frame.repartition(3)})
    found = sorted(int(record.value) for record in client.stream("events").read())
    assert found == list(range(3_000))
    save(numbers.selectExpr("CAST(id AS STRING) AS body", "CAST(id % 16 AS TINYINT) AS priority"),
         endpoint, to="queue", queue="messages")  # fmt: skip
    assert client.queue("messages").info().ready == 3_000
    points = numbers.selectExpr(
        "timestamp_seconds(id) AS time", "concat('h', id % 3) AS host", "id / 2 AS load"
    )
    save(points, endpoint, to="series", measurement="cpu", tags="host")
    series = client.ts.query("cpu", "load", 0, 2**62, by_series=True)
    assert [(each.tags["host"], len(each)) for each in series] == [
        ("h0", 1_000), ("h1", 1_000), ("h2", 1_000),
    ]  # fmt: skip


def test_what_is_wrong_is_said_before_a_task_starts(
    registered: "SparkSession", endpoint: str
) -> None:
    frame = registered.range(1).selectExpr("id AS key", "'x' AS value")
    for options, mode, reason in (
        ({"to": "keys"}, "append", "COLUMN_TYPE_INVALID"),
        ({"to": "table"}, "append", "TARGET_UNKNOWN"),
        ({"to": "keys"}, "overwrite", "OVERWRITE_UNSUPPORTED"),
    ):
        writer = frame.write.format("onelog").mode(mode).options(endpoint=endpoint, **options)
        with pytest.raises(Exception, match=reason):
            writer.save()


def test_a_query_that_fails_after_its_writes_comes_again_and_writes_once(
    registered: "SparkSession", endpoint: str, client: Client, tmp_path: Path
) -> None:
    """The commit of a batch is taken from the checkpoint: so it looks after a driver's death."""
    client.stream("changes").create()
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()

    def run() -> None:
        source = registered.readStream.format("text").option("maxFilesPerTrigger", 1)
        names = {"changes": source.load(str(lines)).select("value")}
        exec(document(1, endpoint).replace("/checkpoints/changes", str(checkpoint)), names)

    expected = []
    for batch in range(2):
        texts = [f"{batch}-{number}" for number in range(1_500)]
        (lines / f"{batch}.txt").write_text("\n".join(texts))
        os.utime(lines / f"{batch}.txt", (batch, batch))
        expected += [text.encode() for text in texts]
    run()
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    (lines / "2.txt").write_text("2-0\n2-1")
    run()
    found = [record.value for record in client.stream("changes").read()]
    assert found == [*expected, b"2-0", b"2-1"]
