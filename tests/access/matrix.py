"""Ask servers with access control as everybody may come: unsigned, forged, denied, let in.

A question is one request as bytes; signatures are made here from the protocol's description (ACL
1.0 and 2.0 sign alike), not by `cometmq.remoting.credentials`. The answer's verdict is read off its
code and remark, the same way for Java's servers and for ours.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from tests.access.actors import Actor
from tests.access.samples import Sample
from tests.integration.raw_client import Command, RawClient

from cometmq import Credentials

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
STRANGER: Final = Credentials("actor-unknown", "secret-of-unknown")
# So many questions are under way on one connection.
AT_ONCE: Final = 64


class Verdict(Enum):
    LET_IN = "let in"
    UNSIGNED = "no access key"
    UNKNOWN = "unknown access key"
    FORGED = "wrong signature"
    DENIED = "no right"
    EXPIRED = "too old"
    REPLAYED = "seen before"


# The words by which servers refuse, Java's and ours. Java's ACL 1.0 refuses with SYSTEM_ERROR, its
# ACL 2.0 with NO_PERMISSION.
_REFUSALS: Final = (
    (Verdict.UNSIGNED, r"no accesskey is configured|username cannot be null"),
    (Verdict.UNKNOWN, r"no acl config for|user:\S+ is not found|no plainaccessresource for"),
    (Verdict.FORGED, r"check signature failed"),
    (
        Verdict.DENIED,
        r"no default permission for|no permission to access|need admin permission|is not permitted",
    ),
)
_REFUSING_CODES: Final = (1, 16)


class Question(NamedTuple):
    """A request to send; `case` says what is special about it."""

    case: str
    code: int
    ext: Mapping[str, str]
    body: bytes


class Told(NamedTuple):
    """What a server said to a question."""

    verdict: Verdict
    code: int
    remark: str


def told(answer: Command) -> Told:
    """Return the verdict of an answer."""
    remark = answer.remark or ""
    for verdict, words in _REFUSALS:
        if answer.code in _REFUSING_CODES and re.search(words, remark, re.IGNORECASE):
            return Told(verdict, answer.code, remark)
    return Told(Verdict.LET_IN, answer.code, remark)


def signed(
    ext: Mapping[str, str], body: bytes, credentials: Credentials, **more: str
) -> dict[str, str]:
    """Return the ext fields with the access key, the fields in `more`, and their signature."""
    fields = {**ext, **more, ACCESS_KEY: credentials.access_key}
    text = "".join(fields[name] for name in sorted(fields)).encode()
    digest = hmac.new(credentials.secret_key.encode(), text + body, hashlib.sha1).digest()
    return {**fields, SIGNATURE: base64.b64encode(digest).decode()}


def as_actor(sample: Sample, actor: Actor) -> Question:
    """Return the request signed properly by an account."""
    fields = signed(sample.ext, sample.body, actor.credentials)
    return Question(actor.name, sample.code, fields, sample.body)


def forgeries(sample: Sample, actor: Actor) -> Iterator[tuple[Question, Verdict]]:
    """Yield the ways to come without the secret of `actor`, who may do it, each with its verdict."""
    ext, body, code = sample.ext, sample.body, sample.code
    proper = signed(ext, body, actor.credentials)
    yield Question("unsigned", code, ext, body), Verdict.UNSIGNED
    unknown = signed(ext, body, STRANGER)
    yield Question("unknown key", code, unknown, body), Verdict.UNKNOWN
    wrong = signed(ext, body, Credentials(actor.credentials.access_key, "not-the-secret"))
    yield Question("wrong secret", code, wrong, body), Verdict.FORGED
    without = {name: text for name, text in proper.items() if name != SIGNATURE}
    yield Question("no signature", code, without, body), Verdict.FORGED
    yield Question("empty signature", code, {**proper, SIGNATURE: ""}, body), Verdict.FORGED
    added = {**proper, "addedOnTheWay": "1"}
    yield Question("field added", code, added, body), Verdict.FORGED
    for name, text in ext.items():
        changed = {**proper, name: _changed(text)}
        yield Question(f"{name} changed", code, changed, body), Verdict.FORGED
    # Java signs values only, so a field whose name changes is not noticed; but one that goes is.
    for name in ext:
        if ext[name]:
            gone = {key: text for key, text in proper.items() if key != name}
            yield Question(f"{name} taken out", code, gone, body), Verdict.FORGED
    yield Question("body changed", code, proper, _changed_body(body)), Verdict.FORGED
    if body:
        yield Question("body taken out", code, proper, b""), Verdict.FORGED


def _changed(text: str) -> str:
    """Return another value that fits the field as well: decoding must not be what refuses it."""
    if text in ("true", "false"):
        return "true" if text == "false" else "false"
    if text.lstrip("-").isdigit():
        return str(int(text) + 1)
    return f"{text}x"


def _changed_body(body: bytes) -> bytes:
    # White space around it is allowed in JSON.
    return body + b" "


def ask_all(
    address: str, questions: Iterable[Question], *, binary: bool = False
) -> list[tuple[Question, Told]]:
    """Ask everything on one connection, many questions at a time; return what was said, in order."""
    asked: list[tuple[Question, Told]] = []
    with RawClient(address, binary=binary) as client:
        left = list(questions)
        while left:
            some, left = left[:AT_ONCE], left[AT_ONCE:]
            waiting = {
                client.send(question.code, question.ext, question.body): question
                for question in some
            }
            answers: dict[int, Command] = {}
            while len(answers) < len(waiting):
                answer = client.receive()
                # A server asks its clients now and then, too.
                if answer.is_response:
                    answers[answer.opaque] = answer
            asked += [(question, told(answers[opaque])) for opaque, question in waiting.items()]
    return asked
