"""Changes that concern every shard and are made shard by shard, each where it is led.

There is no transaction over shards: a call may end with the change made in some of them. So it can
be repeated: where a shard says that it is so already, that is no failure, unless all of them do.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from onelog.errors import OnelogError
from onelog.node.edge.calls import Call, gather
from onelog.node.edge.shards import Edge


async def every_shard(
    edge: Edge,
    request: Any,
    call: Call,
    part: Callable[[int], Awaitable[Any]],
    done: type[OnelogError] | None,
) -> dict[int, Any]:
    """Return by shard what its part came to: an answer, or the refusal that says it is so already.

    ``done`` is the class of that refusal. If all say so there was nothing to do, and that is
    raised. Asked for one shard by another node, it is only that one.
    """

    async def outcome(shard: int) -> Any:
        try:
            (answer,) = await edge.parts(request, call, (shard,), part)
        except OnelogError as error:
            if done is not None and isinstance(error, done):
                return error
            raise
        return answer

    shards = range(edge.shards) if call.only_shard is None else (call.only_shard,)
    outcomes = await gather(*map(outcome, shards))
    refused = [each for each in outcomes if isinstance(each, OnelogError)]
    if len(refused) == len(outcomes):
        raise refused[0]
    return dict(zip(shards, outcomes, strict=True))
