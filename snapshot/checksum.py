"""The crc32c of two parts together, from the crc32c of each.

A snapshot's headers are known only when its sections are written, but they stand before them, and
one checksum covers the whole file. With ``combine`` each byte is checksummed once and never read
back: the checksum of the whole follows from those of its parts.

A crc is a remainder of polynomials over GF(2). Appending n bytes multiplies what came before by
x**(8n), so ``combine`` is one multiplication by that power. Bits are reflected, as crc32c wants
it: bit 31 is x**0.
"""

from functools import cache

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_ONE = 0x80000000
_BYTE = 0x00800000  # x**8


def combine(first_crc: int, second_crc: int, second_size: int) -> int:
    """Return crc32c(first + second); of the second part only crc and size are needed."""
    return _multiply(_power(second_size), first_crc) ^ second_crc


@cache
def _square(exponent: int) -> int:
    """Return x**(8 * 2**exponent); there are at most 64 of them."""
    if exponent == 0:
        return _BYTE
    root = _square(exponent - 1)
    return _multiply(root, root)


def _power(size: int) -> int:
    """Return x**(8 * size)."""
    product = _ONE
    for exponent in range(size.bit_length()):
        if size >> exponent & 1:
            product = _multiply(product, _square(exponent))
    return product


def _multiply(left: int, right: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
