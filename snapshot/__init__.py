"""Snapshots: the state of a shard in a file, so that a restart replays little and a log may end.

::

    errors.py            everything that is refused or reported here, as one tree
    format.py            bytes of ``.fsnap``: SnapshotHeader, SectionHeader, names
    checksum.py          combine: the crc32c of two parts from the crc32c of each
    writer.py            write_snapshot(files, directory, header, created_s, sections)
    reader.py            SnapshotReader.open, verify, chunks
    notes.py     encode_notes, decode_notes, restore_notes: what apply told the log
    progress.py          Phase and Progress: what every long step tells

    state.py             Router and State, what is needed of projections; write_state, load_state
    replay.py            replay(router, entries): whole groups, in order, without a gap
    loading.py           load_newest: the newest snapshot that is in order, and what was not
    store.py             SnapshotStore: MANIFEST's list, install, keep two, tidy
    recovery.py          recover_state(log, store, make_state): restart of a shard
    past.py              PastState: a state of the past, and how it moves forward
    changes.py           key_changes, queue_events: what each entry of a range did, by replay
    points.py            find_columns, read_points: all points of a state

    build.py             Capture, BuildRequest, BuildResult, plan_build, build_in_process
    builder.py           the separate process: ``python -m onelog.snapshot.builder``
    builder_process.py   BuilderProcess: starts, watches, cancels it
    trigger.py           snapshot_due: when a snapshot is due

    offline.py           what ``onelog log replay`` and ``snapshot`` do
    questions.py         Question, answer: what one thing was in a rebuilt state
    offline_queue.py  offline_stream.py  offline_series.py      the answers of each model
    offline_entries.py   what the state only refers to, from the log
    projections/describe.py          describe_entry: a line about any entry, for ``onelog log dump``
    proof.py             what ``onelog log prove`` does
    verification.py      VERIFIERS: the checks of ``onelog log verify`` for snaps/

One rule holds it together: a snapshot is derived, the log is not. Whatever is wrong with a
snapshot, the older one and the log from there on give the same state, and MANIFEST says by a hash
which state that is. docs/snapshots.md has the bytes and the crash story.
"""
