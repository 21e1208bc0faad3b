"""A small server around real shards, for tests: started as a process, asked over a socket.

    python -m tests.system.server '{"node": 1, "data_dir": …, "listen": …, "peers": {…}, …}'

Requests and answers are lines of JSON, any number at a time, matched by ``id``. With the variable
ONELOG_TEST_SYNC_MS, or the request ``slow``, every sync of its disk takes that much longer.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from onelog.cluster.config import ShippingConfig
from onelog.cluster.errors import ClusterError, NotLeader
from onelog.cluster.raft.membership import Membership
from onelog.node.membership.peer_port import PeerPort
from onelog.node.replica.driver import ShardDriver, run_until_complete
from onelog.node.replica.requests import Durability, Outcome, Received, ShardConfig
from onelog.node.replica.shard import Shard
from onelog.node.replica.stale_reads import Level
from onelog.node.replicas import Replicas, ReplicasConfig
from onelog.projections.codec import SessionRef
from onelog.projections.kv import commands as kv_commands
from onelog.projections.result import Applied, Duplicate, Refused, Result
from onelog.projections.shard_state import build_projections
from onelog.projections.system import commands as system_commands
from onelog.snapshot.build import Capture, build_in_process, plan_build
from onelog.snapshot.errors import NotDurable
from onelog.ual.directory import Node, Topology
from onelog.ual.entry import Draft, Entry
from onelog.ual.files import DiskFiles, File
from onelog.ual.log_config import LogConfig
from tests.ual.shards import CREATED_AT, close_active, make_directory, seal_closed

NAMESPACE = "default"
SESSION_TTL_NS = 3600 * 10**9
LINE_SIZE_MAX = 16 << 20


class SlowFile:
    """A file whose syncs take longer."""

    def __init__(self, file: File, files: "SlowFiles") -> None:
        self._file = file
        self._files = files
        self.write, self.truncate, self.read, self.size = (
            file.write, file.truncate, file.read, file.size,
        )  # fmt: skip

    def sync(self) -> None:
        time.sleep(self._files.delay_s)
        self._file.sync()


class SlowFiles(DiskFiles):
    """A disk whose syncs take as long as one likes."""

    delay_s = 0.0

    def open(self, path: Path, *, create: bool = False) -> File:
        return SlowFile(super().open(path, create=create), self)

    def sync_directory(self, path: Path) -> None:
        time.sleep(self.delay_s)
        super().sync_directory(path)


def draft_of(command: dict[str, Any]) -> Draft:
    """Return the entry of a command as it came in."""
    session = None
    if "session" in command:
        session = SessionRef(command["session"], command["sequence"], command["unacknowledged"])
    key = command.get("key", "").encode()
    match command["kind"]:
        case "open":
            return system_commands.encode_command(system_commands.SessionOpen(SESSION_TTL_NS))
        case "put":
            put = kv_commands.Put(key, command["value"].encode())
            return kv_commands.encode_command(put, NAMESPACE, session)
        case "increment":
            increment = kv_commands.Increment(key, command["by"])
            return kv_commands.encode_command(increment, NAMESPACE, session)
        case other:
            raise ValueError(other)


def result_of(result: Result) -> dict[str, Any]:
    match result:
        case Applied(number=number):
            return {"kind": "applied", "number": number}
        case Duplicate(first=first):
            return {"kind": "duplicate", "number": getattr(first, "number", None)}
        case other:
            return {"kind": type(other).__name__, "detail": str(other)}


class Server:
    """Answers requests of tests."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.files = SlowFiles()
        self.files.delay_s = float(os.environ.get("ONELOG_TEST_SYNC_MS", "0")) / 1000
        self._settings = settings
        peers = {UUID(int=int(node)): at for node, at in settings["peers"].items()}
        self.config = ReplicasConfig(
            cluster_id=UUID(int=settings.get("cluster", 1000)),
            node_id=UUID(int=settings["node"]),
            node_name=f"node-{settings['node']}",
            peers=peers,
            topology=Topology(settings.get("shards", 1), settings.get("partitions", 1)),
            log=LogConfig(
                ring_bytes=8 << 20, segment_bytes_max=settings.get("segment_bytes", 64 << 20)
            ),
            founders=Membership.of(peers) if settings.get("joins") else None,
            shipping=ShippingConfig(**settings.get("shipping", {})),
            shard=ShardConfig(group_entries_max=512, hash_index_step=64),
        )
        self.replicas: Replicas

    @property
    def driver(self) -> ShardDriver:
        return self.replicas.driver[0]

    async def _open(self) -> None:
        config, settings = self.config, self._settings
        node = Node(config.node_id, config.node_name, CREATED_AT)
        directory = make_directory(
            self.files,
            Path(settings["data_dir"]),
            config.topology,
            cluster_id=config.cluster_id,
            node=node,
        )
        port = PeerPort(settings["listen"])
        self.replicas = await Replicas.open(config, directory, port, lambda *_: None, self.files)
        if "protocol" in settings:
            low, high = settings["protocol"]
            transport = self.replicas.transport
            transport.identity = replace(transport.identity, protocol_min=low, protocol_max=high)

    async def run(self) -> None:
        await self._open()
        host, port = self._settings["client"].rsplit(":", 1)
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self.replicas.run())
            clients = await asyncio.start_server(self._serve, host, int(port), limit=LINE_SIZE_MAX)
            waiting = group.create_task(stopping.wait())
            await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            clients.close()
            await self.replicas.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(request: dict[str, Any]) -> None:
            reply = {"id": request.get("id"), **await self._answer(request)}
            writer.write(json.dumps(reply).encode() + b"\n")

        try:
            async with asyncio.TaskGroup() as group:
                while line := await reader.readline():
                    group.create_task(answer(json.loads(line)))
        except* OSError:
            pass
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        deadline_s = self.replicas.clock.now_s() + request.get("timeout_s", 1.0)
        match request["op"]:
            case "propose":
                drafts = [draft_of(command) for command in request["commands"]]
                durability = Durability(request.get("durability", "sync"))
                outcome = await self.driver.propose(drafts, deadline_s, durability)
                if isinstance(outcome, ClusterError):
                    return error_of(outcome)
                if isinstance(outcome, Received):
                    return {"received": [outcome.first_index, outcome.last_index]}
                return {"results": [result_of(result) for result in outcome]}
            case "read":
                error = await self.driver.read(
                    deadline_s,
                    level=Level(request.get("level", "linearizable")),
                    max_staleness_s=request.get("max_staleness_s"),
                    min_index=request.get("min_index", 0),
                )
                if error is not None:
                    return error_of(error)
                return {"values": {key: self._value(key) for key in request["keys"]}}
            case "stale":
                return {"values": {key: self._value(key) for key in request["keys"]}}
            case "snapshot":
                return await self._snapshot(seals=request.get("seals", True))
            case "trim":
                job = await self.driver.record(self.driver.shard.trim_begin)
                return {"dropped": 0 if job is None else len(job.segments)}
            case "change":
                return await self._change(request)
            case "slow":
                self.files.delay_s = request["ms"] / 1000
                return {}
            case "corrupt":
                corrupt(self.driver.shard)
                return {}
            case "status":
                return self._status()
            case other:
                return {"error": "UNKNOWN", "detail": other}

    def _value(self, key: str) -> str | int | None:
        found = self.driver.shard.projections.kv.get(NAMESPACE, key.encode())
        assert not isinstance(found, Refused), found
        if found is None:
            return None
        value = found.value
        return value.decode() if isinstance(value, bytes) else value

    async def _snapshot(self, *, seals: bool) -> dict[str, Any]:
        """Keep a snapshot of the present state; before, close and seal what there is, or not."""
        shard = self.driver.shard
        if seals:
            close_active(shard.log)
            seal_closed(shard.log)
        capture = Capture.of(shard.router)
        data_dir = Path(self._settings["data_dir"])
        created_s = int(time.time())
        try:
            request = plan_build(
                capture, shard.log, shard.snapshots, data_dir=data_dir, shard=0, created_s=created_s
            )
        except NotDurable as error:
            return {"error": "NOT_DURABLE", "detail": str(error)}
        result = await asyncio.to_thread(build_in_process, self.files, request, build_projections)
        await self.driver.record(
            lambda: shard.snapshots.accept_begin(result.record, capture.state_hash)
        )
        return {"index": result.record.index, "size": result.record.size}

    async def _change(self, request: dict[str, Any]) -> dict[str, Any]:
        shard, node = self.driver.shard, UUID(int=request["node"])
        membership = shard.member.membership
        if request["how"] == "add":
            # A newcomer learns from its own addition where the others listen.
            own = {self.config.node_id: self._settings["listen"]}
            known = {**self.config.peers, **own, **dict(membership.addresses)}
            membership = membership.with_learner(node).at({**known, node: request["address"]})
        elif request["how"] == "promote":
            membership = membership.with_promoted(node)
        else:
            membership = membership.without(node)
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        deadline_s = self.replicas.clock.now_s() + request["timeout_s"]
        try:
            shard.change_membership(membership, deadline_s, done.set_result)
            outcome = await done
        except ClusterError as error:
            return error_of(error)
        return error_of(outcome) if isinstance(outcome, ClusterError) else {}

    def _status(self) -> dict[str, Any]:
        shard, transport = self.driver.shard, self.replicas.transport
        member, status = shard.member, self.driver.status()
        return {
            "role": status.role,
            "age_s": status.age_s,
            "alarms": status.alarms,
            "agreed_index": status.comparison.agreed_index,
            "pid": os.getpid(),
            "term": member.term,
            "state": member.state,
            "leads": member.has_applied_noop,
            "leader": None if member.leader_id is None else member.leader_id.int,
            "applied": member.applied,
            "applied_index": shard.log.applied_index,
            "commit": member.commit,
            "last": member.journal.last,
            "durable": member.journal.durable,
            "state_hash": shard.router.state_hash(),
            "syncs": self.driver.syncs.count,
            "bad_messages": self.driver.bad_messages,
            "tick_late_s_max": self.replicas.driver.tick_late_s_max,
            "peers": {
                str(node_id.int): asdict(status) for node_id, status in transport.status().items()
            },
            "first_index": shard.log.first_index,
            "base": None if shard.log.base is None else shard.log.base.index,
            "voters": [each.int for each in member.membership.voters],
            "learners": [each.int for each in member.membership.learners],
            "shipping": shown(shard.shipping.status),
            "refused_callers": transport.refused_callers,
            "refusals": [str(refusal.reason) for refusal in transport.refusals],
        }


def shown(status: Any) -> dict[str, Any]:
    """Return a status as JSON can show it."""
    fields: dict[str, Any] = json.loads(json.dumps(_keyed(asdict(status)), default=str))
    return fields


def _keyed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(key.int) if isinstance(key, UUID) else key: _keyed(each)
            for key, each in value.items()
        }
    return value


def corrupt(shard: Shard) -> None:
    """Make this replica apply puts with another last byte from now on."""
    apply_group = shard.router.apply_group

    def wrong(entries: Sequence[Entry]) -> list[Result]:
        return apply_group(
            [
                entry._replace(payload=entry.payload[:-1] + b"!")
                if entry.entry_type == kv_commands.TYPE_PUT
                else entry
                for entry in entries
            ]
        )

    shard.router.apply_group = wrong  # type: ignore[method-assign]


def error_of(error: ClusterError) -> dict[str, Any]:
    leader = error.leader if isinstance(error, NotLeader) else None
    return {"error": error.reason, "leader": None if leader is None else leader.int}


async def main() -> None:
    await Server(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    run_until_complete(main())
