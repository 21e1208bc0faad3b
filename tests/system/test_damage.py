"""A byte that rots in a sealed segment: every reader gets what is intact, and nobody is to blame.

Three nodes: the damaged entry comes from a peer, within the call that needed it. One node: nobody
has it, so it is named, passed over, listed and counted. The scrub is slowed down, so that it is the
readers who find the damage.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from onelog import Client
from onelog.client.sync.group import Group
from onelog.client.values import QueueConfig, Read, Record
from onelog.errors import DataLoss, OnelogError
from onelog.ual.entry import HEADER_SIZE
from onelog.ual.files import DiskFiles
from onelog.ual.segments.sealed import SealedSegment
from tests.system.nodes import ServeProcess, get, nodes, until
from tests.system.processes import ROOT

FLAGS = {
    "shards": "1",
    "partitions": "8",
    "log_ring_bytes": "64KiB",
    "log_segment_bytes_max": "64KiB",
    "log_scrub_bytes_per_s": "1KiB",
    "log_scrub_pause_s": "3600",
}
MESSAGES = 60
BODY = Random(1).randbytes(1_000)  # that no compression makes smaller
HOUR_S = 3600.0
LATER_S = 90.0  # members are asked again every 20 seconds


@contextmanager
def serving(directory: Path, *names: str) -> Iterator[tuple[Client, dict[str, ServeProcess]]]:
    with nodes(directory, *names, **FLAGS) as cluster:
        for each in cluster.values():
            each.start()
        for each in cluster.values():
            each.until_ready()
        with Client([each.flags["listen"] for each in cluster.values()], timeout_s=20.0) as client:
            yield client, cluster


def find_leader(client: Client, cluster: dict[str, ServeProcess]) -> ServeProcess:
    def look() -> ServeProcess | None:
        endpoint = client.admin.topology().shards[0].leader_endpoint
        return next((each for each in cluster.values() if each.flags["listen"] == endpoint), None)

    return until(look)


def find_segment(node: ServeProcess, index: int) -> SealedSegment | None:
    """Return the sealed segment of a node's log that holds an entry, once it is sealed."""
    folder = node.directory / "data" / "00000" / "segs"
    for path in folder.glob("*.flseg"):
        segment = SealedSegment.open(DiskFiles(), path)
        if segment.first_index <= index <= segment.last_index:
            return segment
    return None


def rot(node: ServeProcess, *indexes: int) -> SealedSegment:
    """Flip a bit of the payload of some entries of one sealed segment."""
    segment = until(lambda: find_segment(node, indexes[0]))
    starts, _ = segment.locate(np.array(indexes, np.uint64))
    with segment.path.open("r+b") as file:
        for start in starts.tolist():
            file.seek(start + HEADER_SIZE + 20)
            byte = file.read(1)
            file.seek(start + HEADER_SIZE + 20)
            file.write(bytes([byte[0] ^ 0x10]))
    return segment


def fill(client: Client, size: int = 400_000) -> None:
    """Write until what was written before is in sealed segments, and not in memory any more."""
    rng = Random(size)
    client.kv.put_many({f"filler-{at}": rng.randbytes(4_000) for at in range(size // 4_000)})


def onelog(node: ServeProcess, *arguments: str) -> str:
    """Return what a command prints."""
    command = [sys.executable, "-m", "onelog.cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    environment["ONELOG_ENDPOINTS"] = node.flags["listen"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def metric(node: ServeProcess, name: str) -> float:
    """Return a metric of a page that may be a second old."""
    _, page = get(node.http, "/metrics")
    (line,) = [each for each in page.decode().splitlines() if each.startswith(f"onelog_{name}{{")]
    return float(line.rpartition(" ")[2])


def alarms(client: Client, node: ServeProcess) -> list[str]:
    status = client.admin.status(endpoint=node.flags["listen"])
    return [each.reason for each in status.alarms]


def damages(client: Client, node: ServeProcess) -> list[Any]:
    return list(client.admin.damage(endpoint=node.flags["listen"]).segments)


def until_repaired(client: Client, node: ServeProcess) -> None:
    until(lambda: not damages(client, node))
    assert alarms(client, node) == []
    until(lambda: metric(node, "damage_repaired_total") >= 1)


def test_a_lease_of_three_nodes_has_the_damaged_message_too(tmp_path: Path) -> None:
    with serving(tmp_path, "n1", "n2", "n3") as (client, cluster):
        dead, jobs = client.queue("dead{q}"), client.queue("jobs{q}")
        dead.create()
        jobs.create(QueueConfig(max_deliveries=1, dead_letter_queue="dead{q}"))
        sent = [each.message_id for each in jobs.enqueue_many([BODY] * MESSAGES)]
        fill(client)
        node = find_leader(client, cluster)
        rot(node, sent[7])

        leased = jobs.lease(50, visibility_s=HOUR_S)
        assert [each.message_id for each in leased] == sent[:50]
        assert {each.body for each in leased} == {BODY}
        assert {each.delivery_count for each in leased} == {1}
        until(lambda: metric(node, "damage_met_total") >= 1)
        until_repaired(client, node)
        jobs.ack_many(leased)
        assert jobs.info().dead == dead.info().ready == 0


def test_a_peek_of_three_nodes_has_the_damaged_messages_too(tmp_path: Path) -> None:
    with serving(tmp_path, "n1", "n2", "n3") as (client, cluster):
        jobs = client.queue("jobs")
        jobs.create()
        sent = [each.message_id for each in jobs.enqueue_many([BODY] * MESSAGES)]
        fill(client)
        node = find_leader(client, cluster)
        rot(node, *sent[3:6])

        peeked = list(jobs.peek(MESSAGES))
        assert [each.message_id for each in peeked] == sent
        assert {each.body for each in peeked} == {BODY}
        until_repaired(client, node)


def test_a_node_alone_leases_what_is_intact_and_sets_the_rest_apart(tmp_path: Path) -> None:
    with serving(tmp_path, "n1") as (client, cluster):
        node = cluster["n1"]
        dead, jobs = client.queue("dead{q}"), client.queue("jobs{q}")
        dead.create()
        jobs.create(QueueConfig(max_deliveries=1, dead_letter_queue="dead{q}"))
        sent = [each.message_id for each in jobs.enqueue_many([BODY] * MESSAGES)]
        fill(client)
        rot(node, sent[7], sent[9])
        intact = [each for each in sent if each not in (sent[7], sent[9])]

        leased = jobs.lease(50, visibility_s=HOUR_S)
        assert [each.message_id for each in leased] == [
            each for each in sent[:50] if each in intact
        ]
        assert node.logged(f"the bodies of messages [{sent[7]}, {sent[9]}] cannot be read")
        assert alarms(client, node) == ["SEGMENT_DAMAGED"]
        leased += jobs.lease(50, visibility_s=HOUR_S)
        assert [each.message_id for each in leased] == intact
        assert {each.body for each in leased} == {BODY}
        # Nobody gets them, however often one asks, and asking costs no delivery.
        written = client.admin.status().shards[0].last_index
        for _ in range(5):
            assert jobs.lease(50) == []
        assert jobs.lease(1, wait_s=0.3) == []
        assert client.admin.status().shards[0].last_index == written, "asking again writes nothing"

        info = jobs.info()
        assert (info.ready, info.unreadable, info.leased, info.dead) == (2, 2, len(intact), 0)
        (damage,) = until(lambda: [each for each in damages(client, node) if each.no_copy])
        unreadable = [(each.first_index, each.last_index) for each in damage.unreadable]
        assert unreadable == [(sent[7], sent[7]), (sent[9], sent[9])]
        listed = [(each.queue, each.message_id) for each in damage.messages]
        assert listed == [("jobs{q}", sent[7]), ("jobs{q}", sent[9])]
        until(lambda: metric(node, "segments_damaged") == 1)
        until(lambda: metric(node, "messages_unreadable") == 2)
        until(lambda: metric(node, "entries_unreadable") == 2)

        shown = onelog(node, "admin", "damage")
        assert f"{sent[7]} {sent[9]}" in shown
        assert "no member has a copy" in shown
        assert onelog(node, "queue", "peek", "jobs{q}", "--limit", "60").count("unreadable") == 2

        left = list(jobs.peek(MESSAGES))
        assert [each.message_id for each in left] == sent
        assert [each.message_id for each in left if each.unreadable] == [sent[7], sent[9]]
        assert {each.delivery_count for each in left if each.unreadable} == {0}
        jobs.ack_many(leased)
        # An operator gives them up.
        assert [each.reason for each in jobs.cancel([sent[7], sent[9]])] == ["", ""]
        assert (jobs.info().ready, jobs.info().unreadable, dead.info().ready) == (0, 0, 0)


def test_a_node_alone_knows_of_its_damage_again_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, "n1") as (client, cluster):
        node, jobs = cluster["n1"], client.queue("jobs")
        jobs.create(QueueConfig())
        sent = [each.message_id for each in jobs.enqueue_many([BODY] * MESSAGES)]
        fill(client)
        client.admin.take_snapshot(0)  # a start replays what the newest one lacks, intact or not
        rot(node, sent[0])
        for _ in range(2):
            leased = jobs.lease(5, visibility_s=HOUR_S)
            assert [each.message_id for each in leased] == sent[1:5]
            jobs.release_many(leased)
            node.kill()
            node.start().until_ready()
        (first,) = jobs.peek(1)
        assert (first.message_id, first.unreadable, first.delivery_count) == (sent[0], True, 0)


def test_a_stream_of_messages_goes_on_beside_a_damaged_one(tmp_path: Path) -> None:
    with serving(tmp_path, "n1") as (client, cluster):
        jobs = client.queue("jobs")
        jobs.create()
        sent = [each.message_id for each in jobs.enqueue_many([BODY] * MESSAGES)]
        fill(client)
        rot(cluster["n1"], sent[11])
        got = []
        for message in jobs.consume(credit=10):
            got.append(message.message_id)
            jobs.ack(message)
            if len(got) == MESSAGES - 1:
                break
        assert got == [each for each in sent if each != sent[11]]
        assert (jobs.info().ready, jobs.info().unreadable) == (1, 1)


def test_a_message_that_nobody_could_read_is_delivered_once_a_node_has_it_again(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "n1", "n2", "n3") as (client, cluster):
        jobs = client.queue("jobs")
        jobs.create()
        sent = [each.message_id for each in jobs.enqueue_many([BODY] * MESSAGES)]
        fill(client)
        for each in cluster.values():
            client.admin.take_snapshot(0, endpoint=each.flags["listen"])
        node = find_leader(client, cluster)
        other = next(each for each in cluster.values() if each is not node)
        whole = until(lambda: find_segment(other, sent[7]))
        backup = whole.path.read_bytes()
        for each in cluster.values():
            rot(each, sent[7])
        leased = jobs.lease(50, visibility_s=HOUR_S) + jobs.lease(50, visibility_s=HOUR_S)
        assert [each.message_id for each in leased] == [each for each in sent if each != sent[7]]
        until(lambda: [each for each in damages(client, node) if each.no_copy])

        # An operator puts one file back; the leader asks for it by itself.
        other.terminate()
        whole.path.write_bytes(backup)
        other.start().until_ready()
        (late,) = until(lambda: jobs.lease(1, visibility_s=HOUR_S, wait_s=1.0) or None, LATER_S)
        assert (late.message_id, late.body, late.delivery_count) == (sent[7], BODY, 1)


# Streams, the log, series: three nodes give everything, one node names what is damaged.

RECORDS = 60


def appended(client: Client) -> list[int]:
    stream = client.stream("s")
    stream.create()
    return [each.offset for each in stream.append_many([BODY] * RECORDS)]


def take(records: Iterator[Record], last_offset: int) -> list[Record]:
    """Return records, and gaps in their place, up to an offset."""
    taken = []
    for record in records:
        taken.append(record)
        if (record.offset if record.gap is None else record.gap.last_offset) >= last_offset:
            return taken
    return taken


def places(records: Iterable[Record]) -> list[object]:
    """Return the offset of each record, and of each gap its range and reason."""
    return [each.offset if each.gap is None else astuple(each.gap) for each in records]


def read_all(client: Client, offsets: list[int]) -> list[object]:
    return places(client.stream("s").read())


def tail_all(client: Client, offsets: list[int]) -> list[object]:
    with client.stream("s").tail(from_offset=1) as tail:
        return places(take(tail, offsets[-1]))


def fetch_all(client: Client, offsets: list[int]) -> list[object]:
    group = client.stream("s").group("g")
    group.create(from_offset=1)
    with group.join() as consumer:
        records = take(consumer, offsets[-1])
        assert {each.delivery_count for each in records if each.gap is None} == {1}
        consumer.ack(records)
    assert pending(group) == 0
    return places(records)


def pending(group: Group) -> int:
    return sum(each.pending_count for each in group.info().partitions)


def read_log(client: Client, offsets: list[int]) -> list[object]:
    found: list[object] = []
    for entry in client.admin.read_log(
        0, first_index=offsets[0], last_index=offsets[-1], pass_damage=True
    ):
        through = entry.unreadable_through
        found.append((entry.index, through, "DAMAGED") if through else entry.index)
    return found


@pytest.mark.parametrize("read", [read_all, tail_all, fetch_all, read_log])
def test_readers_of_three_nodes_get_the_damaged_record_too(
    tmp_path: Path, read: Callable[[Client, list[int]], list[object]]
) -> None:
    with serving(tmp_path, "n1", "n2", "n3") as (client, cluster):
        offsets = appended(client)
        fill(client)
        node = find_leader(client, cluster)
        rot(node, offsets[20])
        assert read(client, offsets) == offsets
        until(lambda: metric(node, "damage_met_total") >= 1)
        until_repaired(client, node)


@pytest.mark.parametrize("read", [read_all, tail_all, fetch_all, read_log])
def test_readers_of_a_node_alone_get_the_rest_and_are_shown_what_is_damaged(
    tmp_path: Path, read: Callable[[Client, list[int]], list[object]]
) -> None:
    with serving(tmp_path, "n1") as (client, cluster):
        offsets = appended(client)
        fill(client)
        rot(cluster["n1"], *offsets[20:22], offsets[30])
        expected: list[object] = [
            *offsets[:20],
            (offsets[20], offsets[21], "DAMAGED"),
            *offsets[22:30],
            (offsets[30], offsets[30], "DAMAGED"),
            *offsets[31:],
        ]
        assert read(client, offsets) == expected
        assert alarms(client, cluster["n1"]) == ["SEGMENT_DAMAGED"]


def test_records_that_were_returned_are_claimed_but_for_the_damaged_one(tmp_path: Path) -> None:
    with serving(tmp_path, "n1") as (client, cluster):
        offsets, stream = appended(client), client.stream("s")
        client.stream("lost{s}").create()
        group = stream.group("g")
        group.create(from_offset=1)
        with group.join() as consumer:
            fetched = consumer.fetch(limit=10)
            assert places(fetched) == offsets[:10]
            consumer.nack(fetched)
            fill(client)
            rot(cluster["n1"], offsets[4])
            again = consumer.fetch(limit=10)
            assert places(again) == [each for each in offsets[:10] if each != offsets[4]]
            assert {each.delivery_count for each in again} == {2}
            # It is in nobody's way, and counts no delivery.
            assert places(consumer.fetch(limit=10)) == offsets[10:20]
            assert pending(group) == 20
            written = client.admin.status().shards[0].last_index
            assert consumer.claim(0.0, limit=100) != []
            assert written < client.admin.status().shards[0].last_index


def test_a_reader_that_does_not_pass_damage_is_told_where_it_is(tmp_path: Path) -> None:
    with serving(tmp_path, "n1") as (client, cluster):
        offsets = appended(client)
        fill(client)
        rot(cluster["n1"], offsets[20])
        named = {"first_index": str(offsets[20]), "last_index": str(offsets[20])}
        entries = client.admin.read_log(0, first_index=offsets[0])
        assert [each.index for each in islice(entries, 20)] == offsets[:20]
        with pytest.raises(DataLoss) as caught:
            next(entries)
        assert (caught.value.reason, caught.value.metadata) == ("ENTRY_DAMAGED", named)
        frames = client.log.frames(0, offsets[0], offsets[-1])
        assert next(frames).last_index == offsets[20] - 1
        with pytest.raises(DataLoss) as caught:
            next(frames)
        assert (caught.value.reason, caught.value.metadata) == ("ENTRY_DAMAGED", named)


def test_frames_of_the_log_come_whole_from_a_cluster(tmp_path: Path) -> None:
    with serving(tmp_path, "n1", "n2", "n3") as (client, cluster):
        offsets = appended(client)
        fill(client)
        node = find_leader(client, cluster)
        rot(node, offsets[20])
        at = offsets[0]
        for frame in client.log.frames(0, offsets[0], offsets[-1], endpoint=node.flags["listen"]):
            assert frame.first_index == at
            at = frame.last_index + 1
        assert at == offsets[-1] + 1
        until_repaired(client, node)


TYPE_BLOCK = 0x0303
POINTS = 20_000


def write_series(client: Client) -> list[int]:
    """Write points until some are in blocks; return the entries that hold those."""
    rng = Random(5)
    for number in range(POINTS // 500):
        times = range(number * 1_000 + 1, number * 1_000 + 501)
        client.ts.write("m", list(times), {"value": [rng.random() for _ in times]})

    def find_blocks() -> list[int] | None:
        entries = client.admin.read_log(0)
        blocks = [each.index for each in entries if each.entry_type == TYPE_BLOCK]
        return blocks if len(blocks) > 2 else None

    return until(find_blocks)


def count_points(client: Client, from_ns: int) -> int:
    (found,) = client.ts.query("m", "value", from_ns, 1_000_000, aggregate="count")
    return int(found.values[0])


def test_a_query_of_three_nodes_reads_the_damaged_block_too(tmp_path: Path) -> None:
    with serving(tmp_path, "n1", "n2", "n3") as (client, cluster):
        blocks = write_series(client)
        fill(client)
        node = find_leader(client, cluster)
        rot(node, blocks[0])
        assert count_points(client, 0) == POINTS
        until_repaired(client, node)


def test_a_query_of_a_node_alone_says_which_block_is_damaged(tmp_path: Path) -> None:
    with serving(tmp_path, "n1") as (client, cluster):
        blocks = write_series(client)
        fill(client)
        rot(cluster["n1"], blocks[0])
        with pytest.raises(DataLoss) as caught:
            count_points(client, 0)
        assert caught.value.reason == "ENTRY_DAMAGED"
        assert caught.value.metadata["first_index"] == str(blocks[0])
        assert alarms(client, cluster["n1"]) == ["SEGMENT_DAMAGED"]
        # What does not need it is right.
        assert count_points(client, 10_000) == POINTS - 5_000


def test_a_state_of_the_past_is_built_when_the_log_is_repaired(tmp_path: Path) -> None:
    with serving(tmp_path, "n1", "n2", "n3") as (client, cluster):
        offsets = appended(client)
        fill(client)
        node = find_leader(client, cluster)
        rot(node, offsets[20])
        info = client.stream("s").info(read=Read(as_of_index=offsets[30]))
        assert sum(each.record_count for each in info.partitions) == 31
        until_repaired(client, node)


def test_a_snapshot_that_meets_damage_has_it_repaired(tmp_path: Path) -> None:
    with serving(tmp_path, "n1", "n2", "n3") as (client, cluster):
        offsets = appended(client)
        fill(client)
        node = find_leader(client, cluster)
        rot(node, offsets[20])
        with pytest.raises(OnelogError):
            client.admin.take_snapshot(0, endpoint=node.flags["listen"])
        until_repaired(client, node)
        assert client.admin.take_snapshot(0, endpoint=node.flags["listen"]).index > offsets[-1]
