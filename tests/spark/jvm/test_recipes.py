"""The recipes of docs/spark.md, run as they are written, on a real server."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from onelog import Client
from onelog.cli.main import run
from onelog.spark import register
from tests.documents import blocks_of
from tests.onelog.client.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS = blocks_of("docs/spark.md")
MINUTE_NS = 60 * 10**9


class Reader:
    """Somebody who follows the document, with a server and a directory of their own."""

    def __init__(self, spark: "SparkSession", endpoint: str, lake: Path) -> None:
        self.spark = spark
        self.endpoint = endpoint
        self.lake = lake

    def python(self, section: str) -> dict[str, Any]:
        """Run the Python of a section; return its variables."""
        names: dict[str, Any] = {"spark": self.spark}
        for block in (*self._blocks("Recipes", "python"), *self._blocks(section, "python")):
            exec(self._here(block), names)
        return names

    def commands(self, section: str, number: int) -> None:
        """Run the commands of a block, in this process, which has Spark already."""
        block = self._blocks(section, "sh")[number]
        for line in self._here(block).splitlines():
            program, *arguments = shlex.split(line)
            assert program == "onelog"
            assert run(arguments) == 0, line

    def _here(self, text: str) -> str:
        return text.replace("127.0.0.1:7400", self.endpoint).replace("/lake", str(self.lake))

    def _blocks(self, section: str, language: str) -> list[str]:
        found = [
            each.text for each in BLOCKS if (each.section, each.language) == (section, language)
        ]
        assert found, section
        return found


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a shop: prices, orders, jobs, and the load of two hosts."""
    with serving(tmp_path_factory.mktemp("recipes"), "--shards", "2") as endpoint:
        with Client(endpoint) as client:
            fill(client)
        yield endpoint


def fill(client: Client) -> None:
    orders, jobs = client.stream("orders{shop}"), client.queue("jobs")
    orders.create()
    jobs.create()
    client.queue("mail{shop}").create()
    for price, keys in ((1.5, ("apple{shop}", "pear{shop}")), (2.5, ("pear{shop}",))):
        for key in keys:
            client.kv.put(key, str(price))
    for key in ("apple{shop}", "pear{shop}", "apple{shop}"):
        orders.append(b"one", key=key.encode())
    client.kv.put("apple{shop}", "99")  # behind the last order: no order saw it
    for number in range(3):
        jobs.enqueue(f"job {number}")
    for message in jobs.lease(2):
        jobs.ack(message)
    times = np.arange(60) * MINUTE_NS
    for host, factor in (("a", 1.0), ("b", 2.0)):
        client.ts.write("cpu", times, {"load": np.arange(60) * factor}, tags={"host": host})
    with client.transact() as batch:
        batch.put("done{shop}", "yes").enqueue("mail{shop}", b"thanks")
        batch.append_record("orders{shop}", b"closing")
        batch.write_points("sales{shop}", [MINUTE_NS], {"euros": [19.0]})


@pytest.fixture
def reader(
    spark: "SparkSession", endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Reader:
    register(spark)
    monkeypatch.setenv("ONELOG_ENDPOINTS", endpoint)
    return Reader(spark, endpoint, tmp_path)


def test_the_first_table_takes_three_lines(reader: Reader) -> None:
    (first,) = [each.text for each in BLOCKS if (each.section, each.language) == ("", "python")]
    names: dict[str, Any] = {"spark": reader.spark}
    exec(first.replace("127.0.0.1:7400", reader.endpoint), names)
    assert names["puts"].filter("key_text = 'pear{shop}'").count() == 2


def test_a_daily_export_goes_on_and_moves_its_hold(reader: Reader) -> None:
    section = "A daily export"
    reader.commands(section, 0)
    reader.python(section)
    with Client(reader.endpoint) as client:
        first = {each.shard: each.index for each in client.admin.list_holds()}
        client.kv.put_many({f"tonight-{number}": b"x" for number in range(20)})
    reader.commands(section, 1)
    names = reader.python(section)
    assert names["receipt"]["number"] == 2
    with Client(reader.endpoint) as client:
        second = {each.shard: each.index for each in client.admin.list_holds()}
    assert all(second[shard] >= first[shard] > 1 for shard in (0, 1))
    assert sum(second.values()) > sum(first.values())
    exported = reader.spark.read.parquet(str(reader.lake / "log" / "log"))
    assert exported.filter("operation = 'put_many'").count() >= 1


def test_a_stream_becomes_a_table(reader: Reader) -> None:
    reader.python("A stream into a table")
    table = reader.spark.read.parquet(str(reader.lake / "changes"))
    rows = table.filter("key_text = 'pear{shop}'").orderBy("index").collect()
    assert [(row["previous_value"], row["value"]) for row in rows] == [
        (None, b"1.5"),
        (b"1.5", b"2.5"),
    ]


def test_orders_are_joined_with_the_prices_of_their_time(reader: Reader) -> None:
    section = "Keys as of an index, joined with a stream"
    rows = reader.python(section)["priced"].orderBy("index").collect()
    assert [(row["key_text"], row["price"]) for row in rows] == [
        ("apple{shop}", 1.5),
        ("pear{shop}", 2.5),
        ("apple{shop}", 1.5),
    ]


def test_times_of_a_queue_are_those_of_its_messages(reader: Reader) -> None:
    rows = reader.python("Waiting and processing times of a queue")["times"].collect()
    done = [row for row in rows if row["processing_s"] is not None]
    assert len(done) == 2
    assert all(row["waiting_s"] >= 0 and row["processing_s"] >= 0 for row in done)
    assert len([row for row in rows if row["message_id"] is not None]) == 3


def test_series_are_downsampled(reader: Reader) -> None:
    rows = reader.python("Downsampled series")["means"].orderBy("host", "from").collect()
    assert [(row["host"], row["mean"], row["points"]) for row in rows] == [
        (host, (10 * window + 4.5) * factor, 10)
        for host, factor in (("a", 1.0), ("b", 2.0))
        for window in range(6)
    ]


def test_the_latency_between_a_put_and_its_record_is_known(reader: Reader) -> None:
    with Client(reader.endpoint) as client:
        events = client.stream("events{shop}")
        events.create()
        for number in range(3):
            client.kv.put(f"order{{shop}}{number}", "new")
            events.append(b"seen", key=f"order{{shop}}{number}".encode())
    rows = reader.python("Latency between a put and its record")["latencies"].collect()
    assert sorted(row["key_text"] for row in rows) == [f"order{{shop}}{n}" for n in range(3)]
    assert all(row["latency_ms"] >= 0 for row in rows)


def test_a_transaction_shows_all_its_models(reader: Reader) -> None:
    rows = reader.python("A transaction across models")["transactions"].collect()
    whole = [row for row in rows if len(row["models"]) >= 4]
    assert len(whole) == 1
    assert {"kv", "queue", "stream", "timeseries"} <= set(whole[0]["models"])


def test_a_streaming_read_is_set_up_as_the_document_says(reader: Reader) -> None:
    changes = reader.python("Streams")["changes"]
    assert changes.isStreaming
    assert "key_text" in changes.columns


def test_the_zip_of_the_document_is_made(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader.commands("Clusters", 0)
    assert (tmp_path / "onelog-spark.zip").stat().st_size > 100_000
