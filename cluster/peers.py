"""What a leader knows about each of its peers, beside what pysyncobj keeps."""

from collections import deque


class Peer:
    """Progress of one peer under the present leadership.

    ``match`` is what the peer has durably, by its own word; what pysyncobj is told of it is never
    more than what is durable here as well.
    """

    __slots__ = ("_in_flight", "in_flight_bytes", "match", "round", "spoken_s")

    def __init__(self) -> None:
        self.match = 0
        self.round = 0  # the newest round that it answered
        self.spoken_s = float("-inf")  # when something was last sent
        self.in_flight_bytes = 0
        self._in_flight: deque[tuple[int, int]] = deque()  # number, size

    def sent(self, number: int, size: int) -> None:
        """Count a proposal as on its way."""
        self._in_flight.append((number, size))
        self.in_flight_bytes += size

    def confirmed(self, match: int) -> None:
        """Take the peer's word that it has everything up to ``match`` durably."""
        self.match = max(self.match, match)
        while self._in_flight and self._in_flight[0][0] <= self.match:
            self.in_flight_bytes -= self._in_flight.popleft()[1]

    def rewound(self) -> None:
        """Forget what is on its way: it is sent again."""
        self._in_flight.clear()
        self.in_flight_bytes = 0
