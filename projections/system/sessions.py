"""Sessions: each request of a client takes effect once, however often it is sent.

A session is opened by an entry, whose index is its id. A request carries (session, sequence,
first_unacknowledged). The first entry with a sequence is executed and its result stored; every
later one gets that result. A result is dropped only when the client acknowledges it, by sending a
higher ``first_unacknowledged``. When too many results are stored, new requests are refused
(SESSION_RESULTS_FULL); old results are not dropped. A request of a session that is unknown,
closed or expired is refused (SESSION_EXPIRED) and never executed, because it may have been
executed before.

With each result the fingerprint of its request is stored. Another request under the same sequence
(of a client that shares its session with a second process, say) is refused (SEQUENCE_REUSED): it
must not get the result of the first. Fingerprints decide what is answered and never what changes:
a refused request leaves the same state as a repeated one. So they are not part of the state hash,
and replicas that know a fingerprint agree with those that do not, because their version or that of
their snapshot is older.

Invariants: every stored sequence is >= ``first_unacknowledged``; ``results_size`` is the sum of the
stored results without their fingerprints; every session has its deadline scheduled; ``hash_total``
is the sum of all items.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from xxhash import xxh3_64, xxh3_64_digest

from onelog.projections.codec import U64, SessionRef
from onelog.projections.deadlines import Deadlines
from onelog.projections.errors import BadPayload
from onelog.projections.limits import (
    SESSION_RESULTS_MAX,
    SESSION_RESULTS_SIZE_MAX,
    SESSION_TTL_NS_MAX,
    SESSION_TTL_NS_MIN,
    SESSIONS_MAX,
    U64_MAX,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import (
    APPLIED,
    Applied,
    Duplicate,
    Outcome,
    Refused,
    decode_result,
    encode_result,
)
from onelog.projections.state_hash import item_hash
from onelog.projections.system.commands import TYPE_BATCH
from onelog.ual.entry import Entry
from onelog.ual.errors import CorruptPayload, PayloadTooLarge

SESSION_SIZE = 700  # bytes per session: object, dict, table slots, heap entry
RESULT_SIZE_SMALL = 64  # bytes of a stored result with no value or a short one
RESULT_SIZE = 160  # bytes per result besides its encoding: table slot, number, object

_KIND_SESSION = 0x02
_KIND_RESULT = 0x03
_SESSION_ITEM = struct.Struct("<BQQQQ")
_RESULT_ITEM = struct.Struct("<BQQ")
_RESULT_ITEM_SIZE = _RESULT_ITEM.size
_APPLIED = encode_result(APPLIED)  # the result of most requests
FINGERPRINT_SIZE = 8
FINGERPRINT_NONE = bytes(FINGERPRINT_SIZE)  # not known: any request counts as the repetition
_INDEX_END = FINGERPRINT_SIZE + U64.size
_APPLIED_ITEM = struct.Struct(f"<BQQQ{len(_APPLIED)}s")  # _RESULT_ITEM, and what is stored
assert _APPLIED_ITEM.size == _RESULT_ITEM_SIZE + U64.size + len(_APPLIED)


_INNER = struct.Struct("<HI")  # of an entry in a batch: type, size

FindRepeated = Callable[[bytes], bytes]
"""Returns what of the body of an entry is the same when a client repeats its request."""

FindParts = tuple[int, Callable[[bytes], Sequence[bytes]]]
"""The operation that an entry stands for several times, and from its body the body of each."""

Request = tuple[int, int]
"""The sequence of a request, and the lowest sequence that is not acknowledged."""


@dataclass(slots=True)
class Session:
    """One session; ``results`` maps a sequence to the fingerprint of its request, the index (u64)
    and the bytes of its result."""

    ttl_ns: int
    deadline_ns: int
    first_unacknowledged: int = 0
    results: dict[int, bytes] = field(default_factory=dict)
    results_size: int = 0


class Fingerprints:
    """Makes the fingerprints of requests: what tells a repetition from another request.

    A fingerprint covers type, namespace and body of an entry, and no session. Of what the leader
    adds to a request it covers nothing (``Operation.find_repeated``), nor whether the leader made
    one entry of several operations (``Operation.several``): a repetition, which another leader may
    have received, must have the same one.
    """

    __slots__ = ("_repeated", "_several")

    def __init__(
        self, repeated: Mapping[int, FindRepeated], several: Mapping[int, FindParts]
    ) -> None:
        self._repeated = repeated
        self._several = several

    def of_span(self, entry_type: int, prefix: bytes, payloads: Iterable[bytes]) -> list[bytes]:
        """Return the fingerprints of payloads without a session, which open with ``prefix``."""
        find = self._repeated.get(entry_type)
        if find is None:
            return [xxh3_64_digest(payload, entry_type) for payload in payloads]
        found = []
        for payload in payloads:
            body = payload[len(prefix) :]
            with suppress(BadPayload):  # it is refused, and repeated as it was
                body = find(body)
            found.append(xxh3_64_digest(prefix + body))
        return found

    def of_batch(self, prefix: bytes, conditions: bytes, entries: Sequence[Entry]) -> bytes:
        """Return the fingerprint of a batch whose entries open with ``prefix``.

        Several entries that the leader has made of one request have its fingerprint, and one entry
        that it has made of several operations has that of the operations.
        """
        if entries and entries[0].entry_type in self._repeated:
            found = {
                each
                for entry in entries
                for each in self.of_span(entry.entry_type, prefix, (_plain(entry),))
            }
            if len(found) == 1:
                return found.pop()
        state = xxh3_64(prefix + conditions, TYPE_BATCH)
        for entry in entries:
            entry_type, payload = entry.entry_type, _plain(entry)
            payloads = [payload]
            if entry_type in self._several and payload.startswith(prefix):
                one_type, find = self._several[entry_type]
                with suppress(BadPayload):  # it is refused, and repeated as it was
                    payloads = [prefix + body for body in find(payload[len(prefix) :])]
                    entry_type = one_type
            for each in payloads:
                state.update(_INNER.pack(entry_type, len(each)))
                state.update(each)
        return state.digest()


class Sessions:
    """All sessions by id."""

    __slots__ = ("_by_id", "deadlines", "hash_total")

    def __init__(self) -> None:
        self._by_id: dict[int, Session] = {}
        self.deadlines: Deadlines[int] = Deadlines()
        self.hash_total = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, session_id: int) -> Session | None:
        """Return the session with that id."""
        return self._by_id.get(session_id)

    def ids(self) -> list[int]:
        """Return all ids, ascending."""
        return sorted(self._by_id)

    def open(self, index: int, ttl_ns: int, timestamp_ns: int) -> Outcome:
        """Open a session whose id is ``index``."""
        if not SESSION_TTL_NS_MIN <= ttl_ns <= SESSION_TTL_NS_MAX:
            return Refused(Reason.TTL_INVALID, ttl_ns)
        if len(self._by_id) >= SESSIONS_MAX:
            return Refused(Reason.SESSIONS_FULL, SESSIONS_MAX)
        self.insert(index, Session(ttl_ns, min(timestamp_ns + ttl_ns, U64_MAX)))
        return Applied(index)

    def keepalive(self, session_id: int, timestamp_ns: int) -> Outcome:
        """Renew a session: its lifetime starts again now."""
        session = self._by_id.get(session_id)
        if session is None:
            return Refused(Reason.SESSION_EXPIRED, session_id)
        self._renew(session_id, session, session.first_unacknowledged, timestamp_ns)
        return APPLIED

    def close(self, session_id: int) -> Outcome:
        """End a session."""
        if session_id not in self._by_id:
            return Refused(Reason.SESSION_EXPIRED, session_id)
        self._remove(session_id)
        return APPLIED

    def expire(self, session_id: int, timestamp_ns: int) -> bool:
        """End a session if it is due."""
        session = self._by_id.get(session_id)
        if session is None or session.deadline_ns > timestamp_ns:
            return False
        self._remove(session_id)
        return True

    def begin(
        self,
        session_id: int,
        requests: Sequence[Request],
        fingerprint: bytes,
        timestamp_ns: int,
    ) -> int | Refused | Duplicate:
        """Decide which requests of a session are executed; ``fingerprint`` is that of the first.

        Return how many of them, from the first on, are new; or, if the first is not, its result.
        Each of several must have a result of at most RESULT_SIZE_SMALL, so that the space that it
        needs is known before it runs.
        """
        session = self._by_id.get(session_id)
        if session is None:
            return Refused(Reason.SESSION_EXPIRED, session_id)
        sequence, first = requests[0]
        if first > sequence:
            return Refused(Reason.SEQUENCE_INVALID, first)
        known = max(first, session.first_unacknowledged)
        self._reach(session_id, session, known, timestamp_ns)
        if sequence < known:
            return Refused(Reason.SEQUENCE_ACKNOWLEDGED, known)
        results = session.results
        if sequence in results:
            return _repeat(results[sequence], sequence, fingerprint)
        room = SESSION_RESULTS_SIZE_MAX - session.results_size
        if room <= 0 or len(results) >= SESSION_RESULTS_MAX:
            return Refused(Reason.SESSION_RESULTS_FULL, known)
        if len(requests) == 1:
            return 1
        taken, last = 1, sequence
        room = min(SESSION_RESULTS_MAX - len(results), 1 + (room - 1) // RESULT_SIZE_SMALL)
        for sequence, first in requests[1:room]:
            if sequence <= last or sequence < known or sequence < first or sequence in results:
                break
            if first > known:
                known = first
            last = sequence
            taken += 1
        self._reach(session_id, session, known, timestamp_ns)
        return taken

    def answered(self, ref: SessionRef, fingerprint: bytes) -> Duplicate | Refused | None:
        """Return what ``begin`` would for a used sequence, without changing anything."""
        session = self._by_id.get(ref.session)
        stored = None if session is None else session.results.get(ref.sequence)
        return None if stored is None else _repeat(stored, ref.sequence, fingerprint)

    def record(
        self,
        session_id: int,
        requests: Iterable[Request],
        fingerprints: Iterable[bytes],
        index: int,
        outcomes: Sequence[Outcome],
    ) -> None:
        """Store the results of executed requests, the first of which is the entry at ``index``.

        A result that a later request of the span acknowledges is not stored.
        """
        session = self._by_id.get(session_id)
        if session is None:
            return  # the request closed its own session
        results, known, pack = session.results, session.first_unacknowledged, _APPLIED_ITEM.pack
        total = size = 0
        given = zip(count(index), requests, fingerprints, outcomes)
        for number, (sequence, _), fingerprint, outcome in given:
            if sequence < known:
                continue
            if outcome is APPLIED:
                item = pack(_KIND_RESULT, session_id, sequence, number, _APPLIED)
            else:
                head = _RESULT_ITEM.pack(_KIND_RESULT, session_id, sequence)
                item = head + U64.pack(number) + encode_result(outcome)
            results[sequence] = fingerprint + item[_RESULT_ITEM_SIZE:]
            size += len(item) - _RESULT_ITEM_SIZE
            total += item_hash(item, 0)
        session.results_size += size
        self.hash_total += total

    def insert(self, session_id: int, session: Session) -> None:
        """Add a session, new or from a snapshot."""
        assert session_id not in self._by_id, f"session {session_id} exists"
        self._by_id[session_id] = session
        self.hash_total += _hash_session(session_id, session)
        for sequence, stored in session.results.items():
            self.hash_total += _hash_result(session_id, sequence, stored)
        self.deadlines.schedule(session_id, session.deadline_ns)

    def memory(self) -> int:
        """Return the bytes held."""
        sessions = self._by_id.values()
        results = sum(len(session.results) for session in sessions)
        size = sum(session.results_size for session in sessions)
        each = RESULT_SIZE + FINGERPRINT_SIZE
        return len(self._by_id) * SESSION_SIZE + results * each + size

    def check(self) -> None:
        """Assert the invariants of this file."""
        total = 0
        for session_id, session in self._by_id.items():
            total += _hash_session(session_id, session)
            for sequence, stored in session.results.items():
                total += _hash_result(session_id, sequence, stored)
                assert sequence >= session.first_unacknowledged, f"{sequence} is acknowledged"
            sizes = (len(stored) - FINGERPRINT_SIZE for stored in session.results.values())
            assert session.results_size == sum(sizes)
            assert self.deadlines.get(session_id) == session.deadline_ns
        assert self.hash_total == total
        assert len(self.deadlines) == len(self._by_id)
        self.deadlines.check()

    def _reach(self, session_id: int, session: Session, first: int, timestamp_ns: int) -> None:
        """Drop results acknowledged below ``first``, and renew the session."""
        if first > session.first_unacknowledged:
            self._acknowledge(session_id, session, first)
            self._renew(session_id, session, first, timestamp_ns)
        elif timestamp_ns + session.ttl_ns != session.deadline_ns:  # of another group
            self._renew(session_id, session, first, timestamp_ns)

    def _acknowledge(self, session_id: int, session: Session, first: int) -> None:
        """Drop the results below ``first``."""
        before = session.first_unacknowledged
        results = session.results
        if first - before < len(results):
            acknowledged = [s for s in range(before, first) if s in results]
        else:
            acknowledged = [s for s in results if s < first]
        for sequence in acknowledged:
            stored = results.pop(sequence)
            session.results_size -= len(stored) - FINGERPRINT_SIZE
            self.hash_total -= _hash_result(session_id, sequence, stored)

    def _renew(self, session_id: int, session: Session, first: int, timestamp_ns: int) -> None:
        self.hash_total -= _hash_session(session_id, session)
        session.first_unacknowledged = first
        session.deadline_ns = min(timestamp_ns + session.ttl_ns, U64_MAX)
        self.hash_total += _hash_session(session_id, session)
        self.deadlines.schedule(session_id, session.deadline_ns)

    def _remove(self, session_id: int) -> None:
        session = self._by_id.pop(session_id)
        self.hash_total -= _hash_session(session_id, session)
        for sequence, stored in session.results.items():
            self.hash_total -= _hash_result(session_id, sequence, stored)
        self.deadlines.cancel(session_id)


def _plain(entry: Entry) -> bytes:
    """Return the payload of an entry of a batch, which may turn out to be damaged later."""
    try:
        return entry.plain_payload()
    except (CorruptPayload, PayloadTooLarge):
        return entry.payload


def _repeat(stored: bytes, sequence: int, fingerprint: bytes) -> Duplicate | Refused:
    """Return the stored result, unless it is that of another request."""
    known = stored[:FINGERPRINT_SIZE]
    if known not in (fingerprint, FINGERPRINT_NONE):
        return Refused(Reason.SEQUENCE_REUSED, sequence)
    (index,) = U64.unpack_from(stored, FINGERPRINT_SIZE)
    return Duplicate(index, decode_result(stored[_INDEX_END:]))


def _hash_session(session_id: int, session: Session) -> int:
    item = _SESSION_ITEM.pack(
        _KIND_SESSION,
        session_id,
        session.ttl_ns,
        session.deadline_ns,
        session.first_unacknowledged,
    )
    return item_hash(item, 0)


def _hash_result(session_id: int, sequence: int, stored: bytes) -> int:
    item = _RESULT_ITEM.pack(_KIND_RESULT, session_id, sequence) + stored[FINGERPRINT_SIZE:]
    return item_hash(item, 0)
