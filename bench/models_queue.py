"""Queues through the router: the cost of a message, compared with a bare heap, and its memory.

One JSON line per case. A ratio compares two loops over the same messages, one right after the other
in the same process and at the same depth, summed over all rounds, in processor time of the thread:
a slow or busy machine slows both. The heap gets prepared numbers; the router gets entries as the
log decodes them, in groups, and decodes, hashes, accounts, fences and keeps deadlines. Each message
is enqueued, leased and acknowledged: three entries, against one push and one pop.

Memory is the growth of a fresh process divided by the messages.

    .venv/bin/python bench/models_queue.py [--messages N] [--seed N]
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from pathlib import Path

from onelog.projections.codec import U64, encode_prefix
from onelog.projections.queue.commands import (
    Ack,
    Command,
    Lease,
    Nack,
    QueueConfigure,
    QueueCreate,
    encode_command,
)
from onelog.projections.queue.message import TYPE_ENQUEUE, Enqueue, QueueConfig, decode_leased
from onelog.projections.result import Applied
from onelog.projections.shard_state import Projections, build_projections
from onelog.ual.entry import Entry

MESSAGES = 1_000_000
CHUNK = 20_000
GROUP = 500  # entries that are applied together, as under load
ROUNDS = 8
GOAL = 15  # times a bare push and pop
GOAL_SIZE = 64
NAMESPACE = "default"
QUEUE = 1
BODY = b"x" * 100
NOW = 10**18
PREFIX = encode_prefix(NAMESPACE) + U64.pack(QUEUE) + b"\x00"


class NoNotes:
    def add_record(self, stream_id: int, index: int) -> None:
        raise AssertionError(f"no streams here: {stream_id} {index}")

    def add_void(self, first_index: int, last_index: int) -> None:
        raise AssertionError(f"refused: {first_index} to {last_index}")


def find_time(index: int) -> int:
    """Return the time of an entry; all entries of a group have the same."""
    return NOW + index // GROUP * GROUP


def report(case: str, **figures: float | int | str) -> None:
    rounded = {k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps({"case": case, **rounded}), flush=True)


def resident_size() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def fresh(config: QueueConfig | None = None) -> Projections:
    state = build_projections(NoNotes())
    send(state, QueueCreate("bench", config or QueueConfig()))
    return state


def make_entries(state: Projections, commands: list[Command]) -> list[Entry]:
    first, now_ns = state.router.applied_index + 1, state.router.log_time_ns
    drafts = (encode_command(command, NAMESPACE) for command in commands)
    return [
        Entry(draft.entry_type, 0, 1, index, max(now_ns, find_time(index)), 0, draft.payload)
        for index, draft in enumerate(drafts, first)
    ]


def send(state: Projections, command: Command) -> Applied:
    """Apply one command at a time: lists of entries would count as memory."""
    (entry,) = make_entries(state, [command])
    result = state.router.apply(entry)
    assert isinstance(result, Applied)
    return result


def plain_entry(index: int, priority: int) -> Entry:
    payload = PREFIX + bytes((priority,)) + BODY
    return Entry(TYPE_ENQUEUE, 0, 1, index, find_time(index), 0, payload)


def plain_entries(state: Projections, priorities: list[int]) -> list[Entry]:
    first = state.router.applied_index + 1
    return [plain_entry(index, priority) for index, priority in enumerate(priorities, first)]


def timed(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


def apply_all(state: Projections, entries: list[Entry]) -> None:
    for start in range(0, len(entries), GROUP):
        state.router.apply_group(entries[start : start + GROUP])


def lease_all(state: Projections, entries: list[Entry], values: list[bytes | None]) -> None:
    for start in range(0, len(entries), GROUP):
        results = state.router.apply_group(entries[start : start + GROUP])
        values.extend(result.value for result in results)  # type: ignore[union-attr]


def run_cycle(case: str, depth: int, priorities: list[int], draw: random.Random) -> None:
    """Enqueue, lease and ack chunks at a steady depth; compare with a heap of the same depth."""
    state = fresh()
    apply = state.router.apply
    for start in range(0, depth, CHUNK):
        for entry in plain_entries(state, draw.choices(priorities, k=min(CHUNK, depth - start))):
            apply(entry)
    heap = [draw.choice(priorities) << 64 | number for number in range(depth)]
    heapify(heap)
    parts: dict[str, float] = {"heap": 0.0, "enqueue": 0.0, "lease": 0.0, "ack": 0.0}
    ratios = []
    for number in range(ROUNDS):
        base = (number + 1) * 10**9
        keys = [draw.choice(priorities) << 64 | base + offset for offset in range(CHUNK)]
        started = time.thread_time()
        for key in keys:
            heappush(heap, key)
            heappop(heap)
        heap_s = time.thread_time() - started
        sent = plain_entries(state, draw.choices(priorities, k=CHUNK))
        enqueue_s = timed(partial(apply_all, state, sent))
        asked = make_entries(state, [Lease(QUEUE, 1, 10**10)] * CHUNK)
        # Only the bytes are kept: a list of results would be the collector's work, not apply's.
        values: list[bytes | None] = []
        lease_s = timed(partial(lease_all, state, asked, values))
        acks: list[Command] = []
        for value in values:
            got = decode_leased(Applied(1, value))
            acks.append(Ack(QUEUE, ((got.messages[0].id, got.token),)))
        done = make_entries(state, acks)
        ack_s = timed(partial(apply_all, state, done))
        for name, spent in zip(parts, (heap_s, enqueue_s, lease_s, ack_s), strict=True):
            parts[name] += spent
        ratios.append((enqueue_s + lease_s + ack_s) / heap_s)
    total_s = parts["enqueue"] + parts["lease"] + parts["ack"]
    per_message = {f"{name}_us": spent / CHUNK / ROUNDS * 1e6 for name, spent in parts.items()}
    report(
        case,
        depth=depth,
        ratio=total_s / parts["heap"],
        ratio_median=statistics.median(ratios),
        goal=GOAL,
        **per_message,
    )


def run_batches() -> None:
    """Leases, acknowledgements and failures of a hundred messages at a time."""
    state = fresh()
    apply_all(state, plain_entries(state, [8] * CHUNK * 4))
    asked = make_entries(state, [Lease(QUEUE, 100, 10**12)] * (CHUNK * 4 // 100))
    values: list[bytes | None] = []
    lease_s = timed(lambda: lease_all(state, asked, values))
    report("lease by 100", message_us=lease_s / CHUNK / 4 * 1e6)
    commands: dict[str, list[Command]] = {"ack by 100": [], "nack by 100": []}
    for number, value in enumerate(values):
        got = decode_leased(Applied(1, value))
        items = tuple((message.id, got.token) for message in got.messages)
        if number % 2:
            commands["ack by 100"].append(Ack(QUEUE, items))
        else:
            commands["nack by 100"].append(Nack(QUEUE, items))
    for case, several in commands.items():
        entries = make_entries(state, several)
        spent_s = timed(partial(apply_all, state, entries))
        report(case, message_us=spent_s / CHUNK / 2 * 1e6)


OPTIONS = ("plain", "header", "priority", "ttl", "delay", "group", "tenant", "dedup id")


def make_message(option: str, number: int) -> Enqueue:
    """Return a message with one option."""
    return Enqueue(
        QUEUE,
        BODY,
        number * 7 % 16 if option == "priority" else 8,
        delay_ns=1 if option == "delay" else None,
        ttl_ns=10**15 if option == "ttl" else None,
        group=b"key-%03d" % (number % 600) if option == "group" else b"",
        tenant=b"key-%d" % (number % 10) if option == "tenant" else b"",
        dedup=b"%016d" % number if option == "dedup id" else b"",
        headers=((b"kind", b"test"),) if option == "header" else (),
    )


def run_options() -> None:
    """Report messages with one option each relative to plain ones: best of several rounds."""
    best: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for option in OPTIONS:
            for size in (1, 64):
                for part, spent_us in run_option(option, size).items():
                    key = option, part
                    best[key] = min(spent_us, best.get(key, spent_us))
    for option in OPTIONS:
        figures: dict[str, float] = {}
        for part in ("enqueue", "lease by 1", "ack by 1", "lease by 64", "ack by 64"):
            figures[f"{part}, us"] = best[option, part]
            figures[f"{part}, ratio"] = best[option, part] / best["plain", part]
        report(f"with option: {option}", **figures)


def run_option(option: str, size: int) -> dict[str, float]:
    """Return the CPU time of a message: to enqueue it, and to lease and ack it in batches."""
    state = fresh(QueueConfig(dedup_max=1_000_000))
    count = GROUP * 8 // size * size
    sent = make_entries(state, [make_message(option, number) for number in range(count)])
    parts = {"enqueue": timed(partial(apply_all, state, sent))}
    now_ns = state.router.log_time_ns + CHUNK
    for draft in state.router.due(now_ns, count):
        index = state.router.applied_index + 1
        state.router.apply(Entry(draft.entry_type, 0, 1, index, now_ns, 0, draft.payload))
    leased = 0
    for _ in range(count // GROUP):  # each message group delivers one message at a time
        asked = make_entries(state, [Lease(QUEUE, size, 10**12)] * (GROUP // size))
        values: list[bytes | None] = []
        lease_s = timed(partial(lease_all, state, asked, values))
        acks: list[Command] = []
        for value in values:
            got = decode_leased(Applied(1, value)).messages
            leased += len(got)
            if got:
                token = decode_leased(Applied(1, value)).token
                acks.append(Ack(QUEUE, tuple((message.id, token) for message in got)))
        ack_s = timed(partial(apply_all, state, make_entries(state, acks)))
        for part, spent_s in ((f"lease by {size}", lease_s), (f"ack by {size}", ack_s)):
            parts[part] = parts.get(part, 0.0) + spent_s
    shares = {
        part: spent / (count if part == "enqueue" else leased) for part, spent in parts.items()
    }
    return {part: share * 1e6 for part, share in shares.items()}


def run_snapshot(messages: int) -> None:
    state = fresh()
    for entry in plain_entries(state, [8] * messages):
        state.router.apply(entry)
    sections: dict[int, list[bytes]] = {}

    def dump() -> None:
        sections.update({owner: list(chunks) for owner, chunks in state.router.dump().items()})

    dump_s = timed(dump)
    other = build_projections(NoNotes())
    load_s = timed(lambda: other.router.load(sections))
    assert other.router.state_hash() == state.router.state_hash()
    size = sum(len(chunk) for section in sections.values() for chunk in section)
    report("dump", message_us=dump_s / messages * 1e6, size_mb=size / 1e6)
    report("load", message_us=load_s / messages * 1e6)
    stats_s = timed(lambda: state.queue.describe_queue(NAMESPACE, QUEUE))
    report("stats", messages=messages, total_ms=stats_s * 1e3)


SHAPES = (
    "plain",
    "leased",
    "delayed",
    "ttl",
    "group of 1,000",
    "group of 1",
    "tenant of 1,000",
    "dedup id",
    "dead",
)


def fill(state: Projections, shape: str, count: int) -> None:
    """Apply ``count`` messages of a shape."""
    apply = state.router.apply
    for number in range(count):
        if shape in ("plain", "leased", "dead"):
            apply(plain_entry(state.router.applied_index + 1, 8))
            if number % 1_000 != 999 or shape == "plain":
                continue
            leased = decode_leased(send(state, Lease(QUEUE, 1_000, 10**12)))
            if shape == "dead":
                items = tuple((message.id, leased.token) for message in leased.messages)
                send(state, Nack(QUEUE, items, None, b"timeout after 30 s"))
            continue
        message = Enqueue(
            QUEUE,
            b"x",
            delay_ns=10**15 if shape == "delayed" else None,
            ttl_ns=10**15 if shape == "ttl" else None,
            group=_key(shape, "group", number),
            tenant=_key(shape, "tenant", number),
            dedup=b"%016d" % number if shape == "dedup id" else b"",
        )
        send(state, message)


def _key(shape: str, kind: str, number: int) -> bytes:
    if not shape.startswith(kind):
        return b""
    return b"key-%08d" % (number if shape.endswith("of 1") else number // 1_000)


def fill_and_report(shape: str, count: int) -> None:
    """Runs in a process of its own."""
    state = build_projections(NoNotes())
    send(state, QueueCreate("bench", QueueConfig()))
    send(state, QueueCreate("dead", QueueConfig()))
    is_dead = shape == "dead"
    config = QueueConfig(
        max_deliveries=int(is_dead), dead_queue=2 if is_dead else 0, dedup_max=1_000_000
    )
    send(state, QueueConfigure(QUEUE, config))
    fill(state, "plain", 2_000)  # the first messages take memory that later ones do not
    before, accounted_before = resident_size(), sum(state.queue.memory().values())
    fill(state, shape, count)
    grown = resident_size() - before
    accounted = sum(state.queue.memory().values()) - accounted_before
    goal = {"goal": GOAL_SIZE} if shape == "plain" else {}
    report(f"memory, {shape}", rss=grown / count, accounted=accounted / count, **goal)


def run_memory(count: int) -> None:
    root = Path(__file__).resolve().parent.parent
    for shape in SHAPES:
        messages = count if shape in ("plain", "leased") else count // 4
        code = (
            "import sys; sys.path.insert(0, '.');"
            "from bench.models_queue import fill_and_report;"
            f"fill_and_report({shape!r}, {messages})"
        )
        subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    run_cycle("one priority", arguments.messages, [8], draw)
    run_cycle("one priority, shallow", 1_000, [8], draw)
    run_cycle("sixteen priorities", arguments.messages // 4, list(range(16)), draw)
    run_batches()
    run_options()
    run_snapshot(arguments.messages // 4)
    run_memory(arguments.messages)


if __name__ == "__main__":
    main()
