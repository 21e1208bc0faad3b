"""Connections between the processes of a cluster, and the bytes on them.

::

    wire         messages to frames and back, everything from a peer checked
    certificate  which node a certificate proves its holder to be
    connection   frames over TCP or TLS; the listening port
    handshake    may two processes talk? Hello, introductions
    outbox       the messages that wait on one stream, in the order in which they leave
    link         one established stream to a peer
    peers        PeerTransport: all streams of this process; dialling and answering

Begin with ``peers``. ``node`` imports this package; it imports the messages and the membership of
``cluster.raft``.
"""
