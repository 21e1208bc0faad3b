"""``onelog explain``: what a reason or an alarm means, from the list that the code uses."""

from typing import Annotated, Any, NamedTuple

import typer

from onelog.cli.failure import EXIT_ERROR, EXIT_NOT_FOUND, CommandFailed, find_exit_code
from onelog.cli.output import Output

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Explained(NamedTuple):
    """A reason in one of the places where it occurs."""

    reason: str
    where: str
    error: str  # its classes in Python, if it is an error of a call or of the client
    exit_code: int | None
    meaning: str


@app.command()
def explain(
    reasons: Annotated[
        list[str] | None, typer.Argument(metavar="[REASON]...", help="The reasons; default: all.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Explain reasons of errors and of alarms: what happened, and which class and exit code it has.

    \b
    Examples:
      onelog explain LEASE_TOKEN_STALE
      onelog explain DISK_FULL CLOCK_JUMPED
      onelog explain --json
    """
    found = list_explained()
    if reasons:
        wanted = [each.upper() for each in reasons]
        known = {each.reason for each in found}
        for name in wanted:
            if name not in known:
                raise CommandFailed("NOT_FOUND", f"there is no reason {name}", EXIT_NOT_FOUND)
        found = [each for each in found if each.reason in wanted]
    columns: list[tuple[str, Any]] = [
        ("reason", lambda each: each.reason),
        ("where", lambda each: each.where),
        ("class", lambda each: each.error),
        ("exit", lambda each: each.exit_code),
        ("meaning", lambda each: each.meaning),
    ]
    Output(as_json=as_json).table([each._asdict() for each in found] if as_json else found, columns)


def list_explained() -> list[Explained]:
    """Return the whole list."""
    from onelog.projections.reasons import Reason
    from onelog.reasons import list_sections

    found = []
    for section in list_sections({each.name: each.meaning for each in Reason}):
        for each in section.meanings:
            names = " or ".join(kind.__name__ for kind in each.kinds)
            code = None
            if each.kinds:
                code = find_exit_code(each.kinds[0](reason=each.reason))
            elif section.title == "Commands":
                code = EXIT_ERROR
            found.append(Explained(each.reason, section.title.lower(), names, code, each.text))
    return found
