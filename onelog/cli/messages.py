"""Messages of the API as JSON documents: numbers stay numbers, enums are their words."""

from typing import Any


def document_of(message: Any) -> dict[str, Any]:
    """Return a message with all of its fields, by the names of the protos."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def word_of(enum: Any, value: int) -> str:
    """Return a value of an enum without the enum's name: ``leader`` for ROLE_LEADER."""
    return _word(enum.DESCRIPTOR, value)


def shown_hash(number: int) -> str:
    """Return a state hash as all commands write it."""
    return f"{number:016x}"


def _value(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_map = field.message_type.fields_by_name["value"]
        return {str(key): _one(of_map, each) for key, each in sorted(value.items())}
    if field.is_repeated:
        return [_one(field, each) for each in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return document_of(value)
    if field.enum_type is not None:
        return _word(field.enum_type, value)
    # Of all fixed numbers of the API these are hashes, which nobody calculates with.
    if field.type == field.TYPE_FIXED64:
        return shown_hash(value)
    return value


def _word(enum: Any, value: int) -> str:
    known = enum.values_by_number.get(value)
    if known is None:
        return str(value)
    name: str = known.name
    prefix = "".join(f"_{each}" if each.isupper() else each.upper() for each in enum.name)
    return name.removeprefix(prefix.lstrip("_") + "_").lower()
