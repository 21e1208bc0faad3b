"""MANIFEST: which files a shard keeps, and how far its log was known to be good.

A JSON file with a checksum (``ual/json_file.py``), replaced as a whole. It lets recovery tell a
torn tail from lost data, and readers in other processes learn how far they may read.

Invariants, checked before every write and after every read:

* The kept log is ``first_index`` to ``end_index``; empty is ``end_index == first_index - 1``. It
  starts at a group boundary: ``first_index`` is the first entry of proposal ``first_proposal``.
* Every proposal has at least one entry, so proposals never outnumber entries.
* ``first_index - 1 <= durable_index <= end_index``. ``commit_index`` is free of both: a replica
  may learn of a commit before it holds the entries.
* ``cut_from_index`` is the intent of a suffix cut. It is written together with a checkpoint that
  already ends below the cut, before any file is touched, and cleared afterwards.
* Snapshots ascend by index, cold ranges ascend and do not overlap.
* ``identity`` says whose log it is, once it is known; a copy in another directory is not opened.
* ``base`` is the last entry of a snapshot that a peer sent: the log knows its number, term and time
  without holding it. ``install`` is the intent of taking that over, written together with the base,
  the snapshot and the checkpoint behind it, before any segment is touched, and cleared afterwards.

Failure: a checkpoint is a lower bound. The log may have grown since it was written, and recovery
finds out by reading further; but an entry at or below ``durable_index`` was promised, so its
absence is corruption, never a tail. After a crash during a cut the intent says which entries were
to be dropped: recovery finishes the cut, and must not take the shortened log for a loss.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from onelog.ual.directory import ShardIdentity
from onelog.ual.errors import CorruptFile
from onelog.ual.files import Files
from onelog.ual.json_file import (
    U32_MAX,
    Fields,
    read_json_file,
    write_json_file,
)

MANIFEST_VERSION = 2  # with identity; 1 is without

SNAPSHOTS_MAX = 1_000  # two are kept normally; the rest is room for backups that pin one
COLD_RANGES_MAX = 1_000_000  # the size of the file is the tighter limit
FILE_NAME_SIZE_MAX = 255
RECEIVED_SEGMENTS_MAX = 1_000_000
OBJECT_NAME_SIZE_MAX = 1_024  # what S3 allows
STATE_HASH_SIZE_MAX = 128

U16_MAX = (1 << 16) - 1  # the field for the shard in a segment's header

# Names come from a file and end up in paths: no separators, no leading dot, no surprises.
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ACTIVE_FILE = re.compile(r"([0-9]{10}|[1-9][0-9]{10,19})\.flseg\.tmp")
_STATE_HASH = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The log as it was known to be when the MANIFEST was written."""

    first_index: int  # start of the kept log
    first_proposal: int
    end_index: int  # the last entry; first_index - 1 when there is none
    end_proposal: int
    durable_index: int  # highest index known to be synced
    commit_index: int
    active_file: str  # name in segs/ of the file being appended to; "" before there is one
    generation: int  # suffix cuts so far; tells a hint from before a cut apart


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot that is kept, and what its content must be."""

    file: str
    index: int
    term: int
    size: int
    state_hash: str  # lowercase hex


@dataclass(frozen=True, slots=True)
class ColdRange:
    """Entries ``first_index`` to ``last_index`` in the object store."""

    first_index: int
    last_index: int
    object: str
    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Base:
    """The end of a group after which a log may begin; the group itself is not in the log."""

    index: int
    proposal: int
    term: int
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class ReceivedSegment:
    """A file that a peer sent and that still has its temporary name."""

    first_index: int


@dataclass(frozen=True, slots=True)
class Install:
    """What an install keeps of the log, and which files replace the rest."""

    keep_through: int  # sealed files that begin at or below it stay; 0: none
    segments: tuple[ReceivedSegment, ...]  # ascending


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a MANIFEST."""

    checkpoint: Checkpoint
    cut_from_index: int | None = None
    snapshots: tuple[SnapshotRecord, ...] = ()
    # No server fills it yet: it is for old segments that are kept in an object store.
    cold: tuple[ColdRange, ...] = ()
    base: Base | None = None
    install: Install | None = None
    identity: ShardIdentity | None = None  # None: version 1, of a directory without a cluster


def load(files: Files, path: Path, *, durable: bool = True) -> Manifest | None:
    """Read a MANIFEST; return None if there is none yet.

    After a kill the newest MANIFEST may stand in the page cache only, and a power loss would bring
    back the one before. A caller that acts on it, for instance to finish a cut, needs it
    ``durable``; an offline reader does not, and may not be allowed to sync.
    """
    if not files.exists(path):
        return None
    if durable:
        files.sync_directory(path.parent)
    return _manifest(Fields(str(path), read_json_file(files, path, MANIFEST_VERSION)))


def save(files: Files, path: Path, manifest: Manifest) -> None:
    """Replace the MANIFEST; durable when this returns, the old or the new one after a crash."""
    write_json_file(files, path, _fields(manifest))


def _fields(manifest: Manifest) -> dict[str, object]:
    version = 1 if manifest.identity is None else MANIFEST_VERSION
    fields = {"version": version, **asdict(manifest)}
    if manifest.identity is not None:
        fields["identity"] = _identity_fields(manifest.identity)
    for name in ("base", "install", "identity"):
        if fields[name] is None:
            del fields[name]
    # The reader's own rules, so that nothing is ever written that could not be read back.
    try:
        _manifest(Fields("MANIFEST", fields))
    except CorruptFile as error:
        raise AssertionError(f"not a manifest to write: {error.rule}") from error
    return fields


def _identity_fields(identity: ShardIdentity) -> dict[str, object]:
    return {
        "cluster_id": str(identity.cluster_id),
        "node_id": str(identity.node_id),
        "shard": identity.shard,
    }


def _manifest(fields: Fields) -> Manifest:
    names = ["version", "checkpoint", "cut_from_index", "snapshots", "cold", "base", "install"]
    is_old = fields.integer("version") == 1
    fields.only(*names, *(() if is_old else ("identity",)))
    manifest = Manifest(
        _checkpoint(fields.nested("checkpoint")),
        fields.integer_or_none("cut_from_index", minimum=1),
        tuple(_snapshot(row) for row in fields.rows("snapshots", count_max=SNAPSHOTS_MAX)),
        tuple(_cold_range(row) for row in fields.rows("cold", count_max=COLD_RANGES_MAX)),
        _base(fields.nested("base")) if fields.values.get("base") is not None else None,
        _install(fields.nested("install")) if fields.values.get("install") is not None else None,
        _identity(fields.nested("identity")) if fields.values.get("identity") is not None else None,
    )
    rule = _broken_rule(manifest)
    if rule is not None:
        fields.refuse(rule)
    return manifest


def _checkpoint(fields: Fields) -> Checkpoint:
    fields.only(*Checkpoint.__slots__)
    return Checkpoint(
        first_index=fields.integer("first_index", minimum=1),
        first_proposal=fields.integer("first_proposal", minimum=1),
        end_index=fields.integer("end_index"),
        end_proposal=fields.integer("end_proposal"),
        durable_index=fields.integer("durable_index"),
        commit_index=fields.integer("commit_index"),
        active_file=fields.text("active_file", size_min=0, size_max=FILE_NAME_SIZE_MAX),
        generation=fields.integer("generation"),
    )


def _snapshot(fields: Fields) -> SnapshotRecord:
    fields.only(*SnapshotRecord.__slots__)
    return SnapshotRecord(
        file=fields.text("file", size_max=FILE_NAME_SIZE_MAX),
        index=fields.integer("index", minimum=1),
        term=fields.integer("term"),
        size=fields.integer("size", minimum=1),
        state_hash=fields.text("state_hash", size_max=STATE_HASH_SIZE_MAX),
    )


def _cold_range(fields: Fields) -> ColdRange:
    fields.only(*ColdRange.__slots__)
    return ColdRange(
        first_index=fields.integer("first_index", minimum=1),
        last_index=fields.integer("last_index", minimum=1),
        object=fields.text("object", size_max=OBJECT_NAME_SIZE_MAX),
        size=fields.integer("size", minimum=1),
        crc32c=fields.integer("crc32c", maximum=U32_MAX),
    )


def _base(fields: Fields) -> Base:
    fields.only(*Base.__slots__)
    return Base(
        index=fields.integer("index", minimum=1),
        proposal=fields.integer("proposal", minimum=1),
        term=fields.integer("term"),
        timestamp_ns=fields.integer("timestamp_ns"),
    )


def _identity(fields: Fields) -> ShardIdentity:
    fields.only(*ShardIdentity.__slots__)
    return ShardIdentity(
        fields.uuid("cluster_id"), fields.uuid("node_id"), fields.integer("shard", maximum=U16_MAX)
    )


def _install(fields: Fields) -> Install:
    fields.only(*Install.__slots__)
    rows = fields.rows("segments", count_max=RECEIVED_SEGMENTS_MAX)
    for row in rows:
        row.only(*ReceivedSegment.__slots__)
    return Install(
        fields.integer("keep_through"),
        tuple(ReceivedSegment(row.integer("first_index", minimum=1)) for row in rows),
    )


def _broken_rule(manifest: Manifest) -> str | None:
    """Return the first rule that the manifest breaks; its fields have the right types already."""
    return (
        _broken_checkpoint_rule(manifest.checkpoint, manifest.cut_from_index)
        or _broken_snapshot_rule(manifest.snapshots)
        or _broken_cold_rule(manifest.cold)
        or _broken_install_rule(manifest)
    )


def _broken_checkpoint_rule(point: Checkpoint, cut_from_index: int | None) -> str | None:
    entries = point.end_index - point.first_index + 1
    proposals = point.end_proposal - point.first_proposal + 1
    if point.first_proposal > point.first_index:
        return f"first_proposal {point.first_proposal} above first_index {point.first_index}"
    if entries < 0:
        return f"end_index {point.end_index} below first_index {point.first_index} - 1"
    if proposals < 0:
        return f"end_proposal {point.end_proposal} below first_proposal {point.first_proposal} - 1"
    if proposals > entries or (proposals == 0) != (entries == 0):
        return f"{proposals} proposals in {entries} entries"
    if point.durable_index > point.end_index:
        return f"durable_index {point.durable_index} above end_index {point.end_index}"
    if point.durable_index < point.first_index - 1:
        return f"durable_index {point.durable_index} below first_index {point.first_index} - 1"
    if point.active_file and not _ACTIVE_FILE.fullmatch(point.active_file):
        return f"active_file {point.active_file!r} is not the name of an unsealed segment"
    if cut_from_index is not None and cut_from_index <= point.end_index:
        return f"cut_from_index {cut_from_index} not above end_index {point.end_index}"
    return None


def _broken_snapshot_rule(snapshots: tuple[SnapshotRecord, ...]) -> str | None:
    index = term = 0
    for number, snapshot in enumerate(snapshots):
        if not _FILE_NAME.fullmatch(snapshot.file):
            return f"snapshots[{number}].file {snapshot.file!r} is not a plain file name"
        if not _STATE_HASH.fullmatch(snapshot.state_hash):
            return f"snapshots[{number}].state_hash is not lowercase hex"
        if snapshot.index <= index:
            return f"snapshots[{number}].index {snapshot.index} after {index}"
        if snapshot.term < term:
            return f"snapshots[{number}].term {snapshot.term} after {term}"
        index, term = snapshot.index, snapshot.term
    return None


def _broken_cold_rule(ranges: tuple[ColdRange, ...]) -> str | None:
    last_index = 0
    for number, cold in enumerate(ranges):
        # A store may be a directory: a name that climbs out of it is refused here, once.
        if not all(_FILE_NAME.fullmatch(part) for part in cold.object.split("/")):
            return f"cold[{number}].object {cold.object[:80]!r} is not a plain object name"
        if cold.first_index <= last_index:
            return f"cold[{number}].first_index {cold.first_index} after {last_index}"
        if cold.last_index < cold.first_index:
            return f"cold[{number}].last_index {cold.last_index} below {cold.first_index}"
        last_index = cold.last_index
    return None


def _broken_install_rule(manifest: Manifest) -> str | None:
    base, install, point = manifest.base, manifest.install, manifest.checkpoint
    if base is not None and base.proposal > base.index:
        return f"base proposal {base.proposal} above index {base.index}"
    if install is None:
        return None
    if base is None:
        return "install without a base"
    if (point.end_index, point.end_proposal) != (base.index, base.proposal):
        return f"install with end_index {point.end_index}, base {base.index}"
    index = install.keep_through
    for number, segment in enumerate(install.segments):
        if not index < segment.first_index <= base.index:
            return f"install.segments[{number}].first_index {segment.first_index} after {index}"
        index = segment.first_index
    return None
