"""``onelog log verify`` on snapshots."""

import pytest
from crc32c import crc32c

from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.proof import VERIFIERS
from onelog.ual.manifest import Manifest, load, save
from onelog.ual.offline.verify import Finding, Level, SetAside, verify
from tests.simulation.disk import SimDisk
from tests.snapshot.live import DATA, SMALL, LiveShard, put
from tests.ual.shards import close_active, drop_before, seal_closed


def lived() -> LiveShard[Projections]:
    live = LiveShard(SimDisk(), build_projections)
    for number in range(3):
        live.do([put(b"%d" % number, b"x")])
        live.snapshot()
    return live


def findings(live: LiveShard[Projections]) -> list[Finding]:
    limit = SMALL.unsynced_bytes_max
    return verify(live.files, DATA, unsynced_bytes_max=limit, verifiers=VERIFIERS)


def test_healthy_snapshots_are_nothing_to_report() -> None:
    assert findings(lived()) == []


@pytest.mark.parametrize("bit", [3, 8 * 30, 8 * 62, 8 * 100, -1])
def test_a_damaged_snapshot_is_an_error_with_its_place(bit: int) -> None:
    live = lived()
    assert isinstance(live.files, SimDisk)
    path = live.store.path(live.store.records[0])
    live.files.flip(path, bit % (8 * len(live.files.contents(path))))
    (finding,) = findings(live)
    assert (finding.level, finding.path, finding.reason) == (Level.ERROR, path, "CORRUPT_SNAPSHOT")
    assert finding.offset is not None
    assert finding.remedy == SetAside(path, live.paths.manifest)


def test_a_snapshot_that_is_not_the_recorded_one_is_an_error() -> None:
    live = lived()
    assert isinstance(live.files, SimDisk)
    older, newer = map(live.store.path, live.store.records)
    data = bytearray(live.files.contents(older))
    live.files.put(newer, bytes(data))
    (finding,) = findings(live)
    assert "says index" in finding.message


def test_leftovers_are_named_and_can_be_removed() -> None:
    live = lived()
    assert isinstance(live.files, SimDisk)
    snaps = live.paths.snapshots
    live.files.put(snaps / "0000000009-1.fsnap.tmp", b"half")
    live.files.put(snaps / "0000000001-1.fsnap", b"unlisted")
    live.files.put(snaps / "copy.fsnap", b"somebody's")
    live.files.put(snaps / "copy.tmp", b"somebody's")
    levels = {finding.path.name: finding.level for finding in findings(live)}
    assert levels == {
        "0000000009-1.fsnap.tmp": Level.LEFTOVER,
        "0000000001-1.fsnap": Level.LEFTOVER,
        "copy.fsnap": Level.FOREIGN,
        "copy.tmp": Level.FOREIGN,
    }
    removed = {at.path.name for at in findings(live) if at.remedy is not None}
    assert removed == {"0000000009-1.fsnap.tmp", "0000000001-1.fsnap"}


def test_a_newer_format_is_not_called_damage() -> None:
    live = lived()
    assert isinstance(live.files, SimDisk)
    path = live.store.path(live.store.records[0])
    data = bytearray(live.files.contents(path))
    data[8] = 9
    data[56:60] = crc32c(data[:56]).to_bytes(4, "little")
    live.files.put(path, bytes(data))
    reasons = [finding.reason for finding in findings(live)]
    assert reasons == ["UNKNOWN_VERSION"]


def test_a_snapshot_beside_a_manifest_that_was_made_anew_is_not_offered_for_removal() -> None:
    live = lived()
    close_active(live.log)
    seal_closed(live.log)
    live.do([put(b"z", b"z")])
    manifest = load(live.files, live.paths.manifest)
    assert manifest is not None
    drop_before(live.log, live.log.last_index)
    shortened = live.log.manifest.checkpoint
    assert shortened.first_index > 1
    save(live.files, live.paths.manifest, Manifest(shortened))
    found = findings(live)
    assert {at.reason for at in found} == {"UNLISTED_SNAPSHOT"}
    # Without the finder of snapshots MANIFEST cannot be made again either.
    assert all(at.remedy is None for at in found)
