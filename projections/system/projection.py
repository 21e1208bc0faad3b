"""The system projection, owner 0x00: time, sessions, namespaces, holds, membership.

It holds what belongs to no data model: the newest ``raft_config`` as opaque bytes, the sessions,
the namespaces, the holds. Time takes effect only through ``expire`` and ``hold_break`` entries. The
leader names what is due; apply acts on it only if the entry's own timestamp confirms it. So a
replay expires the same things at the same indexes.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import assert_never

from onelog.projections.codec import U8, U16, U32, U64, Reader, SectionReader, chunked
from onelog.projections.errors import BadPayload, BadResult
from onelog.projections.limits import (
    NAMESPACE_DEFAULT,
    NAMESPACE_SIZE_MAX,
    NAMESPACES_MAX,
    RAFT_CONFIG_SIZE_MAX,
)
from onelog.projections.namespaces import LIMITS, Limits, Namespace, Namespaces
from onelog.projections.projection import Due, Handler, Position, Projection, one_by_one
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused, decode_result
from onelog.projections.state_hash import item_hash, reduce_total
from onelog.projections.system.commands import (
    SYSTEM_OPERATIONS,
    TYPE_RAFT_CONFIG,
    Batch,
    Expire,
    HoldBreak,
    HoldRelease,
    HoldSet,
    NamespaceConfigure,
    NamespaceCreate,
    NamespaceDelete,
    SessionClose,
    SessionKeepalive,
    SessionOpen,
    decode_command,
    encode_command,
)
from onelog.projections.system.holds import Cause, Holds
from onelog.projections.system.sessions import (
    FINGERPRINT_NONE,
    FINGERPRINT_SIZE,
    Session,
    Sessions,
)
from onelog.ual.entry import OWNER_SYSTEM, Draft

SECTION_VERSION = 4  # not 3: one flipped bit must not make a known version of another
SECTION_VERSION_WITHOUT_FINGERPRINTS = 2  # of the requests of sessions
SECTION_VERSION_WITHOUT_HOLDS = 1  # nor fingerprints

_KIND_CONFIG = b"\x04"
_HASH = struct.Struct("<BQ")  # owner, state hash
_SESSION = struct.Struct("<QQQQI")  # id, ttl_ns, deadline_ns, first_unacknowledged, results
_RESULT = struct.Struct("<Q8sQI")  # sequence, fingerprint of the request, index, size
_RESULT_WITHOUT_FINGERPRINT = struct.Struct("<QQI")


class System:
    """The system state; it passes namespace changes and expiries on to ``projections``."""

    owner = OWNER_SYSTEM

    def __init__(self, projections: Mapping[int, Projection]) -> None:
        self._projections = projections
        self.raft_config = b""
        self.sessions = Sessions()
        self.namespaces = Namespaces()
        self.holds = Holds()
        self.expire_skipped_count = 0  # ids removed, renewed or not due; not state
        for namespace in self.namespaces:
            for projection in projections.values():
                projection.namespace_created(namespace)

    def apply_opaque(self, entry_type: int, payload: bytes) -> Outcome:
        """Apply an entry whose payload has no prefix."""
        if entry_type == TYPE_RAFT_CONFIG:
            if len(payload) > RAFT_CONFIG_SIZE_MAX:
                return Refused(Reason.PAYLOAD_TOO_LARGE, len(payload))
            self.raft_config = payload
        return APPLIED

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers, except of opaque types and of those that the router handles."""
        return {
            each.number: one_by_one(partial(self._apply, each.number))
            for each in SYSTEM_OPERATIONS
            if each.command is not Batch
        }

    def _apply(
        self, entry_type: int, namespace: str, reader: Reader, index: int, timestamp_ns: int
    ) -> Outcome:
        command = decode_command(entry_type, reader)
        match command:
            case NamespaceCreate(limits):
                return self._create(namespace, limits, index)
            case NamespaceConfigure(limits):
                return self._configure(namespace, limits)
            case NamespaceDelete():
                return self._delete(namespace)
        if namespace:
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, len(namespace))
        match command:
            case Expire(ids):
                return self._expire(ids, index, timestamp_ns)
            case SessionOpen(ttl_ns):
                return self.sessions.open(index, ttl_ns, timestamp_ns)
            case SessionKeepalive(session):
                return self.sessions.keepalive(session, timestamp_ns)
            case SessionClose(session):
                return self.sessions.close(session)
            case HoldSet() | HoldRelease() | HoldBreak():
                return self._hold(command, (index, timestamp_ns))
            case Batch():
                raise AssertionError("the router handles batches")
            case _:
                assert_never(command)

    def next_deadline(self) -> int | None:
        """Return the time at which the next session or hold is due."""
        deadlines = (self.sessions.deadlines.first(), self.holds.next_expiry_ns)
        return min((each for each in deadlines if each is not None), default=None)

    def due(self, now_ns: int, limit: int) -> list[Due]:
        """Return the sessions that are due, earliest first."""
        due = self.sessions.deadlines.due(now_ns, limit)
        return [Due(deadline, OWNER_SYSTEM, U64.pack(session), 1) for deadline, session in due]

    def chores(self, now_ns: int) -> list[Draft]:
        """Return what a leader should propose: a break of each hold whose lifetime is over."""
        if self.holds.next_expiry_ns is None or self.holds.next_expiry_ns > now_ns:
            return []
        return [
            encode_command(HoldBreak(hold.name, Cause.TIME, hold.set_index))
            for hold in self.holds.active()
            if hold.expires_ns <= now_ns
        ]

    def state_hash(self) -> int:
        """Return the hash of sessions, namespaces, holds and membership."""
        config = item_hash(_KIND_CONFIG + self.raft_config, 0)
        parts = (self.sessions, self.namespaces, self.holds)
        return reduce_total(sum(each.hash_total for each in parts) + config)

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        return {
            "sessions": self.sessions.memory(),
            "holds": self.holds.memory(),
            "raft_config": len(self.raft_config),
        }

    def counts(self) -> dict[str, int]:
        """Return the number of objects, by kind."""
        return {
            "sessions": len(self.sessions),
            "namespaces": len(self.namespaces),
            "holds": len(self.holds),
            "expire_skipped": self.expire_skipped_count,
        }

    def dump(self, position: Position, hashes: Mapping[int, int]) -> Iterator[bytes]:
        """Yield the snapshot section, which begins with the router's position."""
        return chunked(self._dump_parts(position, hashes))

    def load(self, chunks: Iterable[bytes], position: Position) -> dict[int, int]:
        """Load a section into a fresh system; return the state hashes noted in it."""
        reader = SectionReader(OWNER_SYSTEM, chunks)
        version = reader.number(U8)
        is_known = SECTION_VERSION_WITHOUT_HOLDS <= version <= SECTION_VERSION
        reader.expect(is_known, f"section version {version}")
        position.applied_index = reader.number(U64)
        position.log_time_ns = reader.number(U64)
        hashes: dict[int, int] = {}
        for _ in range(reader.number(U8)):
            owner, state_hash = reader.fields(_HASH)
            hashes[owner] = state_hash
        self.raft_config = reader.sized(U32)
        self._load_namespaces(reader)
        for _ in range(reader.number(U32)):
            self._load_session(reader, version)
        if version > SECTION_VERSION_WITHOUT_HOLDS:
            self.holds.load(reader, reader.number(U16))
        reader.finish()
        return hashes

    def check(self) -> None:
        """Assert every invariant."""
        self.sessions.check()
        self.namespaces.check()
        self.holds.check()

    def _create(self, name: str, limits: Limits, index: int) -> Outcome:
        existing = self.namespaces.get(name)
        if existing is not None:
            return Refused(Reason.NAMESPACE_EXISTS, existing.created_index)
        if not 1 <= len(name.encode()) <= NAMESPACE_SIZE_MAX:
            return Refused(Reason.PAYLOAD_FIELD_INVALID, len(name.encode()))
        if len(self.namespaces) >= NAMESPACES_MAX:
            return Refused(Reason.NAMESPACES_FULL, NAMESPACES_MAX)
        self._add_namespace(Namespace(name, index, limits))
        return APPLIED

    def _configure(self, name: str, limits: Limits) -> Outcome:
        if self.namespaces.get(name) is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        namespace = self.namespaces.configure(name, limits)
        for projection in self._projections.values():
            projection.namespace_configured(namespace)
        return APPLIED

    def _delete(self, name: str) -> Outcome:
        if name == NAMESPACE_DEFAULT:
            return Refused(Reason.NAMESPACE_PROTECTED)
        if self.namespaces.get(name) is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        namespace = self.namespaces.remove(name)
        for projection in self._projections.values():
            projection.namespace_deleted(namespace)
        return APPLIED

    def _hold(self, command: HoldSet | HoldRelease | HoldBreak, at: tuple[int, int]) -> Outcome:
        match command:
            case HoldSet(name, is_move, index, ttl_ns, bytes_max):
                return self.holds.set(name, index, ttl_ns, bytes_max, at, is_move=is_move)
            case HoldRelease(name):
                return self.holds.release(name)
            case HoldBreak(name, cause, set_index):
                return self.holds.break_(name, cause, set_index, at)

    def _add_namespace(self, namespace: Namespace) -> None:
        self.namespaces.add(namespace)
        for projection in self._projections.values():
            projection.namespace_created(namespace)

    def _expire(self, ids: tuple[tuple[int, bytes], ...], index: int, timestamp_ns: int) -> Outcome:
        expired = 0
        for owner, item in ids:
            if owner == OWNER_SYSTEM:
                known = len(item) == U64.size
                done = known and self.sessions.expire(U64.unpack(item)[0], timestamp_ns)
            else:
                projection = self._projections.get(owner)
                done = projection is not None and projection.expire(item, index, timestamp_ns)
            expired += done
        self.expire_skipped_count += len(ids) - expired
        return Applied(expired)

    def _dump_parts(self, position: Position, hashes: Mapping[int, int]) -> Iterator[bytes]:
        yield U8.pack(SECTION_VERSION)
        yield U64.pack(position.applied_index) + U64.pack(position.log_time_ns)
        yield U8.pack(len(hashes))
        for owner in sorted(hashes):
            yield _HASH.pack(owner, hashes[owner])
        yield U32.pack(len(self.raft_config)) + self.raft_config
        yield U16.pack(len(self.namespaces))
        for namespace in self.namespaces:
            name = namespace.name.encode()
            head = U8.pack(len(name)) + name + U64.pack(namespace.created_index)
            yield head + namespace.limits.encode()
        yield U32.pack(len(self.sessions))
        for session_id in self.sessions.ids():
            session = self.sessions.get(session_id)
            assert session is not None, f"no session {session_id}"
            yield _SESSION.pack(
                session_id,
                session.ttl_ns,
                session.deadline_ns,
                session.first_unacknowledged,
                len(session.results),
            )
            for sequence in sorted(session.results):
                stored = session.results[sequence]
                fingerprint = stored[:FINGERPRINT_SIZE]
                (index,) = U64.unpack_from(stored, FINGERPRINT_SIZE)
                result = stored[FINGERPRINT_SIZE + U64.size :]
                yield _RESULT.pack(sequence, fingerprint, index, len(result)) + result
        yield U16.pack(len(self.holds))
        yield from self.holds.dump()

    def _load_namespaces(self, reader: SectionReader) -> None:
        previous = ""
        count = reader.number(U16)
        reader.expect(count <= NAMESPACES_MAX, f"{count} namespaces")
        for _ in range(count):
            name = reader.text(U8)
            reader.expect(previous < name, "namespaces out of order")
            reader.expect(len(name.encode()) <= NAMESPACE_SIZE_MAX, f"namespace {name!r}")
            previous = name
            created_index = reader.number(U64)
            limits = Limits(*reader.fields(LIMITS))
            reader.expect(limits.invalid() is None, f"limits of namespace {name!r}")
            if name == NAMESPACE_DEFAULT:
                reader.expect(created_index == 0, "the default namespace was created")
                self._configure(name, limits)
            else:
                self._add_namespace(Namespace(name, created_index, limits))

    def _load_session(self, reader: SectionReader, version: int) -> None:
        session_id, ttl_ns, deadline_ns, first, count = reader.fields(_SESSION)
        reader.expect(self.sessions.get(session_id) is None, f"session {session_id} twice")
        session = Session(ttl_ns, deadline_ns, first)
        for _ in range(count):
            fingerprint = FINGERPRINT_NONE
            if version > SECTION_VERSION_WITHOUT_FINGERPRINTS:
                sequence, fingerprint, index, size = reader.fields(_RESULT)
            else:
                sequence, index, size = reader.fields(_RESULT_WITHOUT_FINGERPRINT)
            reader.expect(
                sequence >= first and sequence not in session.results,
                f"a result of session {session_id} that is not possible",
            )
            result = reader.take(size)
            try:
                decode_result(result)
            except BadResult as error:
                raise reader.corrupt(str(error)) from error
            session.results[sequence] = fingerprint + U64.pack(index) + result
            session.results_size += U64.size + size
        self.sessions.insert(session_id, session)
