"""KV through the router: the cost of a put relative to a bare dict put, and the memory of a key.

One JSON line per case. A ratio compares two loops over the same chunk, one right after the other
in the same process, summed over all chunks, so a slow or busy machine slows both. The median of the
chunks' ratios shows how much other work disturbed the sum. The dict gets decoded keys and values;
the router gets entries as the log decodes them, and also hashes, accounts and keeps versions. State
hash and accounting are always on. ``goal`` is the ratio to stay below.

    .venv/bin/python bench/kv.py [--keys N] [--seed N]
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from onelog.projections.codec import SessionRef, encode_prefix
from onelog.projections.kv.commands import (
    Append,
    Command,
    Delete,
    Increment,
    LeaseGrant,
    Put,
    encode_command,
)
from onelog.projections.kv.reads import KeyValue, Page, Range
from onelog.projections.limits import LEASE_KEYS_MAX
from onelog.projections.projection import Notes
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.system.commands import SessionOpen
from onelog.projections.system.commands import encode_command as encode_system
from onelog.ual.entry import Draft, Entry

KEYS = 1_000_000
CHUNK = 20_000
GROUP = 512  # entries, as a leader makes them of several callers' batches
KEY_SIZE = 16
VERSIONS = 8
GOAL_NEW = 12  # times a bare dict put
GOAL_OVERWRITE = 7
GOAL_UNUSUAL = 3  # times a plain put
MESSAGE = 128  # puts of one message, which acknowledges once
NAMESPACE = "default"
PUT_HEAD = encode_prefix(NAMESPACE) + b"\x00" + KEY_SIZE.to_bytes(2, "little")
KEY_AT = len(PUT_HEAD)


class NoNotes:
    def add_record(self, stream_id: int, index: int) -> None:
        raise AssertionError(f"no streams here: {stream_id} {index}")

    def add_void(self, first_index: int, last_index: int) -> None:
        raise AssertionError(f"refused: {first_index} to {last_index}")


def report(case: str, **figures: float | int | str) -> None:
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"case": case, **rounded}), flush=True)


def resident_size() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def chunks(ids: list[int], draw: random.Random) -> Iterator[list[bytes]]:
    """Yield plain puts of all ids, in random order, with values of 64 to 128 bytes."""
    draw.shuffle(ids)
    for start in range(0, len(ids), CHUNK):
        part = ids[start : start + CHUNK]
        yield [PUT_HEAD + b"%016d" % i + draw.randbytes(draw.randint(64, 128)) for i in part]


def make_entries(payloads: list[bytes], first_index: int) -> list[Entry]:
    return [
        Entry(0x0101, 0, 1, index, 1_000, 0, payload)
        for index, payload in enumerate(payloads, first_index)
    ]


def run_puts(
    case: str,
    goal: int,
    state: Projections,
    table: dict[bytes, bytes],
    ids: list[int],
    draw: random.Random,
) -> None:
    dict_s = router_s = 0.0
    ratios: list[float] = []
    apply_group = state.router.apply_group
    for payloads in chunks(ids, draw):
        entries = make_entries(payloads, state.router.applied_index + 1)
        keys = [payload[KEY_AT : KEY_AT + KEY_SIZE] for payload in payloads]
        values = [payload[KEY_AT + KEY_SIZE :] for payload in payloads]
        started = time.perf_counter()
        for key, value in zip(keys, values, strict=True):
            table[key] = value  # noqa: PERF403 - the loop is what is measured
        between = time.perf_counter()
        for start in range(0, len(entries), GROUP):
            apply_group(entries[start : start + GROUP])
        ended = time.perf_counter()
        router_s += ended - between
        dict_s += between - started
        ratios.append((ended - between) / (between - started))
    report(
        case,
        ratio=router_s / dict_s,
        ratio_median=statistics.median(ratios),
        goal=goal,
        put_us=router_s / len(ids) * 1e6,
        dict_us=dict_s / len(ids) * 1e6,
    )


def run_drafts(
    case: str, state: Projections, drafts: list[Draft], sibling_us: float | None = None
) -> float:
    """Apply drafts in groups; return the median of the groups, in µs of CPU per operation."""
    first = state.router.applied_index + 1
    entries = [
        Entry(draft.entry_type, draft.flags, 1, index, 1_000, 0, draft.payload)
        for index, draft in enumerate(drafts, first)
    ]
    groups = [entries[start : start + GROUP] for start in range(0, len(entries), GROUP)]
    times: list[float] = []
    for group in groups:
        started = time.thread_time()
        state.router.apply_group(group)
        times.append((time.thread_time() - started) / len(group))
    operation_us = statistics.median(times) * 1e6
    if sibling_us is None:
        report(case, operation_us=operation_us)
    else:
        ratio = operation_us / sibling_us
        report(case, operation_us=operation_us, times_plain=ratio, goal=GOAL_UNUSUAL)
    return operation_us


def run_unusual(state: Projections, keys: list[bytes]) -> None:
    """Report puts with options relative to a plain put: new keys, then overwritten ones."""
    grant = encode_command(LeaseGrant(10**12), NAMESPACE)
    leases: list[int] = []
    for _ in range(len(keys) // LEASE_KEYS_MAX + 1):
        run_drafts("lease granted", state, [grant])
        leases.append(state.router.applied_index)
    value, large = b"v" * 96, b"v" * 600

    def find_version(key: bytes) -> int:
        found = state.kv.get(NAMESPACE, key)
        return found.version if isinstance(found, KeyValue) else 0

    def make_lease(number: int) -> int:
        return leases[number // LEASE_KEYS_MAX]

    cases: dict[str, Callable[[int, bytes], Command]] = {
        "put": lambda _, key: Put(b"p" + key, value),
        "put with ttl": lambda _, key: Put(b"t" + key, value, ttl_ns=10**12),
        "put with lease": lambda n, key: Put(b"l" + key, value, lease=make_lease(n)),
        "put of 600 bytes": lambda _, key: Put(b"v" + key, large),
        "put if version": lambda _, key: Put(b"c" + key, value, expected=find_version(b"c" + key)),
        "increment": lambda _, key: Increment(b"n" + key, 1),
        "append": lambda _, key: Append(b"a" + key, b"12345678"),
    }
    for turn in ("new key", "written over"):
        plain_us: float | None = None
        for case, make in cases.items():
            commands = [make(number, key) for number, key in enumerate(keys)]
            drafts = [encode_command(command, NAMESPACE) for command in commands]
            took_us = run_drafts(f"{case}, {turn}", state, drafts, plain_us)
            plain_us = plain_us or took_us
    removals = [encode_command(Delete(b"p" + key), NAMESPACE) for key in keys]
    run_drafts("delete", state, removals, plain_us)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run_reads(state: Projections, ids: list[int], draw: random.Random) -> None:
    keys = [b"%016d" % i for i in draw.sample(ids, min(len(ids), 100_000))]
    get = state.kv.get

    def read_all() -> None:
        for key in keys:
            assert isinstance(get(NAMESPACE, key), KeyValue)

    report("get", operation_us=timed(read_all) / len(keys) * 1e6)


def run_scan(case: str, state: Projections) -> None:
    def scan() -> None:
        assert isinstance(state.kv.scan(NAMESPACE, Range(), limit=1_000), Page)

    report(case, total_ms=timed(scan) * 1e3)


def run_snapshot(state: Projections, keys: int) -> None:
    sections: dict[int, list[bytes]] = {}

    def dump() -> None:
        sections.update({owner: list(chunks) for owner, chunks in state.router.dump().items()})

    dump_s = timed(dump)
    size = sum(len(chunk) for section in sections.values() for chunk in section)
    other = build_projections(NoNotes())
    load_s = timed(lambda: other.router.load(sections))
    assert other.router.state_hash() == state.router.state_hash()
    report("dump", key_us=dump_s / keys * 1e6, size_mb=size / 1e6)
    report("load", key_us=load_s / keys * 1e6)


def run_memory(keys: int, seed: int) -> None:
    """Fill a fresh process with keys; compare its growth with the accounted memory."""
    code = (
        "import random, sys; sys.path.insert(0, '.');"
        "from bench.kv import fill_and_report;"
        f"fill_and_report({keys}, {seed})"
    )
    root = Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def fill_and_report(keys: int, seed: int) -> None:
    draw = random.Random(seed)
    state = build_projections(NoNotes())
    ids = list(range(keys))
    before = resident_size()
    for payloads in chunks(ids, draw):
        state.router.apply_group(make_entries(payloads, state.router.applied_index + 1))
    grown = resident_size() - before
    accounted = sum(sum(kinds.values()) for kinds in state.router.memory().values())
    report("memory", rss_per_key=grown / keys, accounted_per_key=accounted / keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    ids = list(range(arguments.keys))
    notes: Notes = NoNotes()

    state = build_projections(notes)
    table: dict[bytes, bytes] = {}
    run_puts("put new", GOAL_NEW, state, table, ids, draw)
    run_scan("first scan, 1,000 keys", state)
    run_scan("next scan, 1,000 keys", state)
    run_snapshot(state, len(ids))
    run_puts("put over one version", GOAL_OVERWRITE, state, table, ids, draw)
    for _ in range(2, VERSIONS):
        run_puts("put over several versions", GOAL_OVERWRITE, state, table, ids, draw)
    for _ in range(2):
        run_puts("put that drops a version", GOAL_OVERWRITE, state, table, ids, draw)
    run_reads(state, ids, draw)
    del table

    some = draw.sample(ids, min(len(ids), 50_000))
    keys = [b"%016d" % i for i in some]
    run_unusual(state, keys)
    run_drafts("session open", state, [encode_system(SessionOpen(10**10))])
    session = state.router.applied_index
    run_drafts(
        "put in a session",
        state,
        [
            encode_command(
                Put(b"s" + k, b"v" * 96),
                NAMESPACE,
                SessionRef(session, n, max(0, n // MESSAGE * MESSAGE - GROUP)),
            )
            for n, k in enumerate(keys)
        ],
    )
    run_memory(arguments.keys, arguments.seed)


if __name__ == "__main__":
    main()
