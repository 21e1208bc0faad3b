"""gRPC over HTTP/2 without sockets: bytes in, events out; bytes to send are asked for.

``headers.py`` has header blocks and what gRPC puts into headers, ``http2.py`` the frames, streams
and windows of RFC 9113, ``grpc.py`` the calls on top: begin reading there. Nothing here knows a
socket, a loop or a clock, so that server, client and tests drive the same code. The server around
it is ``node/edge/port.py``, the client ``onelog/channel.py``. It imports nothing of ours.
"""
