"""Define the settings of access control, by RocketMQ's keys (Java: BrokerConfig, AuthConfig)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cometmq.runtime.sockets.address_list import AddressList

SECRET: Final[dict[str, Any]] = {"secret": True}


def _home() -> Path | None:
    home = os.environ.get("ROCKETMQ_HOME", "")
    return Path(home) if home else None


@dataclass
class AccessConfig:
    """Holds the settings of access control for one broker or name server."""

    # ACL 1.0: accounts in YAML files.
    acl_enable: bool = False
    # The directory whose `conf` has the files of ACL 1.0 (Java: rocketmq.home.dir, ROCKETMQ_HOME).
    rocketmq_home: Path | None = field(default_factory=_home)
    plain_acl_file: str = field(
        default="conf/plain_acl.yml", metadata={"key": "rocketmq.acl.plain.file"}
    )

    # ACL 2.0: users and policies.
    authentication_enabled: bool = False
    authorization_enabled: bool = False
    authentication_provider: str = ""
    authentication_metadata_provider: str = ""
    authentication_strategy: str = ""
    authentication_whitelist: str = ""
    authorization_provider: str = ""
    authorization_metadata_provider: str = ""
    authorization_strategy: str = ""
    authorization_whitelist: str = ""
    auth_config_path: Path | None = None
    init_authentication_user: str = field(default="", metadata=SECRET)
    inner_client_authentication_credentials: str = field(default="", metadata=SECRET)
    migrate_auth_from_v1_enabled: bool = False

    # CometMQ's own: whether signed requests without the time of signing, such as those of Java's
    # clients, are refused; how old a signature with a time may be; and how many clients are
    # remembered to recognise repeated requests.
    fresh_signatures_required: bool = False
    signature_max_age_seconds: int = field(default=300, metadata={"min": 1, "max": 86_400})
    max_remembered_signers: int = field(default=20_000, metadata={"min": 16})

    # CometMQ's own: serve only this machine as long as there is no access control. The pages of metrics
    # and the log for slaves, which no access control guards, are served only to this machine and to
    # listed addresses, also with access control.
    protected_mode: bool = True
    # CometMQ's own: the addresses and networks that may read /metrics and /lag, besides this machine.
    metrics_from: str = ""

    def __post_init__(self) -> None:
        AddressList("metricsFrom", self.metrics_from)

    @property
    def is_on(self) -> bool:
        """Whether there is any access control."""
        return self.acl_enable or self.authentication_enabled or self.authorization_enabled

    @property
    def serves_own_machine_only(self) -> bool:
        """Whether requests from other machines are refused."""
        return self.protected_mode and not self.is_on
