"""Plain gets in messages of many operations: what is read most, and a way of its own for it.

What ``add_plain_puts`` is to puts (node/services/execute_puts.py): over local names and without the
table of operations in between, for all that are to be equally fresh. Whatever is unusual is left to
the long way. That both ways agree is a test.
"""

from collections.abc import Callable, Sequence

from onelog.errors import OnelogError
from onelog.node.edge.messages import put_item
from onelog.node.edge.operation import Room
from onelog.node.edge.shards import View, namespace_of
from onelog.node.public_errors import error_of_refusal, put_error
from onelog.projections.limits import KEY_SIZE_MAX
from onelog.projections.result import Refused
from onelog.v1 import pipeline_pb2

Take = Callable[[tuple[int, bytes]], None]
Wanted = tuple[int, int]
"""How fresh: a level, and how old an answer may be in milliseconds."""
FRESH: Wanted = (0, 0)


def take_gets(
    operations: Sequence[pipeline_pb2.Operation],
    positions: range,
    shard_of: Callable[[bytes], int],
    target_of: Callable[[int, str, Wanted], Take],
) -> range | None:
    """Take the plain gets from ``positions`` on; return what is left, if anything.

    ``target_of`` returns for a shard, a namespace and how fresh it shall be who takes a get: its
    position and its key.
    """
    targets: dict[tuple[int, str, Wanted], Take] = {}
    for position in positions:
        get = operations[position].get  # empty, if it is another operation
        key = get.key
        if not 0 < len(key) <= KEY_SIZE_MAX:
            return range(position, positions.stop)
        wanted = FRESH
        if get.HasField("options"):
            options = get.options
            if options.min_index or options.as_of_index or options.with_cost:
                return range(position, positions.stop)
            wanted = options.level, options.max_staleness_ms
        place = shard_of(key), get.namespace, wanted
        take = targets.get(place)
        if take is None:
            try:
                take = targets[place] = target_of(place[0], namespace_of(place[1]), wanted)
            except OnelogError:
                return range(position, positions.stop)
        take((position, key))
    return None


def answer_gets(
    view: View,
    namespace: str,
    gets: Sequence[tuple[int, bytes]],
    results: Sequence[pipeline_pb2.OperationResult],
    room: Room,
) -> None:
    """Put what plain gets find into the answer, as far as there is room."""
    find, shard, applied_index = view.projections.kv.get, view.shard, view.applied_index
    for position, key in gets:
        target = results[position]
        if room.is_full:
            put_error(target.error, room.refusal())
            continue
        found = find(namespace, key)
        if isinstance(found, Refused):
            put_error(target.error, error_of_refusal(found))
            continue
        answer = target.get
        header = answer.header
        header.applied_index = applied_index
        if shard:
            header.shard = shard
        if found is not None:
            put_item(answer.item, found)
        size = target.ByteSize()
        if not room.take_result(size):
            target.Clear()
            put_error(target.error, room.refusal(size))
