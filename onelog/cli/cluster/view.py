"""What people and scripts see of a local cluster: two tables and what happened, or JSON."""

import json
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onelog.cli.cluster.history import Event, History
from onelog.cli.cluster.state import ClusterDirectory
from onelog.cli.cluster.status import DOWN, SERVING, SILENT, ClusterStatus, NodeStatus
from onelog.cli.hold_commands import shown_hold
from onelog.cli.log.state_output import printable
from onelog.cli.messages import document_of
from onelog.v1 import admin_pb2

EVENTS_SHOWN_MAX = 8
_STYLES = {SERVING: "green", DOWN: "bold red", SILENT: "bold red"}


def render(
    path: Path, status: ClusterStatus, history: History | None = None, *, ending: str = ""
) -> RenderableType:
    """Return a cluster as it is shown; with a history, how fast it goes and what happened."""
    parts: list[RenderableType] = [
        _title(path, status),
        "",
        _nodes(status),
        "",
        _shards(status, history),
    ]
    holds = [hold for shard in status.shards for hold in shard.holds]
    if holds:
        parts += ["", Group(*map(_hold_line, holds))]
    if history is not None and history.events:
        shown = list(history.events)[-EVENTS_SHOWN_MAX:]
        parts += ["", Group(*map(event_line, shown))]
    if ending:
        parts += ["", Text(ending, style="dim")]
    return Group(*parts)


def watching_hint(directory: ClusterDirectory, *, is_owner: bool) -> str:
    """Return what somebody who watches can do."""
    line = directory.line("status")
    end = "Ctrl-C brings all down." if is_owner else "Ctrl-C ends the view."
    return f"In another terminal: {line}; kill N, restart N, logs N, down likewise. {end}"


def event_line(event: Event) -> Text:
    """Return the line of an event."""
    line = Text(f"{event.at:%H:%M:%S}  ", style="dim")
    line.append(printable(event.text), style="bold red" if event.is_bad else "not dim cyan")
    return line


def _hold_line(hold: admin_pb2.Hold) -> Text:
    text = f"hold {hold.name} in shard {hold.shard}: {shown_hold(hold)}"
    return Text(printable(text), style="bold red" if hold.cause else "")


def _title(path: Path, status: ClusterStatus) -> Text:
    serving = sum(node.is_ready for node in status.nodes)
    state = f"{serving} of {len(status.nodes)} nodes serve" if status.is_up else "down"
    title = Text(f"cluster {printable(str(path))}", style="bold")
    title.append(f"  {state}", style="bold green" if status.is_whole else "bold red")
    return title


def _nodes(status: ClusterStatus) -> Table:
    table = _table("node", "state", "process", "endpoint", "leads shard", "running for", "")
    for node in status.nodes:
        leads = [str(shard.shard) for shard in status.shards if shard.leader == node.number]
        table.add_row(
            str(node.number),
            Text(node.state, style=_STYLES.get(node.state, "yellow")),
            "-" if node.pid is None else str(node.pid),
            node.endpoint,
            ", ".join(leads) or "-",
            "-" if node.uptime_s is None else str(timedelta(seconds=int(node.uptime_s))),
            _remark(node),
        )
    return table


def _remark(node: NodeStatus) -> Text:
    remarks = [*node.alarms, *([f"waits for {node.waiting_for}"] if node.waiting_for else [])]
    return Text(printable("; ".join(remarks)), style="bold red" if node.alarms else "yellow")


def _shards(status: ClusterStatus, history: History | None) -> Table:
    numbers = [node.number for node in status.nodes]
    titles = ["shard", "leader", "term", "committed", "applied", "entries/s"]
    table = _table(*titles, *(f"node {number} behind" for number in numbers), right_from=2)
    for shard in status.shards:
        rate = None if history is None else history.entries_per_s(shard.shard)
        leader = shard.leader_name or Text("none", style="bold red")
        table.add_row(
            str(shard.shard),
            leader,
            str(shard.term),
            f"{shard.commit_index:,}",
            f"{shard.applied_index:,}",
            "-" if rate is None else f"{rate:,.0f}",
            *(_behind(status, shard.behind[number], number) for number in numbers),
        )
    return table


def _behind(status: ClusterStatus, entries: int | None, number: int) -> Text:
    is_down = status.nodes[number - 1].state == DOWN
    if entries is None:
        return Text("?" if is_down else "-", style="dim")
    return Text(f"{entries:,}", style="bold red" if is_down and entries else "")


def _table(*titles: str, right_from: int | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for at, title in enumerate(titles):
        is_right = right_from is not None and at >= right_from
        table.add_column(title, justify="right" if is_right else "left", overflow="fold")
    return table


def as_json(path: Path, status: ClusterStatus, history: History | None = None) -> dict[str, Any]:
    """Return a cluster for scripts."""
    return {
        "directory": str(path),
        "up": status.is_up,
        "whole": status.is_whole,
        "endpoints": [node.endpoint for node in status.nodes],
        "nodes": [
            {
                "node": node.number,
                "state": node.state,
                "ready": node.is_ready,
                "pid": node.pid,
                "endpoint": node.endpoint,
                "waiting_for": node.waiting_for,
                "uptime_s": node.uptime_s,
                "alarms": list(node.alarms),
                "replicas": [
                    {
                        "shard": each.shard,
                        "role": each.role,
                        "term": each.term,
                        "commit_index": each.commit_index,
                        "applied_index": each.applied_index,
                    }
                    for each in node.replicas
                ],
            }
            for node in status.nodes
        ],
        "shards": [
            {
                "shard": shard.shard,
                "leader": shard.leader,
                "leader_elsewhere": shard.elsewhere or None,
                "term": shard.term,
                "commit_index": shard.commit_index,
                "applied_index": shard.applied_index,
                "entries_per_s": None if history is None else history.entries_per_s(shard.shard),
                "behind": {str(number): behind for number, behind in shard.behind.items()},
                "holds": [document_of(hold) for hold in shard.holds],
            }
            for shard in status.shards
        ],
    }


def json_line(document: dict[str, Any], events: Iterable[Event]) -> str:
    """Return one look of many, with what was new in it."""
    new = [{"time": each.at.isoformat(), "text": each.text} for each in events]
    return json.dumps(document | {"events": new})
