"""The ``onelog`` command: one entry point, and one way to fail.

Whatever goes wrong ends as one line on stderr, ``error: REASON: what happened; what to do``, and an
exit code: 1 for errors, 2 for a command that was not understood. Never a traceback: the people who
read it did not write this program. Some commands have codes of their own; their help says which.
"""

import errno
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from onelog.cli import cluster_commands, log_commands, serve_commands, state_commands
from onelog.cli.failure import CommandFailed

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130  # as if SIGINT had ended the process
EXIT_PIPE_CLOSED = 141  # as if SIGPIPE had

# What is raised for a command line that cannot be understood. The library that typer is built on
# is not part of typer's interface, so this name is reached through a subclass that is.
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="onelog",
    help="onelog: one replicated, typed, append-only log.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
state_commands.register(log_commands.app)
serve_commands.register(app)
app.add_typer(log_commands.app, name="log")
app.add_typer(cluster_commands.app, name="cluster")


def _print_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it
    if asked:
        typer.echo(f"onelog {importlib.metadata.version('onelog')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Say what there is when nothing was asked for."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character gets its number, not an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            code = app(arguments, standalone_mode=False)
        finally:
            sys.stdout.flush()  # what was printed comes before the error that ended it
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # Typer answers a closed pipe with an exit of its own; nothing else here exits this way.
        return _leave_pipe()
    except Exception as error:  # noqa: BLE001 - the root of the process
        return _report(error)
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Run the command line of the process."""
    sys.exit(run())


def _report(error: Exception) -> int:
    # Not imported at the top: most commands of a client never need the log's code.
    from ual.errors import UalError

    if isinstance(error, UsageError):
        return _fail("USAGE", f"{error.format_message().rstrip('.')}; try --help", EXIT_USAGE)
    if isinstance(error, CommandFailed):
        code = EXIT_USAGE if error.reason == "USAGE" else EXIT_ERROR
        return _fail(error.reason, str(error), code)
    if isinstance(error, UalError):
        return _fail(error.reason, str(error), EXIT_ERROR)
    if isinstance(error, OSError):
        reason = errno.errorcode.get(error.errno or 0, "OS_ERROR")
        where = f"{error.filename}: " if error.filename else ""
        return _fail(reason, f"{where}{error.strerror or error}", EXIT_ERROR)
    if isinstance(error, typer.Abort):
        return EXIT_ERROR
    # A mistake in this program. Where it happened is what its authors need to know.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    at = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return _fail("INTERNAL", f"{type(error).__name__}{at}: {error}; please report", EXIT_INTERNAL)


def _fail(reason: str, message: str, code: int) -> int:
    # A path in the message may hold anything, even what a terminal would obey.
    shown = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in message)
    typer.echo(f"error: {reason}: {shown}", err=True)
    return code


def _open_closed_streams() -> None:
    """Let output that was closed (``>&-``) go nowhere; the exit code still tells.

    The numbers must be taken, too: the next file that is opened would get them, and whatever is
    printed by mistake would end up in a file of the data directory.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def _leave_pipe() -> int:
    """End quietly when the reader of our output has gone, as ``| head`` does."""
    # Python flushes stdout once more on its way out; that must have somewhere to go.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE_CLOSED


if __name__ == "__main__":
    main()
