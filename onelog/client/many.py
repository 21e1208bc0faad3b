"""The answers to many operations that one call stands for."""

import asyncio
from asyncio import Future
from collections.abc import Iterable
from typing import Any


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
