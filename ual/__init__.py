"""The Unified Append Log: typed, checksummed entries in groups, and the files that hold them.

Read in this order: ``entry`` (bytes), ``files`` (the port to a disk), ``log`` (positions and
invariants), ``recovery`` (what a crash leaves), then ``segments`` for the files themselves and
``offline`` for what is done without a server. docs/formats.md has the byte tables. This package
imports nothing of ours.
"""
