"""One payload of each kind, for the golden files: ``python -m tests.projections.payload_samples``.

The files are in ``tests/formats/payloads``. Entries like them are in logs already, so they are
written again only when a format was changed on purpose, together with its version.
"""

import sys

from onelog.projections.codec import SessionRef, encode_prefix
from onelog.projections.conditions import Comparison, Condition, Target
from onelog.projections.kv.commands import (
    Append,
    Command,
    Delete,
    DeleteRange,
    Get,
    Increment,
    JsonDelete,
    JsonSet,
    LeaseGrant,
    LeaseKeepalive,
    LeaseRevoke,
    Maximum,
    Minimum,
    Put,
    PutMany,
    Touch,
    Transaction,
    encode_command,
    put_bodies,
)
from onelog.projections.namespaces import Limits
from onelog.projections.system import commands
from onelog.projections.system.holds import Cause
from onelog.ual.entry import Draft
from tests.formats.golden import golden_path, render_hex

NAMESPACE = "default"
SECOND = 1_000_000_000
SESSION = SessionRef(7, 3, 2)

KV: dict[str, Command] = {
    "kv_put": Put(b"user:1", b"Ada"),
    "kv_put_all_options": Put(b"user:1", b"Ada", ttl_ns=60 * SECOND, lease=12, expected=0),
    "kv_delete": Delete(b"user:1"),
    "kv_delete_expected": Delete(b"user:1", expected=9),
    "kv_touch": Touch(b"user:1", 60 * SECOND, expected=9),
    "kv_touch_with_version": Touch(b"user:1", 60 * SECOND, with_version=True),
    "kv_increment": Increment(b"visits", -2),
    "kv_min": Minimum(b"low", 5),
    "kv_max": Maximum(b"high", 5),
    "kv_append": Append(b"log", b"line\n"),
    "kv_json_set": JsonSet(b"doc", ("a", 2, "é", None), b'{"n":1.50}', create_parents=True),
    "kv_json_delete": JsonDelete(b"doc", ("a", 0)),
    "kv_lease_grant": LeaseGrant(30 * SECOND),
    "kv_lease_keepalive": LeaseKeepalive(12),
    "kv_lease_revoke": LeaseRevoke(12),
    "kv_delete_range": DeleteRange(b"user:", b"user;", 100),
    "kv_put_many": PutMany(
        (*put_bodies((b"a", b"b"), (b"1", b""), None), *put_bodies((b"c",), (b"3",), 60 * SECOND))
    ),
    "kv_transaction": Transaction(
        (
            Condition(b"a", Target.EXISTS),
            Condition(b"b", Target.VERSION, Comparison.LESS, version=9),
            Condition(b"c", Target.VALUE, Comparison.EQUAL, value=b"x"),
        ),
        (Put(b"a", b"1"), Get(b"b")),
        (Delete(b"c"),),
    ),
}

SYSTEM: dict[str, tuple[commands.Command, str]] = {
    "system_expire": (commands.Expire(((0, b"\x07" + b"\0" * 7), (1, b"\x02\x00id"))), ""),
    "system_session_open": (commands.SessionOpen(30 * SECOND), ""),
    "system_session_keepalive": (commands.SessionKeepalive(7), ""),
    "system_session_close": (commands.SessionClose(7), ""),
    "system_namespace_create": (commands.NamespaceCreate(Limits()), "orders"),
    "system_namespace_configure": (
        commands.NamespaceConfigure(Limits(3, 1_000, 9, 10)),
        "orders",
    ),
    "system_namespace_delete": (commands.NamespaceDelete(), "orders"),
    "system_batch": (
        commands.Batch(2, (Condition(b"lock", Target.MISSING),)),
        NAMESPACE,
    ),
    "system_hold_set": (
        commands.HoldSet("export", False, 12, 7 * 86_400 * SECOND, 16 << 30),
        "",
    ),
    "system_hold_move": (commands.HoldSet("export", True, 99, 0, 0), ""),
    "system_hold_release": (commands.HoldRelease("export"), ""),
    "system_hold_break": (commands.HoldBreak("export", Cause.BYTES, 12), ""),
}


def samples() -> dict[str, Draft]:
    """Return every sample by name."""
    drafts = {name: encode_command(command, NAMESPACE) for name, command in KV.items()}
    for name, (command, namespace) in SYSTEM.items():
        drafts[name] = commands.encode_command(command, namespace)
    drafts["kv_put_in_session"] = encode_command(KV["kv_put"], NAMESPACE, SESSION)
    return drafts


def render(name: str, draft: Draft) -> str:
    """Return the text of a golden file."""
    session = SESSION if name == "kv_put_in_session" else None
    namespace = SYSTEM[name][1] if name in SYSTEM else NAMESPACE
    body_at = len(encode_prefix(namespace, session))
    marks = {0: "prefix"}
    if body_at < len(draft.payload):
        marks[body_at] = "body"
    title = f"Payload of type 0x{draft.entry_type:04x}, {name}"
    return render_hex(title, draft.payload, marks)


def main() -> None:
    for name, draft in samples().items():
        path = golden_path(f"payloads/{name}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(render(name, draft), "ascii")
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
