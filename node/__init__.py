"""The server process. Empty so far: ``onelog serve`` says so."""
