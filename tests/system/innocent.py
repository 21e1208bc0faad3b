"""A client that does what clients do, gets and puts one after the other on its own connection."""

import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

from onelog.v1 import kv_pb2
from onelog.wire.grpc import CallEnded, ClientConnection, MessageReceived, WireLimits

CALL_S = 20.0


class Innocent:
    """One connection, one call at a time. A call that fails raises."""

    def __init__(self, address: str, trusted: Path | None = None) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=CALL_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if trusted is not None:
            context = ssl.create_default_context(cafile=trusted)
            context.set_alpn_protocols(["h2"])
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        self._core = ClientConnection(WireLimits(), "localhost")

    def close(self) -> None:
        self._socket.close()

    def get(self, key: bytes) -> bytes:
        request = kv_pb2.GetRequest(key=key)
        answer = kv_pb2.GetResponse.FromString(self._call("Get", request))
        return bytes(answer.item.value)

    def put(self, key: bytes, value: bytes) -> None:
        self._call("Put", kv_pb2.PutRequest(key=key, value=value))

    def _call(self, name: str, request: Any) -> bytes:
        core, answer = self._core, b""
        call = core.start(f"/onelog.v1.KV/{name}", (), CALL_S)
        core.send(call, request.SerializeToString(), is_last=True)
        while True:
            self._socket.sendall(core.take_output())
            received = self._socket.recv(1 << 18)
            if not received:
                raise ConnectionResetError("the server closed an innocent client's connection")
            for event in core.receive(received):
                if isinstance(event, MessageReceived):
                    answer = event.data
                    core.release(call, len(answer))
                elif isinstance(event, CallEnded):
                    assert event.status.code == 0, event.status
                    self._socket.sendall(core.take_output())
                    return answer


class Busy:
    """An innocent client in a thread, from ``with`` to its end; then its calls and failures."""

    def __init__(self, address: str, trusted: Path | None = None) -> None:
        self._address = address
        self._trusted = trusted
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="innocent")
        self.durations_s: list[float] = []
        self.failure: Exception | None = None

    def __enter__(self) -> "Busy":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            client = Innocent(self._address, self._trusted)
            try:
                while not self._is_over.is_set() or not self.durations_s:
                    value = b"%d" % len(self.durations_s)
                    self._timed(client.put, b"innocent", value)
                    found = self._timed(client.get, b"innocent")
                    assert found == value, (found, value)
            finally:
                client.close()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def _timed(self, call: Any, *arguments: bytes) -> Any:
        begin_s = time.perf_counter()
        found = call(*arguments)
        self.durations_s.append(time.perf_counter() - begin_s)
        return found
