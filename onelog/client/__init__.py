"""The Python client: an async core (``aio``), and a facade for programs without an event loop.

Bottom up: ``channels`` and ``topology`` know where to call, ``calls`` makes single calls, ``pipe``
and ``lanes`` carry many operations in one message, ``sessions`` makes retries exact, and
``connection`` holds them together. On top of it is one file for each thing that users see.
"""
