"""Read the secrets of Spark jobs: options name their places, and each process that needs a secret
reads it.

An option's value appears in query plans, in Spark's event log and user interface, in checkpoints,
and in what is pickled for workers. So a secret itself is never an option; see `refuse`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError, IllegalArgumentError

_FILE: Final = "File"
_ENV: Final = "Env"
# Matches a path or a variable's name; other text may be a secret.
_PLACE: Final = re.compile(r"/.*|[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", re.DOTALL)
# The secrets, by their names in lower case.
_SECRETS: Final = {name.lower(): name for name in ("secretKey", "securityToken", "tlsKeyPassword")}


def refuse(source: str, given: Mapping[str, str]) -> None:
    """Raise IllegalArgumentError when an option holds a secret, without showing its value."""
    for option in given:
        name = _SECRETS.get(option.lower().replace("_", "").replace("-", "").replace(".", ""))
        if name is not None:
            raise IllegalArgumentError(
                f"the option {option} of {source} holds a secret, and options are shown in query "
                f"plans and logs; put it into a file that the driver and all workers can read and "
                f"give {name}{_FILE}, or into an environment variable of theirs and give {name}{_ENV}"
            )


def options_of(name: str) -> tuple[str, str]:
    """Return the options that name the place of the secret `name`."""
    return f"{name}{_FILE}", f"{name}{_ENV}"


@dataclass(frozen=True, slots=True)
class Secret:
    """The place of a secret that an option names: a file or an environment variable."""

    option: str
    file: str | None = None
    variable: str | None = None

    def read(self) -> str:
        """Return the secret without white space around it. Raise ConfigError, which names the place
        and never the secret.
        """
        if self.file is not None:
            place = f"the file {self._shown(self.file)}"
            try:
                text = Path(self.file).read_text()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is no text"
                raise self._error(f"{place} cannot be read here: {reason}") from None
        else:
            assert self.variable is not None, "one of the two"
            place = f"the environment variable {self._shown(self.variable)}"
            if self.variable not in os.environ:
                raise self._error(f"{place} is not set here")
            text = os.environ[self.variable]
        if not text.strip():
            raise self._error(f"{place} is empty here")
        return text.strip()

    def _shown(self, place: str) -> str:
        """Return the place, unless it may be the secret itself, given by mistake."""
        return place if _PLACE.fullmatch(place) else "that it names"

    def _error(self, fault: str) -> ConfigError:
        host = os.uname().nodename
        return ConfigError(
            f"the option {self.option}: {fault} (process {os.getpid()} on {host}); the driver and "
            "all workers need it"
        )
