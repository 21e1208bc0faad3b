"""What a node says on stderr: lines for people, or one JSON object a line for machines.

Fields that somebody attached with ``extra={"fields": {...}}`` are part of both. A line is a line:
whatever a peer or a client put into a message, line breaks and control characters are escaped.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def set_up_logging(level: str, style: str, always: Mapping[str, Any]) -> None:
    """Let the process say what it says in this style; ``always`` is part of every JSON line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(always) if style == "json" else _PlainLines(always))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of libraries: only what matters
    logging.getLogger("onelog").setLevel(_LEVELS[level])


def _time_text(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


class _PlainLines(logging.Formatter):
    def __init__(self, always: Mapping[str, Any]) -> None:
        super().__init__()
        worker = always.get("worker")
        self._mark = "" if worker is None else f" [{worker}]"

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        shown = "".join(f" {name}={value}" for name, value in fields.items())
        level = "" if record.levelno == logging.INFO else f" {record.levelname}"
        text = (
            f"{_time_text(record.created)}{self._mark}{level} {record.name}: "
            f"{record.getMessage()}{shown}"
        )
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class _JsonLines(logging.Formatter):
    def __init__(self, always: Mapping[str, Any]) -> None:
        super().__init__()
        self._always = dict(always)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
