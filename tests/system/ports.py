"""Ports for servers that tests start, which nobody else takes before they listen on them.

A port that the system chooses is free at that moment, but the next who connects to anything may be
given it: then the server cannot listen. So these are below the range that Linux gives to those who
connect (32,768 to 60,999). Each worker of the test run has its own part of them and goes round in
it, so that none takes what another one was just given.
"""

import os
import random
import socket
from itertools import count

FIRST, LAST = 12_000, 32_000
ROOM = 4


def free_ports(wanted: int) -> int:
    """Return the first of so many ports in a row that nobody listens on."""
    for _ in range(_SPAN):
        at = next(_PLACES) % (_SPAN - wanted)
        ports = range(_START + at, _START + at + wanted)
        if all(map(_is_free, ports)):
            for _ in range(wanted - 1):
                next(_PLACES)
            return ports[0]
    raise AssertionError(f"there are no {wanted} ports in a row")


def free_addresses(wanted: int) -> list[str]:
    """Return addresses that nobody listens on, with room for some workers behind each."""
    return [f"127.0.0.1:{free_ports(ROOM)}" for _ in range(wanted)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_SPAN = (LAST - FIRST) // _WORKERS
_START = FIRST + _WORKER * _SPAN
_PLACES = count(random.SystemRandom().randrange(_SPAN))
