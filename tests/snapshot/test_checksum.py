"""``combine`` against the checksum of the joined bytes."""

from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.snapshot.format import combine


@settings(deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_checksum_of_two_parts_follows_from_the_parts(first: bytes, second: bytes) -> None:
    assert combine(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


@settings(deadline=None)
@given(st.integers(0, 5_000), st.integers(0, 2**32 - 1))
def test_appending_zeros_is_a_multiplication(size: int, crc: int) -> None:
    """Sizes beyond what a test can join: the same power, in two steps."""
    zeros = crc32c(bytes(size))
    once = combine(crc, zeros, size)
    assert once == crc32c(bytes(size), crc)


def test_sizes_of_many_gigabytes_combine() -> None:
    part = 7 << 40
    crc = 0x12345678
    # x**(8a) * x**(8b) = x**(8(a+b)): with a second part whose crc counts as 0.
    assert combine(combine(crc, 0, part), 0, part) == combine(crc, 0, 2 * part)
