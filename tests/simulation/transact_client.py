"""A client of batches over all four models: all of a batch takes effect, or nothing of it.

Each batch puts a key (every other one two, at once), replaces the one message of a queue, appends a
record and writes a point. Some have a last part that cannot be done: what the others did must have
been taken back.
"""

from onelog.node.replica.shard import Shard
from onelog.projections.codec import SessionRef
from onelog.projections.kv import commands as kv_commands
from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.message import Enqueue, QueueConfig, decode_message
from onelog.projections.queue.reads import Peeked
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused
from onelog.projections.stream import commands as stream_commands
from onelog.projections.stream.commands import Append, Retention
from onelog.projections.system.commands import encode_batch
from onelog.projections.timeseries import commands as ts_commands
from onelog.projections.timeseries.names import series_name
from onelog.ual.entry import Draft
from tests.simulation.caller import NAMESPACE
from tests.simulation.model_clients import SECOND_NS, ModelClient, points_of
from tests.simulation.stream_clients import RECORDS_KEPT, records_of

NEVER = 2**62  # no key has this version


class TransactClient(ModelClient):
    """See the module's text."""

    _queue = 0
    _has_stream = False

    def _set_up(self) -> None:
        self._name = f"batches-{self.number}"
        self._series = series_name(self._name, {})
        self._applied: list[int] = []
        self._refused: set[int] = set()

    def _operate(self) -> None:
        if not self._queue:
            self._create_queue()
        elif not self._has_stream:
            self._create_stream()
        else:
            self._transact()

    def _create_queue(self) -> None:
        command = queue_commands.QueueCreate(self._name, QueueConfig())

        def finish(result: Applied | Refused) -> None:
            self._queue = result.detail if isinstance(result, Refused) else result.number
            self._next()

        self._write(
            lambda session: queue_commands.encode_command(command, NAMESPACE, session), finish
        )

    def _create_stream(self) -> None:
        kept = Retention(count_max=RECORDS_KEPT if self._lets_go else 0)
        command = stream_commands.Create(self._name, 1, kept)

        def finish(_: Applied | Refused) -> None:
            self._has_stream = True
            self._next()

        self._write(
            lambda session: stream_commands.encode_command(command, NAMESPACE, session), finish
        )

    def _transact(self) -> None:
        number, fails = self._sequence, self._rng.random() < 0.25
        text = b"%d" % number
        write = ts_commands.Write(self._series, number * SECOND_NS, (("v", float(number)),))
        last = kv_commands.Put(self._key(0), text, None, None, NEVER)
        keys = [self._key(number), self._other_key(number)]
        puts: kv_commands.Command = kv_commands.Put(keys[0], text)
        if number % 2:
            puts = kv_commands.PutMany(kv_commands.put_bodies(keys, [text] * len(keys), None))
        drafts = [
            kv_commands.encode_command(puts, NAMESPACE),
            queue_commands.encode_command(queue_commands.Purge(self._queue), NAMESPACE),
            queue_commands.encode_command(Enqueue(self._queue, text), NAMESPACE),
            stream_commands.encode_command(Append(self._name, text), NAMESPACE),
            ts_commands.encode_command(write, NAMESPACE),
        ]
        if fails:
            drafts.append(kv_commands.encode_command(last, NAMESPACE))

        def encode(session: SessionRef | None) -> list[Draft]:
            return encode_batch(drafts, (), NAMESPACE, session)

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Refused) == fails, result
            if isinstance(result, Refused):
                assert result.reason is Reason.BATCH_REFUSED, result
                self._refused.add(number)
            else:
                self._applied.append(number)
            self._next()

        self._write(encode, finish)

    def _key(self, number: int) -> bytes:
        return b"batch-%d-%d" % (self.number, number)

    def _other_key(self, number: int) -> bytes:
        return b"batch-%d-%d-too" % (self.number, number)

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        if not self._applied:
            return None
        kv = shard.projections.kv
        keys = {
            number
            for number in range(1, self._sequence + 1)
            if kv.get(NAMESPACE, self._key(number)) is not None
        }
        others = {
            number
            for number in range(1, self._sequence + 1)
            if kv.get(NAMESPACE, self._other_key(number)) is not None
        }
        if others != {number for number in keys if number % 2}:
            return f"batches {sorted(keys)}: the other keys of {sorted(others)}"
        found = points_of(shard, self._name, self._series)
        points = {time_ns // SECOND_NS for time_ns in found}
        records = [int(record.value) for record in records_of(shard, self._name, 0)]
        peeked = shard.projections.queue.peek(NAMESPACE, self._queue, limit=10)
        assert isinstance(peeked, Peeked), peeked
        messages = [
            int(decode_message(shard.log.read(row.body_index)).body) for row in peeked.messages
        ]
        expected = sorted(keys)
        kept = expected[-len(records) :] if self._lets_go else expected
        if not keys >= set(self._applied) or keys & self._refused:
            return f"batches: keys of {expected}, answered {self._applied}"
        if points != keys or records != kept or messages != expected[-1:]:
            return f"batches {expected}: points {points}, records {records}, messages {messages}"
        return None
