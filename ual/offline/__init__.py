"""Inspecting, verifying and repairing a data directory without a server.

::

    reader    ReadOnlyFiles and OfflineLog: read a directory that may be damaged or in use
    inspect   what a directory holds, as plain values (``onelog log inspect``)
    verify    check every file and every promise; returns findings (``onelog log verify``)
    rebuild   make a damaged sealed segment whole again, if that can be proved
    repair    plan and apply the remedies of the findings (``onelog log repair``)

Begin with ``reader``. The command line and ``snapshot`` import this package; the server's write
path does not.
"""
