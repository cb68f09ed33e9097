"""Print the path of the jar: `spark-submit --jars "$(python -m cometmq.spark.jvm)" …`."""

from __future__ import annotations

import sys

from cometmq.spark.jvm import jar_path

if __name__ == "__main__":
    found = jar_path()
    if found is None:
        sys.exit("this installation has no jar of the store reader; scripts/store-jar makes it")
    sys.stdout.write(f"{found}\n")
