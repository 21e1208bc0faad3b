"""Compressed payloads: zstd frames that say how large they are.

Small payloads are stored as they are: a frame's own header and the call cost more than they save.
A frame without its content size is never written and never accepted, so that a reader knows what
it will allocate before it does: a bomb is an error, never memory.
"""

import zstandard

from ual.errors import CorruptPayload, PayloadTooLarge

COMPRESS_SIZE_MIN = 1024
SAVED_PERCENT_MIN = 5
PLAIN_SIZE_MAX = 64 << 20

_COMPRESSOR = zstandard.ZstdCompressor(level=3, write_content_size=True, write_checksum=False)


def compress(payload: bytes) -> bytes | None:
    """Return the compressed payload, or None where storing it plain is better.

    The shared compressor is not reentrant: only the thread that encodes entries calls this.
    """
    size = len(payload)
    if size < COMPRESS_SIZE_MIN:
        return None
    packed = _COMPRESSOR.compress(payload)
    return packed if len(packed) * 100 <= size * (100 - SAVED_PERCENT_MIN) else None


def decompress(packed: bytes, plain_size_max: int = PLAIN_SIZE_MAX) -> bytes:
    """Return the plain payload; refuse one larger than ``plain_size_max`` before allocating it."""
    try:
        size = zstandard.frame_content_size(packed)
    except zstandard.ZstdError as error:
        raise CorruptPayload(f"not a zstd frame: {error}") from error
    if size < 0:
        raise CorruptPayload("a zstd frame without its content size")
    if size > plain_size_max:
        raise PayloadTooLarge(size, plain_size_max)
    try:
        plain = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptPayload(f"damaged zstd frame: {error}") from error
    if len(plain) != size:
        raise CorruptPayload(f"a zstd frame of {size} bytes decompressed to {len(plain)}")
    return plain
