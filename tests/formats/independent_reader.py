"""A reader of onelog's files, written from docs/formats.md: it shows that the document is enough.

Nothing of onelog is imported. Whatever breaks a rule is a ``ValueError``.
"""

import json
import re
import struct
from collections import namedtuple
from itertools import accumulate, pairwise
from typing import Any

Entry = namedtuple("Entry", "entry_type flags term index timestamp_ns group_left payload")
Segment = namedtuple("Segment", "identity last_index entries times streams voids")
NEVER = 1 << 64  # above every index

CRC_TABLE = list(range(256))
for _ in range(8):
    CRC_TABLE = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in CRC_TABLE]


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def need(holds: object, rule: str) -> None:
    if not holds:
        raise ValueError(rule)


def read_entry(data: bytes, at: int, index: int) -> tuple[Entry, int]:
    need(at + 40 <= len(data), "torn header")
    crc, kind, flags, term, found, time_ns, size, left = struct.unpack_from("<IHHQQQII", data, at)
    end = at + 40 + size
    need(size <= 16_777_176 and end <= len(data), "torn payload, or too large")
    need(crc32c(data[at + 4 : end]) == crc, "entry checksum")
    need(found == index and flags < 4 and kind >> 8 < 16, "index, flags or owner")
    return Entry(kind, flags, term, index, time_ns, left, data[at + 40 : end]), end


def read_group(data: bytes, at: int, index: int, time_ns: int = 0) -> tuple[list[Entry], int]:
    entry, end = read_entry(data, at, index)
    group = [entry]
    while entry.group_left:
        need(len(group) + entry.group_left <= 65_536 and end - at <= 16 << 20, "group too large")
        entry, end = read_entry(data, end, index + len(group))
        need(entry.group_left == group[-1].group_left - 1, "group_left")
        group.append(entry)
    times = [time_ns, *(entry.timestamp_ns for entry in group)]
    need(times == sorted(times) and len({entry.term for entry in group}) == 1, "time or term")
    return group, end


def zstd_content_size(frame: bytes) -> int:
    is_single = frame[4] >> 5 & 1
    size, at = (is_single, 2, 4, 8)[frame[4] >> 6], 6 - is_single
    need(frame[:4] == b"\x28\xb5\x2f\xfd" and size and not frame[4] & 3, "no frame of known size")
    return int.from_bytes(frame[at : at + size], "little") + 256 * (size == 2)


def read_identity(data: bytes) -> list[int]:
    """Return shard, segment_id, first_index and first_proposal."""
    need(len(data) >= 64, "too short")
    magic, version, *identity, crc = struct.unpack_from("<8sHHIQQ28xI", data)
    need(magic == b"FLOSEG\0\0" and crc32c(data[:32]) == crc, "magic or header checksum")
    need(version == 1 and identity[2], "version or first_index")
    return identity


def read_unsealed(data: bytes, last_index_max: int = NEVER) -> Segment:
    """Read the whole groups; whether what follows them is a loss is for the caller to say."""
    identity, at, entries = read_identity(data), 64, list[Entry]()
    while (index := identity[2] + len(entries)) <= last_index_max:
        try:
            group, at = read_group(data, at, index, entries[-1].timestamp_ns if entries else 0)
        except ValueError:
            break
        entries += group
    return Segment(identity, index - 1, entries, [], {}, [])


def read_sealed(data: bytes) -> Segment:
    identity, footer = read_identity(data), data[-212:]
    need(len(data) >= 276 and footer[204:] == b"FLO_END\0", "not sealed")
    *owners, entries_end, crc1, crc2, crc3 = struct.unpack("<16IQIII", footer[120:204])
    need((crc32c(data[:64]), crc32c(footer[:196])) == (crc1, crc2), "header or footer checksum")
    need(crc32c(data[:-12]) == crc3, "file checksum")
    tables, end = list[bytes](), entries_end
    for position, size, _, crc in struct.iter_unpack("<QIII", footer[:120]):
        need(position == -(-end // 8) * 8, "table position")
        tables.append(data[position : (end := position + size)])
        need(crc32c(tables[-1]) == crc, "table checksum")
    first, (last, _, _, count) = identity[2], struct.unpack_from("<QQQI", data, 32)
    kept = [row[0] for row in struct.iter_unpack("<Q", tables[1])]
    indexes = kept if count <= last - first else list(range(first, last + 1))
    offsets = [row[0] for row in struct.iter_unpack("<I", tables[0])]
    rows = list(zip(indexes, offsets, strict=True))
    entries, times, at = list[Entry](), list[tuple[int, int]](), 64
    for index, offset in rows:
        need(offset == at, "offset")
        entry, at = read_entry(data, at, index)
        entries.append(entry)
        if not times or entry.timestamp_ns >= times[-1][0] + 10**9:
            times.append((entry.timestamp_ns, index))
    need(at == entries_end and len(entries) == count, "entries_end or entry_count")
    need(owners == [sum(e.entry_type >> 8 == n for e in entries) for n in range(16)], "owners")
    need(rows[::256] == list(struct.iter_unpack("<QI", tables[2])), "sparse table")
    need(times == list(struct.iter_unpack("<QQ", tables[3])), "time table")
    streams = read_streams(tables[4], first)
    need(all(set(records) <= set(indexes) for records in streams.values()), "stream records")
    voids = list(struct.iter_unpack("<QQ", tables[5]))
    bounds = [(0, first - 2), *voids, (last + 2, NEVER)]
    need(all(a[1] + 1 < b[0] <= b[1] for a, b in pairwise(bounds)), "voids")
    return Segment(identity, last, entries, times, streams, voids)


def read_streams(table: bytes, first_index: int) -> dict[int, list[int]]:
    streams, directory = {}, table[: int.from_bytes(table[12:16], "little")]
    rows = [*struct.iter_unpack("<QII", directory), (0, 0, len(table))]
    for (stream_id, count, start), (_, _, end) in pairwise(rows):
        varints = re.findall(rb"[\x80-\xff]*[\x00-\x7f]", table[start:end])
        steps = [sum((byte & 127) << 7 * n for n, byte in enumerate(v)) for v in varints]
        need(len(steps) == count, "record count")
        streams[stream_id] = [first_index + distance for distance in accumulate(steps)]
    return streams


def read_json(data: bytes) -> Any:
    before, crc, after = re.split(rb'^  "crc32c": "([0-9a-f]{8})",\n', data, flags=re.MULTILINE)
    need(crc32c(before + after) == int(crc, 16) and json.loads(data)["version"] <= 2, "checksum")
    return json.loads(data)


def read_slot(slot: bytes, magic: bytes, row: str) -> list[Any]:
    """Return version, flags, reserved and the rest; nothing if the slot is not whole."""
    found, *fields, crc = struct.unpack_from(row, slot)
    return fields if found == magic and crc32c(slot[: struct.calcsize(row) - 4]) == crc else []


def read_raft(data: bytes) -> tuple[list[Any], list[int]]:
    """Return sequence, term and vote; commit_index, durable_index and generation, if known."""
    states = [read_slot(data[at:], b"FLORAFT\0", "<8sHHIQQ16sI") for at in (0, 4096)]
    hint = read_slot(data[8192:], b"FLOHINT\0", "<8sHHIQQQI")
    older, newer = sorted(states, key=lambda state: state[3:])
    need(newer and newer[0] == 1 and older[:1] in ([], [1]), "no whole slot, or a newer version")
    need(older == newer or older[3:4] != newer[3:4], "two states of one sequence")
    return newer[3:], hint[3:] if hint[:1] == [1] else []
