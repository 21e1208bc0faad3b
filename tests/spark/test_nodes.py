"""Nodes that are deposed, stopped or replaced, as real processes, and what is read from them."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from onelog import Client
from onelog.client.options import ClientOptions
from onelog.errors import FailedPrecondition, OnelogError, OutOfRange
from onelog.spark.columns.selection import Selection
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.endpoint import EndpointOrigin
from onelog.spark.origin import Range
from onelog.spark.source import OnelogDataSource
from onelog.v1 import admin_pb2
from tests.spark.shard_dirs import Row, read_all, rows_of
from tests.system.nodes import ServeProcess, nodes, until

NAMES = ("n1", "n2", "n3")
NEVER = b"never committed"
# Snapshots every second and files of some hundred entries: the log is trimmed all the time.
TRIMMING = {
    "log_segment_bytes_max": "64KiB",
    "snapshot_log_bytes_min": "128KiB",
    "snapshot_interval_s": "1",
}
HELD_BYTES = 256 << 10


@contextmanager
def servers(directory: Path, *names: str, **flags: str) -> Iterator[dict[str, ServeProcess]]:
    with nodes(directory, *names, shards="1", **flags) as made:
        for each in made.values():
            each.start()
        for each in made.values():
            each.until_ready()
        yield made


def find_endpoint(process: ServeProcess) -> str:
    return process.flags["listen"]


def find_leader(made: dict[str, ServeProcess]) -> ServeProcess:
    """Return the process that leads."""

    def look() -> ServeProcess | None:
        for each in made.values():
            with (
                suppress(OnelogError),
                Client(find_endpoint(each), timeout_s=5) as client,
            ):
                (found,) = client.admin.status(endpoint=find_endpoint(each)).shards
                if found.role == admin_pb2.ROLE_LEADER:
                    return each
        return None

    return until(look, 60)


def send(processes: list[ServeProcess], number: signal.Signals) -> None:
    for each in processes:
        assert each.process is not None
        os.kill(each.process.pid, number)


def stored_bytes(process: ServeProcess) -> bytes:
    """Return all bytes of a node's log, whatever they mean."""
    folder = Path(process.flags["data-dir"])
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*.flseg*")))


def payloads(rows: list[Row]) -> bytes:
    return b"".join(row[-1] for row in rows)


def test_a_deposed_leaders_suffix_is_seen_neither_in_its_files_nor_through_it(
    tmp_path: Path,
) -> None:
    """It writes on while nobody follows, dies, and comes back when others have gone on."""
    # A leader that hears from nobody must not step down before it has written.
    with servers(tmp_path, *NAMES, raft_leader_silence_s_max="300") as made:
        everybody = [find_endpoint(each) for each in made.values()]
        with Client(everybody) as client:
            client.kv.put_many({f"k{n}": b"before" for n in range(50)})
        leader = find_leader(made)
        others = [each for each in made.values() if each is not leader]
        with Client(find_endpoint(leader)) as client:
            client.admin.take_snapshot(0)
        # Without a session, whose opening would have to be committed first.
        options = ClientOptions(timeout_s=15, sessions=False)
        with Client(find_endpoint(leader), options=options) as client:
            client.kv.put("last", b"before")

            def write() -> None:
                with suppress(OnelogError):
                    client.kv.put("suffix", NEVER)

            writer = threading.Thread(target=write)
            for each in others:  # stopped ones would find it in their sockets later
                each.kill()
            writer.start()
            until(lambda: NEVER in stored_bytes(leader), 60)
            leader.kill()
            writer.join()
        for each in others:
            each.start()
        rest = {each.name: each for each in others}
        find_leader(rest)
        with Client([find_endpoint(each) for each in others]) as client:
            client.kv.put_many({f"k{n}": b"after" for n in range(50)})
        assert NEVER in stored_bytes(leader)
        seen = read_all(DirectoryOrigin(leader.flags["data-dir"]))
        assert b"before" in payloads(seen)
        assert NEVER not in payloads(seen)
        leader.start()
        leader.until_ready()
        truth = read_all(EndpointOrigin([find_endpoint(each) for each in others]))
        again = read_all(EndpointOrigin([find_endpoint(leader)]))
        assert NEVER not in payloads(again)
        assert b"after" in payloads(again)
        assert again[: len(truth)] == truth[: len(again)]
        assert truth[: len(seen)] == seen


def test_a_node_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    """It is stopped, so that its connections stay; the other two have it all."""
    with servers(tmp_path, *NAMES) as made:
        everybody = [find_endpoint(each) for each in made.values()]
        with Client(everybody) as client:
            client.kv.put_many({f"k{n}": b"value" for n in range(50)})
        leader = find_leader(made)
        stopped = next(each for each in made.values() if each is not leader)
        origin = EndpointOrigin(everybody)
        (part,) = origin.cut().shards
        expected = read_all(origin)
        send([stopped], signal.SIGSTOP)
        try:
            wanted = Range(0, part.first_index, part.last_index)
            for _ in NAMES:  # replicas take turns
                seen = [
                    row
                    for split in origin.splits([wanted], Selection())
                    for row in rows_of(origin.blocks(split, Selection()))
                ]
                assert seen == expected[: len(seen)]
                assert seen[-1][0] == part.last_index
        finally:
            send([stopped], signal.SIGCONT)


def test_another_cluster_at_the_same_endpoint_is_refused(tmp_path: Path) -> None:
    with servers(tmp_path, "n1") as made:
        (node,) = made.values()
        origin = EndpointOrigin([find_endpoint(node)])
        with Client(find_endpoint(node)) as client:
            client.kv.put_many({f"k{n}": b"value" for n in range(50)})
        (part,) = origin.cut().shards
        wanted = Range(0, part.first_index, part.last_index)
        (split,) = origin.splits([wanted], Selection())
        node.kill()
        shutil.rmtree(node.flags["data-dir"])
        node.start()
        node.until_ready()
        with Client(find_endpoint(node)) as client:
            client.kv.put_many({f"k{n}": b"other" for n in range(100)})
        for read in (
            lambda: origin.cut(),
            lambda: origin.splits([wanted], Selection()),
            lambda: rows_of(origin.blocks(split, Selection())),
        ):
            with pytest.raises(FailedPrecondition, match="OTHER_CLUSTER"):
                read()
        assert b"other" in payloads(read_all(EndpointOrigin([find_endpoint(node)])))


def test_an_abandoned_hold_breaks_at_its_limit_and_the_log_is_trimmed_again(
    tmp_path: Path,
) -> None:
    with (
        servers(tmp_path, "n1", **TRIMMING) as made,
        Client(find_endpoint(made["n1"])) as client,
    ):
        client.admin.set_hold("abandoned", from_start=True, bytes_max=HELD_BYTES)
        kept = EndpointOrigin([find_endpoint(made["n1"])])
        for number in range(3):  # less than the limit, and far more than a snapshot covers
            client.kv.put_many({f"k{n}": os.urandom(500) for n in range(100)})
            client.admin.take_snapshot(0)
            assert client.log.describe(0).first_index == 1, number
        whole = read_all(kept)
        assert whole[0][0] == 1

        def look() -> bool:
            client.kv.put_many({f"k{n}": os.urandom(500) for n in range(100)})
            (hold,) = client.admin.list_holds()
            return bool(hold.cause)

        until(look, 120)
        (hold,) = client.admin.list_holds()
        assert hold.cause == admin_pb2.HOLD_CAUSE_BYTES
        until(lambda: client.log.describe(0).first_index > 1, 120)
        with pytest.raises(OutOfRange, match=r"COMPACTED: entries 1 to \d+ of shard 0"):
            kept.splits([Range(0, 1, whole[-1][0])], Selection())


def test_a_query_that_says_no_beginning_begins_with_what_is_kept_when_its_hold_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is trimmed between the look at it and the hold."""
    with (
        servers(tmp_path, "n1", **TRIMMING) as made,
        Client(find_endpoint(made["n1"])) as client,
    ):
        options = {"view": "log", "endpoint": find_endpoint(made["n1"]), "hold": "late"}
        source = OnelogDataSource(options)
        reader = source.streamReader(source.schema())
        early = reader._cut()

        def look() -> bool:
            client.kv.put_many({f"k{n}": os.urandom(500) for n in range(100)})
            return client.log.describe(0).first_index > 1

        until(look, 120)
        later = reader._cut
        looks = iter((lambda: early, later, later, later, later))
        monkeypatch.setattr(reader, "_cut", lambda: next(looks)())
        begin = int(reader.initialOffset()["0"]) + 1
        (hold,) = client.admin.list_holds()
        assert hold.index == begin > 1
        source = OnelogDataSource({**options, "hold": "other", "from_index": "1"})
        with pytest.raises(OutOfRange, match="COMPACTED: option from_index is 1"):
            source.streamReader(source.schema()).initialOffset()
