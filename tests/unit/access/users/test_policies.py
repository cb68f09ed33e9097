"""Verdicts of policies. Each is that of RocketMQ 5.3.3 by its source (AclAuthorizationHandler,
PolicyEntry, Resource), but where a test says otherwise.
"""

from __future__ import annotations

import itertools
from functools import cmp_to_key
from random import Random

import pytest

from cometmq.access.users.policies import Policies
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo
from cometmq.protocol.request_type import Action

PUB, SUB, GET, UPDATE = Action.PUB, Action.SUB, Action.GET, Action.UPDATE


def entry(text: str) -> PolicyEntryInfo:
    """Read `Topic:orders Pub,Sub Allow 10.0.0.1`."""
    resource, actions, decision, *ips = text.split()
    return PolicyEntryInfo(resource, actions.split(","), ips or None, decision)


def policies(custom: list[str], default: list[str] | None = None) -> Policies:
    reported = [PolicyInfo("Default", list(map(entry, default)))] if default else []
    return Policies(AclInfo("User:u", [*reported, PolicyInfo("Custom", list(map(entry, custom)))]))


def allows(reported: Policies, resource: str, *actions: Action, ip: str = "10.0.0.1") -> bool:
    kind, _, name = resource.partition(":")
    return reported.decide(kind, name, actions, ip).is_allowed


@pytest.mark.parametrize(
    ("custom", "resource", "actions", "is_allowed"),
    [
        # Without a match nothing is allowed.
        ([], "Topic:orders", [PUB], False),
        (["Topic:orders Pub Allow"], "Topic:orders", [PUB], True),
        (["Topic:orders Pub Allow"], "Topic:orders", [SUB], False),
        (["Topic:orders Pub Allow"], "Topic:order", [PUB], False),
        (["Topic:orders Pub Allow"], "Topic:orders2", [PUB], False),
        (["Topic:orders Pub Allow"], "Topic:Orders", [PUB], False),
        # A kind is not another kind.
        (["Topic:orders Pub,Sub Allow"], "Group:orders", [SUB], False),
        (["Group:* All Allow"], "Topic:orders", [PUB], False),
        # Prefixes and kinds
        (["Topic:order* Pub Allow"], "Topic:orders", [PUB], True),
        (["Topic:order* Pub Allow"], "Topic:order", [PUB], True),
        (["Topic:order* Pub Allow"], "Topic:orde", [PUB], False),
        (["Topic:* Pub Allow"], "Topic:orders", [PUB], True),
        (["* Pub Allow"], "Topic:orders", [PUB], True),
        (["* All Allow"], "Cluster:c", [UPDATE], True),
        # One of the actions is enough; All stands for each of them.
        (["Topic:orders Sub Allow"], "Topic:orders", [PUB, SUB, GET], True),
        (["Topic:orders Update Allow"], "Topic:orders", [PUB, SUB, GET], False),
        (["Topic:orders All Allow"], "Topic:orders", [GET], True),
        # Denied
        (["Topic:orders Pub Deny"], "Topic:orders", [PUB], False),
        (["Topic:orders All Deny"], "Topic:orders", [PUB], False),
        # An entry about other actions does not count, so the next one decides.
        (["Topic:* Pub Allow", "Topic:orders Sub Deny"], "Topic:orders", [PUB], True),
        (["Topic:orders Sub Deny", "Topic:* Pub Allow"], "Topic:orders", [PUB], True),
        # A kind before everything
        (["* All Allow", "Topic:* Pub Deny"], "Topic:orders", [PUB], False),
        (["Topic:* Pub Deny", "* All Allow"], "Topic:orders", [PUB], False),
        (["* All Deny", "Topic:* Pub Allow"], "Topic:orders", [PUB], True),
        (["* All Deny", "Topic:orders Pub Allow"], "Topic:orders", [PUB], True),
        (["* All Deny", "Topic:orders Pub Allow"], "Topic:other", [PUB], False),
    ],
)  # fmt: skip
def test_verdicts(
    custom: list[str], resource: str, actions: list[Action], is_allowed: bool
) -> None:
    assert allows(policies(custom), resource, *actions) is is_allowed


@pytest.mark.parametrize(
    ("custom", "default", "is_allowed"),
    [
        (["Topic:other Pub Allow"], ["Topic:orders Pub Allow"], True),
        # What the Custom policy says of it hides all that the Default policy says.
        (["* All Deny"], ["Topic:orders Pub Allow"], False),
        (["* All Allow"], ["Topic:orders Pub Deny"], True),
        (["Topic:orders Sub Deny"], ["Topic:* Pub Allow"], True),
        (["Topic:orders Pub Deny 10.9.9.9"], ["Topic:* Pub Allow"], True),
    ],
)
def test_the_default_policy_counts_where_the_custom_one_says_nothing(
    custom: list[str], default: list[str], is_allowed: bool
) -> None:
    assert allows(policies(custom, default), "Topic:orders", PUB) is is_allowed


@pytest.mark.parametrize(
    ("source", "ip", "is_allowed"),
    [
        ("::ffff:10.0.0.7", "10.0.0.7", True),
        ("::ffff:10.0.0.0/104", "10.7.7.7", True),
        ("::ffff:10.0.0.7", "10.0.0.8", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.11", False),
        ("10.0.0.0/24", "10.0.0.255", True),
        ("10.0.0.77/24", "10.0.0.255", True),
        ("10.0.0.0/24", "10.0.1.0", False),
        ("2001:db8::/32", "2001:db8::1", True),
        ("2001:db8::/32", "10.0.0.1", False),
        ("10.0.0.0/24", "2001:db8::1", False),
        # As a socket for both families shows a peer of IPv4
        ("10.0.0.0/24", "::ffff:10.0.0.1", True),
        ("fe80::/16", "fe80::1%eth0", True),
        ("10.0.0.0/24", "", False),
    ],
)
def test_an_entry_with_sources_is_about_requests_from_there(
    source: str, ip: str, is_allowed: bool
) -> None:
    reported = policies([f"Topic:orders Pub Allow {source}"])
    assert allows(reported, "Topic:orders", PUB, ip=ip) is is_allowed


def test_an_entry_for_other_sources_leaves_the_decision_to_the_next() -> None:
    reported = policies(["Topic:orders Pub Deny 10.0.0.0/8", "Topic:* Pub Allow"])
    assert not allows(reported, "Topic:orders", PUB, ip="10.1.1.1")
    assert allows(reported, "Topic:orders", PUB, ip="11.1.1.1")


EXACT = [
    ("Topic:orders", "Topic:order*"),
    ("Topic:orders", "Topic:*"),
    ("Topic:orders", "*"),
    ("Topic:order*", "Topic:o*"),
    ("Topic:order*", "Topic:*"),
    ("Topic:order*", "*"),
    ("Topic:*", "*"),
]


@pytest.mark.parametrize(("more", "less"), EXACT)
@pytest.mark.parametrize("decision", ["Allow", "Deny"])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_more_exact_entry_decides_in_whichever_order_they_were_made(
    more: str, less: str, decision: str, is_first: bool
) -> None:
    other = "Deny" if decision == "Allow" else "Allow"
    reported = [f"{more} Pub {decision}", f"{less} Pub {other}"]
    found = allows(policies(reported if is_first else reported[::-1]), "Topic:orders", PUB)
    assert found is (decision == "Allow")


# What RocketMQ does, to show how it differs.


def _rank(resource: str) -> tuple[str, str, str]:
    if resource == "*":
        return "ANY", "ANY", ""
    kind, _, name = resource.partition(":")
    pattern = "ANY" if name == "*" else "PREFIXED" if name.endswith("*") else "LITERAL"
    return kind, pattern, name.rstrip("*")


def _compared_by_5_3_3(one: PolicyEntryInfo, other: PolicyEntryInfo) -> int:
    """The order by which 5.3.3 sorts matching entries before it takes the first."""
    kind1, pattern1, name1 = _rank(one.resource or "")
    kind2, pattern2, name2 = _rank(other.resource or "")
    if kind1 != kind2:
        return -1 if kind2 == "ANY" else 1
    if pattern1 == pattern2 == "PREFIXED" and len(name1) != len(name2):
        return len(name1) - len(name2)
    if pattern1 != pattern2 and pattern1 in ("LITERAL", "PREFIXED"):
        return -1
    return 1 if one.decision == "Deny" else -1 if other.decision == "Deny" else 0


def test_java_5_3_3_decides_some_pairs_by_their_order_and_we_as_its_successors() -> None:
    """Issues 9462, 9539 and 9784 of apache/rocketmq: repaired behind 5.3.3."""
    differing = set()
    for (more, less), decisions in itertools.product(EXACT, (("Allow", "Deny"), ("Deny", "Allow"))):
        reported = [entry(f"{more} Pub {decisions[0]}"), entry(f"{less} Pub {decisions[1]}")]
        for order in (reported, reported[::-1]):
            # Both languages sort two entries by one comparison of the second with the first.
            java = sorted(order, key=cmp_to_key(_compared_by_5_3_3))[0].decision
            if java != decisions[0]:
                differing.add((more, less))
    assert differing == {
        ("Topic:orders", "Topic:order*"),
        ("Topic:orders", "Topic:*"),
        ("Topic:order*", "Topic:o*"),
        ("Topic:order*", "Topic:*"),
    }


def test_a_decision_does_not_scan_the_entries() -> None:
    reported = policies([f"Topic:t{number} Pub Allow" for number in range(1_000)])
    looked_up: list[str] = []

    class Counting(dict):  # type: ignore[type-arg]  # any dict
        def get(self, key: str, default: object = None) -> object:
            looked_up.append(key)
            return super().get(key, default)

    policy = reported._policies[0]
    policy._by_resource = Counting(policy._by_resource)
    assert not allows(reported, "Topic:unknown", PUB)
    assert looked_up == ["Topic:unknown", "Topic:*", "*"]


@pytest.mark.parametrize("seed", range(50))
def test_the_longest_prefix_decides_among_prefixes_of_each_other(seed: int) -> None:
    random = Random(seed)

    def word(most: int) -> str:
        return "".join(random.choices("ab", k=random.randrange(1, most)))

    decisions = {word(6): random.choice(["Allow", "Deny"]) for _ in range(random.randrange(12))}
    reported = policies([f"Topic:{prefix}* Pub {said}" for prefix, said in decisions.items()])
    for name in {word(9) for _ in range(50)}:
        longest = max(filter(name.startswith, decisions), key=len, default=None)
        allowed = longest is not None and decisions[longest] == "Allow"
        assert allows(reported, f"Topic:{name}", PUB) == allowed


def test_an_entry_decides_anew_for_another_address() -> None:
    reported = policies(["Topic:t Pub Allow 10.0.0.0/8"])
    for ip, allowed in (("10.0.0.1", True), ("11.0.0.1", False), ("10.0.0.1", True)):
        assert allows(reported, "Topic:t", PUB, ip=ip) == allowed
