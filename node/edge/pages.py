"""Lists of things by name over all shards, or in that of a routing key, a page at a time.

Names are unique over all shards, so a page token is the last name that was shown: the next page
begins behind it. A shard that has more than its page has a full one, so nothing of it is missing
below the end of the page of all.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from onelog.node.edge.calls import Call
from onelog.node.edge.shards import (
    Edge,
    View,
    invalid,
    one_shard_only,
    parse_namespace,
    read_options,
)
from onelog.node.public_errors import error_of_bounds
from onelog.projections.reasons import Reason

PAGE_SIZE_DEFAULT = 100
PAGE_SIZE_MAX = 1_000
TOKEN_VERSION = b"\x01"

# Fills the answer with items of a namespace in a shard, after a name and up to a limit. Returns
# whether there are more.
Look = Callable[[View, str, str, int, Any], bool]


async def list_by_name(
    edge: Edge,
    request: Any,
    call: Call,
    look: Look,
    *,
    items: str,
    name: str,
    name_size_max: int,
    name_invalid: Reason,
) -> Any:
    """Return a page of ``items``, in the order of their ``name``."""
    options, namespace = read_options(request), parse_namespace(request.namespace)
    limit = request.page_size or PAGE_SIZE_DEFAULT
    if limit > PAGE_SIZE_MAX:
        raise error_of_bounds(Reason.LIMIT_INVALID, "page_size", limit, PAGE_SIZE_MAX)
    if len(request.prefix.encode()) > name_size_max:
        size = len(request.prefix.encode())
        raise error_of_bounds(name_invalid, "the size of prefix", size, name_size_max, 0)
    after = _parse_token(request.page_token, name_size_max)
    shards: Sequence[int] = range(edge.shards)
    if request.routing_key:
        shards = (edge.find_shard(request.routing_key),)
    elif edge.shards > 1 and call.only_shard is None:
        one_shard_only(options)
    by_name = attrgetter(name)

    def page(found: Sequence[Any], *, has_more: bool) -> Any:
        answer = call.response()
        getattr(answer, items).extend(found[:limit])
        if has_more or len(found) > limit:
            answer.next_page_token = TOKEN_VERSION + by_name(getattr(answer, items)[-1]).encode()
        return answer

    async def part(shard: int) -> Any:
        view = await edge.read(shard, options, call)
        answer = call.response()
        has_more = look(view, namespace, after, limit, answer)
        return page(getattr(answer, items), has_more=has_more)

    parts = await edge.parts(request, call, shards, part)
    found = sorted((each for one in parts for each in getattr(one, items)), key=by_name)
    return page(found, has_more=any(one.next_page_token for one in parts))


def _parse_token(token: bytes, size_max: int) -> str:
    """Return the name after which a page begins; refuse an invalid token."""
    if not token:
        return ""
    try:
        name = token[1:].decode()
    except UnicodeDecodeError:
        name = ""
    if token[:1] != TOKEN_VERSION or not name or len(token) > size_max + 1:
        raise invalid("PAGE_TOKEN_INVALID", "not a token of a page before this one")
    return name
