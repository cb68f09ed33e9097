"""What a pipeline is told, and the TOML file that tells it.

A file has a table for the cluster, one for Spark and one for each pipeline, all optional:

    [cluster]
    namesrv = "127.0.0.1:9876"

    [spark]
    master = "local[*]"
    config = { "spark.driver.memory" = "2g" }

    [archive]
    topics = ["orders"]
    path = "/data/archive"
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from cometmq.errors import ConfigError
from cometmq.pipelines.catalogue import PIPELINES

T = TypeVar("T")


class Settings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The base of a table's class: keys are the fields' names, and others are refused."""


class ClusterConfig(Settings, frozen=True):
    """namesrv: name-server addresses, host:port, separated by semicolons.

    namespace: in front of topics and groups, as clients have it.
    access_key and what follows: the options of the source `rocketmq` of these names, see
        `cometmq.spark.connecting`. Secrets are named by their file or environment variable.
    """

    namesrv: str | None = None
    namespace: str | None = None
    access_key: str | None = None
    secret_key_file: str | None = None
    secret_key_env: str | None = None
    security_token_file: str | None = None
    security_token_env: str | None = None
    tls: bool | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_key_password_file: str | None = None
    tls_key_password_env: str | None = None
    tls_verify: bool | None = None
    tls_check_hostname: bool | None = None

    def options(self) -> dict[str, str]:
        """The options of the source and sink `rocketmq` for this cluster. Raises ConfigError."""
        if not self.namesrv:
            raise ConfigError(
                "no name server is given: set namesrv in the table [cluster], "
                'for example namesrv = "127.0.0.1:9876"'
            )
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            _option(name): str(value).lower() if isinstance(value, bool) else value
            for name, value in given.items()
            if value not in (None, "")
        }


def _option(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class SparkConfig(Settings, frozen=True):
    """master: `local[*]`, `spark://host:7077`, `yarn`, …; what spark-submit says when it is left out.

    config: Spark's own settings.
    """

    master: str | None = None
    config: dict[str, str] = {}


class ConfigFile:
    """A pipeline file as it was read. Raises ConfigError naming the file and what is wrong in it."""

    _SHARED: Final = ("cluster", "spark")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tables: dict[str, Any] = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(
                f"the configuration file {path} cannot be read: {error.strerror or error}"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"the configuration file {path} is no TOML: {error}") from error
        known = (*self._SHARED, *PIPELINES)
        for name in self._tables:
            if name not in known:
                raise ConfigError(
                    f"{path} has a table [{name}], which nothing reads; tables are {', '.join(known)}"
                )

    def cluster(self) -> ClusterConfig:
        return self.table("cluster", ClusterConfig, required=False)

    def spark(self) -> SparkConfig:
        return self.table("spark", SparkConfig, required=False)

    def table(self, name: str, kind: type[T], *, required: bool = True) -> T:
        """The table [name] as a `kind`; without `required` its defaults where it is left out."""
        if required and name not in self._tables:
            raise ConfigError(f"{self.path} has no table [{name}]")
        try:
            return msgspec.convert(self._tables.get(name, {}), kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{self.path}, table [{name}]: {error}") from error
        except ConfigError as error:  # a rule that the class checks itself
            raise ConfigError(f"{self.path}, table [{name}]: {error}") from error
