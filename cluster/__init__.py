"""Raft groups over the log. Empty so far: replication is not built yet."""
