"""Raft groups over the log, on pysyncobj. In work: no server uses it yet.

Read in this order: ``messages``, ``journal``, ``member``, ``reads``, ``log_time``.
"""
