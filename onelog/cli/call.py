"""``onelog call``: any call of the API by its name, with a request in JSON, as grpcurl makes it.

A document has the fields of the proto by their names. A field of bytes is text under its name, or
base64 under ``NAME_base64``; an enum is a word like ``last`` for DUPLICATES_LAST. Answers have the
same form. A field that is unknown or of the wrong type is refused with its place, before anything
is sent.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from onelog.cli.command import Session, command
from onelog.cli.documents import Entry, bytes_field, wrong
from onelog.cli.failure import CommandFailed
from onelog.cli.output import enum_words, to_document
from onelog.cli.values import parse_json, read_value

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app)
def call(
    session: Session,
    method: Annotated[
        str, typer.Argument(metavar="SERVICE/METHOD", help="As in the protos, like KV/Get.")
    ],
    request: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The request; - reads stdin; default {}.")
    ] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read it from a file.")
    ] = None,
    shard: Annotated[
        int | None, typer.Option("--shard", min=0, metavar="N", help="Ask this shard's leader.")
    ] = None,
) -> None:
    """Make one call of the API, with a request and an answer in JSON; for what has no command.

    Fields have the names of the protos (docs/api.md). Bytes are text, or base64 as NAME_base64. The
    call is repeated only if the server says that nothing was done. Calls that send a stream of
    answers have commands of their own.

    \b
    Examples:
      onelog call Admin/GetTopology
      onelog call KV/Get '{"key": "greeting"}'
      onelog call Pipeline/ExecuteOnce '{"operations": [{"put": {"key": "a", "value": "1"}},
                                                        {"get": {"key": "a"}}]}'
    """
    from onelog.client.channels import METHODS, UNARY

    if method not in METHODS:
        service = f"{method.partition('/')[0]}/"
        known = [each for each in METHODS if each.startswith(service)]
        known = known or sorted({f"{each.partition('/')[0]}/…" for each in METHODS})
        raise CommandFailed("USAGE", f"'{method}' is no call; there are {', '.join(known)}")
    if method not in UNARY:
        raise CommandFailed("USAGE", f"{method} is a stream; docs/cli.md has its command")
    if request is None and file is None:
        request = "{}"
    document = parse_json(read_value(request, file), "the request")
    message = UNARY[method]()
    if not isinstance(document, dict):
        raise wrong("the request", "is no object")
    _fill(message, document, "")
    answer = session.client.call(method, message, shard=shard)
    session.output.document(to_document(answer, with_unset=False))


def _fill(message: Any, document: Entry, where: str) -> None:
    """Fill in a message from a document; ``where`` is its place in the request."""
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in document.items():
        place = f"{where}{name}"
        field = fields.get(name) or fields.get(name.removesuffix("_base64"))
        if field is None or (field.name != name and field.type != field.TYPE_BYTES):
            raise wrong(place, f"is not one of {', '.join(fields) or 'no fields'}")
        try:
            _fill_field(message, field, document if field.name != name else {name: value}, place)
        except (TypeError, ValueError) as error:
            raise wrong(place, f"cannot be {str(value)[:60]}: {error}") from None


def _fill_field(message: Any, field: Any, entry: Entry, place: str) -> None:
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        kind = field.message_type.fields_by_name["value"]
        for key, value in _checked(entry[field.name], dict, place).items():
            number = int(key) if field.message_type.fields_by_name["key"].cpp_type != 9 else key
            getattr(message, field.name)[number] = _scalar(kind, {"value": value}, "value", place)
    elif field.is_repeated:
        target = getattr(message, field.name)
        for number, value in enumerate(_checked(entry[field.name], list, place)):
            inner = f"{place}[{number}]"
            if field.message_type is not None:
                _fill(target.add(), _checked(value, dict, inner), f"{inner}.")
            else:
                each = value if isinstance(value, dict) else {"value": value}
                each = {"value_base64": each["base64"]} if "base64" in each else each
                target.append(_scalar(field, each, "value", inner))
    elif field.message_type is not None:
        inner_message = getattr(message, field.name)
        inner_message.SetInParent()
        _fill(inner_message, _checked(entry[field.name], dict, place), f"{place}.")
    else:
        setattr(message, field.name, _scalar(field, entry, field.name, place))


def _scalar(field: Any, entry: Entry, name: str, place: str) -> Any:
    if field.type == field.TYPE_BYTES:
        return bytes_field(entry, name, place.rpartition(".")[0] or "request")
    value = entry[name]
    if field.enum_type is not None and isinstance(value, str):
        words = enum_words(field.enum_type)
        if value not in words:
            raise wrong(place, f"is not one of {', '.join(words)}")
        return words[value]
    if field.type == field.TYPE_FIXED64 and isinstance(value, str):
        return int(value, 16)  # a hash
    return value


def _checked(value: Any, kind: type, place: str) -> Any:
    if not isinstance(value, kind):
        raise wrong(place, "is no object" if kind is dict else "is no list")
    return value
