"""Transactions: compare, then or else, over many keys of one namespace.

All conditions are judged before anything is done. The operations of the chosen list run in order
and see what those before them did; when one is refused, the undo log takes everything back and
the transaction is refused as a whole. Inside of a batch it takes back its own part only; the
batch then decides about the rest.
"""

from collections.abc import Sequence
from typing import assert_never

from projections.conditions import COMPARE, Condition, Target
from projections.kv_commands import Transaction
from projections.kv_operations import execute
from projections.kv_store import Store
from projections.limits import RESULT_SIZE_MAX
from projections.reasons import Reason
from projections.result import Applied, Outcome, Refused
from projections.undo import UndoLog

TOOK_THEN = 1
TOOK_ELSE = 2


def first_failed(store: Store, conditions: Sequence[Condition]) -> int | None:
    """Return the position of the first condition that does not hold."""
    for position, condition in enumerate(conditions):
        if not _holds(store, condition):
            return position
    return None


def transact(
    store: Store, undo: UndoLog, command: Transaction, index: int, timestamp_ns: int
) -> Outcome:
    """Run a transaction, wholly or not at all."""
    holds = first_failed(store, command.conditions) is None
    operations = command.then if holds else command.otherwise
    alone = not undo.active
    if alone:
        undo.begin()
    mark = undo.mark()
    results: list[Outcome] = []
    size = 0
    refused: Refused | None = None
    for position, operation in enumerate(operations):
        result = execute(store, operation, index, timestamp_ns)
        if isinstance(result, Refused):
            refused = Refused(Reason.TRANSACTION_REFUSED, position, result.reason)
            break
        size += len(result.value or b"")
        if size > RESULT_SIZE_MAX:
            refused = Refused(Reason.RESULT_TOO_LARGE, RESULT_SIZE_MAX)
            break
        results.append(result)
    if refused is not None:
        undo.rollback_to(mark)
    if alone:
        undo.commit()
    if refused is not None:
        return refused
    return Applied(TOOK_THEN if holds else TOOK_ELSE, None, tuple(results))


def _holds(store: Store, condition: Condition) -> bool:
    found = store.find(condition.key)
    match condition.target:
        case Target.EXISTS:
            return found is not None
        case Target.MISSING:
            return found is None
        case Target.VERSION:
            version = 0 if found is None else found[1].version
            return COMPARE[condition.comparison](version, condition.version)
        case Target.VALUE:
            if found is None:
                return False
            return COMPARE[condition.comparison](store.value(*found), condition.value)
        case _:
            assert_never(condition.target)
