"""What a node says: one line is one line, for people and for machines."""

import json
import logging
from collections.abc import Iterator

import pytest

from onelog.node.main import set_up_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Give the root logger back as it was."""
    root, ours = logging.getLogger(), logging.getLogger("onelog")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_json_lines_have_fields_and_escape_everything(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "json", {"node": "n1", "worker": 2})
    log = logging.getLogger("onelog.test")
    log.info("two\nlines of %s", "somebody", extra={"fields": {"api": "a:1"}})
    log.debug("too little")
    logging.getLogger("somebody.else").info("not ours")
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found["message"] == "two\nlines of somebody"
    assert (found["api"], found["node"], found["worker"]) == ("a:1", "n1", 2)
    assert (found["level"], found["logger"]) == ("info", "onelog.test")


def test_plain_lines_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("debug", "plain", {"node": "n1"})
    logging.getLogger("onelog.test").warning("a\n2026-01-01 forged \x1b[31m", extra={})
    (line,) = capsys.readouterr().err.splitlines()
    assert " WARNING onelog.test: a\\n2026-01-01 forged \\x1b[31m" in line


def test_errors_come_with_where_they_happened(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "json", {})
    try:
        [].pop()
    except IndexError:
        logging.getLogger("onelog.test").exception("it failed")
    found = json.loads(capsys.readouterr().err)
    assert "IndexError: pop from empty list" in found["exception"]
