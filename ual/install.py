"""Installing a snapshot from a peer: the log continues after it, with the segments below it.

The received files wait under names of their own (``.flseg.recv``), complete, verified and synced.
One write of MANIFEST decides: it lists the snapshot, ends the log at its index, and records the
intent: which files go and which take their place. A crash before it leaves the old log and some
files that the next opening removes. After it the log is the new one, and the next opening finishes
the removals and renames, however often it is interrupted.

Everything up to the base is sealed afterwards, so its streams and voids are in the files. An empty
unsealed segment after it receives what Raft sends next. Entries of the old log above the sealed
part that stays are dropped: the caller has made sure that none of them is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from onelog.ual.directory import ShardPaths
from onelog.ual.errors import CorruptFile
from onelog.ual.files import Files
from onelog.ual.log import Log
from onelog.ual.manifest import Base, Checkpoint, Install, ReceivedSegment, SnapshotRecord
from onelog.ual.recovery import finish_install
from onelog.ual.segments.chain import Segment, SegmentSet
from onelog.ual.segments.format import SegmentHeader, segment_name, unsealed_name
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment


@dataclass(frozen=True, slots=True)
class Installation:
    """A verified snapshot and the segments that came with it."""

    base: Base
    snapshot: SnapshotRecord
    keep_through: int  # own sealed segments up to here stay; 0: none
    received: Sequence[SegmentHeader]  # of the files that wait, in order


def install(
    log: Log, files: Files, paths: ShardPaths, new: Installation, notes: ApplyNotes
) -> None:
    """Make the log end at the base; durable on return. A full disk leaves everything as it was.

    ``notes`` receives the notes of the state that starts at the base. Raises ``CorruptFile`` before
    anything is changed if the segments do not form a chain that ends at the base.
    """
    base, directory = new.base, paths.segments
    assert base.index > log.commit_index, (base, log.commit_index)
    log.settle_roll()
    log.manifest_file.settle()
    kept = []
    for segment in log.segments.segments:
        if isinstance(segment, UnsealedSegment) or segment.last_index > new.keep_through:
            break  # an empty segment has the last index of the one before it
        if not isinstance(segment, SealedSegment):
            raise CorruptFile(str(segment.path), "the segment was to be kept, but is damaged", 0)
        kept.append(segment)
    headers = [*(segment.header for segment in kept), *new.received]
    first = headers[0] if headers else SegmentHeader(0, 0, base.index + 1, base.proposal + 1)
    _check_sequence(paths, headers, base)
    generation = log.generation + 1
    checkpoint = Checkpoint(
        first_index=first.first_index,
        first_proposal=first.first_proposal,
        end_index=base.index,
        end_proposal=base.proposal,
        durable_index=base.index,
        commit_index=base.index,
        active_file=unsealed_name(base.index + 1),
        generation=generation,
    )
    segments = tuple(ReceivedSegment(header.first_index) for header in new.received)
    intent = Install(new.keep_through if kept else 0, segments)
    files.sync_directory(directory)  # the names of the files that wait
    files.sync_directory(paths.snapshots)
    log.manifest_file.save(
        replace(
            log.manifest,
            checkpoint=checkpoint,
            cut_from_index=None,
            snapshots=(new.snapshot,),
            base=base,
            install=intent,
        )
    )
    log.generation = generation
    with log.guard.fatal_errors("install a snapshot"):
        finish_install(files, directory, intent)
        parts: list[Segment] = [*kept]
        for header in new.received:
            path = directory / segment_name(header.first_index)
            parts.append(SealedSegment.open(files, path))
        segment_id = max((header.segment_id for header in headers), default=0) + 1
        active = SegmentHeader(
            log.segments.segments[0].header.shard, segment_id, base.index + 1, base.proposal + 1
        )
        parts.append(UnsealedSegment.create(files, directory, active))
    log.begin_behind(base, SegmentSet(tuple(parts), notes))
    log.manifest_file.save(replace(log.manifest, install=None))


def _check_sequence(paths: ShardPaths, headers: Sequence[SegmentHeader], base: Base) -> None:
    end = SegmentHeader(0, 0, base.index + 1, base.proposal + 1)
    for before, after in pairwise([*headers, end]):
        proposals = after.first_proposal - before.first_proposal
        if (
            after.first_index != before.last_index + 1
            or not 1 <= proposals <= after.first_index - before.first_index
        ):
            path = paths.segments / segment_name(before.first_index)
            rule = f"index {after.first_index}, proposal {after.first_proposal} follow it"
            raise CorruptFile(str(path), rule, 0)
