"""Every reason, from where it arises to the exception that a client catches."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import pytest
from google.rpc import status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

import onelog.cluster.errors
from onelog import errors
from onelog.channel import RpcError
from onelog.client.calls import Verdict, is_refusal, judge
from onelog.errors import OnelogError, choose_class
from onelog.node.public_errors import (
    error_of_cluster,
    error_of_exception,
    error_of_refusal,
    fill_error,
    to_rpc_status,
)
from onelog.node.replica.driver import Stopping
from onelog.projections.errors import BadDocument, BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.reasons import find_class
from onelog.status import DETAILS_KEY, error_of, error_of_result
from onelog.ual.errors import CorruptFile, DiskFull, IndexDropped, IndexInFuture
from onelog.v1 import common_pb2
from onelog.wire.grpc import Status


def subclasses(base: type[Any]) -> Iterator[type[Any]]:
    found: list[type[Any]] = base.__subclasses__()
    for each in found:
        yield each
        yield from subclasses(each)


def cluster_errors() -> list[onelog.cluster.errors.ClusterError]:
    made: list[onelog.cluster.errors.ClusterError] = [
        onelog.cluster.errors.NotLeader(UUID(int=3)),
        onelog.cluster.errors.Discarded(7),
        onelog.cluster.errors.Diverged(7, 2),
        onelog.cluster.errors.StaleBoundExceeded(2.0, 1.0),
        onelog.cluster.errors.StateDiverged(0, 9, (1,), "words"),
    ]
    known = {type(each) for each in made}
    others = (each for each in subclasses(onelog.cluster.errors.ClusterError) if each not in known)
    return made + [each("words") for each in others]


def over_the_wire(error: OnelogError) -> OnelogError:
    """Return what a client makes of the status that a server sends."""
    status = rpc_status.to_status(to_rpc_status(error))
    rpc_error = grpc.aio.AioRpcError(
        status.code,
        initial_metadata=grpc.aio.Metadata(),
        trailing_metadata=grpc.aio.Metadata(*status.trailing_metadata),
        details=status.details,
    )
    found, ours = error_of(rpc_error), error_of(ours_of(rpc_error))
    assert (type(found), str(found), found.metadata) == (type(ours), str(ours), ours.metadata)
    assert found.retry_after_s == ours.retry_after_s
    return found


def ours_of(failure: grpc.aio.AioRpcError) -> RpcError:
    """Return what our own client raises where grpcio raises this."""
    details = dict(failure.trailing_metadata()).get(DETAILS_KEY)
    return RpcError(Status(failure.code().value[0], failure.details(), details))


def in_an_answer(error: OnelogError) -> OnelogError:
    message = common_pb2.Error()
    fill_error(message, error)
    return error_of_result(common_pb2.Error.FromString(message.SerializeToString()))


def assert_same(sent: OnelogError, got: OnelogError) -> None:
    assert type(got) is type(sent)
    assert got.reason == sent.reason
    assert got.message == sent.message
    assert got.metadata == sent.metadata
    assert (got.retry_after_s is None) == (sent.retry_after_s is None)
    if sent.retry_after_s is not None:
        assert got.retry_after_s == pytest.approx(sent.retry_after_s, abs=0.001)


@pytest.mark.parametrize("reason", list(Reason), ids=lambda reason: reason.name)
def test_every_reason_of_a_projection_arrives_as_it_was_sent(reason: Reason) -> None:
    sent = error_of_refusal(Refused(reason, 42))
    assert sent.reason == reason.name
    for way in (over_the_wire, in_an_answer):
        got = way(sent)
        assert got.reason == sent.reason
        # Sequences of producers begin with 1 for clients, in the log with 0.
        detail = 43 if reason.name.startswith("PRODUCER_SEQUENCE") else 42
        assert got.metadata == {"detail": str(detail)}
        assert got.message == sent.message
        # The class follows from code and reason alone: a client has no table of all reasons.
        assert type(got) is choose_class(sent.code, sent.reason)
        assert isinstance(got, choose_class(sent.code, ""))


@pytest.mark.parametrize("error", cluster_errors(), ids=lambda error: error.reason)
def test_every_error_of_the_cluster_arrives_as_it_was_sent(
    error: onelog.cluster.errors.ClusterError,
) -> None:
    sent = error_of_cluster(error)
    assert not isinstance(sent, errors.Internal), "nobody decided what clients are told"
    assert sent.reason == error.reason
    for way in (over_the_wire, in_an_answer):
        assert_same(sent, way(sent))


@pytest.mark.parametrize("kind", list(subclasses(OnelogError)), ids=lambda kind: kind.__name__)
def test_every_exception_of_the_api_arrives_as_it_was_sent(kind: type[OnelogError]) -> None:
    sent = kind("words", metadata={"limit": "7"}, retry_after_s=1.25)
    for way in (over_the_wire, in_an_answer):
        assert_same(sent, way(sent))


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.NAMESPACE_UNKNOWN, errors.NotFound),
        (Reason.KEY_NOT_FOUND, errors.NotFound),
        (Reason.ALREADY_EXISTS, errors.AlreadyExists),
        (Reason.CONDITION_FAILED, errors.ConditionFailed),
        (Reason.KEY_SIZE_INVALID, errors.InvalidArgument),
        (Reason.VALUE_TOO_LARGE, errors.TooLarge),
        (Reason.COMPACTED, errors.OutOfRange),
        (Reason.INDEX_IN_FUTURE, errors.OutOfRange),
        (Reason.LEASE_LOST, errors.LeaseLost),
        (Reason.LEASES_FULL, errors.ResourceExhausted),
        (Reason.SESSION_EXPIRED, errors.SessionExpired),
        (Reason.PAYLOAD_TRUNCATED, errors.Internal),
    ],
)
def test_reasons_are_of_the_class_that_their_name_says(
    reason: Reason, kind: type[OnelogError]
) -> None:
    assert find_class(reason.name) is kind


# Limits that last until somebody acts: deletes or acknowledges something, or raises the limit.
LASTING = {
    "NAMESPACE_FULL", "NAMESPACES_FULL", "LEASE_FULL", "LEASES_FULL", "QUEUES_FULL", "QUEUE_FULL",
    "QUEUE_LEASES_FULL", "GROUPS_FULL", "TENANTS_FULL", "SCHEDULES_FULL", "STREAMS_FULL",
    "STREAM_GROUPS_FULL", "MEMBERS_FULL", "PENDING_FULL", "DEAD_LETTERS_FULL", "MEASUREMENTS_FULL",
    "SERIES_FULL", "FIELDS_FULL", "SERIES_DELETES_FULL", "RULES_FULL", "HOLDS_FULL",
    "QUERY_TOO_LARGE",
}  # fmt: skip
# The same, of reasons that the server gives by itself.
LASTING_OF_SERVER = {"PAST_TOO_LARGE"}
PASSING = (errors.ResourceExhausted, errors.Unavailable)


@pytest.mark.parametrize("reason", Reason)
def test_what_passes_by_itself_says_when_to_try_again(reason: Reason) -> None:
    """A client tries again if it is told when, and else not at all."""
    for refused in (Refused(reason), Refused(Reason.BATCH_REFUSED, 2, cause=reason)):
        error = over_the_wire(error_of_refusal(refused))
        passes = isinstance(error, PASSING) and reason.name not in LASTING
        assert (error.retry_after_s is not None) == passes
        assert (judge(error) is Verdict.AGAIN) == passes
        # A session keeps the answer: the client must not repeat the same request.
        assert is_refusal(error)
    assert reason.name not in LASTING or find_class(reason.name) in PASSING


@pytest.mark.parametrize("error", cluster_errors(), ids=lambda each: type(each).__name__)
def test_errors_of_the_cluster_that_pass_say_when_to_try_again(
    error: onelog.cluster.errors.ClusterError,
) -> None:
    found = over_the_wire(error_of_cluster(error))
    assert (found.retry_after_s is not None) == isinstance(found, PASSING)
    assert not is_refusal(found)


def test_whatever_the_server_refuses_for_a_while_says_when_to_try_again() -> None:
    """Every place in the server that raises such an error, found in its source."""
    reasons = set()
    for path in (Path(onelog.__path__[0]) / "node").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).removeprefix("errors.")
            given = {each.arg: each.value for each in node.keywords}
            is_passing = name in {kind.__name__ for kind in PASSING} and "reason" in given
            if is_passing and "retry_after_s" not in given:
                reasons.add(ast.literal_eval(given["reason"]))
    assert reasons == LASTING_OF_SERVER


def test_a_refused_whole_has_the_class_of_the_part_that_was_to_blame() -> None:
    refused = Refused(Reason.TRANSACTION_REFUSED, 3, Reason.KEY_NOT_FOUND)
    error = error_of_refusal(refused)
    assert type(error) is errors.NotFound
    assert error.reason == "TRANSACTION_REFUSED"
    assert error.metadata == {"position": "3", "cause": "KEY_NOT_FOUND"}
    assert_same(error, over_the_wire(error))


@pytest.mark.parametrize(
    ("raised", "kind", "reason"),
    [
        (errors.NotFound("x", reason="X"), errors.NotFound, "X"),
        (Stopping("soon"), errors.Unavailable, "STOPPING"),
        (BadPayload(Reason.TTL_INVALID, 9), errors.InvalidArgument, "TTL_INVALID"),
        (BadDocument(Reason.JSON_INVALID), errors.InvalidArgument, "JSON_INVALID"),
        (IndexDropped(1, 5, 9), errors.OutOfRange, "COMPACTED"),
        (IndexInFuture(10, 5, 9), errors.OutOfRange, "INDEX_IN_FUTURE"),
        (DiskFull("no"), errors.ResourceExhausted, "DISK_FULL"),
        (CorruptFile("/secret/place", "rule"), errors.DataLoss, "DATA_LOSS"),
        (TimeoutError(), errors.DeadlineExceeded, "EXPIRED"),
        (ZeroDivisionError("secret"), errors.Internal, "INTERNAL"),
    ],
)
def test_what_is_raised_becomes_an_answer_that_tells_no_secrets(
    raised: Exception, kind: type[OnelogError], reason: str
) -> None:
    error = error_of_exception(raised)
    assert type(error) is kind
    assert error.reason == reason
    assert "secret" not in str(error)


def test_a_mistake_of_ours_is_logged_under_the_number_that_the_client_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = error_of_exception(ZeroDivisionError("what went wrong"))
    assert error.metadata["number"] in caplog.text
    assert "what went wrong" in caplog.text


def test_a_status_without_details_has_the_class_of_its_code() -> None:
    for code in grpc.StatusCode:
        if code is grpc.StatusCode.OK:
            continue
        rpc_error = grpc.aio.AioRpcError(
            code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="no connection"
        )
        for error in (error_of(rpc_error), error_of(ours_of(rpc_error))):
            assert error.reason == code.name
            assert isinstance(error, choose_class(code.value[0], ""))
            assert error.message == "no connection"
    assert error_of(RpcError(Status(99, "of the future"))).reason == "UNKNOWN"


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (14, errors.Unavailable, "STREAM_REFUSED"),
        (4, errors.DeadlineExceeded, "EXPIRED"),
        (8, errors.TooLarge, "TOO_LARGE"),
        (3, errors.InvalidArgument, "INVALID_ARGUMENT"),
    ],
)
def test_a_call_that_no_server_has_looked_at_was_not_done(
    code: int, kind: type[OnelogError], reason: str
) -> None:
    """A write without a session is sent again then, and never otherwise."""
    error = error_of(RpcError(Status(code, "not sent", is_unprocessed=True)))
    assert (type(error), error.reason) == (kind, reason)
    assert judge(error) is not Verdict.UNKNOWN


def test_an_unknown_reason_of_a_newer_server_still_has_the_right_class() -> None:
    assert choose_class(5, "BRAND_NEW") is errors.NotFound
    assert choose_class(3, "THING_TOO_LARGE") is errors.TooLarge
    assert choose_class(99, "BRAND_NEW") is OnelogError
    # A reason that means something else under another code does not decide.
    assert choose_class(14, "NOT_LEADER") is errors.Unavailable


def test_details_of_another_status_are_not_believed() -> None:
    status = status_pb2.Status(code=5, message="other")
    rpc_error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        grpc.aio.Metadata(),
        grpc.aio.Metadata((DETAILS_KEY, status.SerializeToString())),
        details="broken",
    )
    assert type(error_of(rpc_error)) is errors.Unavailable
    assert type(error_of(ours_of(rpc_error))) is errors.Unavailable


def test_details_that_cannot_be_read_are_ignored() -> None:
    """Somebody in between may have put them there."""
    error = error_of(RpcError(Status(9, "broken", b"\xff\xff")))
    assert (type(error), error.message) == (errors.FailedPrecondition, "broken")
