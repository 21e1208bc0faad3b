"""Files of spans, read as strictly as OTLP's JSON is written down (trace.proto, by hand)."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onelog.node.config.schema import TraceSettings

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"
SERVER, INTERNAL = 2, 1
ERROR = 2

Check = Callable[[Any], bool]


def is_hex(digits: int) -> Check:
    return lambda value: (
        isinstance(value, str)
        and re.fullmatch(f"[0-9a-f]{{{digits}}}", value) is not None
        and int(value, 16) > 0
    )


def is_number_text(value: Any) -> bool:
    """64 bits: a text of digits, since numbers of JSON are doubles to many readers."""
    return isinstance(value, str) and value.isdecimal() and int(value) < 1 << 63


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_text_with_content(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def each(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def message(required: dict[str, Check], optional: dict[str, Check] | None = None) -> Check:
    """An object with these fields, named in lowerCamelCase, and no others."""
    known = required | (optional or {})

    def check(value: Any) -> bool:
        assert isinstance(value, dict), value
        assert set(required) <= set(value) <= set(known), value
        for name, one in value.items():
            assert known[name](one), (name, one)
        return True

    return check


def is_any_value(value: Any) -> bool:
    ((kind, one),) = value.items()
    return {"stringValue": is_text, "intValue": is_number_text}[kind](one)


ATTRIBUTES = each(message({"key": is_text_with_content, "value": is_any_value}))
STATUS = message({}, {"code": lambda value: value in (0, 1, 2), "message": is_text})
EVENT = message({"timeUnixNano": is_number_text, "name": is_text_with_content})
LINK = message({"traceId": is_hex(32), "spanId": is_hex(16)})
SPAN_FORM = message(
    {
        "traceId": is_hex(32),
        "spanId": is_hex(16),
        "name": is_text_with_content,
        "kind": lambda value: value in (INTERNAL, SERVER),
        "startTimeUnixNano": is_number_text,
        "endTimeUnixNano": is_number_text,
        "attributes": ATTRIBUTES,
        "status": STATUS,
    },
    {"parentSpanId": is_hex(16), "events": each(EVENT), "links": each(LINK)},
)
SCOPE = message({"scope": message({"name": is_text_with_content}), "spans": each(SPAN_FORM)})
RESOURCE = message({"resource": message({"attributes": ATTRIBUTES}), "scopeSpans": each(SCOPE)})
REQUEST = message({"resourceSpans": each(RESOURCE)})


@dataclass(frozen=True, slots=True)
class Found:
    """A span of a file."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    started_ns: int
    ended_ns: int
    reason: str
    attributes: dict[str, str | int]
    resource: dict[str, str | int]
    events: dict[str, int] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()


def spans_of(path: Path) -> list[Found]:
    """Return the spans of a file, each of whose lines must be right in every field."""
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    found = []
    for line in data.decode().split("\n")[:-1]:
        request = json.loads(line)
        assert REQUEST(request)
        for resource in request["resourceSpans"]:
            about = values_of(resource["resource"]["attributes"])
            for scope in resource["scopeSpans"]:
                found += [span_of(span, about) for span in scope["spans"]]
    return found


def span_of(span: dict[str, Any], resource: dict[str, str | int]) -> Found:
    started_ns, ended_ns = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    assert started_ns <= ended_ns
    status = span["status"]
    assert status.get("code", 0) == (ERROR if status.get("message") else 0)
    return Found(
        span["name"],
        span["kind"],
        span["traceId"],
        span["spanId"],
        span.get("parentSpanId", ""),
        started_ns,
        ended_ns,
        status.get("message", ""),
        values_of(span["attributes"]),
        resource,
        {each["name"]: int(each["timeUnixNano"]) for each in span.get("events", ())},
        tuple((each["traceId"], each["spanId"]) for each in span.get("links", ())),
    )


def values_of(attributes: list[dict[str, Any]]) -> dict[str, str | int]:
    found = {
        each["key"]: int(each["value"]["intValue"])
        if "intValue" in each["value"]
        else each["value"]["stringValue"]
        for each in attributes
    }
    assert len(found) == len(attributes), attributes
    return found


def traced_to(path: Path, ratio: float = 0.0) -> TraceSettings:
    return TraceSettings(file=path, ratio=ratio)


def servers(spans: list[Found]) -> list[Found]:
    return [span for span in spans if span.kind == SERVER]
