"""Results: their fields are their own, they settle themselves, and they are tables."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from onelog import (
    AsyncClient,
    Client,
    GroupConfig,
    Item,
    LeasedMessage,
    MeasurementConfig,
    Message,
    QueueConfig,
    Record,
    Retention,
    Rows,
    SeriesData,
)
from onelog.client import observing, values
from onelog.client.tables import SHOWN_ROWS_MAX
from onelog.errors import AlreadyExists, FailedPrecondition, LeaseLost, NotFound, Unavailable
from tests.node.services.nodes import run, single
from tests.onelog.client.serving import serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("data")
    with serving(directory) as endpoint, Client(endpoint, timeout_s=60) as client:
        client.kv.put("ready", "")
        yield client


# Fields

RESULTS = [
    values.Item, values.Version, values.TxnResult, values.LeaseInfo, values.Enqueued,
    values.Message, values.Settled, values.Appended, values.Gap, values.Record, observing.Cost,
]  # fmt: skip


@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_has_its_own_fields_and_no_methods_of_a_tuple(kind: Any) -> None:
    for name in ("index", "count"):
        assert not hasattr(kind, name)
    assert not issubclass(kind, tuple)
    assert not hasattr(kind, "__dict__") or "__dict__" not in kind.__slots__


def test_results_are_compared_by_their_fields() -> None:
    assert Item(b"k", b"v", 7) == Item(b"k", b"v", 7)
    assert Item(b"k", b"v", 7) != Item(b"k", b"v", 8)
    assert len({Item(b"k", b"v", 7), Item(b"k", b"v", 7)}) == 1


# Leased messages


def test_a_leased_message_settles_itself(client: Client) -> None:
    queue = client.queue("settled")
    queue.create(QueueConfig(visibility_s=600))
    queue.enqueue_many(["a", "b", "c", "d"])
    acked, nacked, released, extended = queue.lease(4)
    acked.ack()
    assert nacked.nack(delay_s=600, reason="later").reason == ""
    released.release()
    extended.extend(1_200)
    info = queue.info()
    assert (info.acked, info.delayed, info.ready, info.leased) == (1, 1, 1, 1)
    with pytest.raises(NotFound):
        acked.ack()
    with pytest.raises(LeaseLost):
        released.ack()
    for message in queue.consume():
        assert message.body == b"c"
        message.ack()
        break
    assert queue.info().acked == 2


def test_a_leased_message_is_awaited_by_a_client_with_a_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            queue = client.queue("settled")
            await queue.create()
            await queue.enqueue_many(["a", "b", "c", "d"])
            acked, nacked, released, extended = await queue.lease(4)
            await asyncio.gather(
                acked.ack(), nacked.nack(delay_s=600), released.release(), extended.extend(1_200)
            )
            info = await queue.info()
            assert (info.acked, info.delayed, info.ready, info.leased) == (1, 1, 1, 1)

    run(main())


def test_a_copy_of_a_leased_message_is_plain_data(client: Client) -> None:
    queue = client.queue("copied")
    queue.create(exist_ok=True)
    queue.enqueue("a", headers={"by": "ann"})
    (message,) = queue.lease()
    copy = pickle.loads(pickle.dumps(message))
    assert type(copy) is Message
    assert copy == Message(*(getattr(message, each.name) for each in fields(Message)))
    with pytest.raises(FailedPrecondition) as failure:
        replace(message, token=0).ack()
    assert failure.value.reason == "NOT_LEASED"
    queue.ack(copy)


def test_a_worker_settles_its_messages_itself(client: Client) -> None:
    queue = client.queue("worked")
    queue.create()
    queue.enqueue("a")
    reasons = []

    def handle(message: Message) -> None:
        assert isinstance(message, LeasedMessage)
        with pytest.raises(FailedPrecondition) as failure:
            message.ack()
        reasons.append(failure.value.reason)

    queue.worker(handle, limit=1).run()
    assert reasons == ["NOT_LEASED"]
    assert queue.info().acked == 1


# Creating what may exist


def test_what_exists_may_be_created_again_and_stays_as_it_is(client: Client) -> None:
    queue, stream = client.queue("twice"), client.stream("twice")
    group = stream.group("twice")
    queue_id = queue.create(QueueConfig(messages_max=5))
    stream_id = stream.create(partitions=2, retention=Retention(count_max=9))
    group.create(config=GroupConfig(shared=True))
    client.ts.create("twice", MeasurementConfig("reject"))
    client.admin.create_namespace("twice")
    assert queue.create(exist_ok=True) == queue_id
    assert stream.create(exist_ok=True) == stream_id
    group.create(exist_ok=True)
    client.ts.create("twice", exist_ok=True)
    client.admin.create_namespace("twice", exist_ok=True)
    assert queue.info().config.messages_max == 5
    assert (len(stream.info().partitions), stream.info().retention.count_max) == (2, 9)
    assert group.info().config.shared
    assert client.ts.info("twice").config.duplicates == "reject"
    for create in (
        queue.create,
        stream.create,
        group.create,
        lambda: client.ts.create("twice"),
        lambda: client.admin.create_namespace("twice"),
    ):
        with pytest.raises(AlreadyExists):
            create()
    with pytest.raises(NotFound):
        client.stream("never").group("g").create(exist_ok=True)
    assert client.queue("first").create(exist_ok=True) == client.queue("first").info().queue_id


def test_a_ping_is_answered_by_the_node_that_is_asked(client: Client) -> None:
    assert client.ping() > 0
    (node,) = client.admin.topology().nodes
    assert client.ping(endpoint=node.endpoints[0]) > 0
    with pytest.raises(Unavailable) as failure:
        client.scoped(timeout_s=0.2).ping(endpoint="127.0.0.1:1")
    assert failure.value.reason == "NOT_CONNECTED"


# Tables


class Cells(HTMLParser):
    """The cells of a table, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def cells(shown: Any) -> list[list[str]]:
    return Cells(shown._repr_html_()).rows


def test_methods_with_several_results_return_tables(client: Client) -> None:
    client.kv.put_many([("t1", "<b>one</b>"), ("t2", b"\xff\x00")])
    found = client.kv.get_many(["t1", "t2", "t3"])
    head, first, second, third = cells(found)
    assert head == ["key", "value", "version", "expires_ns", "lease_id"]
    assert first[:2] == ["t1", "<b>one</b>"]
    assert second[:2] == ["t2", "ff 00"]
    assert third == [""] * 5
    assert cells(found[0]) == [head, first]
    queue, stream = client.queue("tables"), client.stream("tables")
    queue.create()
    stream.create()
    appended = stream.append_many(["a", "b"])
    listed: Sequence[Rows[Any]] = (
        queue.enqueue_many(["a", "b"]), queue.peek(), queue.lease(2), appended,
        client.kv.history("t1"), queue.schedules(),
    )  # fmt: skip
    for rows in listed:
        assert isinstance(rows, Rows)
        assert len(rows.to_pandas()) == len(rows.to_arrow()) == len(rows)
    assert cells(queue.info())[1][0] == "tables"
    scanned = client.kv.scan("t")
    assert "Rows(...)" in repr(scanned)
    assert scanned.to_arrow()["key"].to_pylist() == [b"t1", b"t2"]
    assert scanned.to_arrow().num_rows == 0  # it was read to the end
    assert client.queues("tables").to_pandas()["queue"].tolist() == ["tables"]
    assert client.stream("tables").read().to_pandas()["value"].tolist() == [b"a", b"b"]
    assert cells(Rows(client.streams("tables")))[1][0] == "tables"


def test_nothing_is_shown_as_nothing(client: Client) -> None:
    client.queue("empty").create()
    found = client.queue("empty").peek()
    assert found._repr_html_() == "<p>no results</p>"
    assert len(found.to_pandas()) == found.to_arrow().num_rows == 0


def test_a_long_table_is_cut_where_it_is_shown_and_nowhere_else() -> None:
    rows = Rows(Item(b"%d" % number, b"x" * 500, number) for number in range(1_000))
    shown = cells(rows)
    assert len(shown) == 1 + SHOWN_ROWS_MAX
    assert len(shown[1][1]) < 500
    assert "940 more" in rows._repr_html_()
    assert len(rows.to_pandas()) == 1_000
    assert rows.to_pandas()["value"][0] == b"x" * 500


def test_a_column_keeps_its_type_also_where_a_result_is_missing() -> None:
    large = 2**60 + 1
    frame = Rows([Item(b"a", b"v", large), None]).to_pandas()
    assert frame["version"][0] == large
    table = Rows([Item(b"a", b"v", large), None]).to_arrow()
    assert table["version"].to_pylist() == [large, None]
    records = Rows([Record(1, b"v", headers={"a": b"1"}), Record(2, b"v")]).to_arrow()
    assert records.schema.field("headers").type == pa.map_(pa.string(), pa.binary())
    assert records["headers"].to_pylist() == [[("a", b"1")], []]


def test_series_are_tables_of_their_points(client: Client) -> None:
    times = np.array([10, 20], "datetime64[s]")
    for host, load in (("a", 0.5), ("b", 1.5)):
        client.ts.write("load", times, {"v": [load, load + 1]}, tags={"host": host, "v": "x"})
    found = client.ts.query("load", "v", 0, "now")
    table = found.to_arrow()
    assert table.to_pydict() == {
        "host": ["a", "a", "b", "b"],
        "tag.v": ["x"] * 4,
        "times_ns": [10 * 10**9, 20 * 10**9] * 2,
        "v": [0.5, 1.5, 1.5, 2.5],
    }
    assert found.to_pandas()["v"].tolist() == [0.5, 1.5, 1.5, 2.5]
    frame = found[0].to_pandas()
    assert frame["v"].tolist() == [0.5, 1.5]
    assert frame.index[1].isoformat() == "1970-01-01T00:00:20+00:00"
    assert frame.attrs == {"host": "a", "v": "x"}
    assert found[0].to_arrow().num_rows == 2
    assert cells(found[0])[0] == ["host", "tag.v", "times_ns", "v"]
    assert cells(found)[1] == ["a", "x", "10000000000", "0.5"]


@pytest.mark.parametrize(("method", "library"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_a_library_that_is_not_installed_is_named(
    method: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("onelog.client.tables.import_module", without)
    series = SeriesData({}, np.array([1]), {"v": np.array([1.0])})
    tables: Sequence[Any] = (Rows([Item(b"a", b"b", 1)]), series)
    for table in tables:
        with pytest.raises(FailedPrecondition) as failure:
            getattr(table, method)()
        assert failure.value.reason == "MODULE_MISSING"
        assert f"pip install {library}" in failure.value.message


def test_nothing_imports_the_optional_libraries_by_itself() -> None:
    """A program that needs neither should not wait for them."""
    script = "import sys, onelog; onelog.Client, onelog.Rows; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert not {"pandas", "pyarrow", "numpy"} & set(done.stdout.split())
