"""What kind of weather a run has. Without a profile of its own, a run draws one from its seed."""

from dataclasses import dataclass, field, replace
from random import Random

from onelog.cluster.config import RaftConfig

# How often each misfortune strikes, relative to the others.
USUAL = {
    "crash": 20.0,
    "crash_in_operation": 8.0,
    "crash_in_recovery": 6.0,
    "crash_all": 6.0,
    "pause": 8.0,
    "cut_off": 14.0,
    "cut_off_leader": 8.0,
    "split": 6.0,
    "mend": 6.0,
    "weather": 10.0,
    "slow_sync": 8.0,
    "wall_jump": 6.0,
    "disk_full": 5.0,
    "disk_error": 5.0,
    "crash_full_leader": 5.0,
    "snapshot": 14.0,
    "snapshot_all": 6.0,
    "rot": 6.0,
    "rot_while_down": 6.0,
    "transfer": 6.0,
}
# Snapshots are taken and logs dropped all the time, so whoever is away must be shipped to.
# The others must be well enough to write meanwhile.
SHIPPING = {
    "snapshot_all": 40.0,
    "crash": 8.0,
    "crash_all": 1.0,
    "cut_off": 6.0,
    "cut_off_leader": 4.0,
    "split": 2.0,
    "disk_error": 2.0,
}
MEMBERSHIP = {"add_learner": 8.0, "promote": 10.0, "remove": 5.0, "change_twice": 4.0}

SHIPPED = RaftConfig()
# Frames and windows of a few groups: what a large cluster does with megabytes happens with bytes.
NARROW = RaftConfig(frame_bytes_max=300, window_bytes_max=1500)
FAST = RaftConfig(
    heartbeat_s=0.03,
    election_s_min=0.1,
    election_s_max=0.3,
    leader_silence_s_max=0.4,
    frame_bytes_max=300,
    window_bytes_max=1500,
)


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of run."""

    members: int = 3
    clients: int = 3
    faults_s: float = 60.0
    heal_s: float = 15.0  # after the faults stop, everything must be well again within this
    down_s_max: float = 2.0  # how long a crashed replica stays down
    cut_s_max: float = 4.0  # how long somebody is cut off
    deadline_s: float = 1.0  # how long a client waits for an answer
    between_s: float = 1.0  # mean time from one misfortune to the next
    weights: dict[str, float] = field(default_factory=lambda: dict(USUAL))
    loss: tuple[float, ...] = (0.0, 0.01, 0.1)
    repeat: tuple[float, ...] = (0.0, 0.02, 0.2)
    slow: tuple[float, ...] = (0.0, 0.01, 0.1)
    late_s_max: float = 1.0  # how late a repeated message may come
    slow_sync: tuple[float, ...] = (0.0, 0.05, 0.5)
    lost: float = 0.33  # of the crashes, those that lose everything that was not synced
    power_fails: bool = True  # if not, crashes take processes only: what was written stays
    async_writers: int = 0  # only of use while no power fails
    stale_readers: int = 2
    models: bool = False  # whether there are clients of queues, streams and series, too
    holds: bool = False  # whether there are readers with holds
    deadlines: int = 0  # clients of what ends by itself
    lets_go: bool = False  # whether what these wrote may go, and the log behind it
    liars: int = 0  # replicas whose disks only pretend to sync; their power never fails
    raft: RaftConfig = SHIPPED
    sessions: bool = True
    stable_leader: bool = False  # nothing happens that a leader would have to go for

    def with_sessions(self) -> "Profile":
        """Return it with clients that use sessions, as they should."""
        return replace(self, sessions=True)


def profile_of(seed: int, faults_s: float = 60.0) -> Profile:
    """Draw the profile of a run from its seed."""
    rng = Random(seed ^ 0x5EED)
    weights = dict(USUAL)
    if rng.random() < 0.35:
        weights |= MEMBERSHIP
    ships = rng.random() < 0.4
    if ships:
        weights |= SHIPPING
    return Profile(
        members=rng.choice((3, 3, 3, 5)),
        faults_s=faults_s,
        models=True,
        deadlines=1,
        lets_go=rng.random() < 0.5,
        down_s_max=5.0 if ships else 2.0,
        cut_s_max=5.0 if ships else 4.0,
        between_s=rng.choice((0.5, 1.0, 2.0)),
        weights=weights,
        late_s_max=rng.choice((1.0, 5.0)),
        lost=rng.choice((0.33, 0.8)),
        liars=rng.choice((0, 0, 0, 1)),
        raft=rng.choice((SHIPPED, NARROW, FAST)),
        holds=rng.random() < 0.3,
    )
