"""``onelog transact``: an atomic batch over all models, as a JSON document."""

import json
from pathlib import Path
from typing import Annotated

import typer

from onelog.cli.command import Session, command
from onelog.cli.values import read_file

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app)
def transact(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON; - is stdin.")],
) -> None:
    """Change keys, queues, streams and series atomically: all of it, or nothing.

    The document has "when", conditions on keys, and "do", operations. All names must be in one
    shard: give them the same {tag}. Exits with 4 if a condition does not hold.

    \b
    Conditions: {"key"} and one of {"exists": true|false}, {"version": N}, {"value": TEXT};
    "is" changes the comparison, by default "==": "!=", "<", "<=", ">", ">=".
    \b
    Operations have an "op" and fields:
      put            key value [ttl lease expected_version]
      delete         key [expected_version]
      touch          key ttl
      increment      key [by]
      append         key data
      set_json       key path value
      delete_json    key path
      enqueue        queue body [priority delay at ttl dedup_id group tenant headers]
      ack, nack      queue messages ([[id, token], …]) [nack: delay reason]
      append_record  stream value [key tag headers partition
                     producer ({"id": N, "epoch": N, "sequence": N})]
      ack_records    stream group member_id records ([[partition, offset], …])
      commit_offsets stream group records ([[partition, offset], …]) [member_id generation]
      write_points   measurement times ([ns, …]) fields ({name: [value, …]}) [tags]
    \b
    Bytes are text, or base64 as value_base64, or any JSON as value_json.
    Durations are like 30s, times like 2026-11-16T12:00:00Z or now+1h.

    \b
    Examples:
      echo '{"when": [{"key": "order{7}", "exists": false}],
             "do": [{"op": "put", "key": "order{7}", "value": "two apples"},
                    {"op": "increment", "key": "orders{7}"}]}' | onelog transact -
      onelog transact batch.json --json
    """
    from onelog.cli import documents

    document = documents.read(read_file(file), ("when", "do"))
    batch = session.client.transact()
    documents.add_conditions(batch, document["when"])
    documents.add_operations(batch, document["do"], "do", documents.BATCH_OPERATIONS)
    written = batch.commit()
    results = documents.shown(batch.results)
    if session.output.as_json:
        found = {"shard": written.shard, "index": written.index, "results": results}
        session.output.result(found, "")
        return
    session.output.result(None, f"done at index {written.index} of shard {written.shard}")
    for entry, result in zip(document["do"], results, strict=True):
        if result is not None:
            session.output.result(None, f"  {entry['op']}: {json.dumps(result)}")
