"""Answer the questions of `cometmq explain`: causes with their evidence, and what to do.

Each question has an address of its own, so that other pages link to it with its values filled in:
`/why/group?name=…`, `/why/message?id=…&topic=…`, `/why/write?topic=…`, `/why/disk`, `/why/restart`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.refusals import Refused
from cometmq.console.routes import Page, Routes, console_of
from cometmq.console.views.rendering import render, url
from cometmq.console.watching.asking import brokers_of
from cometmq.console.watching.recent import Known, known
from cometmq.errors import IllegalArgumentError

if TYPE_CHECKING:
    from cometmq.admin.explain.records import Evidence, Explanation, Reason
    from cometmq.console.state import Console

routes: Final = Routes()
# How long a page waits when its reader asked for facts that an earlier page lacked.
LONGER_S: Final = 10.0
_AGE_S: Final = 1.0
_MAX_VALUE: Final = 500

# The values that a form gives; those that are empty are None.
Values = Mapping[str, str | None]
# Asks within a deadline in seconds.
Ask = Callable[["Console", Values, float], Awaitable["Explanation"]]


@dataclass(frozen=True, slots=True)
class Field:
    """Is an input of a question's form. `kind` is that of the HTML element."""

    name: str
    label: str
    is_needed: bool = False
    kind: str = "text"
    # The kind of names that the input proposes; see pages/proposals.py.
    names: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """Is one of the questions: its words, its form, and the function that answers it."""

    name: str
    title: str
    hint: str
    fields: tuple[Field, ...]
    ask: Ask

    @property
    def path(self) -> str:
        return f"/why/{self.name}"


def _group(console: Console, given: Values, deadline_s: float) -> Awaitable[Explanation]:
    return console.admin.explain.group(
        given["name"] or "", given["topic"], cluster=given["cluster"], deadline_s=deadline_s
    )


def _message(console: Console, given: Values, deadline_s: float) -> Awaitable[Explanation]:
    return console.admin.explain.message(
        given["id"] or "", given["topic"], group=given["group"], deadline_s=deadline_s
    )


async def _write(console: Console, given: Values, deadline_s: float) -> Explanation:
    return await console.admin.explain.write(
        given["topic"] or "",
        size=_size(given["size"]),
        cluster=given["cluster"],
        broker=await _broker(console, given["broker"]),
        deadline_s=deadline_s,
    )


async def _disk(console: Console, given: Values, deadline_s: float) -> Explanation:
    broker = await _broker(console, given["broker"])
    return await console.admin.explain.disk(
        cluster=given["cluster"], broker=broker, deadline_s=deadline_s
    )


async def _restart(console: Console, given: Values, deadline_s: float) -> Explanation:
    broker = await _broker(console, given["broker"])
    return await console.admin.explain.restart(
        cluster=given["cluster"], broker=broker, deadline_s=deadline_s
    )


async def _broker(console: Console, given: str | None) -> str | None:
    """Return a name or an address that a broker of the cluster has.

    Nothing is asked of an address that only a link names: the console would sign requests for a
    stranger.
    """
    if given is None or console.watch.state_of(given) is not None:
        return given
    if any(given in (at.broker_name, at.address) for at in await brokers_of(console)):
        return given
    raise IllegalArgumentError(Refused.NO_BROKER(name=given))


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    size = int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0
    if size < 1:
        raise IllegalArgumentError(Refused.NO_SIZE(text=text))
    return size


_CLUSTER: Final = Field("cluster", "Only this cluster", names="clusters")
_BROKER: Final = Field("broker", "Only this broker (name or host:port)", names="brokers")
QUESTIONS: Final = (
    Question(
        "group",
        "Why is this group behind?",
        "Members, listeners, queues, offsets, filters and permissions.",
        (
            Field("name", "Consumer group", is_needed=True, names="groups"),
            Field("topic", "Only this topic", names="topics"),
            _CLUSTER,
        ),
        _group,
    ),
    Question(
        "message",
        "Why was this message not delivered?",
        "Stored, indexed, filtered, pulled by whom, retried, dead-lettered, deleted.",
        (
            Field("id", "Message id", is_needed=True, names="messages"),
            Field("topic", "Its topic (for a unique id)", names="topics"),
            Field("group", "Only this group", names="groups"),
        ),
        _message,
    ),
    Question(
        "write",
        "Why is this write refused?",
        "Why brokers refuse messages of a topic, or why producers do not choose them.",
        (
            Field("topic", "Topic", is_needed=True, names="topics"),
            Field("size", "Size of the body in bytes", kind="number"),
            _CLUSTER,
            _BROKER,
        ),
        _write,
    ),
    Question(
        "disk",
        "What does each broker delete next?",
        "Which file of the commit log goes next, when and why.",
        (_CLUSTER, _BROKER),
        _disk,
    ),
    Question(
        "restart",
        "What would a restart cost?",
        "Log to read, queues to load, clients that wait.",
        (_CLUSTER, _BROKER),
        _restart,
    ),
)


@routes.page("/why")
async def listing(request: Request) -> Response:
    """Show the questions with their forms."""
    return render(request, "why.html", {"questions": QUESTIONS})


def _page(question: Question) -> Page:
    async def answer(request: Request) -> Response:
        """Ask, if all that the question needs is given, and show the answer below the form."""
        given = {
            field.name: request.query_params.get(field.name, "").strip()[:_MAX_VALUE] or None
            for field in question.fields
        }
        is_asked = all(given[field.name] for field in question.fields if field.is_needed)
        is_longer = request.query_params.get("longer") == "1"
        answered: Known[Explanation] | None = None
        if is_asked:
            console = console_of(request)
            deadline_s = LONGER_S if is_longer else console.config.wait_s
            answered = await known(
                console.recent.get(
                    ("why", question.name, is_longer, *given.values()),
                    _AGE_S,
                    lambda: question.ask(console, given, deadline_s),
                )
            )
        values: dict[str, Any] = {
            "question": question,
            "questions": QUESTIONS,
            "given": given,
            "answered": answered,
            "evidence_rows": _evidence_rows,
            "about": _about(given),
            "is_longer": is_longer,
            "longer_s": LONGER_S,
        }
        return render(request, "why_answer.html", values)

    return answer


for _question in QUESTIONS:
    routes.page(_question.path)(_page(_question))


def _evidence_rows(reason: Reason) -> list[tuple[Evidence, list[Evidence]]]:
    """Group the evidence of a reason by the answer that it came from, under the first figure of
    each.
    """
    by_source: dict[tuple[str, str, int], list[Evidence]] = {}
    for evidence in reason.evidence:
        by_source.setdefault((evidence.request, evidence.address, evidence.at_ms), []).append(
            evidence
        )
    return [(figures[0], figures) for figures in by_source.values()]


def _about(given: Values) -> list[tuple[str, str, str]]:
    """Return the pages about the subject of a question: its kind, its name, its address."""
    pages = []
    if group := given.get("name") or given.get("group"):
        pages.append(("Consumer group", group, url("/group", name=group)))
    if topic := given.get("topic"):
        pages.append(("Topic", topic, url("/topic", name=topic)))
    if message := given.get("id"):
        pages.append(("Message", message, url("/message", id=message, topic=topic)))
    return pages
