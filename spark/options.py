"""The options of a read, parsed and checked as far as possible without the log.

=====================  ============================================================================
``endpoint``           nodes of a cluster, ``host:port`` each, separated by commas; or
``path``               a directory (``load(path)``): see ``onelog.spark.places``
``view``               the table: ``log``, ``kv_operations``, …
``from_index``         first entry of each shard, or ``shard=index,…`` for some of them
``to_index``           last entry, included; likewise
``from_time``          first log time, ISO 8601 (UTC unless it says otherwise) or nanoseconds
``to_time``            last log time, included; the first entry of a log has time 0
``since``              the path of an export's receipt: read only what follows its last entries
``shards``             only these shards, by number
``owners``             only entries of these: system, kv, queue, timeseries, stream
``types``              only these operations: a name (``put``), ``owner.name`` or a number;
                       a name that two owners have means both
``namespaces``         only entries of these namespaces
``streams``            only entries about these streams; likewise ``queues``, ``measurements``
``key_prefix``         only keys that begin with this text; ``key_prefix_hex``: with these bytes
``columns``            only these columns
``bytes_per_second_max``  how fast a server sends to each task; only with ``endpoint``
``tls``                ``true``; ``tls_ca``, ``tls_cert``, ``tls_key`` (paths of PEM files, read
                       on the driver) and ``tls_name``: as in the client
=====================  ============================================================================

A list is separated by commas. A list that begins with ``[`` is a JSON array, for names that have
commas: ``["a,b", "c"]``.

A wrong value raises ``InvalidArgument`` with a stable reason; the message names the option, the
value and what is allowed.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onelog.errors import InvalidArgument
from onelog.spark.columns.operations import OPERATIONS, OWNERS
from onelog.spark.columns.selection import TIME_NS_MAX
from onelog.spark.columns.view import View

if TYPE_CHECKING:
    from onelog.client.options import Tls

INDEX_MAX = (1 << 63) - 1
SHARD_MAX = 65_535
LIST_ITEMS_MAX = 10_000

_NAMES = frozenset(("namespaces", "streams", "queues", "measurements", "key_prefix"))
SECURITY = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_name")
_ONLY_ENDPOINT = ("bytes_per_second_max", *SECURITY)
_KNOWN = (
    "endpoint", "path", "view", "from_index", "to_index", "from_time", "to_time", "since", "shards",
    "owners", "types", *sorted(_NAMES), "key_prefix_hex", "columns", *_ONLY_ENDPOINT,
)  # fmt: skip

# The names that each view can be pruned by; other views only by namespaces.
_CONCERNS = {
    "log": _NAMES | {"owners"},
    "kv_operations": frozenset(("namespaces", "key_prefix")),
    "queue_operations": frozenset(("namespaces", "queues")),
    "stream": frozenset(("namespaces", "streams")),
    "timeseries_operations": frozenset(("namespaces", "measurements")),
    "kv": frozenset(("namespaces", "key_prefix")),
    "kv_versions": frozenset(("namespaces", "key_prefix")),
    "timeseries": frozenset(("namespaces", "measurements")),
    "kv_changes": frozenset(("namespaces", "key_prefix")),
    "queue_events": frozenset(("namespaces", "queues")),
}

# Options of views of entries only.
_ONLY_ENTRIES = ("from_index", "to_index", "from_time", "to_time", "since", "owners", "types")

# One index for all shards, or an index by shard.
Bound = int | dict[int, int]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read asks for; see the module's text. None is no limit."""

    view: View
    path: str | None = None
    endpoints: tuple[str, ...] = ()
    from_index: Bound | None = None
    to_index: Bound | None = None
    from_time_ns: int = 0
    to_time_ns: int = TIME_NS_MAX
    since: str | None = None
    shards: tuple[int, ...] | None = None
    owners: frozenset[int] | None = None
    types: frozenset[int] | None = None
    namespaces: frozenset[bytes] | None = None
    streams: frozenset[bytes] | None = None
    queues: tuple[str, ...] | None = None
    measurements: frozenset[bytes] | None = None
    key_prefix: bytes | None = None
    columns: tuple[str, ...] | None = None
    bytes_per_second_max: int = 0
    security: tuple[tuple[str, str], ...] = ()  # tls_*, as far as they were given

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        views: Mapping[str, View],
        *,
        others: Collection[str] = (),
    ) -> "ReadOptions":
        """Return checked options; ``others``: names that are known and checked elsewhere."""
        given = {name.lower(): value for name, value in options.items()}
        for name in others:
            given.pop(name, None)
        for name in given:
            if name not in _KNOWN:
                allowed = f"one of {', '.join((*_KNOWN, *others))}"
                raise bad("OPTION_UNKNOWN", name, given[name], allowed)
        view = _view(given.get("view"), views)
        _refuse_unconcerned(view, given)
        path, endpoints = _where(given)
        from_time, to_time = _time(given, "from_time", 0), _time(given, "to_time", TIME_NS_MAX)
        if from_time > to_time:
            raise _backwards("from_time", given["from_time"], "to_time", given["to_time"])
        read = cls(
            view=view,
            path=path,
            endpoints=endpoints,
            from_index=parse_bound(given, "from_index"),
            to_index=parse_bound(given, "to_index"),
            from_time_ns=from_time,
            to_time_ns=to_time,
            since=given.get("since"),
            shards=_shards(given),
            owners=_owners(given),
            types=_types(given, view),
            namespaces=_names(given, "namespaces"),
            streams=_names(given, "streams"),
            queues=_texts(given, "queues"),
            measurements=_names(given, "measurements"),
            key_prefix=_key_prefix(given),
            columns=_columns(given, view),
            bytes_per_second_max=_number(given, "bytes_per_second_max", 0, INDEX_MAX) or 0,
            security=tuple((name, given[name]) for name in SECURITY if name in given),
        )
        read._refuse_contradictions(given)
        return read

    def bound(self, bound: Bound | None, shard: int) -> int | None:
        """Return the bound of one shard; None: it has none."""
        return bound.get(shard) if isinstance(bound, dict) else bound

    def _refuse_contradictions(self, given: Mapping[str, str]) -> None:
        if self.since is not None and self.from_index is not None:
            raise bad("OPTION_CONFLICT", "since", self.since, "no from_index beside it")
        for name, bound in (("from_index", self.from_index), ("to_index", self.to_index)):
            for named in bound if isinstance(bound, dict) else ():
                if self.shards is not None and named not in self.shards:
                    raise bad("OPTION_CONFLICT", name, given[name], "only shards that are read")
        # One number that neither bound names stands for all shards that they do not name.
        shards = {SHARD_MAX + 1}
        for bound in (self.from_index, self.to_index):
            shards |= set(bound) if isinstance(bound, dict) else set()
        for shard in shards:
            first, last = self.bound(self.from_index, shard), self.bound(self.to_index, shard)
            if first is not None and last is not None and first > last:
                raise _backwards("from_index", given["from_index"], "to_index", given["to_index"])


def bad(reason: str, name: str, value: str, allowed: str) -> InvalidArgument:
    """Return the error of a wrong option."""
    return InvalidArgument(
        f"option {name} is {value!r}; allowed: {allowed}", reason=reason, metadata={"option": name}
    )


def split_list(name: str, value: str) -> tuple[str, ...]:
    """Return the items of a list; see the module's text."""
    text = value.strip()
    if text.startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            items = None
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise bad("OPTION_INVALID", name, value, "names separated by commas, or a JSON array")
    else:
        items = [item.strip() for item in text.split(",")]
    if not items or not all(items) or len(items) > LIST_ITEMS_MAX:
        raise bad("OPTION_INVALID", name, value, f"1 to {LIST_ITEMS_MAX} names, none empty")
    return tuple(dict.fromkeys(items))


def parse_time(name: str, value: str) -> int:
    """Return a time in nanoseconds since 1970."""
    allowed = "ISO 8601 (2026-01-31T12:00:00Z) or nanoseconds since 1970, not below 0"
    text = value.strip()
    if text.isascii() and text.isdigit():
        found = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise bad("TIME_INVALID", name, value, allowed) from None
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        found = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
    if not 0 <= found <= TIME_NS_MAX:
        raise bad("TIME_INVALID", name, value, allowed)
    return found


def parse_tls(given: Mapping[str, str]) -> "Tls | None":
    """Return the certificates, read here on the driver; they travel to the tasks."""
    parts = {name: given.get(f"tls_{name}", "") for name in ("ca", "cert", "key", "name")}
    wanted = given.get("tls", "false").lower()
    if wanted not in ("true", "false"):
        raise InvalidArgument("the option tls is true or false", reason="OPTION_INVALID")
    if wanted == "false" and not any(parts.values()):
        return None
    if bool(parts["cert"]) != bool(parts["key"]):
        raise InvalidArgument("tls_cert and tls_key belong together", reason="OPTION_INVALID")
    from onelog.client.options import Tls

    contents: dict[str, bytes] = {}
    for name in ("ca", "cert", "key"):
        if parts[name]:
            try:
                with open(os.path.expanduser(parts[name]), "rb") as file:
                    contents[name] = file.read()
            except OSError as error:
                raise InvalidArgument(f"tls_{name}: {error}", reason="OPTION_INVALID") from None
    return Tls(contents.get("ca"), contents.get("cert"), contents.get("key"), parts["name"] or None)


def _view(value: str | None, views: Mapping[str, View]) -> View:
    found = None if value is None else views.get(value)
    if found is None:
        raise bad("VIEW_UNKNOWN", "view", value or "", f"one of {', '.join(sorted(views))}")
    return found


def _where(given: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    path, endpoint = given.get("path"), given.get("endpoint")
    if not path and not endpoint:
        raise bad("SOURCE_MISSING", "path", "", "a directory, or the option endpoint with nodes")
    if path and endpoint:
        raise bad("OPTION_CONFLICT", "endpoint", endpoint, "either endpoint or path")
    if path:
        for name in _ONLY_ENDPOINT:
            if name in given:
                raise bad("OPTION_UNCONCERNED", name, given[name], "only with endpoint")
        return path, ()
    assert endpoint
    return None, split_list("endpoint", endpoint)


def _refuse_unconcerned(view: View, given: Mapping[str, str]) -> None:
    concerns = _CONCERNS.get(view.name, frozenset(("namespaces",)))
    for name in sorted(_NAMES | {"owners", "key_prefix_hex"}):
        if name in given and name.removesuffix("_hex") not in concerns:
            allowed = f"of the view {view.name} only {', '.join(sorted(concerns))}"
            raise bad("OPTION_UNCONCERNED", name, given[name], allowed)
    for name in _ONLY_ENTRIES if view.shows_state else ():
        if name in given:
            raise bad("OPTION_UNCONCERNED", name, given[name], "as_of_index or as_of_time")
    if view.is_replayed and "types" in given:
        allowed = "a filter on the column operation"
        raise bad("OPTION_UNCONCERNED", "types", given["types"], allowed)


def _time(given: Mapping[str, str], name: str, otherwise: int) -> int:
    return parse_time(name, given[name]) if name in given else otherwise


def _number(given: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    return parse_number(name, given[name], least, most) if name in given else None


def parse_number(name: str, value: str, least: int, most: int) -> int:
    """Return the number that an option gives; refuse one out of bounds."""
    text = value.strip()
    # Check the length before int(): a user's text may have millions of digits.
    if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
        return int(text)
    raise bad("OPTION_INVALID", name, value, f"a number from {least} to {most}")


def parse_bound(given: Mapping[str, str], name: str) -> Bound | None:
    """Return the index that an option gives, for all shards or by shard."""
    if name not in given:
        return None
    value = given[name]
    if "=" not in value:
        return _number(given, name, 1, INDEX_MAX)
    found: dict[int, int] = {}
    for item in value.split(","):
        shard, _, index = item.partition("=")
        number = parse_number(name, shard, 0, SHARD_MAX)
        if number in found:
            raise bad("OPTION_INVALID", name, value, "each shard once")
        found[number] = parse_number(name, index, 1, INDEX_MAX)
    return found


def _shards(given: Mapping[str, str]) -> tuple[int, ...] | None:
    if "shards" not in given:
        return None
    items = split_list("shards", given["shards"])
    return tuple(sorted({parse_number("shards", item, 0, SHARD_MAX) for item in items}))


def _owners(given: Mapping[str, str]) -> frozenset[int] | None:
    if "owners" not in given:
        return None
    names = split_list("owners", given["owners"])
    for name in names:
        if name not in OWNERS:
            raise bad("OWNER_UNKNOWN", "owners", name, f"some of {', '.join(OWNERS)}")
    return frozenset(OWNERS.index(name) for name in names)


def _types(given: Mapping[str, str], view: View) -> frozenset[int] | None:
    if "types" not in given:
        return None
    of_view = {
        number: name
        for number, name in OPERATIONS.items()
        if view.types is None or number in view.types
    }
    found: set[int] = set()
    for item in split_list("types", given["types"]):
        matching = {
            number
            for number, name in of_view.items()
            if item in (name, f"{OWNERS[number >> 8]}.{name}", str(number))
        }
        if not matching:
            names = ", ".join(sorted(set(of_view.values())))
            raise bad("TYPE_UNKNOWN", "types", item, f"operations of {view.name}: {names}")
        found |= matching
    return frozenset(found)


def _texts(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    return split_list(name, given[name]) if name in given else None


def _names(given: Mapping[str, str], name: str) -> frozenset[bytes] | None:
    texts = _texts(given, name)
    return None if texts is None else frozenset(text.encode() for text in texts)


def _key_prefix(given: Mapping[str, str]) -> bytes | None:
    text, digits = given.get("key_prefix"), given.get("key_prefix_hex")
    if text is not None and digits is not None:
        raise bad("OPTION_CONFLICT", "key_prefix_hex", digits, "no key_prefix beside it")
    if digits is None:
        return None if text is None else text.encode()
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise bad("OPTION_INVALID", "key_prefix_hex", digits, "hexadecimal digits") from None


def _columns(given: Mapping[str, str], view: View) -> tuple[str, ...] | None:
    names = _texts(given, "columns")
    for name in names or ():
        if name not in view.schema.names:
            allowed = f"columns of {view.name}: {', '.join(view.schema.names)}"
            raise bad("COLUMN_UNKNOWN", "columns", name, allowed)
    return names


def _backwards(first_name: str, first: str, last_name: str, last: str) -> InvalidArgument:
    return InvalidArgument(
        f"option {first_name} is {first!r}, which is behind {last_name}, {last!r}; "
        f"allowed: {first_name} up to {last_name}",
        reason="RANGE_BACKWARDS",
        metadata={"option": first_name},
    )
