"""Operations on their way together: one message of a pipeline and who waits for which result.

A message may be a run of puts and nothing else (onelog/client/runs.py). Its operation is written
when nothing can join any more; until then anything else that does takes it apart.

Invariants: the i-th operation and the i-th waiter belong together, and there are as many of the
one as of the other, except while a run is under construction. ``earliest_s`` is not above any
deadline of an unanswered operation. An operation is counted in ``free`` once, or not at all.
"""

from asyncio import Future
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from onelog.client.costs import Decode
from onelog.client.retrying import Backoff
from onelog.client.runs import Joinable, PutRun, Run, batch_put_version, put_version
from onelog.client.sessions import Session
from onelog.errors import OnelogError
from onelog.v1 import pipeline_pb2

Waiting = Future[Any] | Run

# Whose result it is, how it is read, by when it is wanted, and in which shard it was.
Waiter = tuple[Waiting, Decode, float, int]

# What an operation takes besides its keys, names and values, about.
OPERATION_SIZE = 32

# The namespace that has no name in a request, as a rule.
DEFAULT = "default"

# Fewer puts than these are operations of their own.
RUN_MIN = 2


class Batch:
    """One message under construction, then under way."""

    __slots__ = (
        "add", "backoff", "count", "earliest_s", "endpoint", "error", "free", "is_counted",
        "is_uncertain", "is_written", "joinable", "keys", "namespace", "request", "run", "sent_s",
        "sequence", "sequences", "session", "size", "waiters",
    )  # fmt: skip

    def __init__(self) -> None:
        self.request = pipeline_pb2.ExecuteRequest()
        self.add: Callable[[], pipeline_pb2.Operation] = self.request.operations.add
        self.waiters: list[Waiter] = []
        self.run: PutRun | None = None  # then the message holds nothing else
        self.joinable: Joinable | None = None  # the last operation, if others may join it
        self.sequences = 0  # that its operations take in a session, besides one each
        # Operations that need no order among others: acks, and puts of ``keys`` of ``namespace``.
        self.free = 0
        self.keys: AbstractSet[bytes] = frozenset()
        self.namespace = ""
        self.size = 0
        self.count = 0  # of all operations that it ever had
        self.is_counted = False  # in what the whole client has under way
        self.earliest_s = float("inf")
        self.session: Session | None = None
        self.sequence = 0
        # Of the current attempt, and what is known of those before.
        self.endpoint = ""
        self.sent_s = float("inf")
        self.is_written = False
        self.is_uncertain = False
        self.backoff: Backoff | None = None
        self.error: OnelogError | None = None

    def begin_run(self, namespace: str) -> PutRun:
        """Let the message be a run of puts, as long as nothing else joins."""
        self.run = PutRun(namespace)
        self.waiters.append((self.run, batch_put_version, float("inf"), 0))
        return self.run

    def complete_run(self) -> None:
        """Write the operation of a run; one put alone is just that."""
        run = self.run
        if run is None:
            return
        if len(run.pairs) < RUN_MIN:
            self.take_run_apart()
            return
        self.free, self.keys, self.namespace = 1, run.pairs.keys(), run.namespace
        put = self.add().batch_put
        put.namespace = run.namespace
        put.keys.extend(run.pairs)
        put.values.extend(run.pairs.values())

    def take_run_apart(self) -> None:
        """Make an operation of each call of a run that somebody still waits for."""
        run, self.run = self.run, None
        assert run is not None, "no run"
        self.waiters.clear()
        del self.request.operations[:]
        for future, deadline_s, pairs in run.calls():
            if future.done():
                continue
            if len(pairs) == 1:
                put = self.add().put
                put.namespace, (put.key, put.value) = run.namespace, pairs[0]
                self.waiters.append((future, put_version, deadline_s, 0))
            else:
                puts = self.add().batch_put
                puts.namespace = run.namespace
                puts.keys.extend([key for key, _ in pairs])
                puts.values.extend([value for _, value in pairs])
                self.waiters.append((future, batch_put_version, deadline_s, 0))

    def note_keys(self, namespace: str, keys: Iterable[bytes]) -> None:
        """Note that the last operation puts these keys, and depends on nothing."""
        if not isinstance(self.keys, set):
            self.namespace, self.keys = namespace, set()
        if namespace == self.namespace:
            self.keys.update(keys)
            self.free += 1

    @property
    def is_free(self) -> bool:
        """Whether nothing in it needs an order among others that are like that."""
        return self.free == len(self.waiters)

    def commutes_with(self, other: "Batch") -> bool:
        """Tell whether it is all the same which of the two is carried out first."""
        return (
            self.is_free
            and other.is_free
            and (
                (self.namespace or DEFAULT) != (other.namespace or DEFAULT)
                or self.keys.isdisjoint(other.keys)
            )
        )

    @property
    def is_answered(self) -> bool:
        """Whether nobody waits for anything of it any more."""
        return all(waiter[0].done() for waiter in self.waiters)

    def fail(self, error: OnelogError) -> None:
        """Give everyone who still waits this error."""
        for future, _, _, _ in self.waiters:
            if not future.done():
                future.set_exception(error)

    def expire(self, now_s: float, late: Callable[[], OnelogError]) -> None:
        """Give those whose time is over the error that ``late`` makes."""
        earliest_s = float("inf")
        for future, _, deadline_s, _ in self.waiters:
            if future.done():
                continue
            if isinstance(future, Run):
                earliest_s = min(earliest_s, future.expire(now_s, late))
            elif deadline_s <= now_s:
                future.set_exception(late())
            elif deadline_s < earliest_s:
                earliest_s = deadline_s
        self.earliest_s = earliest_s

    def keep_unanswered(self) -> None:
        """Leave out what is answered, so that it is not done twice."""
        left = [at for at, waiter in enumerate(self.waiters) if not waiter[0].done()]
        if len(left) == len(self.waiters):
            return
        is_free, operations = self.is_free, self.request.operations
        request = pipeline_pb2.ExecuteRequest(
            with_cost=self.request.with_cost, traceparent=self.request.traceparent
        )
        request.operations.extend(operations[at] for at in left)
        self.request, self.add = request, request.operations.add
        self.waiters = [self.waiters[at] for at in left]
        self.free = len(left) if is_free else -1  # it is never free later on
