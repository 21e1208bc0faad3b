"""Calls that stand for many operations: what goes together, and the answers to all of it."""

import asyncio
from asyncio import Future
from collections.abc import Iterable
from typing import Any

from onelog.client.options import ClientOptions
from onelog.client.runs import KEYS_MAX

# Bytes that are written at once.
PART_BYTES_MAX = 256 << 10


async def results_of(answers: Iterable[Future[Any]]) -> list[Any]:
    """Return all results in order; when all are there, raises the first error, if there is one.

    One future after the other: when the first of a message is there the others are too, so this
    wakes up once for each message and not for each operation.
    """
    results, errors = [], []
    waiting = list(answers)
    try:
        for future in waiting:
            try:
                results.append(await future)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
    except asyncio.CancelledError:
        for future in waiting:
            future.cancel()
        raise
    if errors:
        if len(waiting) > 1:
            errors[0].add_note(f"{len(errors)} of {len(waiting)} operations failed")
        raise errors[0]
    return results


class Part:
    """Keys that are written at once."""

    __slots__ = ("keys", "size", "values", "version")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.size = 0  # of both together
        self.version = 0

    def forget(self) -> None:
        """Let go of what is sent; the version is still to come."""
        self.keys, self.values = [], []


def part_limits(options: ClientOptions) -> tuple[int, int]:
    """Return how many keys and how many bytes a part has at most."""
    return (
        min(KEYS_MAX, options.batch_operations_max),
        min(PART_BYTES_MAX, options.batch_bytes_max),
    )
