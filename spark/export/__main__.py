"""``python -m onelog.spark.export VIEW TARGET …``, and the script that ``spark-submit`` runs.

The same command as ``onelog export``. Under ``spark-submit`` its master and settings are used.
"""

import sys

from onelog.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["export", *sys.argv[1:]]))
