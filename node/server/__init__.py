"""The process: how everything is wired, started and stopped."""
