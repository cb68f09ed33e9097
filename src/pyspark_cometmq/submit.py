"""The file for spark-submit in place of `cometmq pipeline`: spark-submit only takes a file `*.py`.

spark-submit --master spark://host:7077 "$(cometmq pipeline --script)" archive -c pipeline.toml
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The directory of this file, which is a package's.
    del sys.path[0]
    sys.argv[1:1] = ["pipeline"]

    from cometmq.cli.main import main

    main()
