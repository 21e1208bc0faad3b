"""What was pushed to consumers whose stream a leader has ended, or whose leader has died.

A stream of ``Consume`` lives with its leader. Which messages were leased for it is in the log: the
lease names the consumer, and the token of a leased message is the index of that entry. So the next
leader finds out who has what: once in each of its terms it reads the entries of all leases that it
finds in the state (``_find``), the newest ``TOKENS_MAX`` of them with up to ``MESSAGES_MAX``
messages. It keeps these messages for their
consumers, until

* the consumer is back (``claim``). It says which token it received last. Leases of one consumer
  have rising tokens, and are sent in this order and each as a whole. So what has a higher token was
  not received: it is released, before anything else is leased for the consumer. The rest stays
  leased, and the client goes on with it;
* or ``limits.consumer_return_s_max`` has passed since the leader found them. Then the consumer
  counts as gone, and all of it is released.

A release counts no delivery. It names messages and tokens like any other, so that what the consumer
or somebody else did meanwhile is not undone. A consumer that comes back too late finds its leases
gone: settling them fails with the token that is valid.

A stream that ends with an error while its leader still leads is kept in the same way (``keep``).
What is not found waits for the end of its lease: messages beyond these numbers, and those of
clients that name no consumer.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from onelog.errors import OnelogError
from onelog.node.edge.calls import Call, Elsewhere
from onelog.node.edge.shards import Edge
from onelog.projections.queue.commands import Release, encode_command, find_consumer
from onelog.projections.queue.limits import ITEMS_MAX
from onelog.projections.queue.store import QueueState
from onelog.projections.queue.table import LEASED
from onelog.ual.entry import Entry
from onelog.ual.errors import UalError
from onelog.v1 import common_pb2

# Entries of leases that are read in a term and at a time, and messages that they leased.
TOKENS_MAX = 100_000
MESSAGES_MAX = 200_000
TOKENS_AT_ONCE = 500
ENTRIES_BYTES_MAX = 4 << 20
# How often terms and times are looked at.
LOOK_S = 0.5
WRITE_S = 10.0
# Of a message in a release, with its part of what comes before.
ITEM_BYTES_MAX = 256

_NO_OPTIONS = common_pb2.WriteOptions()
_log = logging.getLogger("onelog.node.queues")

Place = tuple[int, bytes]
"""A queue and a consumer."""
Tokens = dict[int, int]
"""The messages of a consumer with the tokens of their leases."""
Leases = list[tuple[int, NDArray[np.uint64], NDArray[np.uint64]]]
"""Queues with the ids of their leased messages, and the token of each."""


class _Term:
    """What absent consumers have of the queues of one shard, while this node leads it."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.kept: dict[Place, tuple[Tokens, float]] = {}
        self.finding: asyncio.Task[None] | None = None


class Absent:
    """See the module's text; of all shards of this process."""

    def __init__(self, edge: Edge, is_here: Callable[[int, Place], bool]) -> None:
        """``is_here`` tells whether a consumer has a stream on this node."""
        self._edge = edge
        self._is_here = is_here
        self._terms: dict[int, _Term] = {}  # by shard

    def __len__(self) -> int:
        """Return the number of consumers whose messages are kept."""
        return sum(len(each.kept) for each in self._terms.values())

    async def run(self) -> None:
        """Release what is kept for too long, until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                for shard in list(self._edge.context.drivers):
                    term = self._look_at(shard)
                    if term is not None and term.kept:
                        await self._release_due(shard, term)
        finally:
            for each in self._terms.values():
                if each.finding is not None:
                    each.finding.cancel()

    def keep(self, shard: int, place: Place, tokens: Tokens) -> None:
        """Keep messages of a consumer whose stream has ended, if this node leads the shard."""
        term = self._look_at(shard)
        if term is not None and tokens:
            term.kept[place] = tokens, self._return_until_s()

    async def claim(self, shard: int, place: Place, received: int, call: Call) -> Tokens:
        """Return what a consumer that is back has received; release what else it has."""
        term = self._look_at(shard)
        if term is not None and term.finding is not None:
            await asyncio.wait((term.finding,))  # it is cancelled when the term is over
        if term is None or self._look_at(shard) is not term:
            self._edge.leading(shard)  # raises, unless it leads again already
            raise Elsewhere(shard, None)
        if term.finding is not None:
            term.finding.result()  # raises why it failed
        tokens, until_s = term.kept.pop(place, ({}, 0.0))
        unseen = {each: token for each, token in tokens.items() if token > received}
        try:
            await self._release(shard, place[0], unseen, call.deadline_s)
        except BaseException:
            term.kept[place] = tokens, until_s
            raise
        return {each: token for each, token in tokens.items() if token <= received}

    # Finding

    def _return_until_s(self) -> float:
        context = self._edge.context
        return context.clock.now_s() + context.config.limits.consumer_return_s_max

    def _look_at(self, shard: int) -> _Term | None:
        """Return what is known of the present term, None unless this node leads in it."""
        member = self._edge.replica(shard).shard.member
        known = self._terms.get(shard)
        if known is not None and (not member.has_applied_noop or known.term != member.term):
            if known.finding is not None:
                known.finding.cancel()
            del self._terms[shard]
            known = None
        is_stopping = self._edge.context.stopping.is_set()
        if known is None and member.has_applied_noop and not is_stopping:
            known = self._terms[shard] = _Term(member.term)
            known.finding = asyncio.create_task(self._find(shard, known), name="find-consumers")
        return known

    async def _find(self, shard: int, term: _Term) -> None:
        """Find the consumers of all messages that are leased now."""
        leases: Leases = [
            (queue.id, *queue.find_leases())
            for queue in self._edge.replica(shard).shard.projections.queue.all_queues()
            if queue.counts[LEASED]
        ]
        if leases:
            # On a thread: a queue may have a million leases.
            loop, readers = asyncio.get_running_loop(), self._edge.readers
            newest = await loop.run_in_executor(readers, _find_newest, leases)
            consumers = await self._find_consumers(shard, newest)
            kept = await loop.run_in_executor(readers, _list_kept, leases, consumers)
            until_s = self._return_until_s()
            term.kept |= {place: (tokens, until_s) for place, tokens in kept.items()}
        term.finding = None

    async def _find_consumers(self, shard: int, tokens: Sequence[int]) -> Mapping[int, bytes]:
        """Return the consumer of each lease that names one, by its token."""
        found: dict[int, bytes] = {}
        for first in range(0, len(tokens), TOKENS_AT_ONCE):
            for entry in await self._read(shard, tokens[first : first + TOKENS_AT_ONCE]):
                consumer = find_consumer(entry)
                if consumer:
                    found[entry.index] = consumer
        return found

    async def _read(self, shard: int, indexes: Sequence[int]) -> list[Entry]:
        """Return those of the entries that can be read."""
        try:
            found, unreadable = await self._edge.entries(shard, indexes, ENTRIES_BYTES_MAX)
        except (UalError, OnelogError, OSError) as error:
            if len(indexes) == 1:
                _log.warning("whose lease %d of shard %d is: %s", indexes[0], shard, error)
                return []
        else:
            for first, last in unreadable:
                _log.warning("whose leases %d to %d of shard %d are: damaged", first, last, shard)
            return [entry for entry in found if entry is not None]
        half = len(indexes) // 2
        return [*await self._read(shard, indexes[:half]), *await self._read(shard, indexes[half:])]

    # Releasing

    async def _release_due(self, shard: int, term: _Term) -> None:
        now_s = self._edge.context.clock.now_s()
        due = [place for place, (_, until_s) in term.kept.items() if until_s <= now_s]
        for place in due:
            tokens, until_s = term.kept.pop(place, ({}, 0.0))
            if self._is_here(shard, place):
                continue  # its stream has outlived a change of the leader and back
            try:
                await self._release(shard, place[0], tokens, now_s + WRITE_S)
            except (Elsewhere, OnelogError) as error:
                _log.info("messages of a consumer that went are not released yet: %s", error)
                term.kept.setdefault(place, (tokens, until_s))

    async def _release(self, shard: int, queue_id: int, tokens: Tokens, deadline_s: float) -> None:
        """Release those of the messages that are still leased; raises if that is not certain."""
        edge = self._edge
        queue = edge.leading(shard).shard.projections.queue.queue_by_id(queue_id)
        if queue is None:
            return
        items = find_leased(queue, tokens)
        call = Call("", common_pb2.WriteHeader, "", edge.context.clock.now_s(), deadline_s)
        at_once = max(1, min(ITEMS_MAX, edge.request_bytes_max // ITEM_BYTES_MAX))
        for at in range(0, len(items), at_once):
            command = Release(queue_id, tuple(items[at : at + at_once]))
            draft = encode_command(command, queue.namespace)
            await edge.write(shard, [draft], _NO_OPTIONS, call)


def _find_newest(leases: Leases) -> list[int]:
    """Return the newest tokens."""
    every = np.concatenate([tokens for _, _, tokens in leases])
    tokens, counts = np.unique(every, return_counts=True)
    fitting = int((np.cumsum(counts[::-1]) <= MESSAGES_MAX).sum())
    wanted: list[int] = tokens[len(tokens) - min(fitting, TOKENS_MAX) :].tolist()
    return wanted


def _list_kept(leases: Leases, consumers: Mapping[int, bytes]) -> dict[Place, Tokens]:
    """Return the messages of each consumer."""
    wanted = np.fromiter(consumers, np.uint64, len(consumers))
    kept: dict[Place, Tokens] = defaultdict(dict)
    for queue_id, ids, tokens in leases:
        is_wanted = np.isin(tokens, wanted)
        rows = zip(ids[is_wanted].tolist(), tokens[is_wanted].tolist(), strict=True)
        for message_id, token in rows:
            kept[queue_id, consumers[token]][message_id] = token
    return kept


def find_leased(queue: QueueState, tokens: Tokens) -> list[tuple[int, int]]:
    """Return those of the messages that are still leased with these tokens."""
    items = []
    for message_id, token in tokens.items():
        row = queue.table.get(message_id)
        if row is not None and row.state == LEASED and row.token == token:
            items.append((message_id, token))
    return items
