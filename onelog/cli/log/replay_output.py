"""What ``onelog log replay`` prints for people: counts, and the answer about one thing.

Names, bodies and values come from files that anybody may have written, so whatever is not
printable is escaped before it reaches a terminal. JSON has everything; a line here is short.
"""

from collections.abc import Mapping
from typing import Any

import typer

from onelog.cli.log.output import time_text
from onelog.cli.log.state_output import printable

SHOWN_MAX = 120  # characters of a body, a value or a name

_SECOND_NS = 1_000_000_000
_PREFIXES = ("stream_", "series_")  # that say again what the line is about


def print_rebuilt(
    report: dict[str, Any], counts: Mapping[str, Mapping[str, int]], list_max: int
) -> None:
    """Print what was rebuilt, and the answer if something was asked."""
    start = f"the snapshot at {report['base_index']}" if report["base_index"] else "the first entry"
    state_hash = report["state_hash"] or "(none inside of a batch)"
    typer.echo(
        f"shard {report['shard']}: state hash {state_hash} at index {report['index']}, "
        f"{report['entry_count']} entries replayed from {start}"
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
        lines.append(f"  … the first {list_max} of {sum(queue['depth'].values())} messages")
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
        f"{each['records_kept_at_most']} ({each['bytes_kept_at_most']} bytes)"
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
        lines.append(f"  … the first {list_max} of {found['series_count']} series")
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
    return f"{fields[f'{name}_size']} bytes  {_bytes(fields, name, SHOWN_MAX)}".rstrip()


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
