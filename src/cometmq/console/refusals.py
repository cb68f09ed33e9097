"""List the sentences with values by which the console refuses a request or says that something
cannot be shown.

Refusals without values stand where they are made: the catalogue of the pages has them.
"""

from __future__ import annotations

from cometmq.model.reports.keyed_text import TextKey


class Refused(TextKey):
    """Lists refusals."""

    # Limits: what there is, and what to do
    LIMIT = "{what}, the limit {limit} is {most}; {remedy}"
    OF_ACCOUNT = "{what}, {own} of them by the account {account}"
    HALF_OF_THEM = "one account has half of them at most: wait until one of these has ended"
    TRY_AGAIN = "try again in a moment"
    CLOSE_PAGES = "close some pages, or try again later"
    CLOSE_SOME = "close some, or try again in a moment"
    ASK_FOR_LESS = "ask for less"
    NO_SUCH_ADDRESS = "no page of the console has such an address: check it"
    GIVE_SHORTER = "give a shorter one"
    GIVE_FEWER = "give fewer of them"
    GIVE_LESS = "give less in its fields"
    CHOOSE_LESS = "choose less at once"
    TAKE_OTHERS = "take the others afterwards"
    TAKE_OTHERS_BY_TIME = "take the others by a time range (From, To)"
    SHORTER_TIME = "give a shorter time (From, To), or tick the letters in the list"
    REQUESTS_OF_CLIENT = "{count} requests of {client} are under way"
    REQUESTS_OF_ACCOUNT = "the account {account} has {count} requests under way"
    LIVE_PAGES_OF_ACCOUNT = "the account {account} has {count} live pages"
    LIVE_PAGES = "{count} pages are live"
    FOLLOWING_PAGES = "{count} pages follow topics"
    EXPORTS = "{count} exports are under way"
    EXPORT_LATE = "the export took too long"
    REPORTS_READ = "{count} reports are being read"
    QUERY_BYTES = "the address has {count} bytes behind its '?'"
    PATH_BYTES = "the address has {count} bytes before its '?'"
    LINES = "the {field} has {count} lines"
    CHARACTERS = "the {field} has {count} characters"
    FORM_BYTES = "the form is too large, in bytes"
    FORM_FIELDS = "the form has {count} fields"
    FIELD_NAME = "the name of a field has {count} characters"
    LETTERS_CHOSEN = "{count} letters are chosen"
    LETTERS_LOOKED_AT = "{looked} letters were looked at, {count} of them fit, and there are more"
    LETTERS_EXPORTED = "{count} letters were exported, of {looked} that were looked at"

    # Connections and logins
    CONNECTION = "The console refuses this connection: {reason}."
    HEAD = (
        "The request has too many {unit}, the limit {limit} is {most}; send fewer, for example by "
        "deleting cookies."
    )
    HEADERS = "headers"
    HEADER_BYTES = "bytes before its body"
    TLS_ONLY = "The console speaks TLS at this port: call it by https://."
    CONNECTIONS_OF_ADDRESS = (
        "{count} connections of {address} are open, the limit MAX_OF_ADDRESS is {most}; close some, or "
        "try again later. Of a proxy that is named by --trusted-proxies they are not counted"
    )
    CONNECTIONS = (
        "{count} connections are open, the limit MAX_CONNECTIONS is {most}; close some, or try again "
        "later"
    )
    OPEN_FILES = (
        "{limit} files may be open at once (RLIMIT_NOFILE), and {kept} of them are kept; raise the "
        "limit (ulimit -n, or LimitNOFILE in the systemd unit)"
    )
    UNKNOWN_HOST = (
        "The console does not know itself as {name:.100}. Call it by its address, or start it with "
        "--allow-host for this name."
    )
    FIGURES = (
        "{address} may not ask for figures without a login: log in, ask from the console's own machine, "
        "or name the address with --metrics-from"
    )
    LOGINS = "{count} logins are being checked, the limit MAX_LOGINS_WAITING is {most}; try again in a moment"
    WRONG_PASSWORDS = (
        "too many wrong passwords came from {address}, the limit {limit} is {most}; try again in "
        "{seconds} s"
    )

    # Fields of forms and addresses
    ADDRESS_LACKS = "the address lacks the {field}; give it"
    FORM_LACKS = "the form lacks the {field}; give it"
    FORM_LACKS_FIELD = "the form lacks its field {field!r:.100}"
    FORM_UNREADABLE = "the form cannot be read: {error}"
    NO_NUMBER_OF = "{field} is {text!r}; give a whole number from {low} to {high}"
    NO_NUMBER = "{field} is {text!r}; give a whole number"
    NO_CHOICE = "{field} is {text!r}; give one of {choices}"
    NO_PAIR = "{field}: {line!r} is not name=value"
    PAIR_TWICE = "{field}: {name!r} is there twice"
    CHANGED_MEANWHILE = (
        "{key} is {now!r:.200} now, and was {was!r:.200} when the form was shown: somebody has changed "
        "it. Look at it again, and change it from there"
    )
    NO_TIME = (
        "{text!r} is no time; give a date and time of day, such as 2026-11-23 14:30:00 or 2026-11-23 "
        "14:30:00+01:00, how long ago, such as 15m, 2h or 3d, or ms since 1970"
    )
    NO_SIZE = "{text!r:.80} is no size: give a number of bytes, 1 or more"
    NO_QUEUE = "a queue is written as BROKER:NUMBER, such as broker-a:0"
    AUDIT_LOG = "nothing was done, because the audit log cannot be written: {error}"

    # Servers
    FAILED_IN_PART = "failed at {failed} of {all} servers: {reasons}"
    LATE = "{server} did not answer within {seconds:g} s, and this page does not wait for longer"
    THE_CLUSTER = "the cluster"
    SILENT = "{address} did not answer within {seconds:g} s"
    GONE = "no name server knows {broker} at {address} any more"
    NO_BROKER = "no broker is registered as {name!r:.80}"
    NO_BROKER_AT = "no broker is registered with the address {address!r:.80}"
    UNKNOWN_BROKER = "no name server knows a broker {name!r:.100}"
    UNKNOWN_MASTER = "no name server knows a master of broker {name!r:.100}"
    NO_SETTING = "{key!r:.80} is no setting that takes effect while {address} runs"
    NO_NAME_SERVER_SETTING = "{key!r:.80} is no setting that takes effect while name servers run"
    SETTING_UNKNOWN = "the name server {address} does not report its {key}"
    NO_ENTRY = "no name server that answers has the entry {key!r:.80} of {namespace!r:.80}{why}"
    AND_WHY = "; {error}"
    NO_ORDER = (
        "{value!r:.200} is no order configuration: write each broker with its number of queues, such "
        "as broker-a:4;broker-b:4"
    )
    NO_CLEANING = "{kind!r:.80} is none of {kinds}"

    # Topics, groups and messages
    NO_PLACE = "where is {where!r:.80}, which is no cluster or broker with a master; choose one"
    NO_TOPIC_AT = "broker {broker!r:.80} does not have the topic; choose one"
    GROUP_EXISTS = "there is a group {group} already; change its configuration"
    NO_GROUP = "no broker that answers has the group {group}; {why}"
    CHECK_NAME = "check its name"
    NO_GROUP_AT = "broker {broker!r:.80} does not have the group any more; choose another one"
    SETTINGS_UNFIT = "the settings do not fit: {error}"
    NO_OFFSET = "the offset is {text!r:.40}; give a whole number"
    NO_QUEUE_AT = "topic {topic} has no queue {queue} at broker {broker}"
    OFFSET_OUTSIDE = "the queue has the offsets {low} to {high}; {offset} is none"
    NOTHING_TO_COPY = "group {group} has no offset in topic {topic} to copy"
    QUEUE_WITHOUT_TOPIC = "a queue has a topic: give its name, too"
    NO_MESSAGE_NAMED = "give a message's id, or its topic, broker, queue and offset"
    NO_MESSAGE_NUMBER = "the {field} is {text!r:.40}; give a whole number"
    OTHER_CLUSTER = (
        "the id {message!r:.80} is of the broker {address}, which this cluster does not have; give the "
        "topic, too"
    )

    # Schemas and reports
    NO_SCHEMA = "there is no schema {name!r:.80}"
    SCHEMA_NAME = "give the schema a name of 1 to {most} characters"
    SCHEMA_NAME_LONG = (
        "the name of the schema is too long, in characters, the limit MAX_SCHEMA_NAME is {most}; give a "
        "shorter one"
    )
    SCHEMA_KIND = "{kind!r:.80} is no kind of schema: avro or protobuf"
    SCHEMA_LONG = (
        "the schema has {count} characters, the limit MAX_SCHEMA is {most}; leave out what its messages "
        "do not need"
    )
    SCHEMAS = "{count} schemas are kept, the limit MAX_SCHEMAS is {most}; delete one first"
    DECODINGS = (
        "{count} bodies are being decoded, the limit MAX_DECODINGS is {most}; try again in a moment"
    )
    NO_REPORT = "there is no report {name!r:.200} in the directory of reports"
    REPORT_UNREADABLE = "the report {name:.200} cannot be read: {error}"
    NO_REPORT_PAGE = "there is no page of a report {name!r:.200}"
    REPORT_PAGE_UNREADABLE = "the page of {name:.200} cannot be read: {error}"
    REPORT_LARGE = "it is larger than {most} bytes"
    REPORT_NESTED = "it is nested too deeply"
    NO_PIPELINE_REPORT = "it is not what a pipeline writes"
