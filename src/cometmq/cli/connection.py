"""Define the options by which commands connect to a cluster: name servers, credentials and TLS."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.admin.client import AdminClient
    from cometmq.remoting.credentials import Credentials
    from cometmq.tls.contexts import Tls

PANEL: Final = "Connection"
# Where mqadmin looks for credentials, below ROCKETMQ_HOME.
_TOOLS_FILE: Final = Path("conf", "tools.yml")

NamesrvAddr = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrvAddr",
        metavar="HOST:PORT",
        help="Name servers, separated by semicolons. Default: NAMESRV_ADDR of the environment.",
        rich_help_panel=PANEL,
    ),
]
TimeoutMs = Annotated[
    int,
    typer.Option(
        "--timeoutMillis",
        metavar="MS",
        help="How long a server may take to answer.",
        min=1,
        max=24 * 60 * 60 * 1000,
        rich_help_panel=PANEL,
    ),
]
AccessKey = Annotated[
    str | None,
    typer.Option(
        "--accessKey",
        envvar="COMETMQ_ACCESS_KEY",
        help="The account that signs the requests.",
        rich_help_panel=PANEL,
    ),
]
SecretKey = Annotated[
    str | None,
    typer.Option(
        "--secretKey",
        envvar="COMETMQ_SECRET_KEY",
        help="The secret key of that account. Other users of this machine can see command lines: "
        "set the variable instead, or use --credentials.",
        rich_help_panel=PANEL,
    ),
]
CredentialsFile = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        help="A YAML file with accessKey and secretKey, like mqadmin's. Default: "
        "$ROCKETMQ_HOME/conf/tools.yml, if there is one.",
        rich_help_panel=PANEL,
    ),
]
UseTls = Annotated[
    bool,
    typer.Option(
        "--tls",
        help="Connect with TLS, and check certificates as the system does.",
        rich_help_panel=PANEL,
    ),
]
TlsFile = Annotated[
    Path | None,
    typer.Option(
        "--tlsConfigFile",
        metavar="FILE",
        help="Connect with TLS as a Java client with this tls.config.file does.",
        rich_help_panel=PANEL,
    ),
]

CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="Connect with TLS, and trust certificates that those in FILE (PEM) have signed.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True, repr=False)
class Encryption:
    """Holds the options of a command whose connections may have TLS; `spread` gives them to it."""

    use_tls: UseTls = False
    tls_file: TlsFile = None
    ca_file: CaFile = None

    def tls(self) -> bool | Tls | None:
        """Return the TLS settings, None for plain connections.

        Raises ConfigError for options that contradict each other, and for files that cannot be read.
        """
        if self.use_tls and self.tls_file is not None:
            raise ConfigError("--tls and --tlsConfigFile: give one of them")
        if self.ca_file is not None and self.tls_file is not None:
            raise ConfigError("--ca-file and --tlsConfigFile: give one of them")
        if self.tls_file is None and self.ca_file is None:
            return self.use_tls or None
        from cometmq.tls.contexts import Tls

        if self.tls_file is not None:
            return Tls.from_properties(self.tls_file)
        return Tls(ca_file=str(self.ca_file))


@dataclass(frozen=True, repr=False)
class Security(Encryption):
    """Holds the options of a command that signs its requests and may encrypt its connections."""

    access_key: AccessKey = None
    secret_key: SecretKey = None
    credentials_file: CredentialsFile = None

    def connection(self, namesrv: str | None, timeout_ms: int) -> Connection:
        """Return the connection that the options describe.

        Raises ConfigError for options that contradict each other, and for files that cannot be read.
        """
        return Connection(
            namesrv=namesrv,
            timeout_ms=timeout_ms,
            credentials=_credentials(self.access_key, self.secret_key, self.credentials_file),
            tls=self.tls(),
        )


@dataclass(frozen=True, repr=False)
class Connection:
    """Holds the values of the options above, read from their files."""

    namesrv: str | None
    timeout_ms: int
    credentials: Credentials | None
    tls: bool | Tls | None

    def admin(self) -> AdminClient:
        """Return an administration client for this connection, to be entered."""
        from cometmq.admin.client import AdminClient

        return AdminClient(
            self.namesrv, timeout_ms=self.timeout_ms, credentials=self.credentials, tls=self.tls
        )


def _credentials(
    access_key: str | None, secret_key: str | None, file: Path | None
) -> Credentials | None:
    from cometmq.remoting.credentials import Credentials

    if access_key is not None or secret_key is not None:
        if access_key is None or secret_key is None:
            missing = "--accessKey" if access_key is None else "--secretKey"
            raise ConfigError(
                f"credentials need an access key and a secret key: give {missing}, too"
            )
        if file is not None:
            raise ConfigError(
                "--accessKey (or COMETMQ_ACCESS_KEY) and --credentials: give one of them"
            )
        return Credentials(access_key, secret_key)
    if file is None:
        home = os.environ.get("ROCKETMQ_HOME")
        file = Path(home) / _TOOLS_FILE if home else None
        if file is None or not file.is_file():
            return None
    return Credentials(*_keys_of(file))


def _keys_of(file: Path) -> tuple[str, str]:
    import yaml

    try:
        # Every value is the text that is written there: 0123 is no number in a key.
        given = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # noqa: S506 - texts only
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"credentials file {file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        # The error's own text shows the line, which has a key.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise ConfigError(
            f"credentials file {file} is no YAML{where}; put the keys into quotation marks"
        ) from None
    keys = given if isinstance(given, dict) else {}
    access_key, secret_key = keys.get("accessKey"), keys.get("secretKey")
    if isinstance(access_key, str) and isinstance(secret_key, str) and access_key and secret_key:
        return access_key, secret_key
    raise ConfigError(
        f"credentials file {file} must have the lines 'accessKey: ...' and 'secretKey: ...'"
    )
