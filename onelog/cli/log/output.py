"""What ``onelog log`` prints: tables and lines for people, JSON for scripts.

In order: entries of ``dump``; reports of ``inspect``; findings of ``verify`` and ``repair``; counts
and answers of ``replay``. JSON has everything; lines for people are shortened.

Names, payloads and values come from files that anybody may have written, and they end up on a
terminal. So control characters are escaped: no byte of a log can move a cursor or change a title.
Entries are printed as they are read, so only one is in memory at a time.
"""

import codecs
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from onelog.cli.output import counted, printable
from onelog.spark.columns.operations import OPERATIONS, OWNERS, TYPES
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, OWNER_NAMES, Entry
from onelog.ual.errors import DataError
from onelog.ual.offline.inspect import DirectoryReport, FileReport, ShardReport
from onelog.ual.offline.reader import Progress as ProgressCall
from onelog.ual.offline.repair import Repair
from onelog.ual.offline.verify import Finding, Level

PAYLOAD_SHOWN_MAX = 120  # characters of a payload in a line for people; JSON has all of it

_SECOND_NS = 1_000_000_000
_FLAG_NAMES = {FLAG_ZSTD: "zstd", FLAG_CONDITIONAL: "conditional"}
_ENTRY_LINE = "{:>12}  {:>6}  {:<30}  {:<6}  {:<10}  {:>5}  {:>9}  {:<11}  {}"
_ENTRY_TITLES = ("index", "term", "time", "type", "owner", "left", "bytes", "flags", "what")
_FILE_TITLES = (
    "file", "first", "last", "entries", "proposals", "size", "first time", "last time", "what",
)  # fmt: skip
_RIGHT_COLUMNS = range(1, 6)  # the numbers among them
_LEVEL_STYLES = {Level.ERROR: "bold red", Level.TAIL: "yellow", Level.LEFTOVER: "yellow"}


@dataclass(frozen=True, slots=True)
class StateReport:
    """What a shard holds, counted by projection and kind, or why that is not known."""

    index: int
    counts: dict[str, dict[str, int]]
    problem: str | None = None


def parse_types(kinds: Sequence[str] | None) -> frozenset[int] | None:
    """Parse ``--type``: one entry type, or all types of an owner."""
    if not kinds:
        return None
    owners = {name: owner for owner, name in OWNER_NAMES.items()}
    types: set[int] = set()
    for kind in kinds:
        owner = owners.get(kind.lower())
        if owner is not None:
            types.update(range(owner << 8, (owner + 1) << 8))
            continue
        number = TYPES.get(tuple(kind.lower().split(".", 1)))  # type: ignore[arg-type]
        if number is not None:
            types.add(number)
            continue
        # Not int() alone, which would accept 0x_1_01 as well.
        if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,4}", kind):
            names = ", ".join(owners)
            raise typer.BadParameter(
                f"--type {kind}: give 0x0000 to 0xffff, a name like kv.put, or one of {names}"
            )
        types.add(int(kind, 16))
    return frozenset(types)


def shown_type(number: int) -> str:
    """Return an entry type as its owner and operation, like ``kv.put``; else its number."""
    known = OPERATIONS.get(number)
    return f"0x{number:04x}" if known is None else f"{OWNERS[number >> 8]}.{known}"


def _type_name(text: str) -> str:
    return shown_type(int(text, 16)) if text.startswith("0x") and len(text) == 6 else text


# JSON --------------------------------------------------------------------------------------------


def print_json(report: DirectoryReport, states: Mapping[int, StateReport]) -> None:
    """Print a report as one JSON document, with the states of those shards that have one."""
    document = asdict(report)
    for shard in document["shards"]:
        if shard["shard"] in states:
            shard["state"] = asdict(states[shard["shard"]])
    _write(json.dumps(document, indent=2) + "\n")


def _entry_fields(entry: Entry) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "index": entry.index,
        "term": entry.term,
        "time": time_text(entry.timestamp_ns),
        "timestamp_ns": entry.timestamp_ns,
        "type": f"0x{entry.entry_type:04x}",
        "owner": _owner_name(entry.owner),
        "flags": _flag_names(entry.flags),
        "group_left": entry.group_left,
        "stored_size": len(entry.payload),
    }
    try:
        payload = entry.plain_payload()
    except DataError as error:
        return fields | {
            "payload_error": f"{error.reason}: {error}",
            "payload_hex": entry.payload.hex(),
        }
    fields["size"] = len(payload)
    text = _as_text(payload)
    return fields | ({"payload_hex": payload.hex()} if text is None else {"payload": text})


# Entries -----------------------------------------------------------------------------------------


def print_entries(entries: Iterable[Entry], *, as_json: bool) -> tuple[int, int | None]:
    """Print entries one by one; return how many there were, and the last one's index."""
    from onelog.projections.describe import describe_command, describe_entry

    count, last_index = 0, None
    for entry in entries:
        if as_json:
            _write(json.dumps(_entry_fields(entry) | {"what": describe_entry(entry)}) + "\n")
        else:
            if not count:
                _write(_ENTRY_LINE.format(*_ENTRY_TITLES) + "\n")
            _write(_entry_line(entry, describe_command(entry)))
        count, last_index = count + 1, entry.index
    return count, last_index


def _entry_line(entry: Entry, what: str | None) -> str:
    """Format an entry as one line: its operation, or its payload if it has none."""
    try:
        payload = entry.plain_payload()
    except DataError as error:
        size, shown = len(entry.payload), f"({error.reason}: {error})"
    else:
        size, shown = len(payload), _payload_text(payload) if what is None else what
    line = _ENTRY_LINE.format(
        entry.index,
        entry.term,
        time_text(entry.timestamp_ns),
        f"0x{entry.entry_type:04x}",
        _owner_name(entry.owner),
        entry.group_left,
        size,
        ",".join(_flag_names(entry.flags)) or "-",
        shown,
    )
    return line.rstrip() + "\n"


def _payload_text(payload: bytes) -> str:
    """Return the beginning of a payload: text if that is printable, else hex."""
    # A character has at most four bytes; one that is cut at the end is left out.
    begin = payload[: 4 * PAYLOAD_SHOWN_MAX]
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(begin, final=begin == payload)
    except UnicodeDecodeError:
        text = "\0"
    shown = text[:PAYLOAD_SHOWN_MAX]
    if shown.isprintable():
        is_cut = len(shown.encode()) < len(payload)
    else:
        shown = f"0x{payload[: PAYLOAD_SHOWN_MAX // 2].hex()}"
        is_cut = len(payload) > PAYLOAD_SHOWN_MAX // 2
    return f"{shown}…" if is_cut else shown


def _as_text(payload: bytes) -> str | None:
    """Return the payload as text if all of it is printable, else None."""
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def time_text(timestamp_ns: int) -> str:
    """Format a log time in ISO 8601 with all its digits."""
    return f"{_second_text(timestamp_ns // _SECOND_NS)}.{timestamp_ns % _SECOND_NS:09d}Z"


@lru_cache(maxsize=16)  # entries come in the order of their time, many in each second
def _second_text(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"


def _owner_name(owner: int) -> str:
    return OWNER_NAMES.get(owner, f"0x{owner:02x}")


def _flag_names(flags: int) -> list[str]:
    return [name for flag, name in _FLAG_NAMES.items() if flags & flag]


# Reports -----------------------------------------------------------------------------------------


def print_directory(report: DirectoryReport, states: Mapping[int, StateReport]) -> None:
    """Print a report as tables, with the states of those shards that have one."""
    console = _console()
    _line(console, f"data directory {report.path}")
    if report.shard_count is not None and report.partition_count is not None:
        node = "" if report.node_id is None else f"node {report.node_id} ({report.node_name}), "
        _line(
            console,
            f"cluster {report.cluster_id}, {node}{counted(report.shard_count, 'shard')}, "
            f"{counted(report.partition_count, 'partition')}, created {report.created_at}",
        )
    for problem in report.problems:
        _line(console, f"problem: {problem}", "bold red")
    for shard in report.shards:
        _print_shard(console, shard)
        if shard.shard in states:
            _print_state(console, states[shard.shard])


def _print_shard(console: Console, shard: ShardReport) -> None:
    _line(console, "")
    what = (
        f"entries {shard.first_index} to {shard.last_index}"
        if shard.last_index >= shard.first_index
        else f"empty, next entry {shard.first_index}"
    )
    _line(
        console,
        f"shard {shard.shard}: {what}, {decimal(shard.size_bytes)}, committed to "
        f"{shard.commit_index}, durable to {shard.durable_index}, "
        f"voted term {_number(shard.voted_term)}, {counted(shard.generation, 'cut')}, "
        f"{counted(shard.snapshot_count, 'snapshot')}",
        "bold",
    )
    for problem in shard.problems:
        _line(console, f"problem: {problem}", "bold red")
    if shard.cut_from_index is not None:
        _line(console, f"an interrupted cut from {shard.cut_from_index} is to be finished")
    if shard.files:
        _print_files(console, shard.files)
    for name in shard.foreign:
        _line(console, f"foreign: {name}")


def _print_state(console: Console, state: StateReport) -> None:

    if state.problem is not None:
        _line(console, f"problem: {state.problem}", "bold red")
        return
    _line(console, f"state at index {state.index}, by what it holds")
    for line in count_lines(state.counts) or ["empty"]:
        _line(console, f"  {line}")


def _print_files(console: Console, files: Sequence[FileReport]) -> None:
    """Print one line for each file, of any length: names and times must not be cut."""
    rows = [_FILE_TITLES, *map(_file_cells, files)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [
            cell.rjust(width) if at in _RIGHT_COLUMNS else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        is_bad = number > 0 and files[number - 1].problem is not None
        style = "bold" if number == 0 else "bold red" if is_bad else ""
        _line(console, "  ".join(cells).rstrip(), style)
    for file in files:
        if file.problem is not None:
            _line(console, f"problem: {file.problem}", "bold red")


def _file_cells(file: FileReport) -> tuple[str, ...]:
    return (
        printable(file.name),
        str(file.first_index),
        _number(file.last_index),
        _number(file.entry_count),
        _number(file.proposal_count),
        decimal(file.size_bytes),
        # The entry that founds a database has no time.
        time_text(file.first_timestamp_ns)[:19] if file.first_timestamp_ns else "-",
        time_text(file.last_timestamp_ns)[:19] if file.last_timestamp_ns else "-",
        printable(_what(file)),
    )


def _what(file: FileReport) -> str:
    """Return the facts about a file that most files do not have."""
    facts = [] if file.kind in ("sealed", "unsealed") else [file.kind]
    if file.is_dropped:
        facts.append("to be removed")
    if file.is_compacted:
        facts.append("compacted")
    counts = file.entries_by_type or file.entries_by_owner or {}
    facts += [f"{_type_name(name)} {count}" for name, count in counts.items()]
    if file.stream_count:
        facts.append(counted(file.stream_count, "stream"))
    if file.void_index_count:
        facts.append(f"{file.void_index_count} void")
    if file.tail_bytes:
        facts.append(f"{counted(file.tail_bytes, 'byte')} behind the last group")
    return ", ".join(facts)


# Findings and repairs ----------------------------------------------------------------------------


def print_findings(data_dir: Path, findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print what verification found."""
    if as_json:
        rows = [
            {
                "level": finding.level.value,
                "path": str(finding.path),
                "offset": finding.offset,
                "reason": finding.reason,
                "message": finding.message,
                "advice": finding.advice,
                "repairable": finding.remedy is not None,
            }
            for finding in findings
        ]
        _write(json.dumps({"path": str(data_dir), "findings": rows}, indent=2) + "\n")
        return
    console = _console()
    for finding in findings:
        where = _relative(finding.path, data_dir)
        if finding.offset is not None:
            where += f" at {finding.offset}"
        style = _LEVEL_STYLES.get(finding.level, "")
        message = f"{finding.level.value}: {where}: {finding.reason}: {finding.message}"
        _line(console, message, style)
        _line(console, f"    {finding.advice}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    shown = [f"{count} {level.value}" for level, count in counts.items() if count]
    _line(console, ", ".join(shown) if shown else "clean")


def print_plan(data_dir: Path, plan: Sequence[Repair]) -> None:
    """Print what would be done, and what cannot be."""
    console = _console()
    for repair in plan:
        where = _relative(repair.path, data_dir)
        if repair.is_possible:
            _line(console, f"repair: {where}: {repair.reason}: {repair.description}")
        else:
            message = f"cannot be repaired here: {where}: {repair.reason}: {repair.description}"
            _line(console, message, "bold red")
            _line(console, f"    {repair.advice}")
    if not plan:
        _line(console, "nothing to repair")


def print_repairs(
    plan: Sequence[Repair], copies: Path | None, *, is_done: bool, as_json: bool
) -> None:
    """Print the outcome of the plan; in JSON with the plan itself."""
    if as_json:
        rows = [
            {
                "path": str(repair.path),
                "reason": repair.reason,
                "description": repair.description,
                "possible": repair.is_possible,
                "advice": repair.advice,
            }
            for repair in plan
        ]
        result = {"done": is_done, "copies": None if copies is None else str(copies)}
        _write(json.dumps({**result, "repairs": rows}, indent=2) + "\n")
        return
    console = _console()
    if is_done:
        kept = "" if copies is None else f"; what was there before is in {copies}"
        _line(console, f"done{kept}")
    elif any(repair.is_possible for repair in plan):
        _line(console, "nothing was changed; --yes does it")


@contextmanager
def progress_bar(title: str, *, is_shown: bool) -> Iterator[ProgressCall | None]:
    """Show a bar on stderr while the block runs, if it is a terminal."""
    console = Console(stderr=True)
    if not is_shown or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(done_bytes: int, total_bytes: int, path: Path) -> None:
            name = printable(path.name)
            bar.update(task, completed=done_bytes, total=total_bytes, description=Text(name).plain)

        yield show


# Lines -------------------------------------------------------------------------------------------


def _console() -> Console:
    return Console(highlight=False, markup=False, soft_wrap=True)


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(printable(text), style))


def _write(text: str) -> None:
    sys.stdout.write(text)


def _relative(path: Path, data_dir: Path) -> str:
    return str(path.relative_to(data_dir)) if path.is_relative_to(data_dir) else str(path)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


# Replay output

SHOWN_MAX = 120  # characters of a body, a value or a name

_PREFIXES = ("stream_", "series_")  # that say again what the line is about


def print_rebuilt(
    report: dict[str, Any], counts: Mapping[str, Mapping[str, int]], list_max: int
) -> None:
    """Print what was rebuilt, and the answer if something was asked."""
    start = f"the snapshot at {report['base_index']}" if report["base_index"] else "the first entry"
    state_hash = report["state_hash"] or "(none inside of a batch)"
    typer.echo(
        f"shard {report['shard']}: state hash {state_hash} at index {report['index']}, "
        f"{counted(report['entry_count'], 'entry')} replayed from {start}"
    )
    for line in count_lines(counts) or ["empty"]:
        typer.echo(f"  {line}")
    if "key" in report:
        _print_key(report["key"])
    for subject, show in _PRINTERS.items():
        if subject not in report:
            continue
        found = report[subject]
        title = f"{subject} {_named(found)}"
        if found["exists"]:
            for line in show(title, found, list_max):
                typer.echo(f"  {printable(line)}")
        else:
            typer.echo(f"  {printable(title)} did not exist")


def count_lines(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return one line for each projection that has anything."""
    lines = []
    for model, kinds in counts.items():
        shown = [f"{_kind(name)} {count}" for name, count in kinds.items() if count]
        if shown:
            lines.append(f"{model}: {', '.join(shown)}")
    return lines


def _kind(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace("_", " ")


def _print_key(key: dict[str, Any]) -> None:
    name = f"{printable(key['namespace'])}/{_bytes(key, 'key')}"
    if key["exists"]:
        typer.echo(f"  {name} = {_bytes(key, 'value')} (version {key['version']})")
    else:
        typer.echo(f"  {name} did not exist")


def _queue_lines(title: str, queue: dict[str, Any], list_max: int) -> list[str]:
    depth = _numbers(queue["depth"])
    paused = ", paused" if queue["is_paused"] else ""
    age = _seconds(queue["oldest_age_ns"])
    waits = "" if queue["oldest_ready_ns"] is None else f", the oldest ready one waits for {age}"
    lines = [f"{title} (id {queue['id']}): {depth}{waits}{paused}"]
    totals = {name: count for name, count in queue["totals"].items() if count}
    lines.append(f"  totals: {_numbers(totals) or 'none'}")
    others = {name: queue[name] for name in ("groups", "tenants", "dedup_ids") if queue[name]}
    if others:
        lines.append(f"  {_numbers(others)}")
    for each in queue["schedules"]:
        next_time = time_text(each["next_ns"])
        lines.append(f"  schedule {each['id']}: {_bytes(each, 'cron')}, next at {next_time}")
    lines += (f"  redrive {each['id']}: moved {each['moved']}" for each in queue["redrives"])
    for message in queue.get("messages", ()):
        facts = [
            f"  message {message['id']}", message["state"], f"priority {message['priority']}",
            f"deliveries {message['deliveries']}",
        ]  # fmt: skip
        if message["due_ns"]:
            facts.append(f"until {time_text(message['due_ns'])}")
        if "dead_letter" in message:
            facts.append(f"died of: {_short(message['dead_letter']['dlq.failure_reason'])}")
        lines.append("  ".join([*facts, _content(message, "body")]))
    if queue.get("has_more"):
        everything = counted(sum(queue["depth"].values()), "message")
        lines.append(f"  … the first {list_max} of {everything}")
    return lines


def _stream_lines(title: str, stream: dict[str, Any], list_max: int) -> list[str]:
    partitions = stream["partitions"]
    appended = sum(each["records_appended"] for each in partitions)
    lines = [
        f"{title} (id {stream['id']}): partitions {len(partitions)}, records appended {appended}, "
        f"dead letters {stream['dead_letters']}, producers {stream['producers']}"
    ]
    lines += (
        f"  partition {each['partition']}: offsets {each['first_offset']} to before "
        f"{each['end_offset']}, records appended {each['records_appended']}, kept at most "
        f"{each['records_kept_at_most']} ({counted(each['bytes_kept_at_most'], 'byte')})"
        for each in partitions
    )
    for group in stream["groups"]:
        lines.append(
            f"  group {_short(group['name'])}: generation {group['generation']}, "
            f"members {len(group['members'])}, pending {group['pending']}, dead {group['dead']}"
        )
        for each in group["cursors"]:
            holder = "nobody" if each["member"] is None else f"member {each['member']}"
            lines.append(
                f"    partition {each['partition']}: committed {each['committed']}, delivered "
                f"{each['delivered']}, lag {each['lag']}, held by {holder}"
            )
    for record in stream.get("records", ()):
        facts = [f"  record {record['offset']}", f"partition {record['partition']}"]
        if "timestamp_ns" in record:
            facts.append(time_text(record["timestamp_ns"]))
        if "key" in record or "key_hex" in record:
            facts.append(f"key {_bytes(record, 'key')}")
        if "dead_letter" in record:
            letter = record["dead_letter"]
            facts.append(f"dead letter of {letter['origin']} by group {_short(letter['group'])}")
        lines.append("  ".join([*facts, _content(record, "value")]))
    if list_max and not stream["records"]:
        lines.append("  no record is left to list")
    return lines


def _series_lines(title: str, series: dict[str, Any], list_max: int) -> list[str]:
    lines = [f"{title} (id {series['id']}, created at {series['created_index']})"]
    for field in series["fields"]:
        name = f"  field {_short(field['name'])}"
        if not field["exists"]:
            lines.append(f"{name} did not exist")
            continue
        name += f" ({field['type']})"
        if "error" in field:
            lines.append(f"{name}: cannot be read: {field['error']}")
            continue
        times, values = field["times_ns"], field["values"]
        span = (
            f", {time_text(times[0])} to {time_text(times[-1])}, last value {values[-1]}"
            if times
            else ""
        )
        lines.append(f"{name}: points {len(times)}{span}")
        if list_max:
            shown = zip(times[-list_max:], values[-list_max:], strict=True)
            lines += (f"    {time_text(time_ns)}  {value}" for time_ns, value in shown)
    return lines


def _measurement_lines(title: str, found: dict[str, Any], list_max: int) -> list[str]:
    config = found["config"]
    kept = _seconds(config["retention_ns"]) if config["retention_ns"] else "for ever"
    lines = [
        f"{title} (created at {found['created_index']}): series {found['series_count']}, "
        f"policy {config['policy']}, kept {kept}"
    ]
    lines += (f"  field {_short(each['name'])} ({each['type']})" for each in found["fields"])
    lines += (f"  tag {_short(each['name'])}: values {each['values']}" for each in found["tags"])
    for rule in found["rules"]:
        done = "nothing" if rule["done_ns"] is None else time_text(rule["done_ns"])
        lines.append(
            f"  rule {_short(rule['name'])}: {', '.join(rule['aggregates'])} per "
            f"{_seconds(rule['window_ns'])} into {_short(rule['target'])}, done up to {done}, "
            f"refused {rule['refused']}"
        )
    lines += (f"  series {_short(name)}" for name in found.get("series", ()))
    if found.get("has_more"):
        lines.append(f"  … the first {list_max} of {counted(found['series_count'], 'series')}")
    return lines


_PRINTERS = {
    "queue": _queue_lines,
    "stream": _stream_lines,
    "series": _series_lines,
    "measurement": _measurement_lines,
}


def _named(found: dict[str, Any]) -> str:
    return f"{found['namespace']}/{found['name']}"


def _content(fields: dict[str, Any], name: str) -> str:
    """Return the size and the beginning of a body, or why it cannot be shown."""
    if "error" in fields:
        return f"({fields['error']})"
    return f"{counted(fields[f'{name}_size'], 'byte')}  {_bytes(fields, name, SHOWN_MAX)}".rstrip()


def _bytes(fields: dict[str, Any], name: str, size_max: int | None = None) -> str:
    """Return what JSON has under ``name``, or as hex, in one text."""
    text = fields[name] if name in fields else f"0x{fields[f'{name}_hex']}"
    return str(text) if size_max is None else _short(text, size_max)


def _short(text: str, size_max: int = SHOWN_MAX) -> str:
    return text if len(text) <= size_max else f"{text[:size_max]}…"


def _numbers(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in numbers.items())


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / _SECOND_NS:g} s"
