"""A sync that failed once: nobody may hear of the same file that all is well."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from onelog.ual.files import DiskFiles

WAIT_S = 120.0


def test_a_sync_beside_one_that_fails_does_not_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells one of them, and the other would vouch for pages that are gone."""
    file = DiskFiles().open(tmp_path / "a", create=True)
    begun, goes_on = Event(), Event()

    def fdatasync(_descriptor: int) -> None:
        if begun.is_set():
            return  # the error was told already
        begun.set()
        assert goes_on.wait(WAIT_S)
        raise OSError(errno.EIO, "a page could not be written")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(file.sync)
        assert begun.wait(WAIT_S)
        second = pool.submit(file.sync)
        goes_on.set()

        for sync in (first, second):
            with pytest.raises(OSError, match=r"page|earlier"):
                sync.result(WAIT_S)
    with pytest.raises(OSError, match="earlier"):
        file.sync()
