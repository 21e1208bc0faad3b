"""Sessions make the retry of a write exact: it takes effect once. Opened on first use.

Each shard has two sessions: one for the pipeline, one for unary calls. Answers are confirmed in
order, and a long poll may keep a unary call open for a minute. In that time thousands of answers of
the pipeline must be confirmed, or the server has no room for more.

Each write takes the next sequence of its session. A sequence is *outstanding* until its answer has
arrived or nobody waits for it any more. Every request carries the lowest outstanding sequence, and
the server forgets the answers below it. Invariants: sequences rise and are never used twice; one is
outstanding exactly while the request that took it may still be sent.

A session lives for ``session_ttl_s`` after its last request; an idle client renews it. If it is
lost nevertheless (the client was suspended, say) another one is opened, and only a request whose
earlier attempt may have had an effect fails with SessionExpired.
"""

import asyncio
from collections.abc import Awaitable
from contextvars import Context
from time import monotonic

from onelog.client.calls import Calls, raise_if_closed
from onelog.client.observing import COLLECTING
from onelog.client.options import ClientOptions
from onelog.errors import OnelogError, SessionExpired
from onelog.v1 import common_pb2, pipeline_pb2

# Renewals of an idle session in one lifetime: a few may be lost.
KEEPALIVE_PART = 4
# Closing is a courtesy: an unused session expires anyway.
CLOSE_TIMEOUT_S = 1.0


class Session:
    """One session in one shard."""

    __slots__ = ("_next", "_outstanding", "for_calls", "session_id", "shard", "used_s")

    def __init__(
        self, shard: int, session_id: int, used_s: float, *, for_calls: bool = False
    ) -> None:
        self.shard = shard
        self.for_calls = for_calls
        self.session_id = session_id
        self.used_s = used_s
        self._next = 1
        self._outstanding: dict[int, None] = {}  # first sequences of requests, rising

    def take(self, count: int, now_s: float) -> int:
        """Take ``count`` sequences for one request; return the first."""
        assert count > 0, count
        sequence = self._next
        self._next += count
        self._outstanding[sequence] = None
        self.used_s = now_s
        return sequence

    def done(self, sequence: int) -> None:
        """Release a sequence: the request that took it will not be sent again."""
        self._outstanding.pop(sequence, None)

    def fill(self, message: common_pb2.Session, sequence: int) -> None:
        """Fill in the session of a request that took ``sequence``."""
        message.session_id = self.session_id
        message.sequence = sequence
        message.first_unacknowledged = self.first_unacknowledged

    @property
    def first_unacknowledged(self) -> int:
        """The lowest sequence whose answer is still wanted."""
        return next(iter(self._outstanding), self._next)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is outstanding."""
        return not self._outstanding


class Sessions:
    """The sessions of a client: of each shard one for the pipeline and one for unary calls."""

    def __init__(self, calls: Calls, options: ClientOptions) -> None:
        self._calls = calls
        self._options = options
        self._open_ones: dict[tuple[int, bool], Session] = {}
        self._opening: dict[tuple[int, bool], asyncio.Task[Session]] = {}
        self._keeper: asyncio.Task[None] | None = None

    def get(self, shard: int, *, for_calls: bool = False) -> Session | None:
        """Return the session of a shard, or None if it is not open."""
        return self._open_ones.get((shard, for_calls))

    async def open(self, shard: int, timeout_s: float, *, for_calls: bool = False) -> Session:
        """Return the session of a shard; concurrent callers share one attempt to open it."""
        place = shard, for_calls
        session = self._open_ones.get(place)
        if session is not None:
            return session
        task = self._opening.get(place)
        if task is None:
            loop = asyncio.get_running_loop()
            opening = self._open(shard, timeout_s, for_calls=for_calls)
            task = loop.create_task(opening, name=f"onelog session {shard}")
            self._opening[place] = task
            task.add_done_callback(lambda done: self._opened(place, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            raise_if_closed()
            raise

    def lost(self, session: Session) -> None:
        """Forget a session that the server does not know any more."""
        place = session.shard, session.for_calls
        if self._open_ones.get(place) is session:
            del self._open_ones[place]

    async def close(self) -> None:
        """Close all sessions; gives up on each after a moment."""
        tasks: list[Awaitable[object]] = list(self._opening.values())
        if self._keeper is not None:
            self._keeper.cancel()
            tasks.append(self._keeper)
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sessions, self._open_ones = self._open_ones, {}
        await asyncio.gather(*map(self._close, sessions.values()), return_exceptions=True)

    async def _open(self, shard: int, timeout_s: float, *, for_calls: bool) -> Session:
        # In a task of its own: many calls share the session, so no single one counts its cost.
        COLLECTING.set(None)
        request = pipeline_pb2.OpenSessionRequest(
            shard=shard, ttl_ms=round(self._options.session_ttl_s * 1000)
        )
        # Repeating is harmless: a session whose answer was lost expires unused.
        answer: pipeline_pb2.OpenSessionResponse = await self._calls.unary(
            "Pipeline/OpenSession", request, shard=shard, timeout_s=timeout_s, is_repeatable=True
        )
        session = Session(shard, answer.session_id, monotonic(), for_calls=for_calls)
        self._open_ones[shard, for_calls] = session
        if self._keeper is None:
            loop = asyncio.get_running_loop()
            # An empty context: the task outlives the caller whose costs or trace it would inherit.
            keeping = self._keep()
            self._keeper = loop.create_task(keeping, name="onelog sessions", context=Context())
        return session

    def _opened(self, place: tuple[int, bool], task: asyncio.Task[Session]) -> None:
        self._opening.pop(place, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved; those who wait for the task raise it

    async def _keep(self) -> None:
        interval_s = self._options.session_ttl_s / KEEPALIVE_PART
        while True:
            await asyncio.sleep(interval_s)
            due_s = monotonic() - interval_s
            for session in list(self._open_ones.values()):
                if session.used_s <= due_s:
                    await self._keep_one(session, interval_s)

    async def _keep_one(self, session: Session, timeout_s: float) -> None:
        request = pipeline_pb2.KeepSessionRequest(
            shard=session.shard, session_id=session.session_id
        )
        try:
            await self._calls.unary(
                "Pipeline/KeepSession",
                request,
                shard=session.shard,
                timeout_s=timeout_s,
                is_repeatable=True,
            )
        except SessionExpired:
            self.lost(session)
        except OnelogError:
            return  # retried next time; the next request finds out if the session is lost

    async def _close(self, session: Session) -> None:
        request = pipeline_pb2.CloseSessionRequest(
            shard=session.shard, session_id=session.session_id
        )
        await self._calls.once(
            "Pipeline/CloseSession", request, shard=session.shard, timeout_s=CLOSE_TIMEOUT_S
        )
