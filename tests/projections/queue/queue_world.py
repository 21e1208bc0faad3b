"""A world with queues in it: commands in, plain answers out."""

from onelog.projections.queue.commands import Ack, Command, Lease, Nack, QueueCreate, encode_command
from onelog.projections.queue.message import (
    Enqueue,
    Leased,
    LeasedMessage,
    QueueConfig,
    decode_leased,
)
from onelog.projections.queue.reads import Peeked, QueueInfo, QueueStats
from onelog.projections.queue.table import Row
from onelog.projections.result import Applied, Result
from tests.projections.world import NAMESPACE, World


class QueueWorld(World):
    """Every answer is checked against the invariants right away."""

    def queue(self, command: Command, namespace: str = NAMESPACE) -> Result:
        result = self.draft(encode_command(command, namespace))
        self.state.queue.check()
        return result

    def create(self, name: str, config: QueueConfig | None = None) -> int:
        """Create a queue and return its id."""
        result = self.queue(QueueCreate(name, config or QueueConfig()))
        assert result == Applied(self.index), result
        return self.index

    def send(self, command: Enqueue) -> int:
        """Enqueue a message and return its id."""
        result = self.queue(command)
        assert isinstance(result, Applied), result
        return result.number or self.index

    def lease(self, queue: int, count: int = 1, visibility_ns: int = 0) -> Leased:
        result = self.queue(Lease(queue, count, visibility_ns))
        assert isinstance(result, Applied), result
        return decode_leased(result)

    def take(self, queue: int) -> int:
        """Lease and acknowledge the next message; return its id, 0 if there is none."""
        leased = self.lease(queue)
        if not leased.messages:
            return 0
        message_id = leased.messages[0].id
        assert self.queue(Ack(queue, ((message_id, leased.token),))) == Applied(1)
        return message_id

    def take_all(self, queue: int) -> list[int]:
        """Take messages until there are none."""
        found = []
        while message_id := self.take(queue):
            found.append(message_id)
        return found

    def fail(self, queue: int, failure: bytes = b"no") -> LeasedMessage:
        """Lease a message and let it fail."""
        leased = self.lease(queue)
        message = leased.messages[0]
        assert self.queue(Nack(queue, ((message.id, leased.token),), None, failure)) == Applied(1)
        return message

    def rows(self, queue: int) -> list[Row]:
        peeked = self.state.queue.peek(NAMESPACE, queue, limit=1_000)
        assert isinstance(peeked, Peeked)
        return list(peeked.messages)

    def row(self, queue: int, message_id: int) -> Row:
        peeked = self.state.queue.peek(NAMESPACE, queue, limit=1, from_id=message_id)
        assert isinstance(peeked, Peeked)
        (row,) = peeked.messages
        assert row.id == message_id
        return row

    def stats(self, queue: int) -> QueueStats:
        info = self.state.queue.describe_queue(NAMESPACE, queue)
        assert isinstance(info, QueueInfo)
        return info.stats
