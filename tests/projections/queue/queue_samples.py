"""One payload of each kind, for golden files: ``python -m tests.projections.queue.queue_samples``.

The files are in ``tests/formats/payloads``. Entries like them are in logs already, so they are
written again only when a format was changed on purpose, together with its version.
"""

import sys

from onelog.projections.codec import encode_prefix
from onelog.projections.queue.commands import (
    Ack,
    Cancel,
    Command,
    Extend,
    Lease,
    Nack,
    Prioritise,
    Purge,
    QueueConfigure,
    QueueCreate,
    QueueDelete,
    QueuePause,
    QueueResume,
    Redrive,
    RedriveCancel,
    RedriveStep,
    Release,
    ScheduleDelete,
    ScheduleFire,
    encode_command,
)
from onelog.projections.queue.message import Enqueue, QueueConfig, ScheduleCreate
from onelog.ual.entry import Draft
from tests.formats.golden import golden_path, render_hex

NAMESPACE = "default"
SECOND = 1_000_000_000

COMMANDS: dict[str, Command] = {
    "queue_enqueue": Enqueue(7, b"hello"),
    "queue_enqueue_all_options": Enqueue(
        7,
        b"hello",
        priority=2,
        delay_ns=5 * SECOND,
        ttl_ns=60 * SECOND,
        dedup=b"order-1",
        group=b"customer-9",
        tenant=b"ada",
        headers=((b"type", b"text"), (b"empty", b"")),
    ),
    "queue_enqueue_at": Enqueue(7, b"", at_ns=1_700_000_000 * SECOND),
    "queue_lease": Lease(7, 10, 30 * SECOND),
    "queue_lease_consumer": Lease(7, 10, 30 * SECOND, b"worker-1"),
    "queue_lease_passing": Lease(7, 10, passed=((12, 12), (40, 64))),
    "queue_ack": Ack(7, ((12, 15), (13, 15))),
    "queue_nack": Nack(7, ((12, 15),), 3 * SECOND, b"timeout", strict=True),
    "queue_nack_backoff": Nack(7, ((12, 15),)),
    "queue_extend": Extend(7, ((12, 15),), 60 * SECOND),
    "queue_release": Release(7, ((12, 15),), strict=True),
    "queue_cancel": Cancel(7, (12, 13)),
    "queue_prioritise": Prioritise(7, (12,), 0),
    "queue_purge": Purge(7, 1, 100, 1_700_000_000 * SECOND, 500, leased_too=True),
    "queue_redrive": Redrive(9, 7, 1, 100, 1, 2_000 * SECOND, 50, 25, b"time"),
    "queue_redrive_step": RedriveStep(9, 21, 55),
    "queue_redrive_cancel": RedriveCancel(9, 21),
    "queue_schedule_create": ScheduleCreate(
        7, b"*/15 8-17 * * 1-5", b"tick", ttl_ns=60 * SECOND, headers=((b"type", b"text"),)
    ),
    "queue_schedule_delete": ScheduleDelete(7, 30),
    "queue_schedule_fire": ScheduleFire(7, 30, 1_700_000_100 * SECOND),
    "queue_create": QueueCreate("jobs", QueueConfig()),
    "queue_configure": QueueConfigure(
        7,
        QueueConfig(
            max_deliveries=5,
            dead_queue=9,
            visibility_ns=SECOND,
            ageing_ns=2 * SECOND,
            ttl_ns=3 * SECOND,
            dedup_window_ns=4 * SECOND,
            dedup_max=6,
            messages_max=8,
            backoff_ns=(SECOND, 2 * SECOND),
        ),
    ),
    "queue_configure_weights": QueueConfigure(
        7, QueueConfig(tenant_weights=((b"", 2), (b"ada", 3), (b"bob", 1_000)))
    ),
    "queue_delete": QueueDelete(7),
    "queue_pause": QueuePause(7),
    "queue_resume": QueueResume(7),
}


def samples() -> dict[str, Draft]:
    """Return every sample by name."""
    return {name: encode_command(command, NAMESPACE) for name, command in COMMANDS.items()}


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
