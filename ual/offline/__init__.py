"""Reading, checking and repairing a data directory without a server."""
