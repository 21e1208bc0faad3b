"""Raft on the log: members, elections, the journal, catching up."""
