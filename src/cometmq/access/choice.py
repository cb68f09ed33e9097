"""Choose the rules that a server's configuration asks for."""

from __future__ import annotations

from cometmq.access.config import AccessConfig
from cometmq.access.rules import Rules
from cometmq.errors import ConfigError
from cometmq.runtime.clock import BlockingClock
from cometmq.runtime.files import Files
from cometmq.runtime.workers import Workers


def choose_rules(
    config: AccessConfig, *, clock: BlockingClock, files: Files, workers: Workers
) -> Rules | None:
    """Return the rules of a server, None if access control is off.

    Nothing is read before `Rules.open`. Raises ConfigError for settings that exclude each other.
    """
    if not config.is_on:
        return None
    if config.acl_enable and (config.authentication_enabled or config.authorization_enabled):
        raise ConfigError(
            "aclEnable=true and authenticationEnabled or authorizationEnabled=true exclude each "
            "other: ACL 1.0 reads plain_acl.yml, ACL 2.0 has users and policies of its own; keep "
            "one (migrateAuthFromV1Enabled=true takes the accounts over to ACL 2.0)"
        )
    if config.acl_enable:
        from cometmq.access.plain.rules import PlainRules

        return PlainRules(config, clock=clock, files=files, workers=workers)
    raise ConfigError("ACL 2.0 is not built yet")
