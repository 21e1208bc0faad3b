"""The options of a write: its target, its job, how long to try.

``parse_write`` takes Spark's options, which are text; ``onelog import`` turns its flags into the
same options, so that both are checked by the same rules. All are checked before anything is
written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from onelog.client.options import DEFAULT_ENDPOINT, ClientOptions
from onelog.errors import InvalidArgument
from onelog.spark.load.progress import Job
from onelog.spark.load.series import Series
from onelog.spark.load.shard_writer import Limits
from onelog.spark.load.targets import Keys, Queue, Stream, Target
from onelog.spark.options import parse_tls

TTL_S_MAX = 100 * 365 * 86_400.0
_OF_ALL = frozenset((
    "to", "endpoint", "namespace", "job", "timeout", "progress_ttl",
    "tls", "tls_ca", "tls_cert", "tls_key", "tls_name",
))  # fmt: skip
# Options of each target besides those.
_OF_TARGETS = {
    "keys": (),
    "stream": ("stream",),
    "queue": ("queue",),
    "series": ("measurement", "time", "tags", "fields"),
}
# Options that Spark itself adds.
_OF_SPARK = frozenset(("checkpointlocation", "queryname"))
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """The parsed options of a write."""

    target: Target
    endpoints: tuple[str, ...]
    options: ClientOptions
    limits: Limits
    job: Job | None  # None: the options name none


def parse_write(options: Mapping[str, str]) -> WriteSettings:
    """Parse options; refuse unknown and wrong ones."""
    given = {name.lower(): text for name, text in options.items()}
    to = given.get("to", "")
    if to not in _OF_TARGETS:
        raise InvalidArgument(
            f"the option to is {to!r}; it is one of {', '.join(_OF_TARGETS)}",
            reason="TARGET_UNKNOWN",
        )
    unknown = sorted(set(given) - _OF_ALL - _OF_SPARK - set(_OF_TARGETS[to]))
    if unknown:
        known = ", ".join(sorted(_OF_ALL | set(_OF_TARGETS[to])))
        raise InvalidArgument(
            f"a write to {to} has no option {unknown[0]!r}; there are {known}",
            reason="OPTION_UNKNOWN",
            metadata={"option": unknown[0]},
        )
    default = Limits()
    limits = Limits(
        _seconds(given, "timeout", default.timeout_s),
        _seconds(given, "progress_ttl", default.progress_ttl_s),
    )
    return WriteSettings(
        _target(to, given),
        _endpoints(given.get("endpoint", DEFAULT_ENDPOINT)),
        ClientOptions(tls=parse_tls(given)),
        limits,
        Job(given["job"]) if "job" in given else None,
    )


def _target(to: str, given: Mapping[str, str]) -> Target:
    namespace = given.get("namespace", "")
    match to:
        case "keys":
            return Keys(namespace)
        case "stream":
            return Stream(namespace, given.get("stream", ""))
        case "queue":
            return Queue(namespace, given.get("queue", ""))
        case _:
            return Series(
                namespace,
                given.get("measurement", ""),
                time=given.get("time", "time"),
                tags=_names(given.get("tags", "")),
                fields=_names(given.get("fields", "")),
            )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for each in text.split(",") if (name := each.strip()))


def _endpoints(text: str) -> tuple[str, ...]:
    found = _names(text)
    for each in found:
        host, colon, port = each.rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65_536):
            raise InvalidArgument(f"{each!r} is not HOST:PORT", reason="ENDPOINT_INVALID")
    if not found:
        raise InvalidArgument("no endpoint is named", reason="ENDPOINT_INVALID")
    return found


def _seconds(given: Mapping[str, str], name: str, default_s: float) -> float:
    """Return a duration in seconds from a text like ``30s``."""
    text = given.get(name)
    if text is None:
        return default_s
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds <= TTL_S_MAX:
        raise InvalidArgument(
            f"the option {name} is {text!r}, which is no duration like 90s, 30m or 7d",
            reason="OPTION_INVALID",
            metadata={"option": name},
        )
    return seconds
