from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.access.users import book as book_module
from cometmq.access.users.book import Book, UserRefusedError, book_of, changes_between
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.codes import ResponseCode


def user(name: str | None = "amy", password: str | None = "secret", **more: str) -> UserInfo:
    return UserInfo(name, password, more.get("kind"), more.get("status"))


def entry(resource: str | None = "Topic:orders", **more: object) -> PolicyEntryInfo:
    given = {"actions": ["Pub"], "decision": "Allow", **more}
    return PolicyEntryInfo(resource=resource, **given)  # type: ignore[arg-type]  # made up by tests


def acl(*entries: PolicyEntryInfo, subject: str = "User:amy", type_: str = "Custom") -> AclInfo:
    return AclInfo(subject, [PolicyInfo(type_, list(entries))])


def resources(book: Book, type_: str = "Custom") -> list[str | None]:
    policies = book.acls["User:amy"].policies or []
    return [
        each.resource for one in policies if one.policy_type == type_ for each in one.entries or ()
    ]


AMY = Book().create_user(user())


def test_a_user_is_normal_and_enabled_unless_said_otherwise() -> None:
    made = Book().create_user(user("amy")).create_user(user("bob", kind="super", status="DISABLE"))
    assert made.users == {
        "amy": UserInfo("amy", "secret", "Normal", "enable"),
        "bob": UserInfo("bob", "secret", "Super", "disable"),
    }


def test_making_a_user_that_is_there_exactly_so_is_no_mistake() -> None:
    assert AMY.create_user(user()) is AMY


def test_a_change_of_a_user_keeps_what_it_does_not_name() -> None:
    changed = AMY.update_user(UserInfo("amy", password=" ", user_type="Super", user_status="?"))
    assert changed.users["amy"] == UserInfo("amy", "secret", "Super", "enable")
    assert changed.update_user(UserInfo("amy", "new")).users["amy"].password == "new"
    # A book never changes.
    assert AMY.users["amy"] == UserInfo("amy", "secret", "Normal", "enable")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: AMY.create_user(user(password="other")), "The user is existed"),
        (lambda: AMY.create_user(user(kind="Super")), "The user is existed"),
        (lambda: Book().create_user(user(password=" ")), "password can not be blank"),
        (lambda: Book().create_user(user(" ")), "The username is blank"),
        (lambda: Book().update_user(user()), "The user is not exist"),
        (lambda: Book().put_acl(acl(entry())), "The subject of User:amy is not exist"),
        (lambda: AMY.put_acl(acl(entry(), subject="amy")), "The subject is null"),
        (lambda: AMY.put_acl(AclInfo("User:amy")), "The body of acl is null"),
        (lambda: AMY.put_acl(acl()), "The policies is empty"),
        (lambda: AMY.put_acl(acl(entry(None))), "The resource is null"),
        (lambda: AMY.put_acl(acl(entry("Queue:q"))), "The resource is null"),
        (lambda: AMY.put_acl(acl(entry("Topic:"))), "The resource is null"),
        (lambda: AMY.put_acl(acl(entry("Topic:a*b"))), "The resource is null"),
        (lambda: AMY.put_acl(acl(entry(actions=[]))), "The actions is empty"),
        (lambda: AMY.put_acl(acl(entry(actions=["Fly"]))), "The actions is empty"),
        (lambda: AMY.put_acl(acl(entry(actions=["Pub", "Any"]))), "The actions can not be Any"),
        (lambda: AMY.put_acl(acl(entry(source_ips=[""]))), "The source ip is empty"),
        (lambda: AMY.put_acl(acl(entry(source_ips=["10.0.0.0/33"]))), "The source ip is invalid"),
        (lambda: AMY.put_acl(acl(entry(decision="Maybe"))), "The decision is null or illegal"),
        (lambda: AMY.delete_acl("User:bob", None, None), "The subject is not exist"),
    ],
)
def test_refusals_have_the_words_of_java(change: Callable[[], Book], words: str) -> None:
    with pytest.raises(UserRefusedError, match=words) as caught:
        change()
    code = ResponseCode.INVALID_PARAMETER if "blank" in words and "name" in words else None
    assert caught.value.code == (code or ResponseCode.NO_PERMISSION)


def test_texts_are_kept_in_the_form_of_java() -> None:
    reported = AMY.put_acl(
        acl(entry("topic:Orders", actions=["PUB", "sub", "pub"], decision="deny"), type_="custom")
    )
    assert reported.acls["User:amy"] == AclInfo(
        "User:amy",
        [
            PolicyInfo(
                "Custom",
                [PolicyEntryInfo("Topic:Orders", ["Pub", "Sub"], None, "Deny")],
            )
        ],
    )


def test_what_is_said_of_a_resource_is_said_anew_and_of_others_stays() -> None:
    reported = AMY.put_acl(acl(entry("Topic:a"), entry("Topic:b")))
    reported = reported.put_acl(acl(entry("Topic:b", actions=["Sub"]), entry("Topic:c")))
    reported = reported.put_acl(acl(entry("Topic:*"), type_="Default"))
    assert resources(reported) == ["Topic:a", "Topic:b", "Topic:c"]
    assert resources(reported, "Default") == ["Topic:*"]
    assert reported.entry_count == 4
    policies = reported.acls["User:amy"].policies or []
    assert [each.actions for each in policies[0].entries or ()] == [["Pub"], ["Sub"], ["Pub"]]


def test_policies_are_deleted_by_resource_and_as_a_whole() -> None:
    reported = AMY.put_acl(acl(entry("Topic:a"), entry("Topic:b"))).put_acl(
        acl(entry("Topic:a"), type_="Default")
    )
    less = reported.delete_acl("User:amy", None, "Topic:a")
    assert (resources(less), resources(less, "Default")) == (["Topic:b"], ["Topic:a"])
    less = less.delete_acl("User:amy", "Default", "Topic:a")
    assert less.entry_count == 1
    assert less.delete_acl("User:amy", "Custom", "Topic:b").acls == {}
    assert reported.delete_acl("User:amy", None, None) == AMY


def test_taking_back_what_is_not_said_is_no_mistake() -> None:
    assert AMY.delete_acl("User:amy", None, None) is AMY
    assert AMY.delete_acl("User:amy", "Custom", "Topic:a") is AMY


def test_with_a_user_goes_what_is_said_of_him() -> None:
    reported = AMY.create_user(user("bob")).put_acl(acl(entry())).without_user("amy")
    assert (list(reported.users), reported.acls, reported.entry_count) == (["bob"], {}, 0)


@pytest.mark.parametrize(
    ("limit", "change"),
    [
        ("MAX_USERS", lambda: AMY.create_user(user("bob"))),
        ("MAX_ENTRIES_PER_USER", lambda: AMY.put_acl(acl(entry("Topic:a"), entry("Topic:b")))),
        ("MAX_ENTRIES", lambda: AMY.put_acl(acl(entry("Topic:a"), entry("Topic:b")))),
        ("MAX_USERNAME_LENGTH", lambda: Book().create_user(user("bob"))),
        ("MAX_PASSWORD_LENGTH", lambda: Book().create_user(user())),
        ("MAX_RESOURCE_LENGTH", lambda: AMY.put_acl(acl(entry()))),
        ("MAX_SOURCE_IPS", lambda: AMY.put_acl(acl(entry(source_ips=["10.0.0.1", "10.0.0.2"])))),
    ],
)
def test_limits_refuse_by_their_name_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, limit: str, change: Callable[[], Book]
) -> None:
    change()
    monkeypatch.setattr(book_module, limit, 1)
    with pytest.raises(UserRefusedError, match=rf"the limit {limit} is 1; \w+") as caught:
        change()
    assert "secret" not in str(caught.value)


def test_a_book_is_the_same_after_it_was_written_and_read() -> None:
    reported = AMY.put_acl(acl(entry("Topic:a"), entry("Topic:b"))).create_user(user("bob"))
    reported = reported.put_acl(acl(entry("Group:*"), subject="User:bob", type_="Default"))
    assert book_of(reported.state()) == reported


def test_a_file_cannot_say_what_no_change_could() -> None:
    reported = AMY.put_acl(acl(entry())).state()
    reported.users.clear()
    with pytest.raises(UserRefusedError, match="The subject of User:amy is not exist"):
        book_of(reported)


def test_differences_are_named() -> None:
    reported = AMY.put_acl(acl(entry())).create_user(user("bob"))
    assert changes_between(AMY, reported) == (["bob"], ["User:amy"])
    assert changes_between(reported, reported.without_user("amy")) == (["amy"], ["User:amy"])
    assert changes_between(reported, reported) == ([], [])
