"""Looking at a cluster until somebody has seen enough; the view of ``up`` then ends the cluster.

On a terminal the view replaces itself; into a file or a pipe only what happened is written, a line
for each event, or a JSON object for each look.

The view of ``onelog cluster up`` owns its cluster: the first SIGINT, SIGTERM or SIGHUP stops the
nodes in order, the second kills them. A view that is killed itself leaves the nodes running, and
``onelog cluster down`` finds them.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from onelog.cli.cluster.history import Event, History
from onelog.cli.cluster.lifecycle import kill_all, last_words, stop_cluster
from onelog.cli.cluster.state import ClusterDirectory
from onelog.cli.cluster.status import DOWN, ClusterStatus, Observer
from onelog.cli.cluster.view import as_json, event_line, json_line, render, watching_hint
from onelog.cli.failure import CommandFailed

LOOK_S = 0.5
READY_POLL_S = 0.1

T = TypeVar("T")
Show = Callable[[ClusterStatus, History, list[Event]], None]


async def wait_until_ready(
    directory: ClusterDirectory, numbers: Sequence[int], within_s: float
) -> ClusterStatus:
    """Wait until these nodes serve; raises what keeps them from it."""
    async with Observer(directory) as observer:
        status = await observer.look()
        try:
            async with asyncio.timeout(within_s):
                while True:
                    nodes = [status.nodes[number - 1] for number in numbers]
                    for node in nodes:
                        if node.state == DOWN:
                            said = last_words(directory, node.number)
                            raise CommandFailed(
                                "NODE_ENDED",
                                f"node {node.number} ended while it started: {said}; "
                                f"see {directory.log_path(node.number)}",
                            )
                    if all(node.is_ready for node in nodes):
                        return status
                    await asyncio.sleep(READY_POLL_S)
                    status = await observer.look()
        except TimeoutError:
            late = next(node for node in nodes if not node.is_ready)
            what = f", waiting for {late.waiting_for}" if late.waiting_for else ""
            raise CommandFailed(
                "NOT_READY",
                f"after {within_s:g} s node {late.number} is {late.state}{what}; "
                f"see {directory.log_path(late.number)}, or wait longer with --ready-within",
            ) from None


async def see_up(
    directory: ClusterDirectory,
    ready: Callable[[ClusterStatus], None],
    *,
    ready_s: float,
    stop_s: float,
    is_detached: bool,
) -> bool:
    """Wait until a cluster that was just started is ready, then leave it, or show and end it.

    A cluster that does not get ready is brought down as well, and so is one that a signal ends
    before it was: then the answer is False.
    """
    stopping = _Stopping(lambda: kill_all(directory))
    numbers = [node.number for node in directory.load().nodes]
    try:
        nodes = "1 node" if len(numbers) == 1 else f"{len(numbers)} nodes"
        with _spinner(f"starting {nodes} in {directory.path}"):
            status = await stopping.unless_asked(wait_until_ready(directory, numbers, ready_s))
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
    """Show a cluster until a signal comes, or until it is brought down."""
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
    """Show on a terminal that something is going on."""
    console = Console(stderr=True, markup=False)
    return console.status(Text(text)) if console.is_terminal else nullcontext()


class _Stopping:
    """Signals of a terminal or of whatever runs this: one asks to stop, another one insists."""

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
        """Whether a signal has come."""
        return self._asked.is_set()

    async def wait(self, seconds: float) -> None:
        """Wait for a while, or less if a signal comes."""
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            return

    async def unless_asked(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what comes out of ``work``; None if a signal comes first, which cancels it."""
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._asked.wait())
        await asyncio.wait((asked, task), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait((task,))
        return None
