"""Raft groups over the log, on pysyncobj.

``raft`` is one member of a group; read ``messages``, ``journal``, ``member``, ``reads``.
``transport`` takes its messages to other processes. docs/replication.md has the arguments.
"""
