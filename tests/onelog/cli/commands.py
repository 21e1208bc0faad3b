"""Command lines as tests write them."""

import io
import json
import sys
from typing import Any, NamedTuple

import pytest

from onelog.cli.main import run


class Ran(NamedTuple):
    """What a command line did."""

    code: int
    data: bytes
    err: str

    @property
    def out(self) -> str:
        return self.data.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def lines(self) -> list[Any]:
        """What was printed as JSON, line by line."""
        return [json.loads(line) for line in self.data.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        """What was printed as a table, cell by cell."""
        return [line.split() for line in self.out.splitlines()]


class Cli:
    """Runs command lines in this process, as the real program would."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[bytes]
    ) -> None:
        self._monkeypatch = monkeypatch
        self._captured = captured

    def __call__(self, *arguments: object, stdin: bytes = b"", code: int | None = 0) -> Ran:
        """Run it, and expect the exit code (None: any); errors are one line."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._captured.readouterr()
        found = run([str(each) for each in arguments])
        out, err = self._captured.readouterr()
        ran = Ran(found, out, err.decode())
        assert found == (found if code is None else code), ran
        # Only who asks for the very bytes gets what a terminal would obey.
        assert b"\x1b" not in (err if "--raw" in arguments else out + err)
        assert "Traceback" not in ran.err
        assert "INTERNAL" not in ran.err
        if "error:" in ran.err:
            assert ran.err.count("\n") == 1, ran.err
            assert found, ran
        return ran

    def json(self, *arguments: object, stdin: bytes = b"", code: int = 0) -> Any:
        """Return the document that a command prints."""
        return self(*arguments, "--json", stdin=stdin, code=code).json

    def lines(self, *arguments: object, stdin: bytes = b"", code: int = 0) -> list[Any]:
        """Return the documents that a command prints, one in each line."""
        return self(*arguments, "--json", stdin=stdin, code=code).lines
