"""The ``onelog`` command."""
