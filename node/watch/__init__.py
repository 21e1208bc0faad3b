"""Watches: the events of a log, live or from an old cursor.

* ``watch``: one watcher over all its shards; its docstring explains the whole.
* ``feeds``: one watcher in one shard, and the source that all watchers of the shard share.
* ``events``: turns applied entries into events.
* ``past``: the events of entries that the live state no longer knows enough about.

Imported by ``services`` (stream tails are watchers, too) and ``server``; imports ``edge`` and what
is below it. Begin with ``watch.py``.
"""
