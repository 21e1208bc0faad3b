"""``onelog kv json``: documents in keys, read and changed in parts."""

import json
from pathlib import Path
from typing import Annotated

import typer

from onelog.cli.command import Session, command, group
from onelog.cli.failure import EXIT_NOT_FOUND, CommandFailed
from onelog.cli.values import json_of, path_of, to_bytes, value_of

app = group("Documents in keys, read and changed in parts.")

KeyText = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
PathText = Annotated[
    str, typer.Argument(metavar="PATH", help='Like tags[0].name; . is all; or ["a.b", 0].')
]


@command(app, reads=True)
def get(
    session: Session,
    key: KeyText,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help='Like tags[0].name; or ["a.b", 0].')
    ] = ".",
) -> None:
    """Print a document, or a part of it.

    \b
    Examples:
      onelog kv json get profile
      onelog kv json get profile tags[0]
    """
    found = session.client.kv.json(to_bytes(key)).get(path_of(path), read=session.read)
    if found is None and session.client.kv.get(to_bytes(key), read=session.read) is None:
        raise CommandFailed("KEY_NOT_FOUND", f"there is no key {key}", EXIT_NOT_FOUND)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))


@command(app, "set")
def set_(
    session: Session,
    key: KeyText,
    path: PathText,
    value: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The new part; - reads stdin.")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read it from a file.")
    ] = None,
    is_text: Annotated[
        bool, typer.Option("--text", help="What is given is a text, not JSON.")
    ] = False,
    no_parents: Annotated[
        bool, typer.Option("--no-parents", help="What surrounds the part must be there.")
    ] = False,
) -> None:
    """Set a part of a document; a key that does not exist is made. Element -1 adds to a list.

    \b
    Examples:
      onelog kv json set profile . '{"name": "Ann", "tags": []}'
      onelog kv json set profile tags[-1] '"new"'
      onelog kv json set profile address.city --text Oslo
    """
    data = value_of(value, file)
    part = data.decode(errors="replace") if is_text else json_of(data, "the value")
    version = session.client.kv.json(to_bytes(key)).set(
        path_of(path), part, create_parents=not no_parents
    )
    session.output.result({"version": version}, f"version {version}")


@command(app)
def delete(session: Session, key: KeyText, path: PathText) -> None:
    """Delete a part of a document.

    \b
    Examples:
      onelog kv json delete profile tags[0]
    """
    version = session.client.kv.json(to_bytes(key)).delete(path_of(path))
    session.output.result({"version": version}, f"version {version}")
