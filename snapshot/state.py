"""The state that snapshots hold: the Protocols for it, and how it is written and loaded.

``Router`` is the part of ``onelog.projections.router.ProjectionRouter`` that this package uses,
``State`` is anything that has one: the server passes in
``onelog.projections.shard_state.Projections`` and gets the same back. They are Protocols so that
the machinery around them is also tested with states of a few lines.

A snapshot's sections are the router's own, by owner, and the notes (snapshot/notes.py).
Equal states give equal files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Protocol, TypeVar

from onelog.projections.errors import CorruptSection
from onelog.snapshot.errors import CorruptSnapshot
from onelog.snapshot.format import SECTION_NOTES, SnapshotHeader
from onelog.snapshot.notes import CoveredNotes, decode_notes, encode_notes
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.writer import FREE_BYTES_MIN, Section, WrittenSnapshot, write_snapshot
from onelog.ual.entry import Entry
from onelog.ual.files import Files


class Router(Protocol):
    """Applies entries; owns the projections of one shard."""

    @property
    def applied_index(self) -> int:
        """The last index in the state."""

    def apply(self, entry: Entry, /) -> object:
        """Fold the next entry into the state."""

    def apply_group(self, entries: Sequence[Entry], /) -> object:
        """Fold a whole group into the state."""

    def state_hash(self) -> int:
        """Return the 64-bit hash of the logical content."""

    def counts(self) -> Mapping[str, int]:
        """Return how many things there are, by kind."""

    def dump(self) -> Mapping[int, Iterable[bytes]]:
        """Return each section by owner, in bounded chunks; consumed before the next apply."""

    def load(self, sections: Mapping[int, Iterable[bytes]], /) -> None:
        """Take over the content of sections, if fresh; raise ``CorruptSection``."""


class State(Protocol):
    """A router with whatever reads from it."""

    @property
    def router(self) -> Router:
        """What the log is applied to."""


StateT = TypeVar("StateT", bound=State)


def hash_text(router: Router) -> str:
    """Return the state hash as MANIFEST writes it."""
    return f"{router.state_hash():016x}"


def write_state(
    files: Files,
    directory: Path,
    header: SnapshotHeader,
    created_s: int,
    router: Router,
    notes: CoveredNotes,
    *,
    free_bytes_min: int = FREE_BYTES_MIN,
    progress: Progress = no_progress,
) -> WrittenSnapshot:
    """Write the state, which is at the index of ``header``, and its notes."""
    assert router.applied_index == header.index, (router.applied_index, header.index)

    def sections() -> Iterator[Section]:
        yield from sorted(router.dump().items(), key=itemgetter(0))
        yield SECTION_NOTES, encode_notes(notes)

    return write_snapshot(
        files,
        directory,
        header,
        created_s,
        sections(),
        free_bytes_min=free_bytes_min,
        progress=progress,
    )


def load_state(
    reader: SnapshotReader, router: Router, progress: Progress = no_progress
) -> CoveredNotes:
    """Load a verified snapshot into a fresh router and return its notes.

    After ``CorruptSnapshot`` the router must be discarded. The checksums were verified before, so
    the only remaining failure is a section whose content breaks its own rules.
    """
    path = str(reader.path)
    owners = [kind for kind in reader.section_types if kind != SECTION_NOTES]
    try:
        router.load({owner: reader.chunks(owner, progress) for owner in owners})
        notes = decode_notes(reader.chunks(SECTION_NOTES, progress), reader.header.index)
    except CorruptSection as error:
        raise CorruptSnapshot(path, error.rule, None, error.owner) from error
    if router.applied_index != reader.header.index:
        rule = f"the state is at index {router.applied_index}, the header at {reader.header.index}"
        raise CorruptSnapshot(path, rule)
    return notes
