"""Judge requests by users and policies (Java: AuthenticationPipeline, AuthorizationPipeline).

The requests that each kind of user may send:

    Super user   everything
    other user   what the policies allow of each resource that the request touches; requests whose
                 row has no action (ANY_ACCOUNT) without a policy
    nobody       what both white lists name

With authenticationEnabled alone there are no policies: every user may do all but what is for
administrators and brokers, which takes a Super user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cometmq.access.access_request import AccessRequest
from cometmq.access.config import AccessConfig
from cometmq.access.credentials import INIT_KEY, INNER_KEY, init_user, inner_credentials
from cometmq.access.freshness import Freshness
from cometmq.access.rules import Identity
from cometmq.access.signed import SecretKey
from cometmq.access.users.book import (
    DISABLE,
    MAX_RESOURCE_LENGTH,
    SUBJECT_PREFIX,
    SUPER,
    Book,
    changes_between,
)
from cometmq.access.users.handlers import UserHandlers
from cometmq.access.users.policies import Policies, Verdict, resource_of
from cometmq.access.users.store import UserStore
from cometmq.errors import AccessRefusedError, ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.metrics import catalogue as metric_catalogue
from cometmq.metrics.exposition import Exposition
from cometmq.model import names
from cometmq.protocol.bodies.access import UserInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.request_type import Action, AnyRequestType, ResourceKind, Right
from cometmq.remoting.credentials import ACCESS_KEY, Credentials
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock
from cometmq.runtime.state_files.files import Files
from cometmq.runtime.state_files.state_writer import LOOK_PERIOD_S
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import Workers

log = get_logger(__name__)

# How many verdicts are remembered: one for each user, resource, action and address.
MAX_VERDICTS: Final = 16_384
_ADMINISTRATION: Final = (Right.ADMIN, Right.BROKER, Right.INSPECT)


class _Account:
    """A user as requests need it."""

    __slots__ = ("is_disabled", "is_super", "key", "policies")

    def __init__(self, user: UserInfo, policies: Policies) -> None:
        self.key = SecretKey(user.password or "")
        self.is_super = user.user_type == SUPER
        self.is_disabled = user.user_status == DISABLE
        self.policies = policies


class UserRules:
    """The users and policies of one server; see `Rules`.

    Their file lies in `directory`. Policies mean this server as a whole by the name of its cluster; a
    name server has none, so only `Cluster:*` and `*` mean it. Raises ConfigError for
    settings that exclude each other.
    """

    def __init__(
        self,
        config: AccessConfig,
        *,
        directory: Path,
        identity: Callable[[], Identity],
        clock: Clock,
        files: Files,
        workers: Workers,
    ) -> None:
        if not config.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: without it everybody "
                "could say to be any user"
            )
        _check_classes(config)
        self._config = config
        self._init_user = init_user(config)
        self._inner = inner_credentials(config)
        self._authorizes = config.authorization_enabled
        known = _codes("authenticationWhitelist", config.authentication_whitelist)
        allowed = _codes("authorizationWhitelist", config.authorization_whitelist)
        # Served to everybody, and to every user.
        self._open_codes = known & allowed if self._authorizes else known
        self._user_codes = allowed
        self._unsigned_codes = known
        self._freshness = Freshness(config, clock)
        self._identity = identity
        self._files = files
        self.store = UserStore(directory, files=files, workers=workers)
        self.store.on_change.append(self._changed)
        self._changes = 0
        self._accounts: dict[str, _Account] = {}
        self.most_verdicts = MAX_VERDICTS
        self._verdicts: dict[tuple[str, str, str, tuple[Action, ...], str], Verdict] = {}

    @property
    def verdict_count(self) -> int:
        """How many verdicts are remembered."""
        return len(self._verdicts)

    # -- the server's side --

    def register(self, handlers: Handlers) -> None:
        UserHandlers(self.store).register(handlers)

    async def open(self) -> None:
        """Read the file, and make the users that the configuration names if they are not there."""
        store = self.store
        await store.open()
        if self._config.migrate_auth_from_v1_enabled and not store.book.migrated_from_v1:
            from cometmq.access.users.migration import read_accounts, with_accounts

            loop = asyncio.get_running_loop()
            accounts = await loop.run_in_executor(None, read_accounts, self._config, self._files)
            await store.change(lambda book: with_accounts(book, accounts))
            log.info("accounts of ACL 1.0 taken over", accounts=len(accounts))
        await store.change(self._with_first_users)
        if not store.book.users:
            log.error(
                "no user is known, so every request is refused",
                path=str(store.path),
                remedy=f"set {INIT_KEY} in the configuration and restart",
            )

    def start(self, tasks: TaskOwner) -> None:
        """Keep the file from being lost: only requests change users."""
        tasks.every(LOOK_PERIOD_S, self.store.look, "look-at-users", of_outside=True)

    async def close(self) -> None:
        self.store.close()

    def collect(self, out: Exposition) -> Iterator[None]:
        out.one(metric_catalogue.ACCESS_ACCOUNTS, len(self.store.book.users))
        out.one(metric_catalogue.ACCESS_CHANGES, self._changes)
        out.one(metric_catalogue.ACCESS_SIGNERS, self._freshness.signer_count)
        yield

    def _with_first_users(self, book: Book) -> Book:
        for key, given in ((INIT_KEY, self._init_user), (INNER_KEY, self._inner)):
            if given is not None:
                book = _with_super_user(book, key, given)
        return book

    def _changed(self, before: Book, after: Book) -> None:
        users, subjects = changes_between(before, after)
        for name in users:
            self._accounts.pop(name, None)
        for subject in subjects:
            self._accounts.pop(subject.removeprefix(SUBJECT_PREFIX), None)
        self._verdicts.clear()
        self._changes += 1

    # -- requests --

    def check(self, asked: AccessRequest) -> None:
        if not self._is_for_all(asked.row):
            name, account = self._signed_by(asked)
            self._judge(name, account, asked)

    def judge(self, asked: AccessRequest) -> None:
        if not self._is_for_all(asked.row):
            name, account = self._named(asked)
            self._judge(name, account, asked)

    def _judge(self, name: str, account: _Account, asked: AccessRequest) -> None:
        if self._may_name_all(name, account, asked):
            return
        row, ip = asked.row, asked.peer_ip
        is_named = False
        for kind, resource in asked.resources():
            is_named = True
            if asked.is_reply(resource, self._identity) or _is_routed_for_all(row, resource):
                continue
            self._check(name, account, row, ip, kind, resource)
        if not is_named and _is_of_server(row):
            self._check(name, account, row, ip, ResourceKind.CLUSTER, self._identity().cluster)

    def _is_for_all(self, row: AnyRequestType) -> bool:
        code = row.code
        return code in self._open_codes or (code in self._unsigned_codes and not row.actions)

    def _may_name_all(self, name: str, account: _Account, asked: AccessRequest) -> bool:
        """Return whether a user may send the request whatever it names.

        Raises AccessRefusedError if it takes a Super user.
        """
        row = asked.row
        if account.is_super:
            return True
        if not self._authorizes:
            if row.right in _ADMINISTRATION:
                raise _refused(
                    f"{SUBJECT_PREFIX}{name} has no permission to access {row.name} from "
                    f"{asked.peer_ip}, it takes a Super user.",
                    "permission",
                    name,
                )
            return True
        return not row.actions or row.code in self._user_codes

    def check_resource(self, asked: AccessRequest, kind: ResourceKind, name: str) -> None:
        if not self._authorizes or asked.row.code in self._user_codes or not asked.row.actions:
            return
        user = asked.ext.get(ACCESS_KEY, "")
        account = self._account(user)
        if account is None:
            raise _refused(f"User:{user:.80} is not found.", "unknown")
        if not account.is_super:
            self._check(user, account, asked.row, asked.peer_ip, kind, name)

    def sender_of(self, asked: AccessRequest) -> str:
        code = asked.row.code
        if code in self._open_codes or (code in self._unsigned_codes and not asked.row.actions):
            try:
                return self._signed_by(asked)[0]
            except AccessRefusedError:
                return ""  # whoever it says to be
        return asked.ext.get(ACCESS_KEY, "")

    def permits(
        self, account: str, peer_ip: str, row: AnyRequestType, kind: ResourceKind, name: str
    ) -> bool:
        if not account:
            return row.code in self._open_codes
        known = self._account(account)
        if known is None or known.is_disabled:
            return False
        if known.is_super or not self._authorizes or row.code in self._user_codes:
            return True
        try:
            self._check(account, known, row, peer_ip, kind, name)
        except AccessRefusedError:
            return False
        return True

    def _signed_by(self, asked: AccessRequest) -> tuple[str, _Account]:
        """Return the user who has signed a request, freshly (Java: DefaultAuthenticationHandler).

        `_named` believes what the request says.
        """
        name, account = self._named(asked)
        wrong = account.key.fault(asked.row.code, asked.ext, asked.body)
        if wrong is not None:
            why = f": {wrong}" if wrong else ""
            raise _refused(f"check signature failed. (User:{name}){why}", "signature")
        if fault := self._freshness.fault(name, asked.ext):
            raise _refused(f"not fresh: {fault} (User:{name})", "stale", name)
        return name, account

    def _named(self, asked: AccessRequest) -> tuple[str, _Account]:
        """Return who the request says has signed it."""
        name = asked.ext.get(ACCESS_KEY)
        if not name:
            raise _refused("username cannot be null.", "unsigned")
        account = self._account(name)
        if account is None:
            raise _refused(f"User:{name:.80} is not found.", "unknown")
        if account.is_disabled:
            raise _refused(f"User:{name} is disabled.", "unknown")
        return name, account

    def _account(self, name: str) -> _Account | None:
        account = self._accounts.get(name)
        if account is None:
            book = self.store.book
            user = book.users.get(name)
            if user is None:
                return None
            # There is one for each user at most, so there are MAX_USERS at most.
            account = self._accounts[name] = _Account(user, book.policies_of(name))
        return account

    def _check(
        self,
        user: str,
        account: _Account,
        row: AnyRequestType,
        ip: str,
        kind: ResourceKind,
        name: str,
    ) -> None:
        kind_name, name, actions = resource_of(row.actions, kind, name)
        if name in names.WAITING_TOPICS and row.right is Right.SUB:
            # Messages of all users wait in these topics, so Topic:*, which means the topics of users,
            # does not cover them.
            named = account.policies.decide(kind_name, name, actions, ip, by_name=True)
            _refuse_unless(named, user, kind_name, name, ip)
            return
        key = (user, kind_name, name, actions, ip)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = account.policies.decide(kind_name, name, actions, ip)
            if len(name) <= MAX_RESOURCE_LENGTH:  # a request may name anything
                if len(self._verdicts) >= self.most_verdicts:
                    # Making one again takes microseconds.
                    self._verdicts.clear()
                self._verdicts[key] = verdict
        _refuse_unless(verdict, user, kind_name, name, ip)


def _refuse_unless(verdict: Verdict, user: str, kind: str, name: str, ip: str) -> None:
    if not verdict.is_allowed:
        raise _refused(
            f"{SUBJECT_PREFIX}{user} has no permission to access "
            f"{kind}:{name:.{MAX_RESOURCE_LENGTH}} from {ip}, {verdict.why}",
            "permission",
            user,
        )


def _is_routed_for_all(row: AnyRequestType, topic: str) -> bool:
    """Say whether a producer asks for a way that every producer may need.

    That is the way of replies (a name server does not know which clusters there are), and of a topic
    of which it knows none, be it new or without a broker for a moment.
    """
    return row.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and (
        topic == names.AUTO_CREATE_TOPIC or topic.endswith(f"_{names.REPLY_TOPIC_POSTFIX}")
    )


def _refused(text: str, reason: str, account: str = "") -> AccessRefusedError:
    return AccessRefusedError(text, code=ResponseCode.NO_PERMISSION, reason=reason, account=account)


def _is_of_server(row: AnyRequestType) -> bool:
    """Say whether a request that names nothing is about the server as a whole.

    A request that is about topics or groups and names none touches nothing that a policy could be
    about: the heartbeat of a producer, say. Java does not check it either.
    """
    return row.right in _ADMINISTRATION or any(
        resource.kind is ResourceKind.CLUSTER for resource in row.resources
    )


def _with_super_user(book: Book, key: str, given: Credentials) -> Book:
    known = book.users.get(given.access_key)
    if known is None:
        log.info("user made", user=given.access_key, kind=SUPER, because=f"{key} names it")
        return book.create_user(
            UserInfo(username=given.access_key, password=given.secret_key, user_type=SUPER)
        )
    if key == INNER_KEY and (known.password != given.secret_key or known.user_type != SUPER):
        log.error(
            "inner credentials do not fit the user of that name here: servers that sign by them are "
            "refused",
            key=key,
            user=given.access_key,
            remedy="give the user that password and the type Super (mqadmin updateUser), or correct "
            "the configuration",
        )
    return book


def _check_classes(config: AccessConfig) -> None:
    """Raise ConfigError for classes of Java whose work is not done here.

    Of Java's own ones, those that keep users elsewhere are not there. Strategies are the same here:
    each request is judged, from remembered verdicts if nothing has changed.
    """
    for key, value, known in (
        ("authenticationProvider", config.authentication_provider, _PROVIDERS),
        ("authorizationProvider", config.authorization_provider, _PROVIDERS),
        ("authenticationMetadataProvider", config.authentication_metadata_provider, _STORES),
        ("authorizationMetadataProvider", config.authorization_metadata_provider, _STORES),
        ("authenticationStrategy", config.authentication_strategy, _STRATEGIES),
        ("authorizationStrategy", config.authorization_strategy, _STRATEGIES),
    ):
        if value.strip() and not value.strip().endswith(known):
            raise ConfigError(
                f"{key}={value:.200} names a class of Java that CometMQ does not have: take it out; "
                "users and policies are kept in users.json and judged as RocketMQ's own classes do"
            )


_PROVIDERS: Final = (".DefaultAuthenticationProvider", ".DefaultAuthorizationProvider")
_STORES: Final = (".LocalAuthenticationMetadataProvider", ".LocalAuthorizationMetadataProvider")
_STRATEGIES: Final = (
    ".StatelessAuthenticationStrategy",
    ".StatefulAuthenticationStrategy",
    ".StatelessAuthorizationStrategy",
    ".StatefulAuthorizationStrategy",
)

_ADMINISTERED_BY: Final = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)


def _codes(key: str, text: str) -> frozenset[int]:
    """Return the request codes of a white list. Raises ConfigError."""
    codes = set()
    for part in filter(None, map(str.strip, text.split(","))):
        if not part.isdecimal():
            raise ConfigError(f"{key}={text:.200} does not fit: {part:.40} is no request code")
        codes.add(int(part))
    if found := sorted(codes & set(_ADMINISTERED_BY)):
        raise ConfigError(
            f"{key} has {', '.join(map(str, found))}: an account that may send these may make "
            "itself a Super user; take them out"
        )
    return frozenset(codes)
