"""``onelog bench``: load on any endpoint, through the ordinary calls of the Python client.

Everything happens in a namespace of its own, which is deleted at the end, also after Ctrl-C.
Callers, time, batches and prepared data are bounded. A call that fails is counted and does not end
the run, so that one can see what a failover costs.
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import Session, command
from onelog.cli.connect import (
    CONNECT_S,
    FLAG_ORIGIN,
    REFUSED_S,
    parse_durability,
    parse_endpoints,
    to_options,
)
from onelog.cli.failure import CommandFailed
from onelog.cli.output import counted
from onelog.cli.values import duration_s

if TYPE_CHECKING:
    from onelog import AsyncClient
    from onelog.cli.bench.workloads import Run

CALLERS, CALLERS_MAX = 64, 4_096
SECONDS, SECONDS_MAX = 5.0, 86_400.0
CALLS_MAX = 10**9
BATCH_MAX = 10_000
VALUE_SIZE, VALUE_SIZE_MAX = 100, 1 << 20
LOOK_S = 0.5
CLEAN_UP_S = 60.0

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class BenchRequest:
    """The arguments of the command."""

    workloads: Sequence[str]
    callers: int
    seconds: float
    calls: int | None
    value_size: int
    batch: int | None

    def amount(self, batch: int) -> int:
        """Return how much data to prepare for reads: no more than the calls can read."""
        from onelog.cli.bench.workloads import READY_BYTES_MAX, READY_MAX

        most = min(READY_MAX, READY_BYTES_MAX // max(1, self.value_size))
        return most if self.calls is None else min(most, self.calls * batch)


Workloads = Annotated[
    list[str] | None,
    typer.Argument(metavar="WORKLOAD...", help="Which to run, in turn; default: all."),
]
Callers = Annotated[
    int,
    typer.Option(
        "--callers", "-c", min=1, max=CALLERS_MAX, metavar="N", help="Calls at the same time."
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        "-s",
        parser=duration_s,
        metavar="TIME",
        help="How long each runs; default 5s without --count.",
    ),
]
Count = Annotated[
    int | None,
    typer.Option("--count", min=1, max=CALLS_MAX, metavar="N", help="At most N calls of each."),
]
ValueSize = Annotated[
    int,
    typer.Option(
        "--value-size", min=0, max=VALUE_SIZE_MAX, metavar="BYTES", help="Of values and bodies."
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        min=1,
        max=BATCH_MAX,
        metavar="N",
        help="Operations per call; 1, but lease-ack 256, tail 1000, ts-write 100.",
    ),
]


@command(app)
def bench(
    session: Session,
    workloads: Workloads = None,
    *,
    callers: Callers = CALLERS,
    seconds: Seconds = None,
    count: Count = None,
    value_size: ValueSize = VALUE_SIZE,
    batch: Batch = None,
) -> None:
    """Run workloads as fast as the server can; prints operations per second, p50 and p99.

    Times are those of a call, which has --batch operations. A terminal shows the numbers while
    they grow. Everything happens in a namespace of its own, which is deleted at the end. Exits with
    1 if calls failed; they are counted by reason.

    \b
    Workloads:
      put        write keys
      get        read keys, the newest
      get-stale  read keys from any replica
      mixed      read keys, and write one in 5
      enqueue    put messages into a queue
      lease-ack  lease messages and acknowledge them
      append     append records to a stream
      tail       read a stream from its start
      ts-write   write points, a series for each caller
      ts-query   means of an hour of 16 series, by the minute

    \b
    Examples:
      onelog bench
      onelog bench put get --callers 256 --seconds 10s
      onelog bench enqueue lease-ack --value-size 1000 --json
      onelog bench put --batch 128 --count 1000 --durability async
    """
    from onelog.cli.bench.workloads import WORKLOADS

    for name in workloads or ():
        if name not in WORKLOADS:
            raise CommandFailed("USAGE", f"'{name}' is none of {', '.join(WORKLOADS)}")
    if session.settings["namespace"].origin == FLAG_ORIGIN:
        raise CommandFailed(
            "USAGE", "--namespace cannot be chosen: bench creates and deletes its own"
        )
    if seconds is not None and not 0 < seconds <= SECONDS_MAX:
        raise CommandFailed("USAGE", f"--seconds is above 0 and at most {SECONDS_MAX:g}s")
    if seconds is None:
        seconds = SECONDS if count is None else SECONDS_MAX
    request = BenchRequest(workloads or list(WORKLOADS), callers, seconds, count, value_size, batch)
    import uvloop

    rows = uvloop.run(_bench(session, request))
    if not session.output.as_json:
        _print_table(session, rows)
    failed = sum(row["errors"] for row in rows)
    if failed:
        reason = next(iter(next(row["reasons"] for row in rows if row["errors"])))
        text = f"{counted(failed, 'call')} failed, the first with {reason}"
        raise CommandFailed("CALLS_FAILED", text)


async def _bench(session: Session, request: BenchRequest) -> list[dict[str, Any]]:
    from onelog.cli.bench.workloads import WORKLOADS, Load, Run

    rows: list[dict[str, Any]] = []
    async with _namespace(session) as client:
        value = bytes(request.value_size)
        for name in request.workloads:
            workload = WORKLOADS[name]
            batch = request.batch or workload.batch
            step = await workload.begin(Load(client, value, batch, request.amount(batch)))
            run = Run()
            async with _shown(session, rows, name, request.callers, run):
                await run.repeat(
                    step, request.callers, seconds=request.seconds, calls=request.calls
                )
            rows.append(_row(name, request.callers, run))
            if session.output.as_json:
                session.output.line(rows[-1])
    return rows


@asynccontextmanager
async def _namespace(session: Session) -> AsyncIterator["AsyncClient"]:
    """Yield a client in a new namespace, which is deleted at the end."""
    from onelog import AsyncClient
    from onelog.errors import NotFound

    settings = session.settings
    options, durability = to_options(settings), parse_durability(settings["durability"])
    root = AsyncClient(parse_endpoints(settings["endpoints"]), options=options)
    name = f"bench-{secrets.token_hex(8)}"
    try:
        first = root.scoped(timeout_s=min(CONNECT_S, options.timeout_s))
        await first.connect(refused_s=REFUSED_S)
        try:
            await root.admin.create_namespace(name)
            yield root.namespace(name).scoped(durability=durability)
        finally:
            # If the creation was interrupted, it may or may not have happened.
            with suppress(NotFound):
                await root.scoped(timeout_s=CLEAN_UP_S).admin.delete_namespace(name)
    finally:
        await root.close()


def _row(name: str, callers: int, run: "Run") -> dict[str, Any]:
    durations = run.durations
    return {
        "workload": name,
        "callers": callers,
        "per_s": round(run.per_s),
        "p50_ms": round(durations.percentile_s(0.5) * 1e3, 3),
        "p99_ms": round(durations.percentile_s(0.99) * 1e3, 3),
        "operations": run.done,
        "calls": durations.count,
        "errors": run.errors.total(),
        "reasons": dict(run.errors.most_common()),
    }


# Output

_TITLES = (
    ("workload", "workload"), ("callers", "callers"), ("ops/s", "per_s"), ("p50 ms", "p50_ms"),
    ("p99 ms", "p99_ms"), ("operations", "operations"), ("errors", "errors"),
)  # fmt: skip


def _print_table(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    columns = [(title, itemgetter(key)) for title, key in _TITLES]
    session.output.table(rows, [*columns, ("", itemgetter("reasons"))])


@asynccontextmanager
async def _shown(
    session: Session, rows: list[dict[str, Any]], name: str, callers: int, run: "Run"
) -> AsyncIterator[None]:
    """Show a run under way below those that are done, if stderr is a terminal."""
    if session.output.as_json or not sys.stdout.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False, transient=True) as live:

        async def look() -> None:
            while True:
                live.update(_table([*rows, _row(name, callers, run)]), refresh=True)
                await asyncio.sleep(LOOK_S)

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()


def _table(rows: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, key in _TITLES:
        table.add_column(title, justify="left" if key == "workload" else "right")
    for row in rows:
        table.add_row(*(str(row[key]) for _, key in _TITLES))
    return table
