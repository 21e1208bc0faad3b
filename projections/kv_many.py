"""Many puts in one entry: one version, one checksum and one result for all of them.

What a put costs besides writing its key (header, checksum, session, answer) is paid once for the
entry. All of it is done or nothing is: when one put is refused, the undo log takes the others back,
as it does for a transaction. A key that is put twice has the last value.
"""

from projections.errors import BadPayload
from projections.kv_commands import PutMany, read_one_of_many
from projections.kv_operations import execute
from projections.kv_plain import PlainPuts
from projections.kv_store import Store
from projections.reasons import Reason
from projections.result import APPLIED, Outcome, Refused
from projections.undo import UndoLog


def put_many(
    store: Store,
    plain: PlainPuts,
    undo: UndoLog,
    command: PutMany,
    index: int,
    timestamp_ns: int,
) -> Outcome:
    """Run the puts, wholly or not at all."""
    alone = not undo.active
    prefix = store.items.prefix
    left = [prefix + body for body in command.bodies]
    if plain.put_alike(index, prefix, left):
        return APPLIED
    if alone:
        undo.begin()
    mark = undo.mark()
    refused: Refused | None = None
    while left := left[plain.run_at_once(index, prefix, left) :]:
        # One that is not plain; behind it the short way goes on.
        position, body = len(command.bodies) - len(left), left.pop(0)[len(prefix) :]
        try:
            result = execute(store, read_one_of_many(body), index, timestamp_ns)
        except BadPayload as error:
            refused = Refused(error.reason, error.detail)
            break
        if isinstance(result, Refused):
            refused = Refused(Reason.TRANSACTION_REFUSED, position, result.reason)
            break
    if refused is not None:
        undo.rollback_to(mark)
    if alone:
        undo.commit()
    return refused or APPLIED
