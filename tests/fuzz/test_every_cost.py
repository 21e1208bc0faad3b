"""Every call says what it has cost if it is asked: a new one cannot forget it.

All calls that a server's reflection lists are made, with the samples of the fuzz test.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.calls import CALL_S, Calls, Metadata, errors_in
from tests.fuzz.samples import NEVER_ACCEPTED, SAMPLES, World
from tests.fuzz.test_any_request import sample, served

ASKED: Metadata = (("onelog-cost", "1"),)
# Of standards, whose messages are not ours.
FOREIGN = ("Health/", "ServerReflection/")
PATHS = [path for path in SAMPLES if not path.startswith(FOREIGN)]


def costs_in(answer: Any) -> Iterator[Any]:
    """Yield the places for a cost in an answer."""
    fields = answer.DESCRIPTOR.fields_by_name
    if "header" in fields:
        yield answer.header
    elif "headers" in fields:
        yield from answer.headers
    else:
        assert "cost" in fields, f"{answer.DESCRIPTOR.name} has neither header nor cost"
        yield answer


def has_cost(answer: Any) -> bool:
    places = list(costs_in(answer))
    return bool(places) and all(
        each.HasField("cost") and (each.cost.wait_ns or each.cost.raft_ns) for each in places
    )


def has_options(calls: Calls, path: str) -> bool:
    return "options" in calls.methods[path].input_type.fields_by_name


def test_every_answer_and_every_message_of_a_stream_has_its_cost(tmp_path: Path) -> None:
    """Asked in the metadata, or in the options of those that have some; else there is none."""
    with served(tmp_path) as (_, calls):
        calls.ask("Admin/TakeSnapshot", shard=0)
        for path in PATHS:
            request = sample(World(calls), path)
            outcome = calls.send(path, request.SerializeToString(), ASKED, CALL_S)
            if path in NEVER_ACCEPTED:
                assert outcome.cost is not None, (path, outcome)
                continue
            assert outcome.answers, (path, outcome)
            assert all(map(has_cost, outcome.answers)), (path, outcome.answers)
            request = sample(World(calls), path)
            if has_options(calls, path):
                request.options.with_cost = True
                outcome = calls.send(path, request.SerializeToString(), (), CALL_S)
                assert outcome.answers, (path, outcome)
                assert all(map(has_cost, outcome.answers)), (path, outcome.answers)
                request = sample(World(calls), path)
                request.options.with_cost = False
            outcome = calls.send(path, request.SerializeToString(), (), CALL_S)
            for answer in outcome.answers:
                assert not any(each.HasField("cost") for each in costs_in(answer)), path


def test_how_it_is_asked_for_makes_no_difference(tmp_path: Path) -> None:
    """What was examined, and where, is the same by metadata and by options."""
    with served(tmp_path) as (_, calls):
        examined = {}
        for path in PATHS:
            if not has_options(calls, path):
                continue
            found = []
            for metadata in (ASKED, ()):
                request = sample(World(calls), path)
                request.options.with_cost = not metadata
                outcome = calls.send(path, request.SerializeToString(), metadata, CALL_S)
                costs = [each.cost for each in costs_in(outcome.answers[0])]
                found.append([(each.scanned, each.tier) for each in costs])
            assert found[0] == found[1], path
            examined[path] = sum(scanned for scanned, _ in found[0])
        for path in ("KV/List", "KV/Scan", "Stream/ReadRecords", "TimeSeries/Query"):
            assert examined[path] > 0, path


def test_every_refusal_has_its_cost(tmp_path: Path) -> None:
    """Before anything is done about it, and after it was looked at."""
    with served(tmp_path) as (_, calls):
        refused = 0
        for path in PATHS:
            malformed = calls.send(path, b"\xff", ASKED)
            assert malformed.reason == "REQUEST_MALFORMED", path
            assert malformed.cost is not None, path
            assert calls.send(path, b"\xff").cost is None, path
            fields = calls.methods[path].input_type.fields_by_name
            if "namespace" in fields and path != "Admin/CreateNamespace":
                request = sample(World(calls), path)
                request.namespace = "nowhere"
            elif "shard" in fields:
                request = calls.request(path, shard=999)
            else:
                continue
            outcome = calls.send(path, request.SerializeToString(), ASKED)
            if outcome.answers:  # each of its parts is refused by itself
                assert [*errors_in(outcome.answers)], (path, outcome)
                assert all(map(has_cost, outcome.answers)), (path, outcome)
                continue
            assert outcome.cost is not None, (path, outcome)
            assert outcome.cost.wait_ns or outcome.cost.raft_ns, (path, outcome)
            if has_options(calls, path):
                request.options.with_cost = True
                assert calls.send(path, request.SerializeToString()).cost is not None, path
            refused += 1
        assert refused > 60


def test_what_finds_nothing_has_its_cost(tmp_path: Path) -> None:
    """Empty leases and fetches write nothing, and empty lists list nothing."""
    with served(tmp_path) as (_, calls):
        world = World(calls)
        world.ask("Queue/CreateQueue", queue=world.queue)
        member = {**world.make_member(), "generation": world.generation}
        world.ask("Stream/FetchRecords", **member, limit=100)
        asked = {"options": {"with_cost": True}}
        empty = {
            "Queue/Lease": {"queue": world.queue},
            "Queue/Peek": {"queue": world.queue},
            "Queue/ListQueues": {"prefix": "nothing"},
            "Stream/ListStreams": {"prefix": "nothing"},
            "Stream/FetchRecords": member,
            "Stream/ClaimRecords": {**member, "idle_ms": 3_600_000},
            "TimeSeries/ListMeasurements": {"prefix": "nothing"},
            "KV/List": {"range": {"prefix": b"nothing"}},
            "KV/Get": {"key": b"nothing"},
        }
        for path, fields in empty.items():
            answer = world.ask(path, **fields, **asked)
            assert has_cost(answer), (path, answer)
        operations = [
            {"lease": {"namespace": world.namespace, "queue": world.queue}},
            {"get": {"namespace": "nowhere", "key": b"k"}},
            {"put": {"namespace": world.namespace, "key": b""}},
        ]
        answer = calls.ask("Pipeline/ExecuteOnce", operations=operations, with_cost=True)
        lease, unknown, invalid = answer.results
        assert lease.lease.header.cost.wait_ns
        assert unknown.error.cost.wait_ns
        assert invalid.error.cost.wait_ns
