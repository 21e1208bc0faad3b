"""The processes of a local cluster: told apart from any other, signalled, and waited for.

A process number is used again after its process has ended, so a number alone is no identity. With
it goes the moment at which the kernel started the process, and in which boot. A signal goes through
a descriptor of the process (pidfd), opened before the identity is looked at: whatever ends or
begins in between, no other process can get it.

A process that has ended counts as gone, also while its parent has not noticed yet (a zombie).
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Fields of /proc/PID/stat behind the name, which is in brackets and may hold anything.
_STATE_FIELD, _THREADS_FIELD, _START_FIELD = 0, 17, 19
_ENDED_STATES = ("Z", "X")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, and never another one with the same number."""

    pid: int
    started: str

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return _started(self.pid) == self.started


def launch(
    command: Sequence[str], *, directory: Path, output: Path, environment: Mapping[str, str]
) -> ProcessIdentity:
    """Start a process that outlives this one and hears no signal of its terminal."""
    with output.open("ab") as sink:
        process = subprocess.Popen(  # noqa: S603 - the command is our own
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    # Until it is waited for its number cannot be used again, even if it has ended already.
    started = _started(process.pid) or "ended"
    # It is meant to go on by itself; without this the object would warn that it does.
    process.returncode = 0
    return ProcessIdentity(process.pid, started)


def send(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to this process and no other; tell whether it was there to get it."""
    with _descriptor(identity) as descriptor:
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        return True


def wait_for_end(identities: Iterable[ProcessIdentity], within_s: float) -> list[ProcessIdentity]:
    """Wait until these have ended; return those that have not in time."""
    deadline_s = time.monotonic() + within_s
    left = []
    for identity in identities:
        with _descriptor(identity) as descriptor:
            if descriptor is None:
                continue
            wait_ms = max(0.0, deadline_s - time.monotonic()) * 1000
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)  # readable: it has ended
            if not poll.poll(wait_ms):
                left.append(identity)
    return left


@contextmanager
def _descriptor(identity: ProcessIdentity) -> Iterator[int | None]:
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if identity.is_running else None
    finally:
        os.close(descriptor)


def _started(pid: int) -> str | None:
    """Return when a process was started, in ticks of which boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = _BOOT_ID.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[_STATE_FIELD] in _ENDED_STATES and int(fields[_THREADS_FIELD]) <= 1:
        return None  # with other threads left it still has its ports and its files
    return f"{boot}/{fields[_START_FIELD]}"
