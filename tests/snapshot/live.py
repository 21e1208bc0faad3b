"""A shard that lives: a log, its state and its snapshots on any ``Files``, and work to do on it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Generic

from onelog.projections.codec import SessionRef
from onelog.projections.conditions import Condition, Target
from onelog.projections.kv.commands import (
    Append,
    Delete,
    Increment,
    LeaseGrant,
    Put,
    Touch,
    encode_command,
)
from onelog.projections.namespaces import Limits
from onelog.projections.system.commands import NamespaceCreate, SessionOpen, encode_batch
from onelog.projections.system.commands import encode_command as encode_system
from onelog.snapshot.build import BuildResult, Capture, build_in_process, plan_build
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.recovery import Recovered, recover_state
from onelog.snapshot.state import StateT, hash_text
from onelog.snapshot.store import KeepConfig, SnapshotStore
from onelog.ual.entry import Draft, Entry
from onelog.ual.files import Files
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.segments.notes import ApplyNotes
from tests.ual.shards import make_shard, open_shard

DATA = Path("/data")
SECOND = 1_000_000_000
MINUTE = 60 * SECOND

# Small enough that a short workload closes, seals and syncs often; a group of Work fits.
SMALL = LogConfig(
    ring_bytes=4096,
    segment_bytes_max=4000,
    segment_entries_max=40,
    unsynced_bytes_max=6000,
    free_bytes_min=0,
)


class LiveShard(Generic[StateT]):
    """Shard 0 of a data directory, opened as a server would."""

    def __init__(
        self,
        files: Files,
        make_state: Callable[[ApplyNotes], StateT],
        *,
        data_dir: Path = DATA,
        config: LogConfig = SMALL,
        keep: KeepConfig | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self.files = files
        self.data_dir = data_dir
        self.make_state = make_state
        self.paths = make_shard(files, data_dir)
        self.log, _ = open_shard(files, self.paths, config)
        self.store = SnapshotStore.open(files, self.paths, self.log, keep)
        self.recovered: Recovered[StateT] = recover_state(
            files, 0, self.log, self.store, make_state, progress
        )
        self.state = self.recovered.state
        self.created_s = 1_700_000_000

    @property
    def state_hash(self) -> str:
        return hash_text(self.state.router)

    def write(self, drafts: Sequence[Draft], *, term: int = 1, step_ns: int = SECOND) -> None:
        """Append a group; nothing else happens to it."""
        now_ns = self.log.last_timestamp_ns + step_ns
        self.log.append(drafts, term=max(term, self.log.last_term), timestamp_ns=now_ns)

    def commit(self, index: int | None = None) -> None:
        """Commit and apply what was written, up to an index that ends a group."""
        index = self.log.last_index if index is None else index
        self.log.mark_committed(index)
        group: list[Entry] = []
        for entry in self.log.segments.scan(self.log.applied_index + 1, index):
            group.append(entry)
            if entry.group_left == 0:
                self.state.router.apply_group(group)
                group = []
        assert not group, "the index is inside a group"
        self.log.mark_applied(index)

    def do(self, drafts: Sequence[Draft], *, term: int = 1) -> None:
        """Write, sync, commit and apply one group."""
        self.write(drafts, term=term)
        self.log.sync()
        self.commit()

    def build(self, progress: Progress = no_progress) -> tuple[BuildResult, Capture]:
        """Build a snapshot of the present state; it is not kept yet."""
        self.created_s += 1
        capture = Capture.of(self.state.router)
        request = plan_build(
            capture,
            self.log,
            self.store,
            data_dir=self.data_dir,
            shard=0,
            created_s=self.created_s,
        )
        return build_in_process(self.files, request, self.make_state, progress), capture

    def snapshot(self, needed_from: int | None = None) -> BuildResult:
        """Build a snapshot, compare it with the live state and keep it.

        Without ``needed_from`` its state refers to nothing in the log.
        """
        result, capture = self.build()
        if needed_from is None:
            needed_from = capture.index + 1
        accept(self.log, self.store, result.record, capture.state_hash, needed_from)
        return result


def accept(
    log: Log,
    store: SnapshotStore,
    record: SnapshotRecord,
    live_hash: str,
    needed_from: int | None = None,
) -> bool:
    """Keep a snapshot whose state is the live one; return whether it is kept."""
    job = store.accept_begin(record, live_hash, needed_from=needed_from)
    if job is not None:
        job.run()
        log.manifest_file.finish(job)
    return job is not None


class Work:
    """Random groups for the real projections: keys, lifetimes, leases, sessions, batches, junk."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.leases: list[int] = []
        self.sessions: list[int] = []
        self.sequence = 0

    def group(self, first_index: int) -> list[Draft]:
        """Return the drafts of a group whose entries start at ``first_index``."""
        drafts: list[Draft] = []
        for _ in range(self.rng.randint(1, 4)):
            drafts += self._drafts(first_index + len(drafts))
        return drafts

    def _drafts(self, index: int) -> list[Draft]:
        rng = self.rng
        key = b"key-%d" % rng.randrange(20)
        value = rng.randbytes(rng.choice((0, 5, 40, 600)))
        match rng.randrange(12):
            case 0:
                return [encode_command(Delete(key), "default")]
            case 1:
                return [encode_command(Increment(b"counter-%d" % rng.randrange(3), 7), "default")]
            case 2:
                return [
                    encode_command(Put(key, value, ttl_ns=rng.randint(1, 50) * SECOND), "default")
                ]
            case 3:
                self.leases.append(index)
                return [encode_command(LeaseGrant(rng.randint(1, 90) * SECOND), "default")]
            case 4:
                lease = rng.choice(self.leases) if self.leases else None
                return [encode_command(Put(key, value, lease=lease), "default")]
            case 5:
                self.sessions.append(index)
                return [encode_system(SessionOpen(MINUTE))]
            case 6 if self.sessions:
                self.sequence += rng.randrange(2)  # some requests are sent again
                sent = SessionRef(self.sessions[-1], self.sequence, 0)
                return [encode_command(Append(key, b"+"), "default", sent)]
            case 7:
                conditions = [Condition(key, rng.choice((Target.EXISTS, Target.MISSING)))]
                inner = [encode_command(Put(key, value), "default") for _ in range(2)]
                return encode_batch(inner, conditions, "default")
            case 8:
                return [encode_system(NamespaceCreate(Limits()), f"room-{rng.randrange(4)}")]
            case 9:
                return [Draft(rng.choice((0x0101, 0x0003, 0x0601)), rng.randbytes(9))]
            case 10:
                return [encode_command(Touch(key, 30 * SECOND), "default")]
        return [encode_command(Put(key, value), "default")]


def put(key: bytes, value: bytes) -> Draft:
    return encode_command(Put(key, value), "default")
