"""Snapshots that a node takes, and states of the past."""
