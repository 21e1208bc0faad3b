"""A replica in a process of its own: a log comes in, a trace goes out.

``python -m tests.projections.replay_process MUTATION < log > trace.json``
"""

import sys

import pytest

from tests.projections.equivalence import apply_log, encode_trace
from tests.projections.mutations import MUTATIONS


def main() -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[sys.argv[1]](patch)
        trace = apply_log(sys.stdin.buffer.read())
    sys.stdout.write(encode_trace(trace))


if __name__ == "__main__":
    main()
