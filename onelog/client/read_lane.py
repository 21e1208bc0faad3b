"""Reads that travel together (onelog/client/lanes.py)."""

from onelog.client.batch import Batch, Waiting
from onelog.client.lanes import Dispatch, Lane
from onelog.client.pipe import ANSWER_TOO_LARGE
from onelog.client.retrying import Verdict, judge
from onelog.errors import DeadlineExceeded, OnelogError, TooLarge
from onelog.v1 import pipeline_pb2

# How slowly a lane of reads forgets that answers were large.
ANSWER_DECAY = 0.9


class ReadLane(Lane):
    """The reads that one endpoint answers.

    What an answer takes is known when it is there. So batches are as large as the answers before
    let hope that the next one fits a message; one that does not is asked for in smaller parts.
    """

    __slots__ = ("_answer_size", "endpoint")

    def __init__(self, dispatch: Dispatch, endpoint: str) -> None:
        super().__init__(dispatch)
        self.endpoint = endpoint
        self._answer_size = 1.0  # bytes for an operation, about

    def answered(self, batch: Batch, response: pipeline_pb2.ExecuteResponse) -> None:
        """Learn how large answers are, and give them to those who wait."""
        size = response.ByteSize() / max(1, len(batch.waiters))
        self._expect(max(size, self._answer_size * ANSWER_DECAY))
        super().answered(batch, response)

    def failed(self, batch: Batch, error: OnelogError) -> None:
        """Ask for less at a time if the answer was too large."""
        if ANSWER_TOO_LARGE in getattr(error, "__notes__", ()):
            if len(batch.waiters) == 1:
                error = TooLarge(f"the answer is above {self._message_max} bytes")
            self._expect(2 * self._message_max / len(batch.waiters))
        super().failed(batch, error)

    @property
    def _message_max(self) -> int:
        return self._dispatch.options.message_bytes_max

    def _expect(self, answer_size: float) -> None:
        self._answer_size = max(1.0, answer_size)
        fitting = int(self._message_max / 2 / self._answer_size)
        self._operations_max = max(1, min(self._dispatch.options.batch_operations_max, fitting))

    def _send_first(self, batch: Batch) -> bool:
        self._under_way.append(batch)
        self._post(batch, self.endpoint)
        return True

    def _refused(self, _batch: Batch, waiting: Waiting, error: OnelogError) -> OnelogError | None:
        if judge(error) in (Verdict.AGAIN, Verdict.UNKNOWN):
            return error
        waiting.set_exception(error)
        return None

    def _shard(self, batch: Batch) -> int | None:
        shards = {waiter[3] for waiter in batch.waiters}
        return shards.pop() if len(shards) == 1 else None

    def _resend(self, batch: Batch) -> None:
        # Whoever answers them now may be somebody else, and not the same for all.
        if not batch.is_answered:
            batch.keep_unanswered()
            self._dispatch.read_again(batch)
        self._finish(batch)

    def _overdue(self, batch: Batch) -> None:
        error = DeadlineExceeded(f"{batch.endpoint} has not answered for a while")
        self._dispatch.attempt_failed(None, batch.endpoint, error)
        if any(self._dispatch.endpoint_of(each[3]) != batch.endpoint for each in batch.waiters):
            self._dispatch.take_back(batch)
            batch.sent_s = float("inf")
            self._resend(batch)

    def _late(self, batch: Batch) -> OnelogError:
        last = f"; the last attempt: {batch.error}" if batch.error is not None else ""
        return DeadlineExceeded("no answer in time" + last)
