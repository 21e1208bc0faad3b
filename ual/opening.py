"""Opening a shard's log: survey, tidy, make durable, and only then say what is durable.

``open_log`` is the one way to a writable log, after a clean stop and after any crash. Offline
tools that must not change anything use ``survey`` (ual/recovery.py) with ``what_is_known``.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from onelog.ual.directory import ShardPaths
from onelog.ual.errors import CorruptFile, MissingSegment
from onelog.ual.files import Files
from onelog.ual.hard_state import HardStateFile, Hint
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import Manifest
from onelog.ual.manifest import load as load_manifest
from onelog.ual.recovery import Known, Survey, finish_install, survey
from onelog.ual.segments.chain import Segment, SegmentSet
from onelog.ual.segments.damaged import DamagedSegment
from onelog.ual.segments.format import SegmentHeader
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.unsealed import UnsealedSegment
from onelog.ual.tidying import carry_out


def open_log(
    files: Files,
    paths: ShardPaths,
    hard_state: HardStateFile,
    *,
    shard: int,
    config: LogConfig | None = None,
    sets_aside: bool = False,
) -> tuple[Log, Survey]:
    """Recover a shard's log; also return what recovery found and tidied.

    Interrupted cuts, drops and seals are finished, a torn tail is cut, a missing MANIFEST is made
    again; anything worse is a ``DataError`` and the directory is left as it was.

    ``sets_aside``: damaged sealed files pass, see ``survey``.
    """
    config = config or LogConfig()
    manifest, hint = load_manifest(files, paths.manifest), hard_state.hint
    if manifest is not None and manifest.install is not None:
        finish_install(files, paths.segments, manifest.install)
        manifest = replace(manifest, install=None)
    known = what_is_known(manifest, hint, config.unsynced_bytes_max)
    found = survey(files, paths.segments, known, sets_aside=sets_aside)
    for segment in found.segments:
        if segment.header.shard != shard:
            rule = f"belongs to shard {segment.header.shard}, not to shard {shard}"
            raise CorruptFile(str(segment.path), rule, 0)
    carry_out(files, paths.segments, found.actions)
    parts = tuple(_open_for_append(files, paths.segments, shard, found.segments, known))
    segments = SegmentSet(parts, ApplyNotes())
    recorded = max(
        hint.commit_index if hint else 0, manifest.checkpoint.commit_index if manifest else 0
    )
    log = Log(
        files,
        paths,
        hard_state,
        config,
        segments,
        # Sealed entries were applied, hence committed, whatever an older record says.
        commit_index=max(segments.sealed_index, min(recorded, segments.last_index)),
        generation=known.generation,
        snapshots=manifest.snapshots if manifest else (),
        cold=manifest.cold if manifest else (),
        base=known.base,
    )
    log.checkpoint()
    return log, found


def open_hard_state(files: Files, paths: ShardPaths) -> HardStateFile:
    """Open a shard's RAFT file; only a shard without a log gets a new one.

    Beside a log, a missing file is a forgotten vote.
    """
    return HardStateFile.open(files, paths.hard_state, create=not files.list(paths.segments))


def what_is_known(manifest: Manifest | None, hint: Hint | None, unsynced_bytes_max: int) -> Known:
    """Return what is recorded about a log outside its segments."""
    if manifest is None:
        durable_index, generation = (hint.durable_index, hint.generation) if hint else (0, 0)
        return Known(None, 1, durable_index, generation, None, unsynced_bytes_max)
    checkpoint = manifest.checkpoint
    durable_index = checkpoint.durable_index
    # A hint from before the last cut speaks of entries that are gone.
    if hint is not None and hint.generation == checkpoint.generation:
        durable_index = max(durable_index, hint.durable_index)
    return Known(
        checkpoint.first_index,
        checkpoint.first_proposal,
        durable_index,
        checkpoint.generation,
        manifest.cut_from_index,
        unsynced_bytes_max,
        manifest.install,
        manifest.base,
    )


def _open_for_append(
    files: Files, directory: Path, shard: int, segments: list[Segment], known: Known
) -> Iterator[Segment]:
    """Yield the surveyed segments, unsealed ones writable and durable, with an active one last.

    A process that was killed leaves written bytes and names in the kernel's hands. They look
    complete to this process and would be lost with the power, so they are synced before anybody
    is told that they are durable.
    """
    for segment in segments:
        if isinstance(segment, UnsealedSegment):
            segment.file = files.open(segment.path)
            segment.file.sync()
        yield segment
    files.sync_directory(directory)
    last = segments[-1] if segments else None
    if last is None:
        header = SegmentHeader(shard, 1, known.first_index or 1, known.first_proposal)
        yield UnsealedSegment.create(files, directory, header)
    elif known.base is not None and last.last_index == known.base.index:
        base, segment_id = known.base, last.header.segment_id + 1
        if not isinstance(last, UnsealedSegment):
            header = SegmentHeader(shard, segment_id, base.index + 1, base.proposal + 1)
            yield UnsealedSegment.create(files, directory, header)
    elif isinstance(last, DamagedSegment):
        last.refuse()
    elif not isinstance(last, UnsealedSegment):
        if last.is_compacted:  # only old segments are, so others have followed it
            raise MissingSegment(str(directory), last.last_index + 1, last.last_index + 1)
        first_proposal = last.first_proposal + last.proposal_count()
        header = SegmentHeader(shard, last.segment_id + 1, last.last_index + 1, first_proposal)
        yield UnsealedSegment.create(files, directory, header)
