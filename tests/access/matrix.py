"""Ask servers with access control as everybody may come: unsigned, forged, denied, let in.

A question is one request as bytes; signatures are made here from the protocol's description (ACL
1.0 and 2.0 sign alike), not by `cometmq.remoting.credentials`. The answer's verdict is read off its
code and remark, the same way for Java's servers and for ours.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from msgspec import structs
from tests.access.actors import Actor, policies, user
from tests.access.samples import Sample
from tests.integration.raw_client import Command, RawClient

from cometmq import Credentials

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SIGNED_AT: Final = "SignedAt"
NONCE: Final = "Nonce"
# More than signatureMaxAgeSeconds.
LONG_MS: Final = 3_600_000
STRANGER: Final = Credentials("actor-unknown", "secret-of-unknown")
_CREATE_USER, _CREATE_ACL = 3001, 3006
# So many questions are under way on one connection.
AT_ONCE: Final = 64


class Verdict(Enum):
    LET_IN = "let in"
    UNSIGNED = "no access key"
    UNKNOWN = "unknown access key"
    FORGED = "wrong signature"
    DENIED = "no right"
    # Java's servers read bodies before they check signatures.
    UNREADABLE = "names cannot be read"
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
        r"no (default )?permission for|no permission to access|need admin permission",
    ),
    (Verdict.REPLAYED, r"not fresh: .*was repeated"),
    (Verdict.EXPIRED, r"not fresh: .*clock"),
    (Verdict.UNREADABLE, r"AclException|parse authorization context error"),
)
_REFUSING_CODES: Final = (1, 16)


class Question(NamedTuple):
    """A request to send; `case` says what is special about it."""

    case: str
    code: int
    ext: Mapping[str, str]
    body: bytes


class Judged(NamedTuple):
    """A server's answer to a request."""

    verdict: Verdict
    code: int
    remark: str


def judged(answer: Command) -> Judged:
    """Return the verdict of an answer."""
    remark = answer.remark or ""
    for verdict, words in _REFUSALS:
        if answer.code in _REFUSING_CODES and re.search(words, remark, re.IGNORECASE):
            return Judged(verdict, answer.code, remark)
    return Judged(Verdict.LET_IN, answer.code, remark)


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
    # A request without a field that it must have is refused for that: it cannot be read.
    required = {field.encode_name for field in structs.fields(sample.row.header) if field.required}
    for name in ext.keys() - required:
        if ext[name]:
            gone = {key: text for key, text in proper.items() if key != name}
            yield Question(f"{name} taken out", code, gone, body), Verdict.FORGED
    yield Question("body changed", code, proper, _changed_body(body)), Verdict.FORGED
    if body:
        yield Question("body taken out", code, proper, b""), Verdict.FORGED


def stale(
    sample: Sample, actor: Actor, session: str, now_ms: int, numbers: Iterator[int]
) -> Iterator[tuple[Question, Verdict]]:
    """Yield a request with our clients' fields of freshness, and what somebody makes of it later."""

    def question(case: str, signed_at: str, nonce: str) -> Question:
        fields = {**sample.ext, SIGNED_AT: signed_at, ACCESS_KEY: actor.credentials.access_key}
        form = f"{[len(fields[key]) for key in sorted(fields)]};" + "\0".join(sorted(fields))
        text = f"seal {nonce};{sample.code};{len(sample.body)};{form}".encode()
        seal = hmac.new(actor.credentials.secret_key.encode(), text, hashlib.sha1).hexdigest()[:16]
        more = {SIGNED_AT: signed_at, NONCE: f"{nonce}-{seal}"}
        signing = signed(sample.ext, sample.body, actor.credentials, **more)
        return Question(case, sample.code, signing, sample.body)

    def nonce() -> str:
        return f"{session}-{next(numbers)}"

    fresh = question("fresh", str(now_ms), nonce())
    yield fresh, Verdict.LET_IN
    yield fresh._replace(case="replayed"), Verdict.REPLAYED
    yield question("expired", str(now_ms - LONG_MS), nonce()), Verdict.EXPIRED
    yield question("ahead of time", str(now_ms + LONG_MS), nonce()), Verdict.EXPIRED
    # A recorded request that gets a new time or number has no sound signature any more.
    renewed = {**fresh.ext, SIGNED_AT: str(now_ms + 1), NONCE: nonce()}
    yield fresh._replace(case="renewed", ext=renewed), Verdict.FORGED
    bare = {name: text for name, text in fresh.ext.items() if name not in (SIGNED_AT, NONCE)}
    yield fresh._replace(case="made to look like Java's", ext=bare), Verdict.FORGED
    # The same values in the same order: the signature alone does not tell.
    ext = fresh.ext
    renamed = {**bare, "Nonce2": ext[NONCE], "SignedAt2": ext[SIGNED_AT]}
    yield fresh._replace(case="renamed", ext=renamed), Verdict.FORGED
    shorter = {**ext, NONCE: ext[NONCE][:-1], "O": ext[NONCE][-1]}
    yield fresh._replace(case="divided anew", ext=shorter), Verdict.FORGED


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
) -> list[tuple[Question, Judged]]:
    """Ask everything on one connection; return what was said, in order."""
    answers = answers_to(address, questions, binary=binary)
    return [(question, judged(answer)) for question, answer in answers]


def answers_to(
    address: str, questions: Iterable[Question], *, binary: bool = False
) -> list[tuple[Question, Command]]:
    """Ask everything on one connection, many questions at a time; return the answers, in order."""
    asked: list[tuple[Question, Command]] = []
    left = list(questions)
    with RawClient(address, binary=binary) as client:
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
            asked += [(question, answers[opaque]) for opaque, question in waiting.items()]
    return asked


def admit(address: str, actors: Iterable[Actor], owner: Credentials) -> None:
    """Have a server with ACL 2.0 know the accounts, by requests of its owner, who is known to it."""
    questions = []
    for actor in actors:
        if actor.credentials == owner:
            continue
        name = {"username": actor.credentials.access_key}
        subject = {"subject": f"User:{actor.credentials.access_key}"}
        for code, ext, value in (
            (_CREATE_USER, name, user(actor)),
            (_CREATE_ACL, subject, policies(actor)),
        ):
            if actor.entries() or code == _CREATE_USER:
                body = json.dumps(value).encode()
                fields = signed(ext, body, owner)
                questions.append(Question(actor.name, code, fields, body))
    for question in questions:  # one after the other: policies are of users that there are
        [(_, reported)] = ask_all(address, [question])
        assert reported.code == 0, (question, reported)
