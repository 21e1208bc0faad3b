"""One payload of each stream command, for the golden files.

``python -m tests.projections.stream.stream_payload_samples`` writes them into
``tests/formats/payloads``. Entries like them are in logs already, so they are written again only
when a format was changed on purpose, together with its version.
"""

import sys

from onelog.projections.codec import encode_prefix
from onelog.projections.stream.commands import (
    Ack,
    Append,
    Cause,
    Claim,
    Command,
    Configure,
    Create,
    DeadLetter,
    Delete,
    Deliver,
    GroupCommit,
    GroupConfig,
    GroupConfigure,
    GroupCreate,
    GroupDelete,
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupSeek,
    KeyHash,
    Nack,
    ProducerRef,
    Retain,
    Retention,
    Trim,
    TrimCut,
    TrimTo,
    encode_command,
)
from onelog.projections.stream.filters import RecordFilter
from onelog.ual.entry import Draft
from tests.formats.golden import golden_path, render_hex

NAMESPACE = "default"
SECOND = 1_000_000_000
NAMES = ("orders", "billing")

STREAM: dict[str, Command] = {
    "stream_append": Append("orders", b"hello"),
    "stream_append_with_key": Append("orders", b"hello", key=b"user:1"),
    "stream_append_all_options": Append(
        "orders",
        b"hello",
        key=b"user:1",
        headers=(("trace", b"abc"), ("é", b"")),
        tag="red",
        partition=2,
        producer=ProducerRef(7, 1, 42),
    ),
    "stream_create": Create("orders", 4, Retention(3_600 * SECOND, 1 << 30, 1_000_000)),
    "stream_create_mixed": Create("orders", 4, key_hash=KeyHash.MIXED),
    "stream_configure": Configure("orders", Retention(count_max=100, past_groups=True)),
    "stream_delete": Delete("orders"),
    "stream_trim": Trim("orders", Cause.REQUEST, 1_234, 1, past_groups=True),
    "stream_trim_by_age": Trim("orders", Cause.AGE, 60 * SECOND),
    "stream_trim_to": TrimTo(
        12, Cause.COUNT, (TrimCut(0, 900, 901, 40, 3_000), TrimCut(3, 950, 950, 55, 4_100))
    ),
    "stream_retain": Retain(12, ((0, Cause.AGE, 900), (3, Cause.COUNT, 950))),
    "stream_group_create": GroupCreate("orders", "billing", 0, GroupConfig(True, 3, "dead")),
    "stream_group_create_filtered": GroupCreate(
        "orders",
        "billing",
        0,
        GroupConfig(
            filter=RecordFilter(
                frozenset((b"user:2", b"user:1")),
                b"user:",
                frozenset(("red",)),
                (("kind", b"paid"), ("trace", None)),
            )
        ),
    ),
    "stream_group_configure": GroupConfigure("orders", "billing", GroupConfig()),
    "stream_group_delete": GroupDelete(*NAMES),
    "stream_group_join": GroupJoin(*NAMES, 30 * SECOND),
    "stream_group_leave": GroupLeave(*NAMES, 77),
    "stream_group_heartbeat": GroupHeartbeat(*NAMES, 77),
    "stream_group_commit": GroupCommit(*NAMES, 77, 3, ((0, 901), (2, 955))),
    "stream_group_seek": GroupSeek(*NAMES, 0xFFFF, 900),
    "stream_deliver": Deliver(*NAMES, 77, 3, 1, 900, 960, (901, 955)),
    "stream_ack": Ack(*NAMES, 77, ((1, 901), (1, 955))),
    "stream_nack": Nack(*NAMES, 77, ((1, 901),), 5 * SECOND, b"busy"),
    "stream_claim": Claim(*NAMES, 77, 3, 60 * SECOND, 10),
    "stream_claim_passing": Claim(*NAMES, 77, 3, 60 * SECOND, 10, ((12, 12), (40, 64))),
    "stream_dead_letter": DeadLetter(
        "dead", 12, "billing", 1, 901, 901, 3, 1_700_000_000 * SECOND, b"busy"
    ),
}


def samples() -> dict[str, Draft]:
    """Return every sample by name."""
    return {name: encode_command(command, NAMESPACE) for name, command in STREAM.items()}


def render(name: str, draft: Draft) -> str:
    """Return the text of a golden file."""
    marks = {0: "prefix", len(encode_prefix(NAMESPACE)): "body"}
    title = f"Payload of type 0x{draft.entry_type:04x}, {name}"
    return render_hex(title, draft.payload, marks)


def main() -> None:
    for name, draft in samples().items():
        path = golden_path(f"payloads/{name}")
        path.write_text(render(name, draft), "ascii")
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
