"""The entry point of the ``onelog`` command, and how it fails.

Every error ends as one line on stderr, ``error: REASON: what happened; what to do``, and an exit
code: 1 for errors, 2 for a command that was not understood. There is never a traceback: its readers
did not write this program. Some commands have further codes, which their help lists.

The commands are in ``onelog.cli.program``, which is imported only after interrupts are handled: an
early Ctrl-C ends the process quietly, too.
"""

import errno
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from onelog.cli.failure import (
    EXIT_ERROR,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_PIPE_CLOSED,
    EXIT_USAGE,
    CommandFailed,
    advice_for,
    find_exit_code,
)

# Typer's messages about values that it cannot use, and plainer ones.
_WORDS = (
    (r": .* is not a valid int( range)?\.$", ": this is no whole number"),
    (r": .* is not a valid float( range)?\.$", ": this is no number"),
    (r": .* is not in the range x>=(\S+)\.$", r": it must be at least \1"),
    (r": .* is not in the range x<=(\S+)\.$", r": it must be at most \1"),
    (r": .* is not in the range (\S+)<=x<=(\S+)\.$", r": it must be from \1 to \2"),
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit code."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character gets its number, not an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from onelog.cli.program import tree

        try:
            code = tree()(arguments, prog_name="onelog", standalone_mode=False)
        finally:
            sys.stdout.flush()  # the output comes before the error
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as leaving:
        # Typer exits this way for a closed pipe, and after completion.
        return _leave_pipe() if leaving.code else 0
    except BrokenPipeError:
        return _leave_pipe()
    except Exception as error:  # noqa: BLE001 - the root of the process
        return _report(error)
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Run the command line of the process."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While modules are imported an interrupt cannot be caught: let it end the process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        import onelog.cli.program  # noqa: F401

        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run())


def _report(error: Exception) -> int:
    # Not imported at the top: most commands never need the log's code.
    from onelog.errors import OnelogError, Unimplemented
    from onelog.ual.errors import UalError, is_out_of_memory

    if isinstance(error, CommandFailed):
        return _fail(error.reason, str(error), error.code)
    if isinstance(error, OnelogError):
        from onelog.channel import NOT_CONNECTED

        message = "; ".join([error.message or "no more is known", *getattr(error, "__notes__", ())])
        if isinstance(error, Unimplemented):
            message += "; is this an endpoint for clients, and not a port for peers?"
        if error.reason == NOT_CONNECTED:
            message += "; start a server with onelog serve, or name one with -e"
        return _fail(error.reason, message, find_exit_code(error))
    if isinstance(error, UalError):
        return _fail(error.reason, str(error), EXIT_ERROR)
    if is_out_of_memory(error):
        return _fail("OUT_OF_MEMORY", "there is no more memory for this command", EXIT_ERROR)
    if isinstance(error, ModuleNotFoundError) and (advice := advice_for(error.name)):
        return _fail("MODULE_MISSING", f"{error.name} is missing; {advice}", EXIT_ERROR)
    if isinstance(error, OSError):
        reason = errno.errorcode.get(error.errno or 0, "OS_ERROR")
        where = f"{error.filename}: " if error.filename else ""
        return _fail(reason, f"{where}{error.strerror or error}", EXIT_ERROR)
    return _report_of_typer(error)


def _report_of_typer(error: Exception) -> int:
    import typer

    # The exception for a wrong command line. Click, which typer is built on, is not part of typer's
    # interface, so its class is reached through a subclass that is.
    usage_error: Any = typer.BadParameter.__base__
    if isinstance(error, usage_error):
        message = " ".join(error.format_message().split())
        for theirs, ours in _WORDS:
            message = re.sub(theirs, ours, message)
        return _fail("USAGE", f"{message.rstrip('.')}; try --help", EXIT_USAGE)
    if isinstance(error, typer.Abort):
        return EXIT_ERROR
    # A bug in this program; its authors need to know where it happened.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    at = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return _fail("INTERNAL", f"{type(error).__name__}{at}: {error}; please report", EXIT_INTERNAL)


def _fail(reason: str, message: str, code: int) -> int:
    # A path in the message may hold anything, even control sequences for a terminal.
    shown = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in message)
    sys.stderr.write(f"error: {reason}: {shown}\n")
    return code


def _open_closed_streams() -> None:
    """Redirect closed standard streams (``>&-``) to /dev/null.

    Their descriptors must not stay free: the next file that is opened would get one, and output
    would end up in a file of the data directory.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - for good


def _leave_pipe() -> int:
    """End quietly when the reader of our output is gone, as with ``| head``."""
    # Python flushes stdout once more at exit; that must not fail.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE_CLOSED


if __name__ == "__main__":
    main()
