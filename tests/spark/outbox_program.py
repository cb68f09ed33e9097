"""A process that sends what an outbox has decided, to be killed by tests.

python outbox_program.py OPTIONS-AS-JSON UNIT
"""

from __future__ import annotations

import json
import sys

from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.outbox import Outbox
from cometmq.spark.sink.outbox_sending import commit_unit


def main(given: str, unit: str) -> None:
    options = SinkOptions(json.loads(given), streaming=True)
    assert options.outbox is not None
    commit_unit(options, Outbox(options.outbox), unit, [])


if __name__ == "__main__":
    main(*sys.argv[1:])
