"""Header blocks, and what gRPC puts into headers.

Decoding is HPACK's (RFC 7541, by the ``hpack`` library) behind a cache: the calls of a client carry
the same few blocks, and a block that only refers to its peer's table means the same until that
table changes. Then the cache is emptied. Each connection has its own.

Encoding is stateless: no entry ever gets into the dynamic table, so a block means the same on every
connection and can be made once. The first block of a connection says so (``TABLE_OFF``).
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

RawHeaders = tuple[tuple[bytes, bytes], ...]
Metadata = tuple[tuple[str, str | bytes], ...]

# What a block of a connection may begin with: our encoder's table has no room from here on.
TABLE_OFF = b"\x20"
# Of a table's size, at the beginning of a block: down to the least that it was, and to what it is.
TABLE_UPDATES_MAX = 2
# Of a text that is repeated to the peer that sent it.
SHOWN_MAX = 128
# What a peer may keep in our decoder's table; the default of the RFC, which needs no announcement.
TABLE_BYTES_MAX = 4096
# Of one connection; a client has a block for each method, with and without a deadline.
CACHED_BLOCKS_MAX = 128
CACHED_BLOCK_BYTES_MAX = 1024
# A block can refer to an entry many times, and its list be much longer.
CACHED_LIST_BYTES_MAX = 4096
# A timeout has up to eight digits; more would overflow what others count in.
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MILLISECONDS_MAX = 10**8 - 1

ParsedT = TypeVar("ParsedT")


class BadHeaders(Exception):
    """A block that cannot be decoded: the tables of both sides differ from now on."""


class HeadersTooLarge(Exception):
    """A header list beyond anything that is decoded; the tables differ from now on."""


class HeaderDecoder(Generic[ParsedT]):
    """Decodes the blocks of one peer, in order, and parses what they hold.

    ``parse`` is a pure function of a header list. Invariant: a cached block refers to the table as
    it is now.
    """

    def __init__(self, parse: Callable[[RawHeaders], ParsedT], list_bytes_max: int) -> None:
        self._parse = parse
        self._decoder = Decoder(max_header_list_size=list_bytes_max)
        self._decoder.max_allowed_table_size = TABLE_BYTES_MAX
        self._cached: dict[bytes, ParsedT] = {}
        self.fields = 0  # that the last block made us decode

    def decode(self, block: bytes) -> ParsedT:
        """Return what a block holds; raises ``BadHeaders`` or ``HeadersTooLarge``."""
        self.fields = 0
        found = self._cached.get(block)
        if found is not None:
            return found
        _check_table_updates(block)
        entries = self._decoder.header_table.dynamic_entries
        before = (len(entries), entries[0] if entries else None)
        size_before = self._decoder.header_table_size
        try:
            decoded = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise HeadersTooLarge(str(error)) from None
        except (HPACKError, UnicodeDecodeError, IndexError) as error:
            # Its text may repeat the block.
            raise BadHeaders(f"no header block: {type(error).__name__}") from None
        headers = tuple((bytes(name), bytes(value)) for name, value in decoded)
        self.fields = len(headers)
        parsed = self._parse(headers)
        # A new entry is always the first one, or else has emptied the table.
        after = (len(entries), entries[0] if entries else None)
        if (
            after[0] != before[0]
            or after[1] is not before[1]
            or size_before != self._decoder.header_table_size
        ):
            self._cached.clear()
        elif len(block) <= CACHED_BLOCK_BYTES_MAX and (
            sum(len(name) + len(value) for name, value in headers) <= CACHED_LIST_BYTES_MAX
        ):
            if len(self._cached) >= CACHED_BLOCKS_MAX:
                self._cached.clear()
            self._cached[block] = parsed
        return parsed


def _check_table_updates(block: bytes) -> None:
    """Refuse a block that begins with more changes of the table's size than RFC 7541, 4.2 has.

    They add nothing to a list, so no limit of lists would end them.
    """
    at, size, updates = 0, len(block), 0
    while at < size and block[at] & 0xE0 == 0x20:
        updates += 1
        if updates > TABLE_UPDATES_MAX:
            raise BadHeaders("no header block: it only changes the size of the table")
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        while is_long and at < size:
            is_long = block[at] >= 0x80
            at += 1


# Entries of HPACK's static table (RFC 7541, appendix A) that gRPC uses: whole fields, and names.
_STATIC_FIELDS = {
    (b":method", b"POST"): b"\x83",
    (b":scheme", b"http"): b"\x86",
    (b":scheme", b"https"): b"\x87",
    (b":status", b"200"): b"\x88",
}
_STATIC_NAMES = {b":authority": 1, b":path": 4, b":status": 8, b"content-type": 31}


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a block that is right whatever the state of the peer's decoder."""
    parts = []
    for name, value in headers:
        whole = _STATIC_FIELDS.get((name, value))
        if whole is not None:
            parts.append(whole)
            continue
        number = _STATIC_NAMES.get(name)
        if number is None:
            parts += (b"\x00", _integer(len(name), 7), name)
        else:
            parts.append(_integer(number, 4))
        parts += (_integer(len(value), 7), value)
    return b"".join(parts)


def _integer(number: int, prefix_bits: int) -> bytes:
    """Return an integer as RFC 7541, 5.1 writes it; the bits before its prefix are zero."""
    limit = (1 << prefix_bits) - 1
    if number < limit:
        return bytes((number,))
    found = bytearray((limit,))
    number -= limit
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


# What gRPC puts into headers

# Fields of HTTP/1.1 connections, which no HTTP/2 message may have (RFC 9113, 8.2.2).
CONNECTION_FIELDS = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
# Fields that are for the transport, and are not metadata.
TRANSPORT_FIELDS = frozenset(
    (b"te", b"content-type", b"content-length", b"grpc-timeout", b"grpc-encoding",
     b"grpc-accept-encoding", b"grpc-status", b"grpc-message", b"grpc-message-type")
)  # fmt: skip


def decode_metadata(headers: Iterable[tuple[bytes, bytes]]) -> Metadata:
    """Return headers as metadata; raises ValueError for a binary value that is none."""
    found: list[tuple[str, str | bytes]] = []
    for raw_name, value in headers:
        name = raw_name.decode("latin-1")
        if name.endswith("-bin"):
            # Several values of one key may have been joined on the way.
            found += [(name, _decode_binary(each)) for each in value.split(b",")]
        else:
            found.append((name, value.decode("latin-1")))
    return tuple(found)


def encode_metadata(metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """Return metadata as headers; raises ValueError for what no header can hold."""
    found = []
    for name, value in metadata:
        if not _is_key(name):
            raise ValueError(f"{name!r} is no key of metadata")
        if name.endswith("-bin"):
            data = value if isinstance(value, bytes) else value.encode()
            found.append((name.encode(), b64encode(data).rstrip(b"=")))
            continue
        text = value if isinstance(value, str) else value.decode("latin-1")
        if not is_printable(text) or text != text.strip():
            raise ValueError(f"the metadata {name!r} has a value that is no printable ASCII")
        found.append((name.encode(), text.encode()))
    return found


_KEY = re.compile(r"[0-9a-z_.-]+", re.ASCII)
_PRINTABLE = re.compile(r"[\x20-\x7e]*", re.ASCII)


def _is_key(name: str) -> bool:
    if _KEY.fullmatch(name) is None or name.startswith("grpc-"):
        return False
    return name.encode() not in CONNECTION_FIELDS and name.encode() not in TRANSPORT_FIELDS


def is_printable(text: str) -> bool:
    """Whether a text can be the value of a header as it is."""
    return _PRINTABLE.fullmatch(text) is not None


def _decode_binary(value: bytes) -> bytes:
    value = value.strip()
    return b64decode(value + b"=" * (-len(value) % 4), validate=True)


def decode_timeout(value: bytes) -> float | None:
    """Return a ``grpc-timeout`` in seconds; None if it is none."""
    found = _TIMEOUT.fullmatch(value.decode("latin-1"))
    return None if found is None else int(found[1]) * _UNITS_S[found[2]]


def encode_timeout(timeout_s: float) -> bytes:
    """Return a ``grpc-timeout``, rounded up: equal timeouts should be equal blocks of headers."""
    milliseconds = max(1, -int(-timeout_s * 1000 // 1))
    if milliseconds <= _MILLISECONDS_MAX:
        return b"%dm" % milliseconds
    return b"%dS" % min(milliseconds // 1000, _MILLISECONDS_MAX)


def shown(text: str) -> str:
    """Return something that a peer sent as a message may repeat it."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def encode_message(text: str) -> bytes:
    """Return a ``grpc-message``: UTF-8, percent-encoded where it is not printable ASCII."""
    if is_printable(text) and "%" not in text:
        return text.encode()
    return b"".join(
        b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode("utf-8", "replace")
    )


def decode_message(value: bytes) -> str:
    """Return the text of a ``grpc-message``; what is no UTF-8 is replaced, never refused."""
    return unquote_to_bytes(value).decode("utf-8", "replace")
