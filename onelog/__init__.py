"""What applications import, and the ``onelog`` command."""
