"""How much may be under way at once, in all and for one client.

A request is counted from its arrival until its answer is made, with the bytes that it came in. What
does not fit is refused at once with RESOURCE_EXHAUSTED and a time to come back: nothing waits here,
so nothing can pile up. A client is a connection. None may use more than its share of the whole, so
that one that floods the node leaves room for the others.
"""

from onelog.errors import ResourceExhausted

# One client may use a quarter of everything.
CLIENT_SHARE = 4
RETRY_S = 0.05


class Admission:
    """Counts requests and bytes under way. Invariant: no client without a request is kept."""

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        assert requests_max > 0, requests_max
        assert bytes_max > 0, bytes_max
        self.requests_max = requests_max
        self.bytes_max = bytes_max
        self.client_requests_max = max(1, requests_max // CLIENT_SHARE)
        self.client_bytes_max = max(1, bytes_max // CLIENT_SHARE)
        self.requests = 0
        self.bytes = 0
        self.refused = 0
        self._clients: dict[str, tuple[int, int]] = {}

    @property
    def clients(self) -> int:
        """How many clients have a request under way."""
        return len(self._clients)

    def enter(self, client: str, size: int) -> None:
        """Count a request in, or refuse it."""
        requests, total = self._clients.get(client, (0, 0))
        # A request that is alone may be as large as a message may be.
        if self.requests >= self.requests_max:
            self._refuse("requests", self.requests_max)
        if requests >= self.client_requests_max:
            self._refuse("requests of one client", self.client_requests_max)
        if self.requests and self.bytes + size > self.bytes_max:
            self._refuse("bytes of requests", self.bytes_max)
        if requests and total + size > self.client_bytes_max:
            self._refuse("bytes of requests of one client", self.client_bytes_max)
        self.requests += 1
        self.bytes += size
        self._clients[client] = requests + 1, total + size

    def leave(self, client: str, size: int) -> None:
        """Count a request out that ``enter`` let in."""
        requests, total = self._clients[client]
        if requests == 1:
            assert total == size, (total, size)
            del self._clients[client]
        else:
            self._clients[client] = requests - 1, total - size
        self.requests -= 1
        self.bytes -= size

    def _refuse(self, what: str, limit: int) -> None:
        self.refused += 1
        raise ResourceExhausted(
            f"{limit} {what} are under way, which is the limit",
            reason="TOO_MANY_REQUESTS",
            metadata={"limit": str(limit), "of": what},
            retry_after_s=RETRY_S,
        )
