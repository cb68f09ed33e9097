"""Declare every limit of the console: its `/metrics`, the reference and the tests read this table.

A limit has the name of the constant in the code that holds it, and is that of one console: those of
brokers and name servers are in `cometmq.metrics.limits`, and some have the same name there. Bounds
that only shorten a list or a text on a page are not in this table: they refuse nobody, and the page
says so. `tests/console/test_limits_named.py` hits every limit.
"""

from __future__ import annotations

from typing import Final

from cometmq.metrics.catalogue import Server
from cometmq.metrics.limits import Limit, add_limit

CONSOLE_LIMITS: Final[dict[str, Limit]] = {}

# The HTTP status with which most limits refuse.
_WRONG: Final = "400"
_BUSY: Final = "429"


def _declare(
    name: str, at: str, unit: str, bounds: str, beyond: str, ample: str, *, slows: bool = False
) -> None:
    where = f"console.{at}" if at else ""
    add_limit(
        CONSOLE_LIMITS, name, unit, bounds, beyond, ample,
        at=where, servers=(Server.CONSOLE,), slows=slows,
    )  # fmt: skip


# -- connections --

_declare(
    "MAX_CONNECTIONS", "web.connections", "connections", "Open connections in all.",
    "an idle one of the address with most of them makes room, or the new one is answered 503",
    "a browser has six at most, and a live page one of them",
)  # fmt: skip
_declare(
    "MAX_OF_ADDRESS", "web.connections", "connections or requests",
    "Open connections of one address; behind a trusted proxy, requests under way of one client.",
    "503; 429 behind a proxy", "eighty people with all tabs open, behind one address",
)  # fmt: skip
_declare(
    "RLIMIT_NOFILE", "", "descriptors",
    "Open files and connections of the process (`ulimit -n`, LimitNOFILE); a part is kept for files.",
    "503", "the console warns at its start if they do not suffice for its connections",
)  # fmt: skip
_declare(
    "REQUEST_S", "web.connections", "seconds",
    "Time for a request to come whole; a browser that connects ahead and asks for nothing meets it, too.",
    "the connection is closed", "a form of 1 MiB takes a second on a slow line", slows=True,
)  # fmt: skip
_declare(
    "CHECK_S", "web.connections", "seconds",
    "Time in which a client takes nothing of its answer; it may be twice as long.",
    "the connection is closed", "answers have some 100 KiB", slows=True,
)  # fmt: skip
_declare(
    "MAX_TLS_HANDSHAKES", "web.encrypted", "handshakes", "TLS handshakes that are under way at once.",
    "the others wait; one that has lasted for more than a second is closed for them",
    "a browser shakes hands once for a connection, and keeps it", slows=True,
)  # fmt: skip
_declare(
    "MAX_TLS_HANDSHAKES_PER_SECOND", "web.encrypted", "handshakes",
    "TLS handshakes that begin within a second.", "the others wait, and addresses take turns",
    "a handshake takes about 1 ms of the loop that makes the pages", slows=True,
)  # fmt: skip
_declare(
    "HANDSHAKE_S", "web.encrypted", "seconds",
    "Time from the connect to the first byte, and from there to the end of a TLS handshake.",
    "the connection is closed", "a handshake takes two round trips, and the wait for a place", slows=True,
)  # fmt: skip

# -- heads of requests --

_declare(
    "MAX_HEADERS", "web.connections", "headers", "Headers of a request.", "431",
    "browsers and proxies send some forty",
)  # fmt: skip
_declare(
    "MAX_HEADER_BYTES", "web.connections", "bytes", "Request line and headers.", "431",
    "browsers send some KiB",
)  # fmt: skip
_declare(
    "MAX_PATH_BYTES", "web.guard", "bytes", "An address before its `?`.", "414",
    "no page's path has a hundred",
)  # fmt: skip
_declare(
    "MAX_QUERY_BYTES", "web.guard", "bytes", "An address behind its `?`.", "414",
    "a page's filters have some hundred",
)  # fmt: skip

# -- accounts --

_declare(
    "MAX_REQUESTS_OF_ACCOUNT", "web.guard", "requests", "Requests of one account under way.", _BUSY,
    "a page asks for one to three",
)  # fmt: skip
_declare(
    "MAX_STREAMS_OF_ACCOUNT", "web.guard", "pages", "Live pages of one account.", _BUSY,
    "each is an open tab",
)  # fmt: skip
_declare(
    "MAX_STREAMS", "web.guard", "pages", "Live pages of all accounts.", _BUSY, "each is an open tab",
)  # fmt: skip
_declare(
    "NAME_FAULTS", "users.logins", "wrong passwords",
    "Wrong passwords for one name from an address, of which one is forgotten each minute.",
    "429, for a second, and twice as long each time, up to a minute", "a user that mistypes looks it up",
)  # fmt: skip
_declare(
    "ADDRESS_FAULTS", "users.logins", "wrong passwords",
    "Wrong passwords for all names from an address, of which one is forgotten each minute.",
    "429, for a second, and twice as long each time, up to 15 s",
    "an office behind one address mistypes less often",
)  # fmt: skip
_declare(
    "MAX_LOGINS_WAITING", "users.logins", "logins", "Logins whose password waits to be checked.", _BUSY,
    "two are checked at once, each in a tenth of a second",
)  # fmt: skip
_declare(
    "MAX_SESSIONS_OF_ACCOUNT", "users.sessions", "sessions", "Sessions of one account.",
    "the one used longest ago ends", "a person has one for each browser",
)  # fmt: skip
_declare(
    "MAX_SESSIONS", "users.sessions", "sessions", "Sessions of all accounts.",
    "the one used longest ago ends", "a person has one for each browser",
)  # fmt: skip

# -- forms --

_declare(
    "MAX_FORM_BYTES", "routes", "bytes", "A form.", "413", "a message to send has some KiB",
)  # fmt: skip
_declare(
    "MAX_LOGIN_BYTES", "pages.login", "bytes", "The form of the login.", "413",
    "a name and a password",
)  # fmt: skip
_declare(
    "MAX_FORM_FIELDS", "routes", "fields", "Fields of a form.", _WRONG,
    "a list of dead letters has 500 boxes",
)  # fmt: skip
_declare(
    "MAX_FIELD_NAME", "routes", "characters", "The name of a field.", _WRONG,
    "they are the console's own",
)  # fmt: skip
_declare(
    "MAX_FIELD", "routes", "characters", "A field, but for bodies of messages and schemas.", _WRONG,
    "a message's properties have 32,767 bytes together",
)  # fmt: skip
_declare(
    "MAX_WHY", "routes", "characters", "The reason of an action.", _WRONG, "it is a sentence",
)  # fmt: skip
_declare(
    "MAX_NAME", "views.fields", "characters", "The name of a topic, a group or a broker.", _WRONG,
    "RocketMQ's names have 127 at most",
)  # fmt: skip
_declare(
    "MAX_LINES", "views.fields", "lines", "Lines of a field that lists.", _WRONG,
    "messages have some dozen properties",
)  # fmt: skip
_declare(
    "MAX_LINES_TEXT", "views.fields", "characters", "A field that lists.", _WRONG,
    "a message's properties have 32,767 bytes together",
)  # fmt: skip
_declare(
    "MAX_TAG_OR_KEYS", "pages.topic_send", "characters", "The tag, or the keys, of a message to send.",
    _WRONG, "a message's properties have 32,767 bytes together",
)  # fmt: skip
_declare(
    "MAX_ID", "pages.trace", "characters", "The id or key whose trace is asked for.", _WRONG,
    "ids have 32",
)  # fmt: skip
_declare(
    "MAX_SETTING", "pages.name_servers", "characters", "A setting of name servers.", _WRONG,
    "those that the console changes are words and numbers",
)  # fmt: skip
_declare(
    "MAX_ENTRY_NAME", "pages.name_servers", "characters",
    "The namespace or the name of a key-value entry.", _WRONG, "it is that of name servers",
)  # fmt: skip
_declare(
    "MAX_ENTRY_VALUE", "pages.name_servers", "characters", "The value of a key-value entry.", _WRONG,
    "it is that of name servers",
)  # fmt: skip
_declare(
    "MAX_SCHEMA_NAME", "schemas.store", "characters", "The name of a schema.", "the action fails",
    "people type it",
)  # fmt: skip
_declare(
    "MAX_SCHEMA", "schemas.store", "characters", "The text of a schema.", "the action fails",
    "large ones have some ten thousand",
)  # fmt: skip
_declare(
    "MAX_SCHEMAS", "schemas.store", "schemas", "Schemas that a console keeps.", "the action fails",
    "one for each topic that people look into",
)  # fmt: skip

# -- what pages read --

_declare(
    "MAX_DECODINGS", "schemas.store", "bodies", "Bodies that are decoded, or wait for it.",
    "the page says so", "each is a page that somebody opens",
)  # fmt: skip
_declare(
    "MAX_TAILS", "pages.messages", "pages", "Pages that follow a topic; of one account half as many.", "503",
    "each is an open tab that somebody looks at",
)  # fmt: skip
_declare(
    "MAX_READS", "pages.reports", "reports", "Reports that are read at once; of one account half as many.", _BUSY,
    "each takes a moment",
)  # fmt: skip
_declare(
    "MAX_AUDIT_EXPORTS", "pages.audit", "exports", "Exports of the audit log under way; of one account half as many.", _BUSY,
    "each takes seconds",
)  # fmt: skip
_declare(
    "MAX_AUDIT_EXPORT_S", "pages.audit", "seconds", "An export of the audit log.",
    "its last line says so", "160 MiB take seconds",
)  # fmt: skip
_declare(
    "MAX_EACH", "pages.letters", "letters", "Dead letters that are ticked for one action.", _WRONG,
    "a list has as many at most",
)  # fmt: skip
_declare(
    "MAX_DRY_RUN_LETTERS", "pages.letters", "letters", "Dead letters that a dry run looks at.", "422",
    "a redrive takes 500 at a time",
)  # fmt: skip
_declare(
    "MAX_DRY_RUN_BYTES", "pages.letters", "bytes", "Bodies that a dry run looks at.", "422",
    "a redrive takes 500 letters at a time",
)  # fmt: skip
_declare(
    "MAX_LETTER_EXPORTS", "pages.letters_export", "exports", "Exports of dead letters under way; of one account half as many.",
    _BUSY, "each takes seconds to minutes",
)  # fmt: skip
_declare(
    "MAX_EXPORTED", "pages.letters_export", "letters", "Letters of an export.",
    "its last line says so", "more are taken by several exports",
)  # fmt: skip
_declare(
    "MAX_LOOKED_AT", "pages.letters_export", "letters", "Letters that an export looks at.",
    "its last line says so", "more are taken by several exports",
)  # fmt: skip
_declare(
    "MAX_EXPORTED_BYTES", "pages.letters_export", "bytes", "Bodies that an export looks at.",
    "its last line says so", "more are taken by several exports",
)  # fmt: skip
_declare(
    "MAX_EXPORT_S", "pages.letters_export", "seconds", "An export of dead letters.",
    "its last line says so", "more are taken by several exports",
)  # fmt: skip
