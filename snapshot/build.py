"""Building a snapshot beside the live state: the previous snapshot plus the log gives the next one.

The builder never sees the server's memory. It loads the newest kept snapshot into a router of its
own, replays the log to the target index, and writes the result. The server noted its own state
hash at that index; if the builder's is the same, the snapshot is right, and replay has been shown
once more to give the live state (``SnapshotStore.accept_begin``).

``BuildRequest`` has everything that the builder needs, fixed at one moment of the server:

* ``target_index`` is the end of a group that is applied and durable there. So it is never cut, and
  the files hold it whatever the server does next.
* ``sealed_index`` is what was *durably* sealed. A segment sealed since may lose its new name in a
  crash, and then its notes are needed: the snapshot has them from ``sealed_index`` on.

Segments are read as an offline reader does (``onelog.ual.offline.reader``), so appending,
sealing and retention continue meanwhile.

The process, ``python -m onelog.snapshot.build``, reads one line of JSON from stdin
(``BuildRequest``) and writes lines of JSON to stdout::

    {"phase": "replay", "done": 4096, "total": 100000}      any number of times
    {"result": {…}}  or  {"error": {"reason": …, "message": …}}   the last line

The error of a damaged file has its ``path`` and the ``rule`` that it breaks as well.

Stdin stays open while the server waits for the result. When it closes, the server is gone or has
cancelled, and the builder stops: an orphan would write into a directory that the next server has
tidied. A builder that stops by itself leaves no file; a killed one leaves a ``.tmp`` that
``BuilderProcess`` or the next opening removes. It runs at low priority (set by ``BuilderProcess``),
so that building does not take the processor from serving, and within the memory limit of the
request.
"""

import json
import os
import resource
import select
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from onelog.projections.errors import ProjectionError
from onelog.projections.shard_state import build_projections
from onelog.snapshot.errors import BuilderCancelled, LogGap, NotDurable
from onelog.snapshot.format import SnapshotHeader, snapshot_name
from onelog.snapshot.loading import load_newest
from onelog.snapshot.notes import CoveredNotes, restore_notes
from onelog.snapshot.progress import Phase, Progress, no_progress
from onelog.snapshot.replay import replay
from onelog.snapshot.state import Router, StateT, hash_text, write_state
from onelog.snapshot.store import SnapshotStore
from onelog.snapshot.writer import FREE_BYTES_MIN
from onelog.ual.directory import shard_paths
from onelog.ual.errors import CorruptFile, UalError
from onelog.ual.files import DiskFiles, Files
from onelog.ual.log import Log
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.offline.reader import OfflineLog
from onelog.ual.segments.notes import ApplyNotes


@dataclass(frozen=True, slots=True)
class Capture:
    """The hash of the live state at an index, which a snapshot must match."""

    index: int
    state_hash: str

    @staticmethod
    def of(router: Router) -> "Capture":
        """Capture a router's index and hash; it must be between two groups."""
        return Capture(router.applied_index, hash_text(router))


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One snapshot to build; see the module."""

    data_dir: str
    shard: int
    target_index: int
    sealed_index: int
    created_s: int  # wall clock; for the file's name only
    snapshots: tuple[SnapshotRecord, ...]  # the kept ones, oldest first
    free_bytes_min: int = FREE_BYTES_MIN
    memory_bytes_max: int = 0  # of the builder's process; 0: no limit

    @property
    def file_name(self) -> str:
        """The name of the snapshot that this builds."""
        return snapshot_name(self.target_index, self.created_s)

    @property
    def directory(self) -> Path:
        """The directory of that file."""
        return shard_paths(Path(self.data_dir), self.shard).snapshots

    def encode(self) -> str:
        """Return the request as one line of JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> "BuildRequest":
        """Return the request that ``encode`` made."""
        fields: dict[str, Any] = json.loads(text)
        rows = tuple(SnapshotRecord(**row) for row in fields.pop("snapshots"))
        return BuildRequest(snapshots=rows, **fields)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A snapshot that is durable and not listed yet, and statistics of the build."""

    record: SnapshotRecord
    proposal: int
    base_index: int  # of the snapshot that it started from; 0: the beginning of the log
    entry_count: int  # replayed
    counts: dict[str, int]
    rejected: tuple[str, ...]  # kept snapshots that were found damaged, and why: worth an alarm
    rejected_files: tuple[str, ...] = ()  # their names
    memory_bytes_peak: int = 0  # of the builder's process; a line of the node's budget

    @staticmethod
    def decode(fields: dict[str, Any]) -> "BuildResult":
        """Return the result whose ``asdict`` this is."""
        record = SnapshotRecord(**fields.pop("record"))
        rejected, names = tuple(fields.pop("rejected")), tuple(fields.pop("rejected_files"))
        return BuildResult(record=record, rejected=rejected, rejected_files=names, **fields)


def plan_build(
    capture: Capture,
    log: Log,
    store: SnapshotStore,
    *,
    data_dir: Path,
    shard: int,
    created_s: int,
    memory_bytes_max: int = 0,
) -> BuildRequest:
    """Return the request for a snapshot of what was captured.

    Raises ``NotDurable`` while the index is not synced here; the capture stays good.
    """
    assert 1 <= capture.index <= log.applied_index, (capture.index, log.applied_index)
    newest = store.newest
    assert newest is None or newest.index < capture.index, f"{newest} is as new"
    if capture.index > log.durable_index:
        raise NotDurable(capture.index, log.durable_index)
    return BuildRequest(
        data_dir=str(data_dir),
        shard=shard,
        target_index=capture.index,
        # The log counts a segment as sealed once its name is durable, not before.
        sealed_index=min(log.segments.sealed_index, capture.index),
        created_s=created_s,
        snapshots=store.records,
        free_bytes_min=log.config.free_bytes_min,
        memory_bytes_max=memory_bytes_max,
    )


def build_in_process(
    files: Files,
    request: BuildRequest,
    make_state: Callable[[ApplyNotes], StateT],
    progress: Progress = no_progress,
) -> BuildResult:
    """Build the requested snapshot in this process; the file is durable on return.

    The separate process calls this. A callback that raises stops it, and no file is left.
    """
    paths = shard_paths(Path(request.data_dir), request.shard)
    notes = ApplyNotes()
    notes_from_index = request.sealed_index + 1
    loaded, rejected = load_newest(
        files,
        paths.snapshots,
        request.shard,
        request.snapshots,
        make_state,
        notes,
        notes_from_index=notes_from_index,
        progress=progress,
    )
    if loaded is None:
        router, base_index, base_proposal = make_state(notes).router, 0, 0
    else:
        router, base_index = loaded.state.router, loaded.record.index
        base_proposal = loaded.header.proposal
        restore_notes(notes, loaded.notes, request.sealed_index)
    target_index = request.target_index
    source = OfflineLog(files, Path(request.data_dir), request.shard)
    replayed = replay(
        router,
        source.entries(base_index + 1, target_index),
        last_index=target_index,
        hashes={record.index: record.state_hash for record in request.snapshots},
        progress=progress,
    )
    if router.applied_index != target_index:  # the target is inside a group, or is not there
        raise LogGap(router.applied_index + 1, target_index)
    header = SnapshotHeader(
        request.shard,
        target_index,
        replayed.last_term,
        base_proposal + replayed.group_count,
        replayed.last_timestamp_ns,
    )
    written = write_state(
        files,
        paths.snapshots,
        header,
        request.created_s,
        router,
        CoveredNotes(notes_from_index, notes.select(notes_from_index, target_index)),
        free_bytes_min=request.free_bytes_min,
        progress=progress,
    )
    record = SnapshotRecord(
        written.path.name, target_index, header.term, written.header.size, hash_text(router)
    )
    return BuildResult(
        record,
        header.proposal,
        base_index,
        replayed.entry_count,
        dict(router.counts()),
        tuple(at.why for at in rejected),
        tuple(at.record.file for at in rejected),
    )


# Builder

STEPS_PER_PHASE = 100  # reports; few enough that an unread pipe cannot fill up
BYTES_PER_STEP = 64 << 20  # if the total is unknown


def main() -> int:
    """Build what stdin asks for; return the exit code."""
    # The messages get a descriptor of their own. Any other output goes to stderr.
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = BuildRequest.decode(sys.stdin.readline())
    if request.memory_bytes_max:
        # Limits written memory, not mappings: beyond it a MemoryError is raised and reported.
        resource.setrlimit(resource.RLIMIT_DATA, (request.memory_bytes_max,) * 2)
    try:
        result = build_in_process(
            DiskFiles(), request, build_projections, _reporter(messages, _is_abandoned)
        )
    except (UalError, ProjectionError, OSError, MemoryError) as error:
        reason = error.reason if isinstance(error, UalError) else type(error).__name__
        fields = {"reason": reason, "message": str(error)}
        if isinstance(error, CorruptFile):
            fields |= {"path": error.path, "rule": error.rule}  # for its repair
        _say(messages, error=fields)
        return 1
    _say(messages, result=asdict(replace(result, memory_bytes_peak=_memory_bytes_peak())))
    return 0


def _memory_bytes_peak() -> int:
    """Return the most memory that this process has held.

    Not ``ru_maxrss``: it includes the moment between fork and exec, when this process was a copy of
    the server, so it is never less than what the server holds.
    """
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:  # another system than Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def _is_abandoned() -> bool:
    """Return whether the other end of stdin is closed; nothing is sent after the request."""
    return bool(select.select([0], [], [], 0)[0])


def _reporter(
    messages: TextIO, is_abandoned: Callable[[], bool]
) -> Callable[[Phase, int, int], None]:
    """Return a progress callback that reports each hundredth part once."""
    last: tuple[Phase, int] | None = None

    def report(phase: Phase, done: int, total: int) -> None:
        nonlocal last
        if is_abandoned():
            raise BuilderCancelled("the server no longer waits for the snapshot")
        step = done * STEPS_PER_PHASE // total if total else done // BYTES_PER_STEP
        if last != (phase, step):
            last = phase, step
            _say(messages, phase=phase.value, done=done, total=total)

    return report


def _say(messages: TextIO, **fields: Any) -> None:
    messages.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    sys.exit(main())
