"""The Unified Append Log: typed, checksummed entries in groups, and the files that hold them.

::

    entry        bytes of entries and groups; compressed payloads
    errors       everything that is refused or reported here, as one tree
    files        the port to a disk: Files, File, replace_file, FreeSpace
    json_file    small JSON files with a checksum

    log          Log: append, sync, seal, cut, drop, read; MANIFEST changes; proposals by number
    log_config   LogConfig: sizes and limits
    ring         HotRing: the newest entries in memory
    jobs         the blocking halves of sync, seal and MANIFEST changes
    frames       stored bytes of a range of entries, for readers of much of the log

    manifest     MANIFEST: what a shard keeps, and how far its log is known to be good
    hard_state   RAFT: term, vote and hints
    directory    the data directory: LOCK, NODE, SYSTEM, paths of a shard
    recovery     open_log: what a crash leaves, and how it is tidied
    install      a snapshot and segments that a peer sent become the log

    segments/    the files of the log: bytes, tables, sealing, checks, exchange
    offline/     inspect, verify and repair a directory without a server

Begin with ``entry``, ``files``, ``log``, then ``recovery``. docs/formats.md has the byte tables.
Every other package may import this one; it imports none of them.
"""
