"""Reads the log of a shard directory by the steps in docs/formats.md, "Data directory".

As independent as the reader of the single files that it uses: nothing of onelog is imported.
"""

import re
from itertools import pairwise
from pathlib import Path

from tests.formats.independent_reader import (
    NEVER,
    Entry,
    Segment,
    need,
    read_identity,
    read_json,
    read_raft,
    read_sealed,
    read_unsealed,
)


def read_shard(
    path: Path, expected: tuple[str, str, int] | None = None
) -> tuple[list[Entry], list[Segment]]:
    """Return the entries that may be shown, and the segments with everything in them.

    ``expected``: the cluster's and the node's id and the shard's number, if they are known.
    """
    manifest = read_json((path / "MANIFEST").read_bytes())
    need(manifest["version"] == (2 if "identity" in manifest else 1), "the version")
    if expected is not None and "identity" in manifest:
        found_identity = [manifest["identity"][name] for name in ("cluster_id", "node_id", "shard")]
        need(found_identity == [*expected], "the directory of another shard")
    checkpoint, cut_from_index = manifest["checkpoint"], manifest["cut_from_index"] or NEVER
    _, hint = read_raft((path / "RAFT").read_bytes())
    commit_index, durable_index = checkpoint["commit_index"], checkpoint["durable_index"]
    if hint:
        commit_index = max(commit_index, hint[0])
        if hint[2] == checkpoint["generation"]:
            durable_index = max(durable_index, hint[1])

    found = _segment_files(path / "segs")
    sealed, unsealed = found[".flseg"], found[".flseg.tmp"]
    need(not sealed.keys() & unsealed.keys(), "two files for one segment")
    successors = dict(pairwise(sorted([*sealed, *unsealed])))
    segments: list[Segment] = []
    for first_index, file in sorted(sealed.items()):
        is_below = successors.get(first_index, NEVER) <= checkpoint["first_index"]
        if first_index not in found[".flseg.tomb"] and not is_below:
            segments.append(_named(first_index, read_sealed(file.read_bytes())))
            # What is sealed was committed, whatever an older record says.
            commit_index = max(commit_index, segments[-1].last_index)
    for first_index, file in sorted(unsealed.items()):
        data, end = file.read_bytes(), min(successors.get(first_index, NEVER), cut_from_index)
        is_last = first_index not in successors
        is_unfinished = is_last and len(data) <= 64 and not _has_header(data)
        if first_index <= cut_from_index and not is_unfinished:
            segments.append(_named(first_index, read_unsealed(data, end - 1)))
            need(segments[-1].last_index < end, "a group crosses the end")
    if unsealed and segments and cut_from_index == NEVER:
        (shard, _, _, first_proposal), last_index = segments[-1].identity, segments[-1].last_index
        groups = sum(entry.group_left == 0 for entry in segments[-1].entries)
        begun = found[".flseg.next"].get(last_index + 1)
        if begun and _has_header(data := begun.read_bytes()):
            identity = read_identity(data)
            if identity[0::2] == [shard, last_index + 1] and (
                identity[3] == first_proposal + groups
            ):
                segments.append(read_unsealed(data))

    next_index = checkpoint["first_index"]
    if segments:
        next_index = min(next_index, segments[0].identity[2])
    for segment in segments:
        need(segment.identity[2] == next_index, f"no entry {next_index}")
        next_index = segment.last_index + 1
    need(durable_index < next_index, f"entry {next_index} was durable")
    entries = [entry for segment in segments for entry in segment.entries]
    return [entry for entry in entries if entry.index <= commit_index], segments


def _segment_files(directory: Path) -> dict[str, dict[int, Path]]:
    """Return the files by the ends of their names, then by their numbers."""
    found: dict[str, dict[int, Path]] = {
        ".flseg": {},
        ".flseg.tmp": {},
        ".flseg.next": {},
        ".flseg.new": {},
        ".flseg.tomb": {},
    }
    for file in directory.iterdir():
        # Ten digits, or more without a zero in front.
        if match := re.fullmatch(
            r"(\d{10}|[1-9]\d{10,19})(\.flseg(|\.tmp|\.next|\.new|\.tomb))", file.name
        ):
            found[match[2]][int(match[1])] = file
    return found


def _has_header(data: bytes) -> bool:
    try:
        return bool(read_identity(data))
    except ValueError:
        return False


def _named(first_index: int, segment: Segment) -> Segment:
    need(segment.identity[2] == first_index, "the name and the header differ")
    return segment
