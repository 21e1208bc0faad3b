"""Runs ``onelog`` for shell scripts without the half second that a start of it takes.

A process that has loaded everything waits at a socket; the program ``onelog`` that scripts find in
their path hands its arguments and its three streams over, and a fork does what the real one would.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]

SHIM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as to:
    to.connect({path!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(to, [len(request).to_bytes(4, "big")], [0, 1, 2])
    to.sendall(request)
    code = to.recv(1)
sys.exit(code[0] if code else 70)
"""


@contextmanager
def forking(directory: Path) -> Iterator[Path]:
    """Return a directory for PATH whose ``onelog`` is quick."""
    path = directory / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(16)
        program = directory / "onelog"
        program.write_text(SHIM.format(python=sys.executable, path=str(path)))
        program.chmod(0o755)
        command = [sys.executable, "-m", "tests.onelog.cli.forking", str(listening.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[listening.fileno()])
    try:
        yield directory
    finally:
        process.terminate()
        process.wait(30)


def serve(number: int) -> None:
    """Load everything, then fork for whoever asks."""
    import onelog
    from onelog.cli import main, program

    for name in onelog.__all__:
        getattr(onelog, name)
    for name in program.GROUPS:
        program.tree().get_command(None, name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    listening = socket.socket(fileno=number)
    while True:
        asking, _ = listening.accept()
        if os.fork():
            asking.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listening.close()
        answer(asking, main.run)


def answer(asking: socket.socket, run: object) -> None:
    head, streams, _, _ = socket.recv_fds(asking, 4, 3)
    size, data = int.from_bytes(head, "big"), b""
    while len(data) < size:
        data += asking.recv(size - len(data))
    arguments, directory, environment = json.loads(data)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # The old ones believe that they are what the server's streams were: files that can seek.
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    assert callable(run)
    code = run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    asking.sendall(bytes([code]))
    os._exit(0)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
