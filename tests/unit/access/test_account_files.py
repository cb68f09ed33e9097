"""Account files are read as Java reads them, bounded, and with faults that show no secret."""

from __future__ import annotations

import re

import pytest

from cometmq.access.plain.account_file import MAX_FILE_BYTES, load_yaml, read_accounts
from cometmq.access.plain.accounts import DENY, PUB, SUB
from cometmq.errors import ConfigError

# As RocketMQ ships it.
SHIPPED = b"""
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
dataVersion:
- counter: 3
  timestamp: 1700000000000
"""


def test_the_file_that_rocketmq_ships_is_read() -> None:
    file = read_accounts(SHIPPED, "plain_acl.yml")
    assert "10.10.103.7" in file.white
    assert "192.168.1.7" not in file.white
    plain, account = file.accounts["RocketMQ"]
    assert (plain.secret_key, account.is_admin) == ("12345678", False)
    assert account.topics == {"topicA": DENY, "topicB": PUB | SUB, "topicC": SUB}
    assert account.groups == {"groupA": DENY, "groupB": PUB | SUB, "groupC": SUB}
    assert (account.default_topic, account.default_group) == (DENY, SUB)
    assert file.accounts["rocketmq2"][1].is_admin
    assert "192.168.1.9" in file.accounts["rocketmq2"][1].white
    assert file.version.counter == 3


def account(text: str) -> bytes:
    return f"accounts:\n- accessKey: somebody\n  secretKey: the-secret\n{text}".encode()


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("  topicPerms: [a=PUB]", {"a": PUB}),
        ("  topicPerms: [' a = SUB|PUB ']", {"a": PUB | SUB}),
        # What Java does not know is DENY.
        ("  topicPerms: [a=pub]", {"a": DENY}),
        ("  topicPerms: [a=ANY]", {"a": DENY}),
        ("  topicPerms:", {}),
        ("  unknown: {x: [1]}", {}),
    ],
)
def test_permissions_are_those_of_java(text: str, topics: dict[str, int]) -> None:
    assert read_accounts(account(text), "f").accounts["somebody"][1].topics == topics


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"accounts:\n", b"accounts: []\n"])
def test_an_empty_file_has_no_account(data: bytes) -> None:
    assert read_accounts(data, "f").accounts == {}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"accounts: [{accessKey: 'the-secret", "f, line 1: no YAML"),
        (b"- a\n", "f, line 1: the file is no mapping"),
        (b"accounts: 7\n", "f, line 1: accounts is no list"),
        (b"accounts:\n- 7\n", "f, line 2: an account is no mapping"),
        (b"\naccounts:\n- accessKey: somebody\n", "f, line 3: an account has no secretKey"),
        (b"accounts:\n- secretKey: the-secret\n", "f, line 2: an account has no accessKey"),
        (b"accounts:\n- accessKey: short\n  secretKey: the-secret\n", "f, line 2: .*6"),
        (b"accounts:\n- accessKey: somebody\n  secretKey: short!\n", "secretKey has 6 characters"),
        (account("  topicPerms: [a]"), "not of the form name=PUB"),
        (account("  topicPerms: [{a: PUB}]"), "f, line 4: topicPerms is neither"),
        (account("  whiteRemoteAddress: 1.2.3"), "no address of a white list"),
        (account("  admin: [yes]"), "admin is neither a text nor a number"),
        (account("  admin: y"), "f, line 4: admin is 'y'; write true or false"),
        (account("  admin: !!python/object:os.system {}"), "f, line 4"),
        (b"globalWhiteRemoteAddresses:\n- 1.2.3\n", "line 2: '1.2.3' is no address"),
        (b"dataVersion: [{counter: x}]\n", "counter of dataVersion is no number"),
        (b"a: \xff\n", "f, line 1: it is not UTF-8"),
        (b"a: \x00\n", "f, line 1: no YAML"),
        (b"a: &x [1]\nb: *x\n", "f, line 1: anchors and aliases"),
        (b"a: *x\n", "f, line 1: anchors and aliases"),
        (b"[" * 50_000, "f, line 1: it is nested more than 8"),
        (b"a: " + b"9" * 5_000, ""),
        (account("  topicPerms: [" + "9" * 5_000 + "]"), ""),
        (b"x" * (MAX_FILE_BYTES + 1), "the limit of an account file"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line_and_without_its_secrets(
    data: bytes, said: str
) -> None:
    if not said:  # whatever it says, it ends
        try:
            read_accounts(data, "f")
        except ConfigError as error:
            assert "the-secret" not in str(error)  # noqa: PT017 - it may also be read
        return
    with pytest.raises(ConfigError) as raised:
        read_accounts(data, "f")
    assert re.search(said, str(raised.value)), raised.value
    assert "the-secret" not in str(raised.value)


def test_a_bomb_of_aliases_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    with pytest.raises(ConfigError, match="anchors and aliases"):
        read_accounts("\n".join(lines).encode(), "f")


@pytest.mark.parametrize(
    "key",
    [
        "01234567",
        "0x1234ab",
        "1_000_000",
        "1234567.0",
        "1e300000",
        "2026-01-01",
        "12:30:45",
        "+1234567",
    ],
)
def test_a_key_is_what_the_file_has_whatever_yaml_takes_it_for(key: str) -> None:
    """Of 01234567 this made the octal number 342391, and a date was refused; Java takes the text."""
    text = f"accounts:\n- accessKey: {key}\n  secretKey: {key}\n  admin: yes\n"
    plain, account = read_accounts(text.encode(), "f").accounts[key]
    assert (plain.secret_key, account.is_admin) == (key, True)
    # A request that changes another account leaves this one as it is.
    [loaded] = load_yaml(text)["accounts"]
    assert loaded == {"accessKey": key, "secretKey": key, "admin": True}


@pytest.mark.parametrize("word", ["yes", "True", "ON", "'true'", "1"])
def test_what_yaml_takes_for_true_makes_an_administrator(word: str) -> None:
    assert read_accounts(account(f"  admin: {word}"), "f").accounts["somebody"][1].is_admin


def test_the_first_of_two_accounts_counts() -> None:
    data = account("- accessKey: somebody\n  secretKey: another-one\n")
    file = read_accounts(data, "f")
    assert file.accounts["somebody"][0].secret_key == "the-secret"
    assert file.repeated == ("somebody",)


def test_no_repr_shows_a_secret() -> None:
    file = read_accounts(account(""), "f")
    plain, checked = file.accounts["somebody"]
    assert "the-secret" not in f"{file!r} {plain!r} {checked!r} {checked.secret!r}"
