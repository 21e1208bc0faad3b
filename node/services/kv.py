"""The KV service: one line for what concerns one shard, and what goes over several.

Pages: keys are unique over all shards, so where a page over several of them ended is one key, and
that is the page token. Each shard is asked for a page; what lies beyond the point where the first
of them stopped is dropped, since another may still have keys before it.
"""

from collections.abc import AsyncIterator
from typing import Any

from onelog.node.edge.calls import Call
from onelog.node.edge.messages import put_item
from onelog.node.edge.operation import applied, put_header, run_read, run_write
from onelog.node.edge.shards import (
    Edge,
    View,
    namespace_of,
    one_shard_only,
    read_options,
    session_of,
    write_options,
)
from onelog.node.edge.shards import invalid as invalid_argument
from onelog.node.public_errors import answer_too_large, error_of_reason
from onelog.node.services import kv_operations as op
from onelog.projections.kv.reads import Page
from onelog.projections.limits import KEY_SIZE_MAX, SCAN_KEYS_MAX, SCAN_SIZE_MAX
from onelog.projections.reasons import Reason
from onelog.v1 import kv_pb2

LIST_LIMIT_DEFAULT = 1_000
SCAN_PAGE = 1_000  # keys in one message of a scan
SCAN_LIMIT_MAX = 2**32 - 1
TOKEN_VERSION = b"\x01"


class KvService:
    """See ``kv.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def get(self, request: kv_pb2.GetRequest, call: Call) -> kv_pb2.GetResponse:
        """Read a key."""
        return await run_read(self._edge, op.GET, request, call)

    async def put(self, request: kv_pb2.PutRequest, call: Call) -> kv_pb2.PutResponse:
        """Write a key."""
        return await run_write(self._edge, op.PUT, request, call)

    async def batch_put(
        self, request: kv_pb2.BatchPutRequest, call: Call
    ) -> kv_pb2.BatchPutResponse:
        """Write many keys of one shard."""
        return await run_write(self._edge, op.BATCH_PUT, request, call)

    async def delete(self, request: kv_pb2.DeleteRequest, call: Call) -> kv_pb2.DeleteResponse:
        """Delete a key."""
        return await run_write(self._edge, op.DELETE, request, call)

    async def touch(self, request: kv_pb2.TouchRequest, call: Call) -> kv_pb2.TouchResponse:
        """Change the lifetime of a key."""
        return await run_write(self._edge, op.TOUCH, request, call)

    async def count(self, request: kv_pb2.CountRequest, call: Call) -> kv_pb2.CountResponse:
        """Change a number."""
        return await run_write(self._edge, op.COUNT, request, call)

    async def append(self, request: kv_pb2.AppendRequest, call: Call) -> kv_pb2.AppendResponse:
        """Add bytes to a value."""
        return await run_write(self._edge, op.APPEND, request, call)

    async def get_json(self, request: kv_pb2.GetJsonRequest, call: Call) -> kv_pb2.GetJsonResponse:
        """Read a part of a document."""
        return await run_read(self._edge, op.GET_JSON, request, call)

    async def set_json(self, request: kv_pb2.SetJsonRequest, call: Call) -> kv_pb2.SetJsonResponse:
        """Change a part of a document."""
        return await run_write(self._edge, op.SET_JSON, request, call)

    async def get_history(
        self, request: kv_pb2.GetHistoryRequest, call: Call
    ) -> kv_pb2.GetHistoryResponse:
        """List the versions of a key."""
        return await run_read(self._edge, op.GET_HISTORY, request, call)

    async def txn(self, request: kv_pb2.TxnRequest, call: Call) -> kv_pb2.TxnResponse:
        """Compare, then do one list of operations or the other."""
        return await run_write(self._edge, op.TXN, request, call)

    async def grant_lease(
        self, request: kv_pb2.GrantLeaseRequest, call: Call
    ) -> kv_pb2.GrantLeaseResponse:
        """Grant a lease."""
        return await run_write(self._edge, op.GRANT_LEASE, request, call)

    async def keep_lease(
        self, request: kv_pb2.KeepLeaseRequest, call: Call
    ) -> kv_pb2.KeepLeaseResponse:
        """Let a lease live on."""
        return await run_write(self._edge, op.KEEP_LEASE, request, call)

    async def revoke_lease(
        self, request: kv_pb2.RevokeLeaseRequest, call: Call
    ) -> kv_pb2.RevokeLeaseResponse:
        """End a lease."""
        return await run_write(self._edge, op.REVOKE_LEASE, request, call)

    async def get_lease(
        self, request: kv_pb2.GetLeaseRequest, call: Call
    ) -> kv_pb2.GetLeaseResponse:
        """Show a lease."""
        return await run_read(self._edge, op.GET_LEASE, request, call)

    # Over several shards

    async def batch_get(
        self, request: kv_pb2.BatchGetRequest, call: Call
    ) -> kv_pb2.BatchGetResponse:
        """Read several keys, each at the state of its shard."""
        edge, keys, options = self._edge, request.keys, read_options(request)
        namespace = namespace_of(request.namespace)
        limit = edge.context.config.limits.message_bytes_max
        if len(keys) > SCAN_KEYS_MAX:
            raise error_of_reason(Reason.LIMIT_INVALID, len(keys))
        by_shard: dict[int, list[bytes]] = {}
        for key in keys:
            by_shard.setdefault(edge.shard_of(op.check_key(key)), []).append(key)
        if len(by_shard) > 1 and call.only_shard is None:
            one_shard_only(options)

        def look(view: View) -> kv_pb2.BatchGetResponse:
            wanted = by_shard.get(view.shard, [])
            answer = kv_pb2.BatchGetResponse()
            view.header(answer.headers.add(), len(wanted))
            items = op.found(view.projections.kv.mget(namespace, wanted, view.as_of, limit))
            if len(items) < len(wanted):
                message = (
                    f"{len(items)} of {len(wanted)} keys are more than a message; ask for fewer"
                )
                raise answer_too_large(message, limit)
            for item in items:
                if item is not None:
                    put_item(answer.items.add(), item)
            return answer

        async def part(shard: int) -> kv_pb2.BatchGetResponse:
            return await edge.look(shard, options, call, look)

        parts = await edge.parts(request, call, sorted(by_shard), part)
        if len(parts) == 1:
            one: kv_pb2.BatchGetResponse = parts[0]
            return one
        answer = kv_pb2.BatchGetResponse()
        items: dict[bytes, kv_pb2.KeyValue] = {}
        for each in parts:
            answer.headers.extend(each.headers)
            items.update((item.key, item) for item in each.items)
        answer.items.extend(items[key] for key in keys if key in items)
        return answer

    async def delete_range(
        self, request: kv_pb2.DeleteRangeRequest, call: Call
    ) -> kv_pb2.DeleteRangeResponse:
        """Delete the keys of a range, in one shard or in all."""
        edge, options = self._edge, write_options(request)
        namespace, session = namespace_of(request.namespace), session_of(options)
        left = op.delete_range_of(request).limit
        shards = range(edge.shards)
        if request.routing_key:
            shard = edge.shard_of(request.routing_key)
            shards = range(shard, shard + 1)
        elif session is not None and call.only_shard is None:
            raise invalid_argument("SEVERAL_SHARDS", "a session is of one shard")

        async def part(shard: int) -> kv_pb2.DeleteRangeResponse:
            drafts = op.checked(op.delete_range_of(request), namespace, session)
            written = await edge.write(shard, drafts, options, call)
            result = written.results[0]
            done = applied(result)
            answer = kv_pb2.DeleteRangeResponse(
                deleted_count=done.number, has_more=done.value is not None
            )
            put_header(answer.headers.add(), shard, written.first_index, result)
            if written.cost is not None:
                answer.headers[0].cost.CopyFrom(written.cost)
            return answer

        answer = kv_pb2.DeleteRangeResponse()
        for shard in shards if call.only_shard is None else (call.only_shard,):
            if not left:
                answer.has_more = True
                break
            request.limit = left
            (each,) = await edge.parts(request, call, (shard,), part)
            answer.headers.extend(each.headers)
            answer.deleted_count += each.deleted_count
            answer.has_more |= each.has_more
            left -= each.deleted_count
        return answer

    async def list(self, request: kv_pb2.ListRequest, call: Call) -> kv_pb2.ListResponse:
        """List keys in order, a page of them."""
        if request.limit > SCAN_KEYS_MAX:
            raise error_of_reason(Reason.LIMIT_INVALID, request.limit)
        limit = request.limit or LIST_LIMIT_DEFAULT
        return await self._page(request, call, limit, limit)

    async def scan(
        self, request: kv_pb2.ListRequest, call: Call
    ) -> AsyncIterator[kv_pb2.ListResponse]:
        """List keys in order until there are no more, each page when the last was taken."""
        clock = self._edge.context.clock
        left = request.limit or SCAN_LIMIT_MAX
        page_call = Call(LIST_METHOD, kv_pb2.ListResponse, call.client, call.arrived_s, 0.0)
        page_call.is_forwarded, page_call.metadata = call.is_forwarded, call.metadata
        page_request = kv_pb2.ListRequest()
        page_request.CopyFrom(request)
        # Of each shard a little more than its part of a page: what is beyond the first that stops
        # is read again.
        share = SCAN_PAGE * 5 // (4 * self._edge.shards) + 1
        while True:
            limit = min(left, SCAN_PAGE)
            page_request.limit = limit if request.routing_key else min(limit, share)
            page_call.deadline_s = clock.now_s() + PAGE_DEADLINE_S
            page = await self._page(page_request, page_call, page_request.limit, limit)
            left -= len(page.items)
            if not left:
                page.next_page_token = b""
            yield page
            if not page.next_page_token:
                return
            page_request.page_token = page.next_page_token

    async def _page(
        self, request: kv_pb2.ListRequest, call: Call, limit: int, page_limit: int
    ) -> kv_pb2.ListResponse:
        """Return a page of up to ``page_limit`` keys, of which each shard has up to ``limit``."""
        edge, options = self._edge, read_options(request)
        namespace, keys = namespace_of(request.namespace), op.range_of(request.range)
        token = _token_of(request.page_token)
        shards = range(edge.shards)
        if request.routing_key:
            shard = edge.shard_of(request.routing_key)
            shards = range(shard, shard + 1)
        elif call.only_shard is None and edge.shards > 1:
            one_shard_only(options)

        def look(view: View) -> kv_pb2.ListResponse:
            page: Page = op.found(
                view.projections.kv.scan(
                    namespace,
                    keys,
                    limit=limit,
                    reverse=request.reverse,
                    token=token,
                    as_of=view.as_of,
                )
            )
            answer = kv_pb2.ListResponse()
            view.header(answer.headers.add(), len(page.items))
            for item in page.items:
                put_item(answer.items.add(), item, with_value=not request.keys_only)
            if page.next_key is not None:
                answer.next_page_token = TOKEN_VERSION + page.next_key
            return answer

        async def part(shard: int) -> kv_pb2.ListResponse:
            return await edge.look(shard, options, call, look)

        parts = await edge.parts(request, call, shards, part)
        return parts[0] if len(parts) == 1 else merge(parts, page_limit, reverse=request.reverse)


PAGE_DEADLINE_S = 10.0  # for each page of a scan
LIST_METHOD = f"/{kv_pb2.DESCRIPTOR.services_by_name['KV'].full_name}/List"


def merge(parts: list[Any], limit: int, *, reverse: bool) -> kv_pb2.ListResponse:
    """Return one page of the pages of several shards."""
    answer = kv_pb2.ListResponse()
    items = []
    stops = []
    for each in parts:
        answer.headers.extend(each.headers)
        items += each.items
        if each.next_page_token:
            stops.append(each.next_page_token[1:])
    items.sort(key=lambda item: item.key, reverse=reverse)
    stop = None if not stops else (max(stops) if reverse else min(stops))
    if stop is not None:
        items = [each for each in items if (each.key > stop if reverse else each.key < stop)]
    limit = min(limit, _fitting(items))
    answer.items.extend(items[:limit])
    if len(items) > limit:
        answer.next_page_token = TOKEN_VERSION + items[limit].key
    elif stop is not None:
        answer.next_page_token = TOKEN_VERSION + stop
    return answer


def _fitting(items: list[Any]) -> int:
    """Return how many are one page: as of one shard, it ends behind ``SCAN_SIZE_MAX`` bytes."""
    size = 0
    for count, item in enumerate(items, start=1):
        size += len(item.key) + len(item.value)
        if size >= SCAN_SIZE_MAX:
            return count
    return len(items)


def _token_of(token: bytes) -> bytes | None:
    if not token:
        return None
    if token[:1] != TOKEN_VERSION or not 1 < len(token) <= KEY_SIZE_MAX + 1:
        raise invalid_argument("PAGE_TOKEN_INVALID", "not a token of a page before this one")
    return token[1:]
