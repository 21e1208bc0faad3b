"""The ids of queues by name, in a directory: entries of the log say ids and not names.

A queue is named where it is created. Where the log begins later, the newest snapshot has the queues
that were there. A name that was used again means all queues that had it.
"""

from collections.abc import Iterator, Sequence

from onelog.spark.columns.log import VIEW
from onelog.spark.columns.operations import types_of
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request
from onelog.spark.origin import Origin, Range
from onelog.spark.shard_files import ShardFiles


def find_created(
    origin: Origin, wanted: Range, namespaces: Sequence[str] | None
) -> Iterator[tuple[int, str]]:
    """Yield id and name of the queues that the entries of a range create."""
    spaces = None if namespaces is None else frozenset(name.encode() for name in namespaces)
    selection = Selection(types=types_of("queue", "queue_create"), namespaces=spaces)
    request = Request(selection, frozenset(("index", "name_text")))
    for split in origin.splits([wanted], selection):
        for block in origin.blocks(split, selection):
            for batch in VIEW.batches(block, request):
                ids, names = batch.column("index"), batch.column("name_text")
                yield from zip(ids.to_pylist(), names.to_pylist(), strict=True)


def find_in_snapshot(
    files: ShardFiles, names: Sequence[str], namespaces: Sequence[str] | None
) -> Iterator[tuple[int, str]]:
    """Yield id and name of the queues with these names in the newest snapshot that can be read."""
    # Only who asks for queues of a log whose beginning is gone needs the state.
    from onelog.snapshot.loading import load_newest
    from onelog.snapshot.offline import fresh_projections
    from onelog.ual.segments.notes import ApplyNotes

    loaded, _ = load_newest(
        files.reader,
        files.paths.snapshots,
        files.shard,
        files.list().snapshots,
        fresh_projections,
        ApplyNotes(),
    )
    if loaded is None:
        return
    state = loaded.state
    spaces = [each.name for each in state.system.namespaces] if namespaces is None else namespaces
    for namespace in spaces:
        for name in names:
            # Of the names that begin with it, a name itself is the first.
            first = state.queue.list_queues(namespace, limit=1, prefix=name)
            if isinstance(first, list) and first and first[0][0] == name:
                yield first[0][1], name
