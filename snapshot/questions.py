"""Questions about one thing in a rebuilt state: a key, a queue, a stream, a series, a measurement.

A question knows where to ask (the shard of its routing key) and how to answer: with plain values,
ready for JSON. A name that does not exist is an answer: ``exists`` is false.
"""

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from onelog.snapshot.offline import Rebuilt, read_key, shard_of_key
from onelog.snapshot.offline_entries import bytes_fields
from onelog.snapshot.offline_queue import ask_queue
from onelog.snapshot.offline_series import ask_measurement, ask_series, parse_series_text
from onelog.snapshot.offline_stream import ask_stream
from onelog.ual.files import Files

LIST_MAX = 1_000  # messages, records or series that one answer may list


class Subject(Enum):
    """What a question is about; the value is the name of the option and of the answer."""

    KEY = "key"
    QUEUE = "queue"
    STREAM = "stream"
    SERIES = "series"
    MEASUREMENT = "measurement"


@dataclass(frozen=True, slots=True)
class Question:
    """What was ``name`` in ``namespace``? With ``list_max``, say also what is in it."""

    subject: Subject
    name: str  # as a command line has it: bytes that are no text are surrogates
    namespace: str = "default"
    field: str | None = None  # of a series; None: all
    list_max: int = 0

    def check(self) -> None:
        """Raise ``ValueError`` for a name that nothing could have."""
        if self.subject is Subject.SERIES:
            parse_series_text(os.fsencode(self.name))

    @property
    def routing_name(self) -> bytes:
        """The name that says which shard to ask."""
        raw = os.fsencode(self.name)
        if self.subject is Subject.SERIES:
            return parse_series_text(raw).measurement.encode()
        return raw

    @property
    def records_kept(self) -> int:
        """How many records a replay must remember for the answer."""
        return self.list_max if self.subject is Subject.STREAM else 0

    def shard(self, files: Files, data_dir: Path) -> int:
        """Return the shard that the name lives in."""
        return shard_of_key(files, data_dir, self.routing_name)


def answer(rebuilt: Rebuilt, question: Question) -> dict[str, Any]:
    """Return what the thing was at the index of a rebuilt state."""
    namespace, name, limit = question.namespace, question.name, question.list_max
    fields: dict[str, Any] | None
    match question.subject:
        case Subject.KEY:
            return _answer_key(rebuilt, namespace, os.fsencode(name))
        case Subject.QUEUE:
            fields = ask_queue(rebuilt, namespace, name, limit)
        case Subject.STREAM:
            fields = ask_stream(rebuilt, namespace, name, limit)
        case Subject.MEASUREMENT:
            fields = ask_measurement(rebuilt, namespace, name, limit)
        case Subject.SERIES:
            parsed = parse_series_text(os.fsencode(name))
            fields = ask_series(rebuilt, namespace, parsed, question.field)
    head = {"namespace": namespace, "name": name, "exists": fields is not None}
    return head | (fields or {})


def _answer_key(rebuilt: Rebuilt, namespace: str, key: bytes) -> dict[str, Any]:
    found = read_key(rebuilt, namespace, key)
    fields: dict[str, Any] = {"namespace": namespace, "exists": found is not None}
    fields |= bytes_fields("key", key)
    if found is None:
        return fields
    fields |= bytes_fields("value", found.value)
    return fields | {
        "version": found.version,
        "expires_ns": found.expires_ns,
        "lease": found.lease,
    }
