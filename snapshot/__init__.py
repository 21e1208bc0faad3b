"""Snapshots: the state of a shard in a file, so that a restart replays little and a log may end.

::

    errors            everything that is refused or reported here, as one tree
    format            bytes of ``.fsnap``: SnapshotHeader, SectionHeader, names; combined checksums
    writer, reader    write_snapshot(files, directory, header, …); SnapshotReader.open, verify
    notes             encode_notes, decode_notes, restore_notes: what apply told the log
    progress          Phase and Progress: what every long step tells

    state             Router and State, what is needed of projections; write_state, load_state
    replay            replay(router, entries): whole groups, in order, without a gap
    loading           load_newest: the newest snapshot that is in order, and what was not
    store             SnapshotStore: MANIFEST's list, install, keep two, tidy
    recovery          recover_state(log, store, make_state): restart of a shard
    past              PastState: a state of the past, and how it moves forward
    changes           key_changes, queue_events: what each entry of a range did, by replay
    points            find_columns, read_points: all points of a state

    build             BuildRequest, BuildResult, the process: ``python -m onelog.snapshot.build``
    builder_process   BuilderProcess: starts, watches, cancels it
    trigger           snapshot_due: when a snapshot is due

    offline           what ``onelog log replay`` and ``snapshot`` do
    questions         Question, answer: what one thing was in a rebuilt state
    proof             ``onelog log prove``, and what ``onelog log verify`` checks in snaps/

One rule holds it together: a snapshot is derived, the log is not. Whatever is wrong with a
snapshot, the older one and the log from there on give the same state, and MANIFEST says by a hash
which state that is. docs/snapshots.md has the bytes and the crash story.
"""
