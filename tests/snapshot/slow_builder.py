"""Stands in for the builder's process: begins a file, says so, and waits until it is stopped.

The shard in the request says whether it behaves: 1 talks junk, 2 ends without another word.
"""

import json
import os
import sys

from onelog.snapshot.build import BuildRequest
from onelog.snapshot.format import temporary_name

JUNK_SHARD = 1
SILENT_SHARD = 2


def main() -> None:
    request = BuildRequest.decode(sys.stdin.readline())
    path = request.directory / temporary_name(request.file_name)
    path.write_bytes(b"half a snapshot")
    sys.stdout.write(json.dumps({"phase": "write", "done": 15, "total": 0}) + "\n")
    sys.stdout.flush()
    if request.shard == JUNK_SHARD:
        sys.stdout.write("[1, 2\n")
    elif request.shard != SILENT_SHARD:
        os.read(0, 1)  # returns when the other end is closed, which happens after a kill only


if __name__ == "__main__":
    main()
