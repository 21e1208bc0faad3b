"""Snapshots: the state of a shard in a file, for short restarts and so that the log can be trimmed.

::

    errors            everything that is refused or reported here, as one tree
    format            bytes of ``.fsnap``: SnapshotHeader, SectionHeader, names; combined checksums
    writer, reader    write_snapshot(files, directory, header, …); SnapshotReader.open, verify
    notes             the notes section: streams and voids of unsealed entries
    progress          Phase and Progress: the progress reports of long steps

    state             the Protocols Router and State; write_state, load_state
    replay            replay(router, entries): whole groups, in order, without a gap
    loading           load_newest: the newest usable snapshot, and the rejected ones
    store             SnapshotStore: MANIFEST's list; install, keep two, tidy
    recovery          recover_state(log, store, make_state): restart of a shard
    past              PastState: a state of the past, and how it moves forward
    changes           key_changes, queue_events: what each entry of a range did, by replay
    points            find_columns, read_points: all time series points of a state

    build             BuildRequest, BuildResult, the process: ``python -m onelog.snapshot.build``
    builder_process   BuilderProcess: starts, watches, cancels it
    trigger           snapshot_due: when a snapshot is due

    offline           what ``onelog log replay`` and ``snapshot`` do
    questions         Question, answer: one key, queue, stream or series in a rebuilt state
    proof             ``onelog log prove``, and what ``onelog log verify`` checks in snaps/

Begin with ``format``, ``state``, ``replay`` and ``recovery``. ``node``, ``spark`` and the command
line import this package; it imports ``projections`` and ``ual``.

One rule holds it together: a snapshot is derived, the log is not. If a snapshot is damaged, the
older one and the log after it give the same state, and MANIFEST has the hash of that state.
docs/snapshots.md has the bytes and the failure story.
"""
