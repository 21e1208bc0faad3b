"""The messages between replicas of one shard, as values.

Every message carries the sender's term: an answer from an earlier leadership must not be counted
in a later one. Positions are proposal numbers. Acks echo the term and the round of the append that
they answer, so that a leader knows which of its rounds was answered.
"""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote, or (``pre_vote``) whether it would get one.

    A pre-vote carries the term that the election would have and changes nothing at the receiver.
    ``is_handed``: the leader of the term before has handed over to the candidate, so that its
    voters' promises do not bind them.
    """

    term: int
    last_proposal: int
    last_term: int
    pre_vote: bool = False
    is_handed: bool = False


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
    log_time_ns: int = 0  # the leader's log time; 0: unknown


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
    promise_ms: int = 0  # how long after the append arrived it votes for nobody else


@dataclass(frozen=True, slots=True)
class Stale:
    """The answer to a message of an older term: its leader must step down."""

    term: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """The leader hands over: the receiver should start an election at once."""

    term: int
    hold_ms: int = 0  # how long it should keep the leadership, if an operator asked for that


@dataclass(frozen=True, slots=True)
class Offer:
    """A leader's heartbeat to a peer that needs a snapshot, because the log was trimmed."""

    term: int
    round: int
    index: int  # the last entry in the snapshot
    proposal: int  # the group that it closes
    snapshot_term: int  # of that entry
    size: int  # of the file
    state_hash: int
    log_bytes: int  # about what is kept of the log up to the index
    commit: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A peer asks for some bytes: of a snapshot, or of the entries of a range, as a sealed file.

    A range comes in pieces. Each begins at the requested index, or later if earlier entries are no
    longer kept; the sender chooses where it ends.
    """

    term: int
    is_snapshot: bool
    first_index: int  # of the range; of a snapshot: its index
    last_index: int
    proposal: int  # the group that begins at first_index
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The answer to a fetch, whose range and offset it repeats."""

    term: int
    is_snapshot: bool
    first_index: int
    last_index: int
    offset: int
    piece_first: int  # the range that the piece covers; beyond last_index: nothing is left
    piece_last: int
    size: int  # of the whole piece
    tag: int  # tells two pieces of the same range apart
    data: bytes


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The answer to a fetch of something that this replica cannot provide."""

    term: int
    is_snapshot: bool
    first_index: int
    last_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class StateRow:
    """The state hashes of a replica: (owner, hash) of each non-empty projection."""

    node_id: UUID
    hashes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StateReport:
    """State hashes at ``index``: the sender's own, or those of all replicas that it knows."""

    term: int
    index: int
    rows: tuple[StateRow, ...]


Message = (
    VoteRequest | Vote | Append | Ack | Stale | TimeoutNow | StateReport
    | Offer | Fetch | Chunk | Unavailable
)  # fmt: skip
