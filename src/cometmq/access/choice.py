"""Choose the rules that a server's configuration asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.access.config import AccessConfig
from cometmq.access.rules import Identity, Rules
from cometmq.errors import ConfigError
from cometmq.runtime.clock import BlockingClock
from cometmq.runtime.state_files.files import Files
from cometmq.runtime.workers import Workers

if TYPE_CHECKING:
    from cometmq.access.users.store import UserStore


def choose_rules(
    config: AccessConfig,
    *,
    clock: BlockingClock,
    files: Files,
    workers: Workers,
    directory: Path,
    identity: Callable[[], Identity],
) -> Rules | None:
    """Return the rules of a server, None if access control is off.

    Users and policies are kept in `directory`, unless the configuration names another one. Nothing
    is read before `Rules.open`. Raises ConfigError for settings that exclude each other.
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

        return PlainRules(config, clock=clock, files=files, workers=workers, identity=identity)
    from cometmq.access.users.rules import UserRules

    return UserRules(
        config,
        directory=config.auth_config_path or directory,
        clock=clock,
        files=files,
        workers=workers,
        identity=identity,
    )


def users_of(rules: Rules | None) -> UserStore | None:
    """Return the users and policies of a server, None if its rules are others, or none."""
    if rules is None:
        return None
    from cometmq.access.users.rules import UserRules

    return rules.store if isinstance(rules, UserRules) else None
