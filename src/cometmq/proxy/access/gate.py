"""Check who calls, and what they may do (Java: AuthenticationPipeline, AuthorizationPipeline of the proxy).

A client signs the text of its header x-mq-date-time and nothing else:

    authorization: MQv2-HMAC-SHA1 Credential=NAME[/REGION/SERVICE], SignedHeaders=x-mq-date-time,
                   Signature=HEX(HMAC-SHA1(secret key, x-mq-date-time))

So anybody who sees the header can send it again, with any call: TLS keeps the header secret, and
grpcSignatureMaxAgeSeconds bounds its age.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any, Final

from cometmq.access.config import AccessConfig
from cometmq.access.users.policies import resource_of
from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.model import names
from cometmq.protocol.request_type import Action, ResourceKind
from cometmq.proxy.access.accounts import Account, Accounts
from cometmq.proxy.access.admin_rights import ADMIN_RIGHTS
from cometmq.proxy.access.needs import Need, group_need, topic_need
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import topic_of
from cometmq.proxy.wire.statuses import RefusedError
from cometmq.runtime.clock import Clock

log = get_logger(__name__)

ALGORITHM: Final = "MQv2-HMAC-SHA1"
_LONGEST_HEADER: Final = 1_024
# Java, Go, Python, C++ and C# write this, Rust and others RFC 3339.
_COMPACT: Final = re.compile(r"(\d{8})T(\d{6})Z")
_PUB: Final = (Action.PUB,)
_SUB: Final = (Action.SUB,)
_SEEN: Final = (Action.PUB, Action.SUB, Action.GET)


def _group(resource: wire.Resource) -> Need:
    return group_need(resource, _SUB)


def _of_sends(request: wire.SendMessageRequest) -> Iterator[Need]:
    for topic in {topic_of(message.topic) for message in request.messages}:
        yield Need(ResourceKind.TOPIC, topic, _PUB)


def _of_producer(request: Any) -> Iterator[Need]:
    yield topic_need(request.topic, _PUB)


def _of_consumer(request: Any) -> Iterator[Need]:
    yield _group(request.group)
    yield topic_need(request.topic, _SUB)


def _of_reader(request: Any) -> Iterator[Need]:
    yield _group(request.group)
    yield topic_need(request.message_queue.topic, _SUB)


def _of_group(request: Any) -> Iterator[Need]:
    yield _group(request.group)


def _of_member(request: Any) -> Iterator[Need]:
    """Producers name no group."""
    if request.group.name:
        yield _group(request.group)


def _of_settings(settings: wire.Settings) -> Iterator[Need]:
    for topic in settings.publishing.topics:
        yield topic_need(topic, _PUB)
    if settings.WhichOneof("pub_sub") == "subscription":
        yield _group(settings.subscription.group)
        for entry in settings.subscription.subscriptions:
            yield topic_need(entry.topic, _SUB)


# The rights that each call needs (Java: DefaultAuthorizationContextBuilder); the calls that Java's proxy
# does not serve need those of a consumer.
RIGHTS: Final[Mapping[str, Callable[[Any], Iterator[Need]]]] = {
    "SendMessage": _of_sends,
    "RecallMessage": _of_producer,
    "EndTransaction": _of_producer,
    "ReceiveMessage": _of_reader,
    "AckMessage": _of_consumer,
    "ForwardMessageToDeadLetterQueue": _of_consumer,
    "QueryAssignment": _of_consumer,
    "ChangeInvisibleDuration": _of_group,
    "SyncLiteSubscription": _of_group,
    "Heartbeat": _of_member,
    "NotifyClientTermination": _of_member,
    "QueryRoute": lambda request: iter((topic_need(request.topic, _SEEN),)),
    "Telemetry": _of_settings,
    "PullMessage": _of_reader,
    "UpdateOffset": _of_reader,
    "GetOffset": _of_reader,
    "QueryOffset": lambda request: iter(
        (topic_need(request.message_queue.topic, (Action.SUB, Action.GET)),)
    ),
}


class Gate:
    """Lets calls in whose users are known and have the rights. For the loop's thread only."""

    def __init__(
        self,
        control: AccessConfig,
        accounts: Accounts,
        clock: Clock,
        max_age_s: int,
        cluster: str,
    ) -> None:
        """`cluster` is the name of the cluster in policies."""
        self.accounts = accounts
        self._cluster = cluster
        # How many calls were refused, by a word for the reason.
        self.refusals: dict[str, int] = {}
        self._authorises = control.authorization_enabled
        self._clock = clock
        self._max_age_s = max_age_s
        self._lines: dict[str, RareLine] = {}

    async def authenticate(self, headers: Mapping[str, str], peer: str) -> str:
        """Return the user who has signed a call. Raises RefusedError."""
        given = headers.get("authorization", "")
        fields = _fields(given)
        name = fields.get("Credential", "").partition("/")[0]
        if not name:
            raise self._refused(
                "unsigned",
                peer,
                wire.UNAUTHORIZED,
                "the call is not signed: give the client an access key and a secret key",
            )
        account = await self._account(name, peer)
        date = headers.get("x-mq-date-time", "")
        try:
            signature = bytes.fromhex(fields.get("Signature", ""))
        except ValueError:
            signature = b""
        if not date or not compare_digest(account.key.code(date.encode()), signature):
            raise self._refused(
                "signature",
                peer,
                wire.UNAUTHORIZED,
                f"the signature of User:{name} is wrong: check the client's secret key",
            )
        if self._max_age_s and (fault := self._age_fault(date)):
            raise self._refused("stale", peer, wire.UNAUTHORIZED, f"{fault} (User:{name})")
        return name

    async def authorise(
        self, account_name: str, peer: str, ip: str, call: str, request: Any
    ) -> None:
        """Raise RefusedError unless a user has the rights that a call needs."""
        needs = (RIGHTS.get(call) or ADMIN_RIGHTS[call])(request)
        if not self._authorises and call not in ADMIN_RIGHTS:
            return
        account = await self._account(account_name, peer)
        if account.is_super:
            return
        for need in needs:
            if self._authorises:
                self._check(account, need, peer, ip)
            elif need.administration:
                raise self._refused(
                    "permission",
                    peer,
                    wire.FORBIDDEN,
                    f"{call} needs a Super user while authorizationEnabled is false, and User:{account.name} is "
                    "not one; use a Super user",
                )

    # Inside

    async def _account(self, name: str, peer: str) -> Account:
        account = await self.accounts.of(name)
        if account is None or account.is_disabled:
            why = "is not known" if account is None else "is disabled"
            raise self._refused(
                "unknown",
                peer,
                wire.UNAUTHORIZED,
                f"User:{name:.80} {why}: check the client's access key",
            )
        return account

    def _check(self, account: Account, need: Need, peer: str, ip: str) -> None:
        is_cluster = need.kind is ResourceKind.CLUSTER
        of_kind = self._cluster if is_cluster else need.name
        kind, name, actions = resource_of(need.actions, need.kind, of_kind)
        # Messages of all users wait in these topics, so only an entry that names one opens it.
        by_name = need.name in names.WAITING_TOPICS
        verdict = account.policies.decide(kind, name, actions, ip, by_name=by_name)
        if not verdict.is_allowed:
            wanted = " or ".join(action.value for action in actions)
            raise self._refused(
                "permission",
                peer,
                wire.FORBIDDEN,
                f"User:{account.name} has no right {wanted} to {kind}:{name} from {ip}, {verdict.why} Have "
                "it allowed (mqadmin updateAcl), or use another user",
            )

    def _age_fault(self, date: str) -> str:
        """Return why a call is refused by the time when it was signed, "" if it is fresh."""
        signed_s = _seconds_of(date)
        if signed_s is None:
            return (
                f"x-mq-date-time={date:.40} is no time, and grpcSignatureMaxAgeSeconds is set here"
            )
        off_s = abs(self._clock.now_ms() / 1000 - signed_s)
        if off_s <= self._max_age_s:
            return ""
        return (
            f"x-mq-date-time={date} is {off_s:.0f} s off this proxy's clock, the limit "
            f"grpcSignatureMaxAgeSeconds is {self._max_age_s}; set the clocks (NTP), and run clients that "
            "write local time with a Z (Java, Go, C#, Python) with TZ=UTC"
        )

    def _refused(self, reason: str, peer: str, code: wire.Code, text: str) -> RefusedError:
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        if refused := self._lines.setdefault(reason, RareLine()).count():
            log.warning("access refused", peer=peer, refused=refused, why=text)
        limit = "grpcSignatureMaxAgeSeconds" if reason == "stale" else ""
        return RefusedError(code, text, limit)


def _fields(authorization: str) -> dict[str, str]:
    """Return the parts of a header as Java reads them."""
    if len(authorization) > _LONGEST_HEADER:
        return {}
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        return {}
    parts: Iterable[tuple[str, str, str]] = (
        part.strip().partition("=") for part in rest.split(",")
    )
    return {key: value for key, _, value in parts}


def _seconds_of(date: str) -> float | None:
    """Return the time of a header in seconds since 1970, None if it is none."""
    try:
        if _COMPACT.fullmatch(date):
            return datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        found = datetime.fromisoformat(date)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
