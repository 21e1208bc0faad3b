"""Which errors are worth another attempt, and how long to wait before it."""

import pytest

from onelog.client.calls import Backoff, Verdict, judge
from onelog.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    LeaseLost,
    NotLeader,
    OnelogError,
    OutcomeUnknown,
    PermissionDenied,
    ResourceExhausted,
    SessionExpired,
    Unavailable,
    make_error,
)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (NotLeader(), Verdict.AGAIN),
        (Unavailable(reason="NO_LEADER"), Verdict.AGAIN),
        (Unavailable(), Verdict.UNKNOWN),  # of gRPC: the connection broke
        (make_error(13, "Internal error from Core", "INTERNAL"), Verdict.UNKNOWN),
        (make_error(2, "Stream removed", "UNKNOWN"), Verdict.UNKNOWN),
        (make_error(1, "RST_STREAM", "CANCELLED"), Verdict.UNKNOWN),
        (Internal("see the server's log", metadata={"number": "1"}), Verdict.FINAL),
        (OutcomeUnknown(), Verdict.UNKNOWN),
        (DeadlineExceeded(), Verdict.UNKNOWN),
        (DeadlineExceeded(reason="EXPIRED"), Verdict.AGAIN),
        (SessionExpired(), Verdict.REOPEN),
        (ResourceExhausted(retry_after_s=1), Verdict.AGAIN),
        (ResourceExhausted(), Verdict.FINAL),
        (InvalidArgument(), Verdict.FINAL),
        (AlreadyExists(), Verdict.FINAL),
        (LeaseLost(), Verdict.FINAL),
        (PermissionDenied(), Verdict.FINAL),
    ],
)
def test_an_error_says_whether_to_try_again(error: OnelogError, verdict: Verdict) -> None:
    assert judge(error) is verdict


def test_waiting_doubles_up_to_its_limit_with_jitter_below() -> None:
    most = Backoff(0.1, 1.0, uniform=lambda _low, high: high)
    least = Backoff(0.1, 1.0, uniform=lambda low, _high: low)
    assert [most.next_s() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert [least.next_s() for _ in range(3)] == pytest.approx([0.05, 0.1, 0.2])


def test_a_hint_of_the_server_is_a_lower_bound() -> None:
    backoff = Backoff(0.1, 1.0, uniform=lambda low, _high: low)
    assert backoff.next_s(Unavailable(retry_after_s=3.0)) == 3.0
    assert backoff.next_s(Unavailable(retry_after_s=0.0)) == pytest.approx(0.1)


def test_a_redirect_is_followed_at_once_but_not_in_a_tight_loop() -> None:
    backoff = Backoff(0.1, 1.0)
    redirect = NotLeader(metadata={"leader": "b:1"})
    assert backoff.next_s(redirect) == 0.0
    assert backoff.next_s(redirect) > 0.0
