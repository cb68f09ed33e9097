"""A process that sends what an outbox has decided, to be killed by tests.

python outbox_program.py OPTIONS-AS-JSON UNIT
"""

from __future__ import annotations

import json
import sys

from cometmq.spark.outbox import Outbox
from cometmq.spark.outbox_sending import commit_unit
from cometmq.spark.sink_options import SinkOptions


def main(given: str, unit: str) -> None:
    options = SinkOptions(json.loads(given), streaming=True)
    assert options.outbox is not None
    commit_unit(options, Outbox(options.outbox), unit, [])


if __name__ == "__main__":
    main(*sys.argv[1:])
