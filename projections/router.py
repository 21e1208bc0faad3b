"""The router: the one place where entries of the log become state.

It hands each entry to the handler of the projection that owns it, once and in order. Invariants:

* ``applied_index`` is the last entry that was applied; the next one has the index after it. An
  entry at or below it is skipped (a replay), one beyond the next is a programming error.
* Apply never fails because of what an entry holds: bad bytes are refused and counted, and apply
  continues with the next entry. An exception out of ``apply`` means that this replica can no
  longer vouch for its state and must stop.
* A refused or repeated entry is void: the log notes that it is no data.
* While a batch is being collected the state does not change; there is no dump and no hash of a
  position inside a batch.

Entries are applied in spans: consecutive entries of one type, one log time, one prefix and, in a
session, of one session. What is looked up for an entry is looked up once for its span. Where a
group is cut into spans makes no difference to results or state. A single entry is a span of one.

A batch is one ``batch`` entry, which may hold conditions, and the entries that it counts, of any
owner, all in one group. They are collected until the last one has come and then run together, so
no read sees half of a batch. If a condition fails or an entry is refused, every projection rolls
back and the whole range of indexes is void. A refusal names the operation by its position among
all operations of the batch; an entry is one operation, except ``put_many``, which is one per put.

``apply`` returns Pending for the entries of a batch until the last one, which gets the result of
the whole batch. ``apply_group`` puts that result at the batch's first entry, and the result of
each operation at its own entry.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from onelog.projections.codec import (
    FLAG_SESSION,
    SESSION_SIZE,
    U64,
    Prefix,
    encode_prefix,
    read_prefix,
)
from onelog.projections.conditions import Condition, encode_conditions
from onelog.projections.errors import BadPayload, CorruptSection
from onelog.projections.kv.commands import TYPE_PUT_MANY, put_count
from onelog.projections.limits import CHORES_MAX, EXPIRE_IDS_MAX, EXPIRE_WEIGHT_MAX
from onelog.projections.projection import Handler, Notes, Position, Projection
from onelog.projections.reasons import Reason
from onelog.projections.result import (
    APPLIED,
    PENDING,
    SKIPPED,
    Applied,
    Duplicate,
    Outcome,
    Refused,
    Repeated,
    Result,
)
from onelog.projections.state_hash import combine
from onelog.projections.system.commands import (
    TYPE_BATCH,
    TYPES_OPAQUE,
    Batch,
    Expire,
    decode_command,
    encode_command,
)
from onelog.projections.system.projection import System
from onelog.projections.system.sessions import Fingerprints, Request
from onelog.ual.entry import (
    FLAG_CONDITIONAL,
    FLAG_ZSTD,
    OWNER_SYSTEM,
    PLAIN_SIZE_MAX,
    Draft,
    Entry,
    decompress,
)
from onelog.ual.errors import CorruptPayload, PayloadTooLarge


class ConditionChecker(Protocol):
    """Evaluates conditions on keys; the KV projection implements it."""

    def first_failed(self, namespace: str, conditions: Sequence[Condition]) -> int | None:
        """Return the position of the first condition that does not hold."""


@dataclass(slots=True)
class OpenBatch:
    """A batch whose entries are being collected."""

    head: Entry
    prefix: Prefix
    command: Batch
    entries: list[Entry] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the last entry has come."""
        return len(self.entries) == self.command.entry_count

    @property
    def missing_count(self) -> int:
        """The number of entries still to come."""
        return self.command.entry_count - len(self.entries)

    @property
    def last_index(self) -> int:
        """The index of the last entry, once complete."""
        return self.head.index + self.command.entry_count


def refusal(entries: Sequence[Entry], at: int, refused: Refused) -> Refused:
    """Return the result of a batch whose entry at ``at`` was refused."""
    position, cause = sum(map(_operation_count, entries[:at])), refused.reason
    if entries[at].entry_type == TYPE_PUT_MANY and refused.cause is not None:
        position, cause = position + refused.detail, refused.cause
    return Refused(Reason.BATCH_REFUSED, position, cause)


def _operation_count(entry: Entry) -> int:
    """Count the operations of an entry that was applied."""
    if entry.entry_type != TYPE_PUT_MANY:
        return 1
    _, body = read_prefix(entry.plain_payload())
    return put_count(body)


def spread(result: Result, entry_count: int) -> list[Result]:
    """Return one result per entry of a batch, given the result of the whole batch."""
    if isinstance(result, Applied):
        return list(result.results)
    assert isinstance(result, Refused | Duplicate), result
    return [result] * entry_count


# Router

SPAN_ENTRIES_MAX = 128
# Valid prefixes that are cached; the cache is cleared when it is full.
PREFIXES_MAX = 1024
_unpack_request = struct.Struct("<QQ").unpack_from  # sequence, first_unacknowledged
_TYPES_SYSTEM_END = (OWNER_SYSTEM + 1) << 8
Opened = tuple[Handler, bytes, bytes, int]
"""An entry's handler, its decompressed payload, its prefix without a session, and the position of
its session in the payload, 0 if there is none."""


class ProjectionRouter:
    """All projections of one shard."""

    def __init__(
        self,
        table: Mapping[int, Projection],
        notes: Notes,
        *,
        system: System,
        checker: ConditionChecker,
        position: Position,
        fingerprints: Fingerprints,
    ) -> None:
        assert OWNER_SYSTEM not in table, "the system projection is not in the table"
        assert all(owner == projection.owner for owner, projection in table.items())
        self._table = {owner: table[owner] for owner in sorted(table)}
        self._notes = notes
        self._system = system
        self._checker = checker
        self._position = position
        self._fingerprints = fingerprints
        self._batch: OpenBatch | None = None
        self._handlers: dict[int, Handler] = dict(system.handlers())
        # Types that are applied one entry at a time in a session: a system entry may end the
        # session, a large result may fill it.
        self._alone = set(self._handlers)
        for projection in self._table.values():
            self._handlers.update(projection.handlers())
            self._alone.update(projection.large_results)
        # From the bytes before a session to the same prefix without the session flag.
        self._prefixes: dict[bytes, bytes] = {}
        self.refused_counts: Counter[Reason] = Counter()
        self._duplicate_count = 0
        self._skipped_count = 0

    @property
    def applied_index(self) -> int:
        """The index of the last entry that was applied."""
        return self._position.applied_index

    @property
    def log_time_ns(self) -> int:
        """The timestamp of the last entry that was applied."""
        return self._position.log_time_ns

    @property
    def in_batch(self) -> bool:
        """Whether a batch is being collected."""
        return self._batch is not None

    @property
    def batch_index(self) -> int:
        """The index of the entry that opened the current batch; 0: there is none."""
        return 0 if self._batch is None else self._batch.head.index

    def apply(self, entry: Entry) -> Result:
        """Apply the next entry, or skip one that was applied before."""
        return self.apply_group((entry,))[0]

    def apply_group(self, entries: Sequence[Entry]) -> list[Result]:
        """Apply entries in order; return one result for each."""
        results: list[Result] = []
        position = self._position
        head_at: int | None = None  # of the batch, if its head is among the entries
        while (at := len(results)) < len(entries):
            entry_type, flags, _, index, timestamp_ns, _, _ = entry = entries[at]
            if index != position.applied_index + 1:
                assert index <= position.applied_index, f"{index} after {position.applied_index}"
                self._skipped_count += 1
                results.append(SKIPPED)
                continue
            position.applied_index = index
            position.log_time_ns = timestamp_ns
            if self._batch is not None:
                self._collect(self._batch, entries, results, head_at)
            elif flags & FLAG_CONDITIONAL or entry_type == TYPE_BATCH:
                head_at = at
                results.append(self._start_batch(entry))
            else:
                results += self._apply_span(entries, at)
        return results

    def answered(self, draft: Draft) -> Duplicate | Refused | None:
        """Return the result that the session of an entry has for it, or None; changes nothing.

        Refused: its sequence belongs to another request.
        """
        (namespace, session), reader = read_prefix(draft.payload)
        assert session is not None, "an entry without a session"
        prefix = encode_prefix(namespace)
        payload = prefix + reader.rest()
        (found,) = self._fingerprints.of_span(draft.entry_type, prefix, (payload,))
        return self._system.sessions.answered(session, found)

    def next_deadline(self) -> int | None:
        """Return the earliest log time at which something is due."""
        deadlines = [self._system.next_deadline()]
        deadlines += (projection.next_deadline() for projection in self._table.values())
        return min((each for each in deadlines if each is not None), default=None)

    def due(self, now_ns: int, limit: int) -> list[Draft]:
        """Return what to propose now: an expiry of up to ``limit`` items, and chores.

        Nothing changes until they are applied: until then the answer stays the same.
        """
        found = self._system.due(now_ns, limit)
        for projection in self._table.values():
            found += projection.due(now_ns, limit)
        drafts: list[Draft] = []
        ids: list[tuple[int, bytes]] = []
        weight = 0
        for item in sorted(found)[:limit]:
            if ids and (len(ids) == EXPIRE_IDS_MAX or weight + item.weight > EXPIRE_WEIGHT_MAX):
                drafts.append(encode_command(Expire(tuple(ids))))
                ids, weight = [], 0
            ids.append((item.owner, item.item))
            weight += item.weight
        if ids:
            drafts.append(encode_command(Expire(tuple(ids))))
        drafts += self._system.chores(now_ns)
        for projection in self._table.values():
            drafts += projection.chores(now_ns, CHORES_MAX)
        return drafts

    def pinned(self, first_index: int, last_index: int) -> list[int]:
        """Return the indexes from first to last whose entries must be kept, ascending."""
        found: set[int] = set()
        for projection in self._table.values():
            found.update(projection.pinned(first_index, last_index))
        return sorted(found)

    def state_hashes(self) -> dict[int, int]:
        """Return the hash of each projection by owner, the system's included."""
        assert self._batch is None, "a batch is incomplete"
        hashes = {OWNER_SYSTEM: self._system.state_hash()}
        for owner, projection in self._table.items():
            hashes[owner] = projection.state_hash()
        return hashes

    def state_hash(self) -> int:
        """Return the hash of the whole state at ``applied_index``, log time included."""
        parts = self.state_hashes().items()
        return combine(self.applied_index, self.log_time_ns, parts)

    def memory(self) -> dict[int, dict[str, int]]:
        """Return the bytes held, by owner and kind."""
        sizes = {OWNER_SYSTEM: self._system.memory()}
        for owner, projection in self._table.items():
            sizes[owner] = projection.memory()
        return sizes

    def evict(self, size: int) -> int:
        """Move about ``size`` bytes out of memory; return the number moved.

        Nothing calls it yet: it is for memory budgets, which move values to a spill store.
        """
        assert self._batch is None, "a batch is incomplete"
        freed = 0
        for projection in self._table.values():
            if freed < size:
                freed += projection.evict(size - freed)
        return freed

    def counts(self) -> dict[str, int]:
        """Return the number of objects, and of entries since the start by their outcome."""
        counts = {
            "refused": self.refused_counts.total(),
            "duplicate": self._duplicate_count,
            "skipped": self._skipped_count,
            **self._system.counts(),
        }
        for projection in self._table.values():
            counts.update(projection.counts())
        return counts

    def dump(self) -> dict[int, Iterator[bytes]]:
        """Return the snapshot sections by owner, each to be consumed before the next apply."""
        hashes = self.state_hashes()
        sections = {OWNER_SYSTEM: self._system.dump(self._position, hashes)}
        for owner, projection in self._table.items():
            sections[owner] = projection.dump()
        return sections

    def load(self, sections: Mapping[int, Iterable[bytes]]) -> None:
        """Load the sections of a snapshot into a fresh router.

        Raises ``CorruptSection`` if they are damaged or do not have the hashes that were noted
        when they were written; the router is unusable then.
        """
        assert self.applied_index == 0, "only a fresh router can load"
        owners = [OWNER_SYSTEM, *self._table]
        for owner in owners:
            if owner not in sections:
                raise CorruptSection(owner, "the section is missing")
        promised = self._system.load(sections[OWNER_SYSTEM], self._position)
        for owner, projection in self._table.items():
            projection.load(sections[owner])
        hashes = self.state_hashes()
        for owner in sorted({*sections, *promised, *hashes}):
            if owner not in hashes:
                raise CorruptSection(owner, "nobody answers for this owner")
            if promised.get(owner) != hashes[owner]:
                raise CorruptSection(owner, f"state hash {hashes[owner]:016x} is not as written")

    def check(self) -> None:
        """Assert every invariant of every projection."""
        assert self._batch is None or not self._batch.complete, "a complete batch was not run"
        self._system.check()
        for projection in self._table.values():
            projection.check()

    def _apply_span(self, entries: Sequence[Entry], at: int) -> Sequence[Result]:
        """Apply the span that begins at ``at``; return the results of its entries."""
        entry_type, _, _, index, timestamp_ns, _, _ = entry = entries[at]
        results: Sequence[Result]
        opened = self._open(entry)
        if not isinstance(opened, tuple):
            results = (opened,)
        else:
            handler, payload, prefix, session_at = opened
            head = payload[: session_at + U64.size] if session_at else prefix
            is_alone = entry_type in self._alone if session_at else entry_type < _TYPES_SYSTEM_END
            payloads = [payload]
            if at + 1 < len(entries) and not is_alone:
                payloads = _cut(entries, at, payload, head)
            if session_at:
                results = self._apply_in_session(handler, entry, prefix, payloads)
            else:
                results = handler(prefix, index, timestamp_ns, payloads)
        if len(results) > 1:
            last = entries[at + len(results) - 1].index
            assert last == index + len(results) - 1, f"{last} in a span from {index}"
            self._position.applied_index = last
            self._note(results, index)
        elif results[0] is not APPLIED:
            self._note(results, index)
        return results

    def _apply_in_session(
        self, handler: Handler, entry: Entry, prefix: bytes, payloads: Sequence[bytes]
    ) -> Sequence[Result]:
        """Apply payloads of one session."""
        _, _, _, index, timestamp_ns, _, _ = entry
        session_at = len(prefix)
        request_at, body = session_at + U64.size, session_at + SESSION_SIZE
        (session,) = U64.unpack_from(payloads[0], session_at)
        if min(map(len, payloads)) < body:  # the first is long enough
            payloads = payloads[: next(n for n, each in enumerate(payloads) if len(each) < body)]
        requests: list[Request] = [_unpack_request(each, request_at) for each in payloads]
        plain = [prefix + payload[body:] for payload in payloads]
        fingerprints = self._fingerprints.of_span(entry.entry_type, prefix, plain)
        sessions = self._system.sessions
        results: list[Result] = []
        while (done := len(results)) < len(requests):
            asked = requests[done:] if done else requests
            verdict = sessions.begin(session, asked, fingerprints[done], timestamp_ns)
            if isinstance(verdict, int):
                taken = plain if verdict == len(plain) else plain[done : done + verdict]
                outcomes = handler(prefix, index + done, timestamp_ns, taken)
                prints = fingerprints[done:] if done else fingerprints
                sessions.record(session, asked, prints, index + done, outcomes)
                results += outcomes
            else:
                results.append(verdict)
        return results

    def _open(self, entry: Entry) -> Opened | Outcome:
        """Decompress a payload and read its prefix; opaque ones are applied right away."""
        entry_type, flags, _, _, _, _, payload = entry
        handler = self._handlers.get(entry_type)
        if handler is None:
            owner = entry_type >> 8
            if owner != OWNER_SYSTEM and owner not in self._table:
                return Refused(Reason.OWNER_UNKNOWN, owner)
            handler = _refuse_unknown(entry_type)
        if flags & FLAG_ZSTD:
            try:
                payload = decompress(payload, PLAIN_SIZE_MAX)
            except CorruptPayload:
                return Refused(Reason.PAYLOAD_CORRUPT)
            except PayloadTooLarge as error:
                return Refused(Reason.PAYLOAD_TOO_LARGE, error.size)
        if entry_type in TYPES_OPAQUE:
            return self._system.apply_opaque(entry_type, payload)
        end = payload[2] + 3 if len(payload) > 2 else 0
        prefix = self._prefixes.get(payload[:end])
        session_at = end if end and payload[1] else 0
        if prefix is None or (session_at and len(payload) < end + SESSION_SIZE):
            try:
                read_prefix(payload)
            except BadPayload as error:
                return Refused(error.reason, error.detail)
            if len(self._prefixes) >= PREFIXES_MAX:
                self._prefixes.clear()
            prefix = bytes((payload[0], payload[1] & ~FLAG_SESSION)) + payload[2:end]
            self._prefixes[payload[:end]] = prefix
        return handler, payload, prefix, session_at

    def _start_batch(self, entry: Entry) -> Result:
        batch = self._open_batch(entry)
        if isinstance(batch, Refused):
            self._note((batch,), entry.index)
            return batch
        if batch.complete:
            return self._finish_batch(batch)
        self._batch = batch
        return PENDING

    def _open_batch(self, entry: Entry) -> OpenBatch | Refused:
        if entry.entry_type != TYPE_BATCH:
            return Refused(Reason.BATCH_MISSING)
        opened = self._open(entry)
        if isinstance(opened, Refused):
            return opened
        assert not isinstance(opened, Applied), "a batch is not opaque"
        try:
            prefix, reader = read_prefix(opened[1])
            command = decode_command(TYPE_BATCH, reader)
        except BadPayload as error:
            return Refused(error.reason, error.detail)
        assert isinstance(command, Batch), command
        if not entry.flags & FLAG_CONDITIONAL:
            return Refused(Reason.BATCH_MALFORMED)
        if command.entry_count > entry.group_left:
            return Refused(Reason.BATCH_INCOMPLETE, command.entry_count)
        return OpenBatch(entry, prefix, command)

    def _collect(
        self,
        batch: OpenBatch,
        entries: Sequence[Entry],
        results: list[Result],
        head_at: int | None,
    ) -> None:
        """Collect all missing entries of a batch that have come, and add their results."""
        position, at = self._position, len(results)
        taken = entries[at : at + batch.missing_count]
        last = taken[-1]
        assert last.index == position.applied_index + len(taken) - 1, f"{last.index} in a batch"
        position.applied_index = last.index
        position.log_time_ns = last.timestamp_ns
        batch.entries += taken
        results += [PENDING] * len(taken)
        if batch.complete:
            self._batch = None
            result = self._finish_batch(batch)
            if head_at is None:
                results[-1] = result
            else:
                results[head_at] = result
                results[head_at + 1 :] = spread(result, batch.command.entry_count)

    def _finish_batch(self, batch: OpenBatch) -> Result:
        head, session = batch.head, batch.prefix.session
        result: Applied | Refused | Duplicate
        if session is None:
            result = self._run_batch(batch)
        else:
            id_, sequence, first = session
            sessions, requests = self._system.sessions, ((sequence, first),)
            plain = encode_prefix(batch.prefix.namespace)
            conditions = encode_conditions(batch.command.conditions)
            fingerprint = self._fingerprints.of_batch(plain, conditions, batch.entries)
            verdict = sessions.begin(id_, requests, fingerprint, head.timestamp_ns)
            if isinstance(verdict, int):
                result = self._run_batch(batch)
                sessions.record(id_, requests, (fingerprint,), head.index, (result,))
            else:
                result = verdict
        if isinstance(result, Applied):
            self._note(result.results, head.index + 1)
        else:
            self._note_void(result, head.index, batch.last_index)
        return result

    def _run_batch(self, batch: OpenBatch) -> Outcome:
        """Run a complete batch, all or nothing."""
        assert batch.complete, f"{len(batch.entries)} of {batch.command.entry_count} entries"
        failed = self._checker.first_failed(batch.prefix.namespace, batch.command.conditions)
        if failed is not None:
            return Refused(Reason.CONDITION_FAILED, failed)
        owners = self._table.values()
        for projection in owners:
            projection.begin_batch()
        results: list[Outcome] = []
        entries = batch.entries
        while (at := len(results)) < len(entries):
            results += self._apply_inner(entries, at)
            for position in range(at, len(results)):
                outcome = results[position]
                if isinstance(outcome, Refused):
                    for projection in owners:
                        projection.rollback_batch()
                    return refusal(entries, position, outcome)
        for projection in owners:
            projection.commit_batch()
        return Applied(len(results), None, tuple(results))

    def _apply_inner(self, entries: Sequence[Entry], at: int) -> Sequence[Outcome]:
        """Apply a span inside a batch: no system entries, and no session of its own."""
        entry_type, flags, _, index, timestamp_ns, _, _ = entry = entries[at]
        if not flags & FLAG_CONDITIONAL or entry_type >> 8 == OWNER_SYSTEM:
            return (Refused(Reason.BATCH_MALFORMED),)
        opened = self._open(entry)
        if not isinstance(opened, tuple):
            return (opened,)
        handler, payload, prefix, session_at = opened
        if session_at:
            return (Refused(Reason.BATCH_MALFORMED),)
        payloads = _cut(entries, at, payload, prefix)
        return handler(prefix, index, timestamp_ns, payloads)

    def _note(self, results: Sequence[Result], index: int) -> None:
        """Count results without effect, and note in the log which entries are void."""
        if not results or (results[0] is APPLIED and results.count(APPLIED) == len(results)):
            return
        for at, result in enumerate(results, index):
            if type(result) is not Applied:
                self._note_void(result, at, at)

    def _note_void(self, result: Result, first: int, last: int) -> None:
        if isinstance(result, Refused):
            self.refused_counts[result.reason] += 1
        elif isinstance(result, Duplicate):
            self._duplicate_count += 1
        else:
            assert isinstance(result, Repeated), result
        self._notes.add_void(first, last)


def _cut(entries: Sequence[Entry], at: int, payload: bytes, head: bytes) -> list[bytes]:
    """Return the payloads of the span that begins at ``at``: all of them start with ``head``.

    ``payload``: the first of them, decompressed.
    """
    payloads = [payload]
    kind, flags, _, _, time_ns, _, _ = entries[at]
    plain_flags = flags & ~FLAG_ZSTD
    for each, each_flags, _, _, each_ns, _, payload in entries[at + 1 : at + SPAN_ENTRIES_MAX]:
        if each != kind or each_ns != time_ns:
            break
        if each_flags != plain_flags:
            if each_flags != plain_flags | FLAG_ZSTD:
                break
            try:
                payload = decompress(payload, PLAIN_SIZE_MAX)
            except (CorruptPayload, PayloadTooLarge):
                break
        if not payload.startswith(head):
            break
        payloads.append(payload)
    return payloads


def _refuse_unknown(entry_type: int) -> Handler:
    return partial(_refuse_all, Refused(Reason.OPERATION_UNKNOWN, entry_type & 0xFF))


def _refuse_all(
    refused: Refused, _prefix: bytes, _index: int, _timestamp_ns: int, payloads: Sequence[bytes]
) -> Sequence[Outcome]:
    return [refused] * len(payloads)
