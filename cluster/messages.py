"""What replicas of one shard say to each other, as values.

Every message carries the sender's term: an answer from an earlier leadership must not be counted
in a later one. Positions are proposal numbers. Acks echo the term and the round of the append that
they answer, so that a leader can tell which of its questions was answered.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote, or (``pre_vote``) whether it would get one.

    A pre-vote carries the term that the election would have and changes nothing at the receiver.
    """

    term: int
    last_proposal: int
    last_term: int
    pre_vote: bool = False


@dataclass(frozen=True, slots=True)
class Vote:
    """A vote granted; a vote refused is silence."""

    term: int
    pre_vote: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """Proposals from ``previous + 1`` on, or none: then it is a heartbeat."""

    term: int
    round: int
    previous: int
    previous_term: int
    groups: tuple[bytes, ...]  # each a whole group as it is stored
    commit: int
    echo: int = 0  # a stamp of the receiver: the leader was sure of ``commit`` after it was made


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to an append.

    ``success``: everything up to ``next - 1`` is durable here and equal to the leader's; up to
    ``received`` it is written and equal, and would survive the process, but not the power.
    ``reset``: the previous proposal is missing or another one; send again from ``next``.
    """

    term: int
    round: int
    next: int
    success: bool
    reset: bool
    received: int = 0
    stamp: int = 0  # a number that the leader echoes when it is sure of its commit index


@dataclass(frozen=True, slots=True)
class Stale:
    """The answer to a message of an older term: whoever leads there must step down."""

    term: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: the receiver should start an election at once."""

    term: int


Message = VoteRequest | Vote | Append | Ack | Stale | TimeoutNow
