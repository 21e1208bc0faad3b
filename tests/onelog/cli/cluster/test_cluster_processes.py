"""Processes of a local cluster: which are still there."""

import os
import signal
import sys
from pathlib import Path

from onelog.cli.cluster.processes import launch, wait_for_end
from tests.system.nodes import until

# Its first thread ends, and another one goes on; 60 is exit(2), which ends one thread.
SPLIT = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)
"""
WAIT_S = 120.0


def test_a_process_is_there_until_its_last_thread_has_ended(tmp_path: Path) -> None:
    """A kill ends the threads one by one, and the ports stay taken until the last is gone."""
    process = launch(
        [sys.executable, "-c", SPLIT], directory=tmp_path, output=tmp_path / "out", environment={}
    )
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        assert process.is_running
        assert wait_for_end([process], 0.0) == [process]
    finally:
        os.kill(process.pid, signal.SIGKILL)
    assert wait_for_end([process], WAIT_S) == []
    assert not process.is_running
