"""Shows a local cluster, once or until a signal: two tables and the events, or JSON.

On a terminal the view is updated in place. Into a file or a pipe only events are written, one per
line, or with ``--json`` an object for each status.

The view of ``onelog cluster up`` owns its cluster: the first SIGINT, SIGTERM or SIGHUP stops the
nodes cleanly, the second kills them. If the view itself is killed, the nodes continue, and ``onelog
cluster down`` finds them.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onelog.cli.admin import shown_hold
from onelog.cli.cluster.lifecycle import MEMBER_REMOVED, kill_all, last_words, stop_cluster
from onelog.cli.cluster.state import ClusterDirectory
from onelog.cli.cluster.status import (
    DOWN,
    FORMING,
    REMOVED,
    REPAIRING,
    SERVING,
    SILENT,
    ClusterStatus,
    Event,
    History,
    NodeStatus,
    Observer,
)
from onelog.cli.failure import CommandFailed
from onelog.cli.output import counted, printable, to_document
from onelog.v1 import admin_pb2

EVENTS_SHOWN_MAX = 8
_STYLES = {SERVING: "green", DOWN: "bold red", SILENT: "bold red"}


def render(
    path: Path, status: ClusterStatus, history: History | None = None, *, ending: str = ""
) -> RenderableType:
    """Render a cluster as tables; with a history also its rates and events."""
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
    """Return a hint: what the user can do while watching."""
    line = directory.line("status")
    end = "Ctrl-C brings all down." if is_owner else "Ctrl-C ends the view."
    return f"In another terminal: {line}; kill N, restart N, logs N, down likewise. {end}"


def event_line(event: Event) -> Text:
    """Format an event as a line."""
    line = Text(f"{event.at:%H:%M:%S}  ", style="dim")
    line.append(printable(event.text), style="bold red" if event.is_bad else "not dim cyan")
    return line


def _hold_line(hold: admin_pb2.Hold) -> Text:
    text = f"hold {hold.name} in shard {hold.shard}: {shown_hold(hold)}"
    return Text(printable(text), style="bold red" if hold.cause else "")


def _title(path: Path, status: ClusterStatus) -> Text:
    serving = sum(node.is_ready for node in status.members)
    state = f"{serving} of {len(status.members)} nodes serve" if status.is_up else "down"
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
            "?" if shard.term is None else str(shard.term),
            _index(shard.commit_index),
            _index(shard.applied_index),
            "-" if rate is None else f"{rate:,.0f}",
            *(_behind(status, shard.behind[number], number) for number in numbers),
        )
    return table


def _index(index: int | None) -> str:
    return "?" if index is None else f"{index:,}"


def _behind(status: ClusterStatus, entries: int | None, number: int) -> Text:
    if status.nodes[number - 1].state == REMOVED:
        return Text("-", style="dim")
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
    """Return the status of a cluster as a document for scripts."""
    return {
        "directory": str(path),
        "up": status.is_up,
        "whole": status.is_whole,
        "endpoints": [node.endpoint for node in status.members],
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
                "holds": [to_document(hold) for hold in shard.holds],
            }
            for shard in status.shards
        ],
    }


def json_line(document: dict[str, Any], events: Iterable[Event]) -> str:
    """Format one status of many as a line, with its events."""
    new = [{"time": each.at.isoformat(), "text": each.text} for each in events]
    return json.dumps(document | {"events": new})


# Watching

LOOK_S = 0.5
READY_POLL_S = 0.1

T = TypeVar("T")
Show = Callable[[ClusterStatus, History, list[Event]], None]


async def wait_until_ready(
    directory: ClusterDirectory,
    numbers: Sequence[int],
    within_s: float,
    *,
    may_lack_some: bool = False,
) -> ClusterStatus:
    """Wait until these nodes serve, those aside that turn out to be removed from the cluster.

    Raise if one ends, if one takes too long, or if all of them were removed. If they
    ``may_lack_some``, one that ends is left out if the others serve without it, and so is one
    whose log is not repaired in time.
    """
    async with Observer(directory) as observer:
        status = await observer.look()
        try:
            async with asyncio.timeout(within_s):
                while True:
                    nodes = [status.nodes[number - 1] for number in numbers]
                    members = [node for node in nodes if node.state not in (REMOVED, DOWN)]
                    ended = [node for node in nodes if node.state == DOWN]
                    is_founding = all(
                        node.state == FORMING and node.waiting_for for node in members
                    )
                    if ended and (is_founding or not may_lack_some):
                        raise _ended(directory, ended[0])
                    if not members:
                        raise _removed(directory, numbers)
                    if all(node.is_ready for node in members):
                        return status
                    await asyncio.sleep(READY_POLL_S)
                    status = await observer.look()
        except TimeoutError:
            if ended:
                raise _ended(directory, ended[0]) from None
            late = next(node for node in members if not node.is_ready)
            left = [node.state for node in members if not node.is_ready]
            if may_lack_some and len(left) < len(members) and set(left) == {REPAIRING}:
                return status
            what = f", waiting for {late.waiting_for}" if late.waiting_for else ""
            raise CommandFailed(
                "NOT_READY",
                f"after {within_s:g} s node {late.number} is {late.state}{what}; "
                f"see {directory.log_path(late.number)}, or wait longer with --ready-within",
            ) from None


def _ended(directory: ClusterDirectory, node: NodeStatus) -> CommandFailed:
    return CommandFailed(
        "NODE_ENDED",
        f"node {node.number} ended while it started: {last_words(directory, node.number)}; "
        f"see {directory.log_path(node.number)}",
    )


def _removed(directory: ClusterDirectory, numbers: Sequence[int]) -> CommandFailed:
    shown = ", ".join(map(str, numbers))
    return CommandFailed(
        MEMBER_REMOVED,
        f"node {shown} was removed from the cluster and does not serve; see "
        f"{directory.line(f'logs {numbers[0]}')}, or add it again (onelog admin members add)",
    )


async def see_up(
    directory: ClusterDirectory,
    ready: Callable[[ClusterStatus], None],
    *,
    ready_s: float,
    stop_s: float,
    is_detached: bool,
) -> bool:
    """Wait until a started cluster is ready; then leave it, or show it until a signal.

    A cluster that does not get ready is brought down, and so is one that gets a signal before it is
    ready: then the result is False. A node that does not start is left out if the others serve.
    """
    stopping = _Stopping(lambda: kill_all(directory))
    numbers = [node.number for node in directory.load().nodes]
    try:
        nodes = counted(len(numbers), "node")
        with _spinner(f"starting {nodes} in {directory.path}"):
            waiting = wait_until_ready(directory, numbers, ready_s, may_lack_some=True)
            status = await stopping.unless_asked(waiting)
        if status is not None:
            ready(status)
            if is_detached:
                return True
            await _watch(directory, stopping, is_owner=True, is_json=False)
    except BaseException:
        await asyncio.to_thread(stop_cluster, directory, stop_s)
        raise
    if directory.load().is_up:
        typer.echo("stopping the nodes; Ctrl-C again kills them", err=True)
        await asyncio.to_thread(stop_cluster, directory, stop_s)
    typer.echo("all nodes have ended", err=True)
    return status is not None


async def watch(directory: ClusterDirectory, *, is_json: bool) -> None:
    """Show a cluster until a signal arrives, or until it is brought down."""
    await _watch(directory, _Stopping(lambda: None), is_owner=False, is_json=is_json)


async def _watch(
    directory: ClusterDirectory, stopping: "_Stopping", *, is_owner: bool, is_json: bool
) -> None:
    history = History()
    async with AsyncExitStack() as stack:
        observer = await stack.enter_async_context(Observer(directory))
        show = _json_lines(directory) if is_json else _view(directory, stack, is_owner=is_owner)
        while not stopping.is_asked:
            status = await observer.look()
            show(status, history, history.add(status))
            if not status.is_up:
                return  # another command has brought it down
            await stopping.wait(LOOK_S)


def _json_lines(directory: ClusterDirectory) -> Show:
    def show(status: ClusterStatus, history: History, events: list[Event]) -> None:
        typer.echo(json_line(as_json(directory.path, status, history), events))
        sys.stdout.flush()

    return show


def _view(directory: ClusterDirectory, stack: AsyncExitStack, *, is_owner: bool) -> Show:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:

        def show_events(_status: ClusterStatus, _history: History, events: list[Event]) -> None:
            for event in events:
                typer.echo(event_line(event).plain)
            sys.stdout.flush()

        return show_events
    live = stack.enter_context(Live(console=console, auto_refresh=False, screen=False))
    hint = watching_hint(directory, is_owner=is_owner)

    def show(status: ClusterStatus, history: History, _events: list[Event]) -> None:
        live.update(render(directory.path, status, history, ending=hint), refresh=True)

    return show


def _spinner(text: str) -> AbstractContextManager[object]:
    """Show a spinner if the output is a terminal."""
    console = Console(stderr=True, markup=False)
    return console.status(Text(text)) if console.is_terminal else nullcontext()


class _Stopping:
    """Handles the signals that end a view: the first asks to stop, the second insists."""

    def __init__(self, insist: Callable[[], None]) -> None:
        self._asked = asyncio.Event()
        self._insist = insist
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._asked.is_set():
            self._insist()
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        """Whether a signal has arrived."""
        return self._asked.is_set()

    async def wait(self, seconds: float) -> None:
        """Wait for a time, or until a signal arrives."""
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            return

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of ``work``; cancel it and return None if a signal arrives first."""
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._asked.wait())
        await asyncio.wait((asked, task), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,))
        return None
