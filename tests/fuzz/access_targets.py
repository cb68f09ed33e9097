"""Fuzz targets of access control: account files, white lists, the book of users and policies."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.fuzz.samples import sample
from tests.fuzz.target import Target

from cometmq.access.plain.account_file import load_yaml, read_accounts
from cometmq.access.plain.addresses import WhiteList
from cometmq.access.users.book import State, book_of
from cometmq.errors import ConfigError
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.fastjson.dialect import decode_body, encode_body

_PLAIN: Final = b"""globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress: 10.0.0.{1,2}
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms: [topicA=DENY, topicB=PUB|SUB]
    groupPerms:
      - groupA=DENY
  - {accessKey: rocketmq2, secretKey: "1234567890", admin: true}
dataVersion: [{timestamp: 5, counter: 2}]
"""


def run_accounts(_: Random, data: bytes) -> object:
    """An account file is read or refused with path and line; what is read, is YAML of a mapping."""
    file = read_accounts(data, "plain_acl.yml")
    assert isinstance(load_yaml(data.decode()), dict | None)
    return sorted(file.accounts), file.repeated, file.version, file.white.texts


def run_white_list(_: Random, data: bytes) -> object:
    text = data.decode(errors="replace")
    white = WhiteList([text])
    try:
        return "10.0.0.1" in white, "fe80::1" in white, text in white
    except ConfigError as error:
        return error


def _state() -> bytes:
    users = [UserInfo("alice", "secret-1", "Normal", "enable"), UserInfo("root", "pw", "Super")]
    entries = [PolicyEntryInfo("Topic:orders*", ["Pub", "Sub"], ["10.0.0.0/8"], "Allow")]
    return encode_body(State(users, [AclInfo("User:alice", [PolicyInfo("Custom", entries)])]))


def run_users(_: Random, data: bytes) -> object:
    """Check that users and policies that were read can be written, and read again."""
    book = book_of(decode_body(data, State))
    again = book_of(decode_body(encode_body(book.state()), State))
    assert again.users == book.users
    assert again.acls == book.acls
    for name in [*book.users, "nobody"][:20]:
        book.policies_of(name)
    return book.state()


TARGETS: Final = [
    Target("accounts", [_PLAIN], run_accounts, cost=3),
    Target("white-list", [b"10.0.0.*", b"10.0.{1,2}.1-5", b"fe80:*:1", b"*"], run_white_list),
    Target("users", [_state(), encode_body(sample(State))], run_users),
]
