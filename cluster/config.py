"""Times and limits of a Raft group, each with what depends on it."""

from dataclasses import dataclass

# A chunk is alone in its frame; the rest of the frame is its overhead.
CHUNK_SIZE_MAX = 224 << 10


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """How a member behaves. The same on all members, or elections get unfair."""

    # The longest time between two messages of a leader. Ticks are at most a third of this apart.
    heartbeat_s: float = 0.1
    # A follower that hears nothing for a random time in this range asks for votes. The lower end
    # must leave room for a few lost heartbeats, or a busy machine deposes its leaders. It is also
    # how long a member votes for nobody else after it heard a leader (cluster/raft/peers.py).
    election_s_min: float = 0.4
    election_s_max: float = 0.8
    # A leader that hears from no majority for this long steps down: it may have been replaced.
    leader_silence_s_max: float = 1.0
    # One message; heartbeats wait behind it.
    frame_bytes_max: int = 256 << 10
    # Sent to a peer and not yet durable there. Bounds what a slow peer makes a leader resend.
    window_bytes_max: int = 4 << 20
    # How long one tick may spend on applying before it lets heartbeats go out.
    apply_s_max: float = 0.005
    # Proposals that wait for their commit; more are refused.
    proposals_waiting_max: int = 4096

    @property
    def promise_ms(self) -> int:
        """How long a member votes for nobody else after it heard a leader, as promised in acks."""
        return int(self.election_s_min * 1000)

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if not 0 < 3 * self.heartbeat_s < self.election_s_min:
            raise ValueError("the shortest election timeout must exceed three heartbeats")
        if not self.election_s_min < self.election_s_max:
            raise ValueError("the longest election timeout must exceed the shortest")
        if not self.heartbeat_s < self.leader_silence_s_max:
            raise ValueError("a leader must not step down between two heartbeats")
        if self.frame_bytes_max > self.window_bytes_max:
            raise ValueError("a window must hold a frame")


@dataclass(frozen=True, slots=True)
class ShippingConfig:
    """How snapshots and ranges of the log are sent from one replica to another."""

    # One answer. A heartbeat of the same stream waits behind it at most.
    chunk_bytes: int = 128 << 10
    # Chunks that were requested and are not written yet.
    window_chunks: int = 16
    # A chunk that did not come is asked for again.
    retry_s: float = 1.0
    # Without progress for this long, a transfer is given up and the log may be trimmed again.
    give_up_s: float = 20.0
    # After a failure, before the next attempt.
    pause_s: float = 1.0
    # Fetches that wait to be served; more are dropped, and the peer retries.
    fetches_max: int = 256
    # The rate at which sealed segments are read in the background, to find damage.
    scrub_bytes_per_s: int = 4 << 20
    # The pause between two passes over all sealed segments.
    scrub_pause_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if not 1 <= self.chunk_bytes <= CHUNK_SIZE_MAX:
            raise ValueError(f"a chunk has at most {CHUNK_SIZE_MAX} bytes")
        if min(self.window_chunks, self.fetches_max, self.scrub_bytes_per_s) < 1:
            raise ValueError("a window must hold a chunk")
        if self.give_up_s <= 2 * self.retry_s:
            raise ValueError("a transfer must survive a lost chunk")


@dataclass(frozen=True, slots=True)
class Protections:
    """What makes pysyncobj safe. All on; tests switch one off to prove that it is needed.

    The protections of the log and of the files are not here: tests replace those objects.
    """

    follower_durable_ack: bool = True
    leader_own_sync: bool = True
    stamped_acks: bool = True
    vote_set: bool = True
    commit_clamp: bool = True
    pre_vote: bool = True
    read_round: bool = True
    one_change: bool = True
    snapshot_commit_clamp: bool = True
    sticky_votes: bool = True


ALL_ON = Protections()
