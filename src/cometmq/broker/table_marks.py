"""Keep `config/tables.json`: the least that the tables of topics and groups must contain. Java has
no counterpart, and ignores the file.

    {"id": "5f2c…", "topics": 250, "groups": 12, "users": 3, "covered": 81920}

id       names one line of tables: a master draws it when it has none, or when it finds that a table
         is missing or older than it was, and its slaves take it over. So a slave sees that the tables
         of a master do not continue those that it has, whatever their counters say
topics   the counter of the data version that `topics.json` had when it was last written
groups   the same of `subscriptionGroup.json`
users    a master's count of changes of users and policies, as far as a slave has copied them
covered  of a slave: its tables cover the log below this commit-log offset. Null on a
         master, whose tables have everything: they are on the disk before a message is acknowledged
"""

from __future__ import annotations

from typing import Final

import msgspec

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.state_files.json_file import JsonFile

log = get_logger(__name__)

FILE_NAME: Final = "tables.json"


class TableMarks(msgspec.Struct, rename="camel"):
    """Holds the contents of the file. `covered` is 0 where nothing is known."""

    id: str = ""
    topics: int = 0
    groups: int = 0
    users: int = 0
    covered: int | None = 0

    def is_older(self, topics: int, groups: int) -> list[str]:
        """Name the tables whose counters are lower than they were."""
        found = (
            ("topics.json", topics, self.topics),
            ("subscriptionGroup.json", groups, self.groups),
        )
        return [name for name, counter, noted in found if counter < noted]

    def covered_to(self, log_end: int) -> int:
        """Return the commit-log offset below which the tables cover the log."""
        return log_end if self.covered is None else self.covered


def read_marks(file: JsonFile) -> TableMarks | None:
    """Return the contents of the file; None if it is missing or damaged, since it only says what to
    look for.
    """
    try:
        return file.read(lambda text: msgspec.json.decode(text, type=TableMarks))
    except ConfigError as error:
        log.warning("the marks of the tables cannot be read and are lost", reason=str(error))
        return None
