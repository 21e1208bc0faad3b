"""Rows are written exactly once, however often and in however many tasks they are written."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from onelog import Client, QueueConfig
from onelog.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted
from onelog.routing import find_shard
from onelog.spark.load import shard_writer
from onelog.spark.load.chunks import CHUNK_BYTES_MAX, mark_done
from onelog.spark.load.progress import Job, find_tags, progress_key
from onelog.spark.load.settings import parse_write
from onelog.spark.load.shard_writer import CHUNKS_IN_FLIGHT_MAX
from onelog.spark.load.targets import CHUNK_ROWS_MAX, VALUE_SIZE_MAX
from tests.onelog.client.serving import ROOT
from tests.spark.load.writing import numbered, values_of, write, writer_of
from tests.system.ports import free_addresses

WAIT_S = 60


def batch_of(values: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": values})


def test_rows_keep_their_order_and_come_once(endpoint: str, client: Client) -> None:
    client.stream("order").create()
    values = numbered(5 * CHUNK_ROWS_MAX + 17)
    options = {"to": "stream", "stream": "order"}
    outcome = write(endpoint, options, {"value": values}, "order")
    assert values_of(client, "order") == values
    assert (outcome.row_count, outcome.skipped_row_count) == (len(values), 0)
    (shard,) = outcome.shards
    offsets = [record.offset for record in client.stream("order").read()]
    assert shard.first_index < offsets[0]
    assert offsets[-1] < shard.last_index
    assert shard.row_count == len(values)

    again = write(endpoint, options, {"value": values}, "order")
    assert values_of(client, "order") == values
    assert (again.row_count, again.skipped_row_count) == (len(values), len(values))
    assert again.shards == outcome.shards


def test_chunks_are_the_same_whatever_the_batches_are(endpoint: str, client: Client) -> None:
    """Spark and pyarrow cut a partition as they like, also differently the next time."""
    client.stream("cuts").create()
    values = numbered(2_500)
    options = {"to": "stream", "stream": "cuts"}
    write(endpoint, options, [batch_of(values)], "cuts")
    slices = [batch_of(values).slice(at, 7) for at in range(0, len(values), 7)]
    texts = [pa.RecordBatch.from_pydict({"value": [each.decode() for each in values]})]
    for batches in (slices, [batch_of([]), *texts]):
        assert write(endpoint, options, batches, "cuts").skipped_row_count == len(values)
    assert values_of(client, "cuts") == values


def test_a_task_that_fails_after_some_commits_is_continued(endpoint: str, client: Client) -> None:
    client.stream("halves").create()
    values = numbered(12 * CHUNK_ROWS_MAX)
    options = {"to": "stream", "stream": "halves"}
    with writer_of(endpoint, options, "halves") as writer:
        for at in range(0, 10_000, 1_000):
            writer.write(batch_of(values[at : at + 1_000]))
    written = len(values_of(client, "halves"))
    assert 0 < written < len(values)
    outcome = write(endpoint, options, {"value": values}, "halves")
    assert values_of(client, "halves") == values
    assert outcome.skipped_row_count >= written


def test_a_task_whose_answers_get_lost_after_the_commit_writes_nothing_twice(
    endpoint: str, client: Client
) -> None:
    """The task ends without hearing of its last chunks; they may be written or not."""
    client.stream("lost").create()
    values = numbered(3 * CHUNK_ROWS_MAX)
    options = {"to": "stream", "stream": "lost"}
    for count in (1_500, 2_500, 2_997):
        writer = writer_of(endpoint, options, "lost")
        writer.write(batch_of(values[:count]))
        writer.close()  # chunks that were sent are not waited for
    write(endpoint, options, {"value": values}, "lost")
    assert values_of(client, "lost") == values


def test_two_attempts_at_the_same_time_write_the_rows_once(endpoint: str, client: Client) -> None:
    client.stream("twice").create()
    values = numbered(3 * CHUNKS_IN_FLIGHT_MAX * CHUNK_ROWS_MAX // 2)
    options = {"to": "stream", "stream": "twice"}
    outcomes, failures = [], []

    def attempt() -> None:
        try:
            batches = (batch_of(values[at : at + 500]) for at in range(0, len(values), 500))
            outcomes.append(write(endpoint, options, batches, "twice"))
        except Exception as error:  # noqa: BLE001 - checked below
            failures.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not failures
    assert values_of(client, "twice") == values
    assert len({each.shards for each in outcomes}) == 1
    # What one has skipped another has written.
    assert sum(each.row_count - each.skipped_row_count for each in outcomes) == len(values)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda rows: [b"other", *rows[1:]], id="the first row differs"),
        pytest.param(lambda rows: [*rows[:-1], b"other"], id="the last row differs"),
        pytest.param(lambda rows: rows[:-1], id="a row is missing"),
        pytest.param(lambda rows: rows[:CHUNK_ROWS_MAX], id="chunks are missing"),
        pytest.param(lambda rows: [*rows, b"more"], id="a row is new"),
        pytest.param(lambda rows: rows * 2, id="chunks are new"),
        pytest.param(lambda rows: [rows[1], rows[0], *rows[2:]], id="rows are in another order"),
    ],
)  # fmt: skip
def test_an_attempt_that_brings_other_rows_is_refused(
    endpoint: str, client: Client, changed: object, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
    client.stream(name).create()
    values = numbered(2 * CHUNK_ROWS_MAX + 5)
    options = {"to": "stream", "stream": name}
    write(endpoint, options, {"value": values}, name)
    with pytest.raises(FailedPrecondition) as caught:
        write(endpoint, options, {"value": changed(values)}, name)  # type: ignore[operator]
    assert caught.value.reason == "WRITE_ROWS_CHANGED"
    assert values_of(client, name) == values


def test_rows_that_are_added_at_a_chunks_end_are_refused(endpoint: str, client: Client) -> None:
    """The last chunk is known to be the last, also when it is full."""
    client.stream("full").create()
    values = numbered(CHUNK_ROWS_MAX)
    options = {"to": "stream", "stream": "full"}
    write(endpoint, options, {"value": values}, "full")
    with pytest.raises(FailedPrecondition, match="WRITE_ROWS_CHANGED"):
        write(endpoint, options, {"value": [*values, b"more"]}, "full")
    assert values_of(client, "full") == values


def test_keys_are_written_to_all_shards_and_once_to_each(endpoint: str, client: Client) -> None:
    keys = [b"many:%d" % number for number in range(4_000)]
    rows = {"key": keys, "value": numbered(4_000)}
    outcome = write(endpoint, {"to": "keys"}, rows, "keys")
    assert [each.shard for each in outcome.shards] == [0, 1, 2]
    assert sum(each.row_count for each in outcome.shards) == 4_000
    found = {item.key: item for item in client.kv.scan("many:")}
    assert {key: item.value for key, item in found.items()} == dict(
        zip(keys, rows["value"], strict=True)
    )
    write(endpoint, {"to": "keys"}, rows, "keys")
    assert {item.key: item.version for item in client.kv.scan("many:")} == {
        key: item.version for key, item in found.items()
    }


def test_rows_for_a_shard_that_had_none_are_refused(endpoint: str, client: Client) -> None:
    keys = [b"few{%d}" % number for number in range(100)]
    one = keys[:1]
    write(endpoint, {"to": "keys"}, {"key": one, "value": [b"1"]}, "few")
    with pytest.raises(FailedPrecondition, match="WRITE_ROWS_CHANGED"):
        write(endpoint, {"to": "keys"}, {"key": keys[1:], "value": [b"1"] * 99}, "few")
    assert [item.key for item in client.kv.scan("few{")] == one


def test_a_shard_that_had_rows_and_has_none_now_is_noticed(endpoint: str, client: Client) -> None:
    keys = [b"fewer{%d}" % number for number in range(100)]
    write(endpoint, {"to": "keys"}, {"key": keys, "value": [b"1"] * 100}, "fewer")
    topology = client.admin.topology()
    shards = [find_shard(key, topology.partition_count, topology.shard_count) for key in keys]
    some = [key for key, shard in zip(keys, shards, strict=True) if shard == 1]
    with pytest.raises(FailedPrecondition, match="WRITE_ROWS_CHANGED"):
        write(endpoint, {"to": "keys"}, {"key": some, "value": [b"1"] * len(some)}, "fewer")


def test_a_key_that_comes_twice_has_its_last_value(endpoint: str, client: Client) -> None:
    rows = {"key": [b"same"] * 3, "value": [b"1", b"2", b"3"]}
    write(endpoint, {"to": "keys"}, rows, "same")
    item = client.kv.get("same")
    assert item is not None
    assert item.value == b"3"
    assert [past.value for past in client.kv.history("same")] == [b"3", b"2", b"1"]


def test_large_rows_make_small_chunks(endpoint: str, client: Client) -> None:
    client.stream("large").create()
    values = [bytes([number]) * (CHUNK_BYTES_MAX // 3) for number in range(7)]
    values += [b"x" * (3 * CHUNK_BYTES_MAX), b"y" * VALUE_SIZE_MAX]
    write(endpoint, {"to": "stream", "stream": "large"}, {"value": values}, "large")
    assert values_of(client, "large") == values


def test_partitions_and_jobs_do_not_know_each_other(endpoint: str, client: Client) -> None:
    client.stream("apart").create()
    options = {"to": "stream", "stream": "apart"}
    for job, partition in (("a", "0"), ("a", "1"), ("b", "0")):
        write(endpoint, options, {"value": [job + partition]}, job, partition)
    assert values_of(client, "apart") == [b"a0", b"a1", b"b0"]


def test_a_job_that_is_written_has_no_further_partitions(endpoint: str, client: Client) -> None:
    client.stream("partitions").create()
    options = {"to": "stream", "stream": "partitions"}
    write(endpoint, options, {"value": ["x"]}, "partitions", "0")
    mark_done(Job("partitions"), "", 1, [endpoint])
    assert write(endpoint, options, {"value": ["x"]}, "partitions", "0").skipped_row_count == 1
    with pytest.raises(FailedPrecondition, match="WRITE_ROWS_CHANGED"):
        write(endpoint, options, {"value": ["y"]}, "partitions", "1")
    assert values_of(client, "partitions") == [b"x"]


def test_batches_of_a_query_follow_each_other_under_one_key(endpoint: str, client: Client) -> None:
    """A query that runs for months must not leave a key for each batch."""
    client.stream("query").create()
    options = {"to": "stream", "stream": "query"}
    for batch in (0, 1, 1, 2):
        job = Job("q1", batch, is_query=True)
        write(endpoint, options, {"value": numbered(1_200, 1_200 * batch)}, job)
    assert values_of(client, "query") == numbered(3_600)
    assert len([item for item in client.kv.scan("_load{") if b"q:q1" in item.key]) == 1
    with pytest.raises(FailedPrecondition, match="WRITE_BATCH_OVER"):
        write(endpoint, options, {"value": ["x"]}, Job("q1", 1, is_query=True))
    with pytest.raises(FailedPrecondition, match="WRITE_ROWS_CHANGED"):
        write(endpoint, options, {"value": ["x"]}, Job("q1", 2, is_query=True))


def test_a_job_that_wrote_to_another_stream_is_refused(endpoint: str, client: Client) -> None:
    for name in ("one{t}", "two{t}"):
        client.stream(name).create()
    write(endpoint, {"to": "stream", "stream": "one{t}"}, {"value": ["x"]}, "target")
    with pytest.raises(FailedPrecondition, match="WRITE_ROWS_CHANGED"):
        write(endpoint, {"to": "stream", "stream": "two{t}"}, {"value": ["x"]}, "target")


def test_a_queue_that_is_full_fails_with_the_row_and_can_be_continued(
    endpoint: str, client: Client
) -> None:
    queue = client.queue("full")
    queue.create(QueueConfig(messages_max=1_500))
    options = {"to": "queue", "queue": "full"}
    bodies = numbered(2_000)
    with pytest.raises(ResourceExhausted) as caught:
        write(endpoint, options, {"body": bodies}, "full queue")
    assert caught.value.reason == "QUEUE_FULL"
    assert caught.value.metadata["row"] == "1500"
    assert queue.info().ready == CHUNK_ROWS_MAX  # a chunk is written whole or not at all
    queue.configure(QueueConfig(messages_max=10_000))
    write(endpoint, options, {"body": bodies}, "full queue")
    assert [message.body for message in queue.lease(1_000)] == bodies[:1_000]
    assert queue.info().enqueued == 2_000


def test_what_does_not_exist_is_named(endpoint: str, client: Client) -> None:
    with pytest.raises(NotFound) as unknown:
        write(endpoint, {"to": "stream", "stream": "nobody"}, {"value": ["x"]}, "nobody")
    assert unknown.value.reason == "STREAM_UNKNOWN"
    with pytest.raises(NotFound, match="NAMESPACE_UNKNOWN"):
        write(endpoint, {"to": "keys", "namespace": "nobody"}, {"key": ["x"], "value": ["x"]}, "n")


def test_a_progress_that_is_gone_is_noticed(endpoint: str, client: Client) -> None:
    client.stream("gone").create()
    values = numbered(20 * CHUNK_ROWS_MAX)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of(values[:2_000])
        for item in client.kv.scan("_load{"):
            if item.key.endswith(b"/j:gone/0"):
                client.kv.delete(item.key)
        yield batch_of(values[2_000:])

    with pytest.raises(FailedPrecondition, match="WRITE_PROGRESS_LOST"):
        write(endpoint, {"to": "stream", "stream": "gone"}, batches(), "gone")


def test_progress_keys_expire(endpoint: str, client: Client) -> None:
    options = {"to": "keys", "progress_ttl": "2h"}
    write(endpoint, options, {"key": ["expiring"], "value": ["x"]}, "expiring")
    (item,) = (each for each in client.kv.scan("_load{") if each.key.endswith(b"/j:expiring/0"))
    assert item.expires_ns > 0


def test_an_empty_partition_needs_no_server() -> None:
    outcome = write("127.0.0.1:1", {"to": "keys"}, {"key": [], "value": []}, "nothing")
    assert (outcome.row_count, outcome.shards) == (0, ())


def test_a_tag_leads_to_each_shard() -> None:
    def shard_of_seven(name: bytes) -> int:
        return find_shard(name, 128, 7)

    tags = find_tags(7, shard_of_seven)
    assert [shard_of_seven(progress_key(tag, Job("j"), "1")) for tag in tags] == list(range(7))


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_a_job_has_a_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match="JOB_NAME_INVALID"):
        parse_write({"to": "keys", "job": name})


class Restarted:
    """A server that can be killed and comes again on its files."""

    def __init__(self, directory: Path) -> None:
        self.endpoint, *self._others = free_addresses(3)
        self._directory = directory
        self.start()

    def start(self) -> None:
        peers, http = self._others
        flags = ["--listen", self.endpoint, "--peer-listen", peers, "--http-listen", http]
        command = [sys.executable, "-m", "onelog.cli.main", "serve"]
        self.process = subprocess.Popen(
            [*command, "--data-dir", str(self._directory), *flags],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Restarted]:
    server = Restarted(tmp_path / "data")
    yield server
    server.kill()


@pytest.mark.parametrize("attempt_s", [0.3, 20.0])
def test_a_server_that_is_killed_in_between_has_each_row_once(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch, attempt_s: float
) -> None:
    """With short attempts it is the writer that tries again, with long ones the client."""
    monkeypatch.setattr(shard_writer, "ATTEMPT_S_MAX", attempt_s)
    values = numbered(30 * CHUNK_ROWS_MAX)
    with Client(restarted.endpoint, timeout_s=WAIT_S) as client:
        client.stream("killed").create()

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(0, len(values), 1_000):
            if at == 15_000:
                restarted.kill()
                restarted.start()
            yield batch_of(values[at : at + 1_000])

    options = {"to": "stream", "stream": "killed"}
    outcome = write(restarted.endpoint, options, batches(), "killed")
    assert outcome.row_count == len(values)
    with Client(restarted.endpoint, timeout_s=WAIT_S) as client:
        assert values_of(client, "killed") == values
