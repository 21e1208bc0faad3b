"""Every write of a session takes effect once: repeated, it is answered alike; another is refused.

All calls that a server's reflection lists are made that take a session, with the samples of the
fuzz test, on three nodes: first, then from a snapshot and the log behind it, with another leader.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from google.protobuf.message import Message  # type: ignore[import-untyped]

from tests.fuzz.calls import CALL_S, Calls, errors_in
from tests.fuzz.samples import HOUR_MS, SAMPLES, World
from tests.fuzz.test_any_request import connected, sample
from tests.system.nodes import nodes, until

# A request with several writes takes a sequence for each.
STEP = 10
# These may write nothing, and then use no sequence.
WRITES_NOTHING = {"Stream/ClaimRecords"}
# Its entry has the id of the queue, which nothing leads to afterwards (docs/api.md).
GONE = {"Queue/DeleteQueue": "QUEUE_UNKNOWN"}


@dataclass
class Sent:
    """A request in a session, another one of the same call with its sequence, and the answer."""

    path: str
    request: Message
    other: Message
    index: int = 0

    def check(self, calls: Calls) -> str:
        """Send both again; return what is wrong."""
        again = calls.send(self.path, self.request.SerializeToString(), timeout_s=CALL_S)
        if self.path in GONE:
            return "" if again.reason == GONE[self.path] else f"{self.path} repeated: {again}"
        if not again.answers or [*errors_in(again.answers)]:
            return f"{self.path} repeated: {again}"
        header = find_header(again.answers[0])
        if not header.duplicate or header.index != self.index:
            return f"{self.path} repeated: {header}, and not {self.index}"
        other = calls.send(self.path, self.other.SerializeToString(), timeout_s=CALL_S)
        reasons = {other.reason, *(each.reason for each in errors_in(other.answers))} - {""}
        return "" if reasons == {"SEQUENCE_REUSED"} else f"{self.path}, another one: {other}"


def find_header(answer: Any) -> Any:
    return answer.header if hasattr(answer, "header") else answer.headers[0]


def takes_session(calls: Calls, path: str) -> bool:
    options = calls.methods[path].input_type.fields_by_name.get("options")
    return options is not None and "session" in options.message_type.fields_by_name


def until_ready(made: dict[str, Any]) -> None:
    for node in made.values():
        node.until_ready()


def numbered(session: int) -> Iterator[dict[str, int]]:
    for number in count(1, STEP):
        yield {"session_id": session, "sequence": number, "first_unacknowledged": 1}


def test_a_sequence_belongs_to_one_request_of_every_call(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", "n2", "n3", shards="1") as made:
        for node in made.values():
            node.start()
        until_ready(made)
        sent: list[Sent] = []
        with connected(made["n1"]) as calls:
            opened = calls.ask("Pipeline/OpenSession", shard=0, ttl_ms=HOUR_MS)
            sessions = numbered(opened.session_id)
            paths = [each for each in SAMPLES if takes_session(calls, each)]
            for number, path in enumerate(paths):
                if number == len(paths) // 2:
                    calls.ask("Admin/TakeSnapshot", shard=0)
                request, other = sample(World(calls), path), sample(World(calls), path)
                session = next(sessions)
                for each in (request, other):
                    if path == "KV/DeleteRange":  # else it is of all shards
                        each.routing_key = b"{w}"
                    each.options.session.Clear()
                    each.options.session.MergeFrom(type(each.options.session)(**session))
                first = calls.send(path, request.SerializeToString(), timeout_s=CALL_S)
                assert first.answers, (path, first)
                assert not [*errors_in(first.answers)], (path, first)
                if path in WRITES_NOTHING:
                    continue
                sent.append(Sent(path, request, other, find_header(first.answers[0]).index))
            assert len(sent) > 40
            assert [problem for each in sent if (problem := each.check(calls))] == []
            leader = calls.ask("Admin/GetStatus").shards[0].leader_id

        (first_name,) = (name for name in made if is_named(made[name], leader))
        made[first_name].kill()
        rest = {name: node for name, node in made.items() if name != first_name}
        until_ready(rest)
        for node in rest.values():
            with connected(node) as calls:
                assert [problem for each in sent if (problem := each.check(calls))] == []
        made[first_name].start()
        until_ready(made)
        with connected(made[first_name]) as calls:
            calls.ask("Admin/TransferLeadership", shard=0, node_id=leader)
            until(lambda: calls.ask("Admin/GetStatus").shards[0].leader_id == leader)
            assert [problem for each in sent if (problem := each.check(calls))] == []


def is_named(node: Any, node_id: str) -> bool:
    with connected(node) as calls:
        return bool(calls.ask("Admin/GetStatus").node_id == node_id)
