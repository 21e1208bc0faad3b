"""What the code, the protos, the documents and the help name exists, and is as they say.

Reasons and alarms: ``onelog.reasons`` and ``onelog.projections.reasons`` are the list. Commands,
flags, settings, metrics and limits are held against the program. Blocks of code in the documents
are run by others (tests/test_documents.py).
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from google.protobuf import descriptor_pool  # type: ignore[import-untyped]
from google.rpc import code_pb2  # type: ignore[import-untyped]

from onelog import ClientOptions, errors, reasons
from onelog.cli.program import tree
from onelog.node.config.sources import SETTINGS
from onelog.projections.reasons import Reason
from onelog.ual import errors as ual_errors
from scripts.write_reasons import DOCUMENT, document
from tests.documents import ROOT
from tests.fuzz.calls import Calls, errors_in
from tests.fuzz.samples import SAMPLES, World
from tests.fuzz.test_any_request import sample, served
from tests.onelog.cli.test_cli_help import commands
from tests.system.nodes import ServeProcess, get
from tests.test_protos import PROTOS, compiled, parts
from tests.test_tidy import DOCUMENTS, SOURCES, name_of

WORD = re.compile(r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
KINDS = {each.__name__: each for each in vars(errors).values() if isinstance(each, type)}
# Where reasons come from, and what else of theirs is no source of new ones.
PARTS = ("cluster", "node", "onelog", "projections", "snapshot", "spark", "ual")
NOT_SOURCES = ("onelog/v1/", "onelog/reasons.py", "projections/reasons.py")

ERRORS = {**reasons.CALLS, **reasons.CLIENT}
WORDS = (
    reasons.ALARMS, reasons.SERVERS, reasons.FINDINGS, reasons.PEERS, reasons.COMMANDS,
    reasons.GAPS,
)  # fmt: skip
LISTED = frozenset(chain(ERRORS, reasons.TABLES, *WORDS, Reason.__members__))
# Words that look like reasons and are none: variables, options of sockets, words of HTTP/2, of
# other systems and formats, and names of the code.
OTHERS = re.compile(
    r"(ONELOG|PYSPARK|OPENBLAS|XDG|JAVA|TCP|SO|FLO|RLIMIT)_.*|PYTHON_IMAGE|NODE_ID"
    r"|RECORD_LAYER_FAILURE|WRONG_VERSION_NUMBER"
    r"|RST_STREAM|WINDOW_UPDATE|REFUSED_STREAM|ENHANCE_YOUR_CALM"
    r"|PYTHON_VERSION_MISMATCH|DATA_SOURCE_NOT_FOUND|DELTA_BINARY_PACKED|WRITE_FAILED"
    r"|[A-Z_]+_MAX|SECTION_VERSION|PEER_PORT"
)

STATUS_CODES = frozenset(code_pb2.Code.keys())


class Literal(NamedTuple):
    """A word of capitals in the code: where, and the error that it is the reason of."""

    word: str
    place: str
    kind: str


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in SOURCES:
        name = name_of(path)
        if name.split("/")[0] in PARTS and not name.startswith(NOT_SOURCES):
            yield name, ast.parse(path.read_text())


@cache
def literals() -> tuple[Literal, ...]:
    """Return the words of the code that may be reasons."""
    found: list[Literal] = []
    for name, module in sources():
        kinds: dict[int, str] = {}
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                called = node.func
                kind = called.attr if isinstance(called, ast.Attribute) else ""
                kind = called.id if isinstance(called, ast.Name) else kind
                for keyword in node.keywords:
                    if keyword.arg == "reason":
                        kinds[id(keyword.value)] = kind
                if kind in ("invalid", "invalid_argument") and node.args:
                    kinds[id(node.args[0])] = "InvalidArgument"
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {getattr(each, "id", "") for each in targets}
                if names & {"reason", "default_reason"}:
                    kinds[id(node.value)] = "="
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                kind = kinds.get(id(node), "")
                if WORD.fullmatch(node.value) or node.value in LISTED or (kind and node.value):
                    found.append(Literal(node.value, f"{name}:{node.lineno}", kind))
    return tuple(found)


def test_every_reason_of_the_code_is_in_the_list() -> None:
    assert len(literals()) > 500
    unknown = {
        (each.word, each.place)
        for each in literals()
        if each.word not in LISTED and not OTHERS.fullmatch(each.word)
    }
    assert unknown == set()


def test_the_list_has_no_reason_that_the_code_lacks() -> None:
    used = {each.word for each in literals()}
    # Defaults of the classes, and names of status codes for what came without a reason.
    used |= {each.default_reason for each in KINDS.values() if hasattr(each, "default_reason")}
    assert LISTED - used - set(Reason.__members__) == set()


def test_an_error_is_of_the_class_that_the_list_says() -> None:
    listed: defaultdict[str, set[str]] = defaultdict(set)
    for name, (kind, _) in chain(ERRORS.items(), reasons.TABLES.items()):
        listed[name].add(kind.__name__)
    for name, kind in reasons.ALSO.items():
        listed[name].add(kind.__name__)
    for reason in Reason:
        listed[reason.name].add(reasons.find_class(reason.name).__name__)
    wrong = {
        each
        for each in literals()
        if each.kind in KINDS and each.kind not in listed[each.word] and each.word in LISTED
    }
    assert wrong == set()


def test_a_class_that_follows_from_a_reason_is_the_one_of_the_list() -> None:
    """Clients find the class from code and reason alone."""
    for name, (kind, _) in reasons.CALLS.items():
        assert errors.choose_class(kind.code, name) is kind, name


def test_the_page_of_reasons_is_what_the_list_makes() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m scripts.write_reasons"


# Texts


def texts() -> Iterator[tuple[str, str]]:
    """Yield what people read: documents, comments of protos, and the help of commands."""
    for path in DOCUMENTS:
        if path.name != "CHANGELOG.md" and "performance/" not in name_of(path):  # of the past
            yield name_of(path), path.read_text()
    for path in PROTOS:
        comments = re.findall(r"//(.*)$", path.read_text(), re.MULTILINE)
        yield name_of(path), "\n".join(comments)
    for name, command in commands(tree()):
        shown = [each.help or "" for each in command.params]
        yield f"onelog {name} --help", "\n".join((command.help or "", *shown))


@cache
def names_of_protos() -> frozenset[str]:
    """Return the names of values of all enums."""
    found: set[str] = set()
    pool = descriptor_pool.Default()
    for path in PROTOS:
        file = pool.FindFileByName(f"onelog/v1/{path.name}")
        messages = list(file.message_types_by_name.values())
        enums = list(file.enum_types_by_name.values())
        for message in messages:
            messages += message.nested_types
            enums += message.enum_types
        for enum in enums:
            found |= set(enum.values_by_name)
    return frozenset(found)


def test_every_reason_that_a_text_names_is_in_the_list() -> None:
    known = LISTED | names_of_protos() | STATUS_CODES
    unknown = {
        (where, word)
        for where, text in texts()
        for word in WORD.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        if word not in known and not OTHERS.fullmatch(word)
    }
    assert unknown == set()


# Alarms


def test_every_alarm_of_the_code_is_in_the_list() -> None:
    made = set()
    for _, module in sources():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith(
                ("Alarm", "AlarmFound")
            ):
                made |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    # The log's own, whose reasons are those of its errors.
    made |= {ual_errors.DiskFull.reason, ual_errors.TooManyOpenFiles.reason}
    # Of a hold there are two, of which one is chosen.
    assert made | {"HOLD_BROKEN", "HOLD_NOT_KEPT"} == set(reasons.ALARMS)


def test_the_page_for_operators_and_the_proto_name_every_alarm() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    section = re.search(r"^## Alarms$(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    assert section is not None
    rows = re.findall(r"^\| (`.*?) \|", section[1], re.MULTILINE)
    named = [word for row in rows for word in WORD.findall(row)]
    assert sorted(named) == sorted(reasons.ALARMS)
    proto = (ROOT / "proto" / "onelog" / "v1" / "admin.proto").read_text()
    comment = re.search(r"message Alarm \{\n((?: +//.*\n)+)", proto)
    assert comment is not None
    assert sorted(WORD.findall(comment[1])) == sorted(reasons.ALARMS)


def test_the_page_of_the_api_has_frequent_reasons_under_their_classes() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    section = re.search(r"Frequent reasons:$(.*?)^\*\*", text, re.DOTALL | re.MULTILINE)
    assert section is not None
    found = re.findall(r"`(\w+)`: ((?:`[A-Z_]+`[^`;]*)+)", section[1])
    assert len(found) > 8
    known = {name: {kind} for name, (kind, _) in ERRORS.items()}
    for reason in Reason:
        known.setdefault(reason.name, set()).add(reasons.find_class(reason.name))
    wrong = [
        (kind, name)
        for kind, names in found
        for name in re.findall("`([A-Z_]+)`", names)
        if KINDS[kind] not in known[name]
    ]
    assert wrong == []


# Commands, settings, metrics

ALL = dict(commands(tree()))
GROUPS = {path.rsplit(" ", at)[0] for path in ALL for at in range(1, path.count(" ") + 1)}
# Words of a command line that are no part of the command: what somebody has to put in.
COMMAND = re.compile(r"(?<![\w/.-])onelog ([a-z][a-z-]*(?: [a-z][a-z-]*)*)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def lines_of_commands() -> Iterator[tuple[str, str]]:
    """Yield the command lines that a text names inside of its sentences."""
    for where, text in texts():
        if where.endswith("--help"):
            continue
        text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        for quoted in re.findall(r"`([^`]+)`", text):
            line = " ".join(quoted.split())
            if COMMAND.match(line):
                yield where, line


def find_command(line: str) -> str | None:
    """Return the path of the command, or of the group, that a line begins with."""
    words = COMMAND.match(line)[1].split()  # type: ignore[index]
    for end in range(len(words), 0, -1):
        path = " ".join(words[:end])
        if path in ALL or (path in GROUPS and end == len(words)):
            return path
    return None


def test_every_command_that_a_text_names_is_there() -> None:
    lines = list(lines_of_commands())
    assert len(lines) > 80
    assert [each for each in lines if find_command(each[1]) is None] == []


def test_every_flag_of_a_command_that_a_text_names_is_there() -> None:
    unknown = []
    for where, line in lines_of_commands():
        path = find_command(line)
        if path not in ALL or path == "serve":
            continue
        known = set(chain.from_iterable(each.opts for each in ALL[path].params))
        known |= set(chain.from_iterable(each.secondary_opts for each in ALL[path].params))
        given = line.partition(" -- ")[0]
        unknown += [(where, line, each) for each in FLAG.findall(given) if each not in known]
    assert unknown == []


def test_every_setting_that_a_text_names_is_there() -> None:
    sections = {each.section for each in SETTINGS.values()}
    named = {
        (where, f"{section}.{name}")
        for where, text in texts()
        for section, name in re.findall(r"`([a-z]+)\.([a-z_]+)`", text)
        if section in sections and name not in ("md", "py", "proto", "hex", "json")
    }
    assert len(named) > 40
    assert [each for each in sorted(named) if each[1] not in SETTINGS] == []


def test_settings_have_the_defaults_that_the_documents_say() -> None:
    rows = [
        (where, *row)
        for where, text in texts()
        for table in re.findall(r"^\| setting \| default \|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
        for row in re.findall(r"^\| `([a-z]+\.[a-z_]+)` \| ([^|]+) \|", table, re.MULTILINE)
    ]
    assert len(rows) > 5
    wrong = []
    for where, name, told in rows:
        shown = SETTINGS[name].show(SETTINGS[name].default) or "empty"
        if told.partition(":")[0].replace(" ", "") != shown:
            wrong.append((where, name, told, shown))
    assert wrong == []


QUANTITY = re.compile(r"(\d[\d,.]*)(?: (KiB|MiB|GiB|ms|s|minutes|hours|days)(?:/s)?)?")
UNITS = {
    "": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
    "ms": 0.001, "s": 1, "minutes": 60, "hours": 3_600, "days": 86_400,
}  # fmt: skip


def quantities(text: str) -> list[float]:
    """Return the numbers of a text, in bytes and seconds if they have such a unit."""
    return [
        float(number.replace(",", "").rstrip(".")) * UNITS[unit]
        for number, unit in QUANTITY.findall(text)
    ]


def test_settings_have_the_values_that_sentences_say() -> None:
    """``section.name`` (15 s): the value in braces behind a setting is its default."""
    told = [
        (where, name, text)
        for where, words in texts()
        for name, text in re.findall(r"(?<!half of )`([a-z]+\.[a-z_]+)` \((\d[^)]*)\)", words)
        if name in SETTINGS
    ]
    assert len(told) > 3
    wrong = [each for each in told if quantities(each[2])[:1] != [SETTINGS[each[1]].default]]
    assert wrong == []


def test_defaults_of_the_client_are_those_that_its_document_says() -> None:
    text = " ".join((ROOT / "docs" / "client.md").read_text().split())
    options = ClientOptions()
    for sentence, *values in (
        (r"timeouts \| (\S+ \S+) for a call", options.timeout_s),
        (r"at most (\S+) unanswered operations and (\S+ \S+);", options.pending_operations_max,
         options.pending_bytes_max),
        (r"lifetime of its session \((\S+ minutes)\)", options.session_ttl_s),
    ):  # fmt: skip
        found = re.search(sentence, text)
        assert found is not None, sentence
        assert [quantities(each)[0] for each in found.groups()] == values, sentence


# Defaults of the protos, against a server

# "0: 30 s" in the comment of a field: how a server shows, or does, what 0 means.
DEFAULT = re.compile(r"(?:^|[ ;])0: (\d[\d,.]*(?: (?:ms|s|minutes|hours|days|[KMG]iB))?)")


def shown_defaults(world: World) -> dict[str, float]:
    """Return what 0 means to the server, by the message and field of a request."""
    calls, shown = world.calls, {}
    created = {"queue": f"plain{{{world.namespace}}}"}
    world.ask("Queue/CreateQueue", **created)
    config = world.ask("Queue/GetQueue", **created).queue.config
    shown["QueueConfig.visibility_ms"] = config.visibility_ms / 1_000
    shown["QueueConfig.dedup_window_ms"] = config.dedup_window_ms / 1_000
    world.ask("Queue/Enqueue", **created, messages=[{"body": b"x"}] * 30)
    shown["PeekRequest.limit"] = len(world.ask("Queue/Peek", **created).messages)
    shown["LeaseRequest.count"] = len(world.ask("Queue/Lease", **created).messages)
    stream = {"stream": f"plain{{{world.namespace}}}"}
    world.ask("Stream/CreateStream", **stream)
    found = world.ask("Stream/GetStream", **stream)
    shown["CreateStreamRequest.partition_count"] = len(found.stream.partitions)
    measurement = {"measurement": f"plain{{{world.namespace}}}"}
    world.ask("TimeSeries/CreateMeasurement", **measurement)
    info = world.ask("TimeSeries/GetMeasurement", **measurement).measurement
    shown["MeasurementConfig.series_max"] = info.config.series_max
    listed = calls.ask("Admin/ListNamespaces").namespaces
    (limits,) = [each.limits for each in listed if each.namespace == world.namespace]
    shown["NamespaceLimits.versions_max"] = limits.versions_max
    shown["NamespaceLimits.tombstones_max"] = limits.tombstones_max
    return shown


# Limits of the protos, against a server

BOUND = re.compile(
    r"(?:\b(?P<least>1) to |[Aa]t most |\bup to )(?P<most>\d[\d,]*)"
    r"(?P<unit> days| years)?(?! (?:MiB|KiB))[^.;()]*?(?:\(| or )(?P<reason>[A-Z]+_[A-Z_]+)"
)
BOUND_S = 5.0
MILLISECONDS = {None: 1, " days": 86_400_000, " years": 365 * 86_400_000}
# What a comment says of a field together with another field, or with what exists already.
NOT_ALONE = frozenset((
    "AddMemberRequest.peer_address",  # it has a form, too
    "GroupConfig.filter",  # a message, limited in its encoded bytes
    "AppendRecordsRequest.records",  # with a producer, whose limit is the lower one
    "Header.name",  # of messages and of records
    "Header.value",
    "ListRequest.limit",  # of List, not of Scan
))  # fmt: skip


class Bound(NamedTuple):
    """What a comment says of a field: a number, size or count, and the reason beyond it."""

    field: str
    most: int
    has_least: bool
    reason: str


@cache
def comments() -> dict[str, str]:
    """Return the comments of the protos by message and field."""
    found = {}
    with TemporaryDirectory() as directory:
        files = compiled(PROTOS, ROOT / "proto", Path(directory) / "all")
    for file in files.file:
        known = {
            tuple(each.path): " ".join((each.leading_comments + each.trailing_comments).split())
            for each in file.source_code_info.location
        }
        for name, place in parts(file):
            if "." in name:
                found[name] = known.get(place, "")
    return found


@cache
def bounds() -> dict[str, Bound]:
    """Return the bounds that comments name, by message and field."""
    found = {}
    for name, comment in comments().items():
        match = BOUND.search(comment)
        if match is not None and name not in NOT_ALONE:
            most = int(match["most"].replace(",", "")) * MILLISECONDS[match["unit"]]
            zero = re.search(r"; (?:0|none|empty)\b|Empty:|not set", comment)
            has_least = match["least"] is not None and zero is None
            found[name] = Bound(name.partition(".")[2], most, has_least, match["reason"])
    return found


def set_size(message: Any, field: Any, size: int) -> None:
    """Give a field so many elements or bytes, or this number."""
    if field.is_repeated:
        values = getattr(message, field.name)
        one = values[0] if values else None
        del values[:]
        if field.type == field.TYPE_MESSAGE:
            for _ in range(size):
                values.add().CopyFrom(one) if one is not None else values.add()
        else:
            empty = {field.CPPTYPE_STRING: b"x" if field.type == field.TYPE_BYTES else "x"}
            values.extend([one if one is not None else empty.get(field.cpp_type, 1)] * size)
    elif field.cpp_type == field.CPPTYPE_STRING:
        text: Any = "x" * size
        setattr(message, field.name, text.encode() if field.type == field.TYPE_BYTES else text)
    else:
        setattr(message, field.name, size)


def holders(message: Any) -> Iterator[Any]:
    """Yield a message and those that it holds, one of each list."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            yield from holders(value[0] if field.is_repeated else value)


def places(request: Any) -> Iterator[tuple[int, Any, Bound]]:
    """Yield where a request has fields with bounds: which of its messages, and which field."""
    for number, message in enumerate(holders(request)):
        for field in message.DESCRIPTOR.fields:
            bound = bounds().get(f"{message.DESCRIPTOR.name}.{field.name}")
            is_map = field.message_type and field.message_type.GetOptions().map_entry
            if bound is not None and not is_map:
                yield number, field, bound


def reasons_of(calls: Calls, path: str, request: Any) -> set[str]:
    """Return why a request, or an operation of it, is refused."""
    outcome = calls.send(path, request.SerializeToString(), timeout_s=BOUND_S)
    return {outcome.reason, *(each.reason for each in errors_in(outcome.answers))}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServeProcess, Calls]]:
    with served(tmp_path_factory.mktemp("promises")) as made:
        made[1].ask("Admin/TakeSnapshot", shard=0)
        yield made


def test_limits_of_the_protos_are_those_of_the_server(running: tuple[Any, Calls]) -> None:
    _, calls = running
    checked: set[str] = set()
    wrong = []
    for path in SAMPLES:
        if path == "Pipeline/Execute":  # as ExecuteOnce, and answers come one by one
            continue
        world = World(calls)
        request = sample(world, path)
        for number, field, bound in places(request):
            name = f"{field.containing_type.name}.{field.name}"
            for size in (bound.most, bound.most + 1, *([0] if bound.has_least else [])):
                mutant = type(request)()
                mutant.CopyFrom(request)
                set_size(list(holders(mutant))[number], field, size)
                is_allowed = 0 < size <= bound.most
                found = reasons_of(calls, path, mutant)
                if "SEVERAL_SHARDS" in found:  # a key of another size has another tag
                    continue
                if (bound.reason in found) is is_allowed:
                    wrong.append((path, name, size, bound))
            checked.add(name)
        world.end()
    assert not wrong, "\n".join(map(str, wrong))
    assert len(checked) > 60


def test_defaults_of_the_protos_are_those_of_the_server(running: tuple[Any, Calls]) -> None:
    shown = shown_defaults(World(running[1]))
    told = {name: DEFAULT.search(comments()[name]) for name in shown}
    assert [name for name, match in told.items() if match is None] == []
    assert {name: quantities(match[1])[0] for name, match in told.items() if match} == shown


def test_every_metric_that_a_text_names_is_there(running: tuple[ServeProcess, Any]) -> None:
    server, _ = running
    status, page = get(server.http, "/metrics")
    assert status == 200
    known = set(re.findall(r"^# TYPE (\w+) ", page.decode(), re.MULTILINE))
    named = {
        (where, name) for where, text in texts() for name in re.findall(r"`(onelog_[a-z_]+)`", text)
    }
    assert len(named) > 20
    assert [each for each in sorted(named) if each[1] not in known] == []
