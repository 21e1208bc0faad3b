"""The builder's process: ``python -m onelog.snapshot.builder``, one request in, one snapshot out.

It reads one line of JSON from stdin (``BuildRequest``) and writes lines of JSON to stdout::

    {"phase": "replay", "done": 4096, "total": 100000}      any number of times
    {"result": {…}}  or  {"error": {"reason": …, "message": …}}   the last line

Stdin stays open while somebody waits for the result. Its end means that the server is gone or has
lost interest, and the builder stops: an orphan would write into a directory that the next server
has tidied. Whatever ends it, by its own hand it leaves no file behind; killed, it leaves a ``.tmp``
that ``BuilderProcess`` or the next opening removes.

It runs at low priority (``BuilderProcess`` sees to that), so that building does not take the
processor from serving, and with the memory that the request allows it.
"""

import json
import os
import resource
import select
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from onelog.projections.errors import ProjectionError
from onelog.projections.shard_state import build_projections
from onelog.snapshot.build import BuildRequest, build_in_process
from onelog.snapshot.errors import BuilderCancelled
from onelog.snapshot.progress import Phase
from onelog.ual.errors import UalError
from onelog.ual.files import DiskFiles

STEPS_PER_PHASE = 100  # reports; few enough that a pipe nobody reads cannot fill up
BYTES_PER_STEP = 64 << 20  # where the end is not known


def main() -> int:
    """Build what stdin asks for; return the exit code."""
    # The messages get a descriptor of their own. Whatever else prints, prints to stderr.
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = BuildRequest.decode(sys.stdin.readline())
    if request.memory_bytes_max:
        # What is written to, not what is mapped: beyond it there is a MemoryError, which is told.
        resource.setrlimit(resource.RLIMIT_DATA, (request.memory_bytes_max,) * 2)
    try:
        result = build_in_process(
            DiskFiles(), request, build_projections, _reporter(messages, _is_abandoned)
        )
    except (UalError, ProjectionError, OSError, MemoryError) as error:
        reason = error.reason if isinstance(error, UalError) else type(error).__name__
        _say(messages, error={"reason": reason, "message": str(error)})
        return 1
    _say(messages, result=asdict(replace(result, memory_bytes_peak=_memory_bytes_peak())))
    return 0


def _memory_bytes_peak() -> int:
    """Return the most memory that this process has held.

    Not ``ru_maxrss``: it counts the moment before this program took the place of a copy of the
    server, so it is never less than what the server holds.
    """
    try:
        status = Path("/proc/self/status").read_text("ascii")
    except OSError:  # another system than Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def _is_abandoned() -> bool:
    """Tell whether the other end of stdin is closed; nothing is sent there after the request."""
    return bool(select.select([0], [], [], 0)[0])


def _reporter(
    messages: TextIO, is_abandoned: Callable[[], bool]
) -> Callable[[Phase, int, int], None]:
    """Return a progress callback that tells each hundredth part once."""
    last: tuple[Phase, int] | None = None

    def report(phase: Phase, done: int, total: int) -> None:
        nonlocal last
        if is_abandoned():
            raise BuilderCancelled("nobody waits for the snapshot any more")
        step = done * STEPS_PER_PHASE // total if total else done // BYTES_PER_STEP
        if last != (phase, step):
            last = phase, step
            _say(messages, phase=phase.value, done=done, total=total)

    return report


def _say(messages: TextIO, **fields: Any) -> None:
    messages.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    sys.exit(main())
