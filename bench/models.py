"""Queues, streams and time series compared with bare structures; one JSON line per case.

    python bench/models.py

Runs bench/models_queue.py, models_stream.py and models_ts.py one after the other, each in its own
process, because memory is measured as the growth of a process.
"""

import subprocess
import sys
from pathlib import Path

PARTS = ("models_queue.py", "models_stream.py", "models_ts.py")


def main() -> int:
    here = Path(__file__).parent
    return max(subprocess.call([sys.executable, str(here / part)]) for part in PARTS)


if __name__ == "__main__":
    sys.exit(main())
