"""Say which tables an archive is published as. The pipelines archive and publish have these keys."""

from __future__ import annotations

import math
import re
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from cometmq.errors import ConfigError
from cometmq.pipelines.configuration import Settings
from cometmq.pipelines.locations import is_uri
from cometmq.pipelines.s3_access import SCHEMES

Format = Literal["iceberg", "delta"]

_NAME: Final = re.compile(r"\w[\w-]*(\.\w[\w-]*)+")

# They have a meaning in URIs, and none in the paths of Hadoop.
_SIGNS: Final = "%?#"


class TableSettings(Settings, frozen=True):
    """publish: the formats of the tables.

    iceberg_catalog: a catalog of PyIceberg's configuration; without one, tables are files in the
        archive.
    iceberg_table: the table's name in the catalog, after its namespace.
    table_history_hours: how many hours the files of an old snapshot are kept for its readers.
    """

    publish: list[Format] = msgspec.field(default_factory=list)
    iceberg_catalog: str | None = None
    iceberg_table: str = "cometmq.messages"
    table_history_hours: float = 168.0

    def check_tables(self, path: str) -> None:
        """Raise ConfigError for values that do not fit an archive at `path`."""
        if len(set(self.publish)) < len(self.publish):
            raise ConfigError(f"publish is {self.publish}, name each format once")
        if self.publish and is_uri(path) and urlsplit(path).scheme.lower() not in SCHEMES:
            raise ConfigError(
                f"publish is given and path is {path!r}: only archives in a directory of this "
                "machine (also a mounted one) or in S3 (s3a://bucket/archive) can have tables; leave publish "
                "out"
            )
        if self.publish and is_uri(path) and any(sign in path for sign in _SIGNS):
            raise ConfigError(
                f"publish is given and path is {path!r}: readers of tables take a percent sign there for an "
                "escape, and end the path at a question mark or number sign; give a path without them, or "
                "leave publish out"
            )
        if not _NAME.fullmatch(self.iceberg_table):
            raise ConfigError(
                f"iceberg_table is {self.iceberg_table!r}, give a namespace and a name, such as "
                '"cometmq.messages"'
            )
        if not 0 <= self.table_history_hours < math.inf:
            raise ConfigError(f"table_history_hours is {self.table_history_hours}, give 0 or more")
