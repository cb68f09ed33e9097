"""List all sentences of explanations: what `Said` states, `Remedy` advises, and `Shown` proves.

A sentence is named after its cause. Catalogues of the console have the same keys.

Longer than 500 lines: a list of sentences, which is read by searching it.
"""

from __future__ import annotations

from cometmq.model.reports.keyed_text import TextKey


class Said(TextKey):
    """Lists what explanations ask and state."""

    # Why is this group behind?
    WHY_GROUP_BEHIND = "why is group {group} behind?"
    WHY_GROUP_BEHIND_IN_TOPIC = "why is group {group} behind in topic {topic}?"
    CAUGHT_UP = "group {group} is not behind: no message waits in {queues:# queue|# queues}"
    CAUGHT_UP_IN_PART = (
        "group {group} is not behind: no message waits in {queues:# queue|# queues} of the brokers "
        "that reported its progress; {silent} did not"
    )
    PROGRESS_UNKNOWN = (
        "whether group {group} is behind is not known: {brokers} did not report its progress"
    )
    WAITS = "{count:# message waits|# messages wait} ({where})"
    NOTHING_WAITS = "no message waits"
    ITEMS = "{items}"
    AND_MORE = "{items} and {more} more"
    ONE_AND_NEXT = "{one}; {next}"
    BEHIND = "{waits}, and the group takes {rate:.1f} a second; no other cause was found"
    BEHIND_PULLING = (
        "{waits}, and the group takes {rate:.1f} a second; no other cause was found; its program "
        "pulls by itself, so only the program knows when it does"
    )
    GROUP_BROADCASTING = (
        "group {group} consumes by broadcasting: each member keeps its own offsets, and the brokers' "
        "figures say nothing"
    )
    CONSUMPTION_DISABLED = (
        "consumption is switched off for group {group} at {brokers}: the broker refuses its pulls; "
        "{waits}"
    )
    BROKER_UNREADABLE = (
        "broker {broker} may not be read (brokerPermission={permission}): it refuses all pulls"
    )
    TOPIC_UNREADABLE = (
        "topic {topic} may not be read at broker {broker} (perm={perm}): pulls are refused, and its "
        "queues are in no route for consumers"
    )
    GROUP_FORBIDDEN = (
        "an administrator has forbidden group {group} to read topic {topic} at broker {broker}"
    )
    NO_MEMBER = "no member of group {group} is connected; {waits}"
    LAG_NOT_SUBSCRIBED = (
        "group {group} does not subscribe to topic {topic}, so no member takes the "
        "{count:# message|# messages} that count as its lag there"
    )
    GROUP_NOT_SUBSCRIBED = (
        "group {group} does not subscribe to topic {topic}, so no member takes its messages"
    )
    DIFFERENT_SUBSCRIPTIONS = (
        "members of group {group} subscribe to different things, so brokers refuse pulls or select "
        "the wrong messages: {choices}"
    )
    CHOICE = "{members} to {selections}"
    SELECTION = "{topic} by {kind} {expression}"
    OFFSET_BEFORE_BEGINNING = (
        "{lost:# message|# messages} left the log before the group got them: its offset is below the "
        "beginning of {queues:# queue|# queues}, whose oldest files were deleted"
    )
    OFFSET_AFTER_END = (
        "the group's offset is behind the end of {queues:# queue|# queues}: the topic was deleted and "
        "made again, or a broker lost messages; new messages are passed over"
    )

    # Members, their queues and listeners
    MEMBER_PAUSED = "{count:# member|# members} of group {group} paused: {members}; {waits}"
    QUEUES_PAUSED = "{count:# queue|# queues} of group {group} {count:is|are} paused by {members}: {queues}; {waits}"
    MEMBERS_NOT_ASKED = (
        "{count} of {all:# member|# members} of group {group} were not asked, so causes that lie "
        "there may be missing"
    )
    MEMBER_SILENT = (
        "{count:# member|# members} of group {group} did not report their state ({members}), so "
        "causes that lie there may be missing"
    )
    QUEUE_LOCKED = (
        "{count:# queue|# queues} of the orderly group {group} cannot be begun, because another "
        "client holds the lock at the broker: {queues}"
    )
    QUEUE_UNLOCKED = (
        "{count:# queue waits|# queues wait} for the broker's lock, without which an orderly member "
        "does not consume: {queues}"
    )
    REBALANCING = (
        "the group is being rebalanced: {count:# queue has|# queues have} no owner yet ({queues}), and "
        "a member joined {ago_s:.0f} s ago"
    )
    QUEUE_WITHOUT_OWNER = (
        "{count:# queue has|# queues have} no owner: {queues}; no member of group {group} consumes "
        "{count:it|them}"
    )
    MORE_MEMBERS_THAN_QUEUES = (
        "{members} members share {queues:# queue|# queues}: {idle} have none and cannot help"
    )
    GROUP_IN_FLIGHT = (
        "members of group {group} have popped {count:# message|# messages} and not acknowledged "
        "{count:it|them}, the oldest for {seconds:.0f} s; {waits}, in flight or not popped yet"
    )
    SLOW_LISTENER = (
        "the listener is slow: {members:# member holds|# members hold} {held:,} of the {lag:,} messages "
        "of topic {topic} that wait, and the listener takes {ms:.0f} ms for each and finishes "
        "{rate:.1f} a second with {threads:# thread|# threads}"
    )
    HANGING_LISTENER = (
        "the listener is slow: {members:# member holds|# members hold} {held:,} of the {lag:,} messages "
        "of topic {topic} that wait, and the listener has finished none in the last minute: it hangs, "
        "or takes very long"
    )
    FLOW_CONTROLLED = (
        "members do not pull {count:# queue|# queues} at present: they hold as much as their flow "
        "control lets them, until the listener has consumed some"
    )
    PULLS_THROTTLED = "the broker throttles the pulls of {members}: {refusal}"
    PULLS_REFUSED = "pulls of {members} fail: {refusal}"
    QUEUE_SUSPENDED = (
        "queues of the orderly group {group} are suspended: {share:.0%} of what the listener gets "
        "fails, and nothing behind a message that fails is consumed before it; {waits}"
    )
    RETRY_STORM = (
        "retries take the place of new messages: {share:.0%} of what the listener gets fails and is "
        "sent back to come again; {waiting:# retried message waits|# retried messages wait} now"
    )
    FILTER = (
        "the group's filter passes over {passed} of {looked:# message|# messages} looked at: what "
        "brokers count as lag is mostly not for it ({expressions})"
    )

    # Why was this message not delivered?
    WHY_NOT_DELIVERED = "why was message {message} not delivered?"
    NO_GROUP = "the message is stored, but no group consumes topic {topic}: {place}"
    GROUPS_ASKED_IN_PART = "{asked} of {all} groups of the topic were asked about"
    MESSAGE_UNKNOWN = "no broker that answered has the message {message}{where}{late}"
    IN_TOPIC = " in topic {topic}"
    INDEX_BEHIND = ", and an index is behind the log"
    MESSAGE_DELETED = (
        "the message is not there any more: broker {broker} has deleted its file of the commit log"
    )
    MESSAGE_DELAYED = "the message waits at broker {broker} and comes to topic {topic} at {time}"
    MESSAGE_DELAYED_UNKNOWN = (
        "the message waits at broker {broker} and comes to topic {topic} at no known time"
    )
    MESSAGE_ROLLED_BACK = "the message is half of a transaction that its producer rolled back, or that the broker gave up"
    MESSAGE_HALF = (
        "the message is half of a transaction that has not been committed, so nobody gets it: it is "
        "undecided, or was rolled back"
    )
    DEAD_LETTERED = (
        "group {group} gave the message up after {count:# failure|# failures}: it lies among the dead "
        "letters"
    )
    RETRIED = (
        "group {group} got the message, its listener failed {count:# time|# times}, and it comes again "
        "at {time}"
    )
    RETRIED_LATER = (
        "group {group} got the message, its listener failed {count:# time|# times}, and it comes again "
        "at a later time"
    )
    FILTERED = (
        "group {group} does not select the message: it subscribes to {kind} {expression!r}, and the "
        "message has the tag {tag!r}"
    )
    MESSAGE_BROADCASTING = (
        "group {group} consumes by broadcasting: each member keeps its own offsets, and brokers do not "
        "know which of them got the message"
    )
    DELIVERY_UNKNOWN = (
        "whether group {group} got the message is not known: broker {broker} did not report the "
        "group's progress"
    )
    CONSUMED = "group {group} has consumed the message: its offset is past it"
    CONSUMED_AT_RETRY = (
        "group {group} has consumed the message at retry {times}: its offset is past it"
    )
    MESSAGE_NOT_SUBSCRIBED = (
        "group {group} does not subscribe to topic {topic}, so its members do not get the message"
    )
    IN_FLIGHT = "the message was handed to group {group} and is not consumed yet"
    IN_FLIGHT_AT = (
        "the message was handed to member {member} of group {group} and is not consumed yet"
    )
    NOT_PULLED = (
        "group {group} has not got the message yet{before}; why the group is behind: {causes}"
    )
    INVISIBLE = "group {group} has popped the message: invisible until {time}, delivery {number}"
    INVISIBLE_AT = (
        "group {group} has popped the message: invisible until {time}, held by client {client}, "
        "delivery {number}"
    )
    VISIBLE_SINCE = (
        "group {group} did not acknowledge delivery {number} of the message; it was to be visible again "
        "at {time}, and the broker has not delivered it again yet"
    )
    ACKNOWLEDGED = (
        "group {group} has acknowledged the message, before earlier ones of its queue: the first that is "
        "not done is at offset {offset}"
    )
    POP_DONE = "group {group} has acknowledged the message and all before it in its queue"
    POP_DONE_AT = "group {group} has acknowledged the message at delivery {number}"
    WAITS_IN_RETRY = (
        "the message was not acknowledged, and waits in the retry topic {topic} until group {group} pops "
        "it: delivery {number}, {count:# message|# messages} before it"
    )
    NOT_POPPED = (
        "group {group} has not popped the message yet: {count:# message|# messages} before it in queue "
        "{queue} of broker {broker}"
    )
    POPS_UNKNOWN = (
        "whether group {group} has the message in flight is not known, because broker {broker} does not "
        "know the request GET_POP_PROGRESS: only CometMQ's brokers do"
    )
    SOME_BEFORE = ", {count} before it"
    NO_CAUSE = "no cause was found"

    # Why is this write refused?
    WHY_WRITE_REFUSED = "why are messages of topic {topic} refused?"
    NOTHING_TAKES_MESSAGES = (
        "no master is registered at the name servers, so nothing takes messages"
    )
    ACCEPTED = "broker {broker} takes messages of topic {topic}: nothing speaks against it"
    TOPIC_RESERVED = "topic {topic} belongs to the brokers: no client may send to it"
    TOPIC_UNWRITABLE = (
        "topic {topic} may not be written at broker {broker} (perm={perm}), so producers do not choose "
        "it"
    )
    NO_WRITE_QUEUES = "topic {topic} has no queues to write to at broker {broker}"
    TOPIC_CREATED_BY_FIRST_SEND = (
        "broker {broker} does not have topic {topic}, but makes it when a producer first sends"
    )
    TOPIC_UNKNOWN = (
        "broker {broker} does not have topic {topic}, and does not make topics by itself"
    )
    PAGE_CACHE_BUSY = (
        "the disk of broker {broker} is behind, so it refuses messages for a moment: {refusal}"
    )
    STORE_FULL = "the disk of broker {broker} is full, so it takes no messages: {refusal}"
    USED = "{ratio:.0%} used, the limit is {limit:.0%}"
    STORE_REFUSES = "the store of broker {broker} takes no messages: {refusal}"
    MESSAGE_TOO_LARGE = (
        "a body of {size} bytes is too large for broker {broker}, whose limit is {limit}"
    )
    BROKER_UNWRITABLE = "broker {broker} may not be written (brokerPermission={permission}): producers do not choose it"
    NOT_IN_ROUTE = (
        "broker {broker} has topic {topic}, but the route at the name server has no queues of it, so "
        "producers do not find them"
    )
    WRITE_PERMISSION_WIPED = (
        "the name server lets no producer choose broker {broker}: its write permission was wiped"
    )

    # Which file is deleted next, and what would a restart cost?
    WHICH_FILE_NEXT = "which file is deleted next, and when?"
    WHAT_COSTS_RESTART = "what would a restart cost?"
    NO_MASTER = "no master is registered at the name servers"
    BROKER_AWAY = "broker {broker} does not answer at {address}: {error}"
    NO_ANSWER = "no answer"
    DISK_FULL = "broker {broker} refuses messages because its disk is full: {refusal}"
    DISK_FULL_NEXT = "broker {broker} refuses messages because its disk is full: {refusal}; next it deletes {deletion}"
    NO_DELETION_TIME = (
        "broker {broker} deletes nothing at a known time; {file} would be the first: {reason}"
    )
    NEXT_DELETION = "broker {broker} deletes {deletion}"
    DELETION = "{file} at {time}: {reason}"
    DELETION_SOME_TIME = "{file}, at no known time: {reason}"
    NO_DELETION = "broker {broker} deletes nothing: {reason}"
    NO_FILE = "no file"
    DELETION_UNKNOWN = "broker {broker} does not report which file it deletes next (Java's do not)"
    LOSE_IT = (
        "{consumers:# consumer|# consumers} of {groups:# group|# groups} and "
        "{producers:# producer|# producers} lose it meanwhile"
    )
    LOSE_IT_WITH_PRODUCERS = (
        "{consumers:# consumer|# consumers} of {groups:# group|# groups} and its producers lose it "
        "meanwhile"
    )
    RESTART_UNKNOWN = (
        "broker {broker} does not report what it would read of its log (Java's do not); {affected}"
    )
    RESTART_COST = (
        "a clean restart of broker {broker} takes about {time}: it reads {log} of log and opens "
        "{queues:# queue|# queues}{crash}; {affected}"
    )
    AFTER_CRASH = "; after a crash it reads {log}, about {time}"
    NO_OTHER_BROKER = (
        "no other master of its cluster takes messages while broker {broker} is away: sends fail until "
        "it is back"
    )
    MEBIBYTES = "{count:,.0f} MiB"
    BYTES = "{count} bytes"
    SECONDS = "{count:.0f} s"
    A_SECOND = "a second"
    MS_SINCE_EPOCH = "{ms} ms since the epoch"

    # Questions that could not be asked
    TOO_MANY_QUESTIONS = "MAX_QUESTIONS={most} were asked before"
    TOO_LATE = "no answer in time: all answers have {seconds:g} s; give a longer deadline"


class Remedy(TextKey):
    """Lists what explanations advise."""

    # Why is this group behind?
    PROGRESS_UNKNOWN = "see what could not be asked, and why; start brokers that are away"
    BEHIND = "look again in a minute: if the lag grows, add members or concurrency"
    BEHIND_PULLING = "look at the program's own log: it decides when it polls and commits"
    CONSUMPTION_DISABLED = "switch it on: groups.update({group!r}, consume_enable=True)"
    SET_BROKER_PERMISSION = "set brokerPermission=6 by brokers.update_config()"
    TOPIC_UNREADABLE = "give it the permission to read: topics.update({topic!r}, permission=6)"
    GROUP_FORBIDDEN = "allow it again: groups.set_may_read({group!r}, {topic!r}, True)"
    NO_MEMBER = (
        "start a member, check that it runs and reaches the brokers, or check the group's name"
    )
    NOT_SUBSCRIBED = (
        "have the members subscribe to {topic} if the group should get its messages; otherwise only an "
        "earlier offset is left: offsets.skip({group!r}, {topic!r}) skips the messages that wait"
    )
    DIFFERENT_SUBSCRIPTIONS = (
        "give every member of the group the same topics and expressions, or use two groups"
    )
    OFFSET_BEFORE_BEGINNING = (
        "deleted messages do not come back; members go on at the beginning. Keep messages for longer "
        "(fileReservedTime, more disk), and watch the lag's age"
    )
    OFFSET_AFTER_END = (
        "reset the group: offsets.reset_to_time(), or offsets.reset_queue() for one queue"
    )

    # Members, their queues and listeners
    MEMBER_PAUSED = "call resume() in the program of the member that paused, or restart it"
    MEMBERS_NOT_ASKED = "ask members yourself: groups.running_info(GROUP, CLIENT)"
    MEMBER_SILENT = (
        "look at the log of the member: its process may hang, or its client may be too old to answer "
        "request 307"
    )
    QUEUE_LOCKED = (
        "a lock expires 60 s after its holder renewed it last: wait for that if the holder died; if it "
        "lives, its listener still has messages of the queue: let it finish, or stop it"
    )
    QUEUE_UNLOCKED = (
        "a lock that another client holds expires 60 s after it was renewed last: wait, or stop the "
        "client that holds it"
    )
    REBALANCING = "wait: members share queues every 20 s; look again if it does not end"
    QUEUE_WITHOUT_OWNER = (
        "see that all members use the same allocation strategy, know the same name servers and "
        "subscribe to the topic; the members' logs say why a queue was not begun"
    )
    MORE_MEMBERS_THAN_QUEUES = (
        "give the topic more queues: topics.update({topic!r}, read_queues={queues}, "
        "write_queues={queues})"
    )
    GROUP_IN_FLIGHT = (
        "see that members acknowledge each message that they are done with; a message that is not acknowledged "
        "in time comes again"
    )
    SLOW_LISTENER = (
        "find out what the listener waits for (groups.running_info(…, stacks=True) shows its threads); "
        "make it faster, raise its concurrency, or add members while there are queues for them"
    )
    FLOW_CONTROLLED = (
        "the listener is what is slow: a higher pullThresholdForQueue only moves the backlog into the "
        "member's memory"
    )
    PULLS_THROTTLED = (
        "pull less often or select by cheaper expressions, or raise the limit that it names"
    )
    PULLS_REFUSED = "do as the refusal says"
    QUEUE_SUSPENDED = (
        "the member's log has the listener's errors: repair it, or set max_reconsume_times, so that a "
        "message that always fails goes to the dead letters"
    )
    RETRY_STORM = (
        "the member's log has the listener's errors: repair what fails, or lower retry_max_times, so "
        "that messages that always fail go to the dead letters sooner"
    )
    FILTER = (
        "do nothing if the selected messages come in time; if scanning takes long, give the messages "
        "of this group a topic of their own"
    )

    # Why was this message not delivered?
    NO_GROUP = (
        "start a consumer that subscribes to the topic, with "
        "consume_from=ConsumeFromWhere.FIRST_OFFSET to get what is stored already"
    )
    GROUPS_ASKED_IN_PART = "name the group in question"
    MESSAGE_UNKNOWN = (
        "check id and topic; see whether the producer's send succeeded; if an index is behind "
        "(indexBehindBytes), ask again in a moment"
    )
    MESSAGE_DELETED = (
        "send it again from its source; keep messages for longer by fileReservedTime and more disk"
    )
    OVERDUE = (
        "it is overdue: look at the broker's log and at its runtime info (scheduleMessageOffset_…, "
        "timerReadBehind)"
    )
    MESSAGE_ROLLED_BACK = (
        "if it was not meant to be: see the producer's log; messages.given_up_halves() lists what "
        "brokers gave up, and messages.resume_half() has them ask again"
    )
    MESSAGE_HALF = (
        "the broker asks a member of the producer group after transactionTimeOut: see that one is "
        "online and that its check answers"
    )
    DEAD_LETTERED = "repair the listener, then send it again: messages.redrive(ID, {group!r}, ids=[{message!r}])"
    RETRIED = "the member's log has the listener's error"
    FILTERED = (
        "subscribe to what the message has, or send it with the tag or properties that the group "
        "selects"
    )
    DELIVERY_UNKNOWN = "see what could not be asked, and why"
    IN_FLIGHT = "see why its listener takes long: cometmq explain group {group}"
    NOT_PULLED = "see cometmq explain group {group}"
    INVISIBLE = (
        "see whether that client still works on it; it comes again at that time unless it is acknowledged "
        "or hidden for longer"
    )
    NOT_POPPED = "see that members of group {group} pop, and that they acknowledge what they have"
    POPS_UNKNOWN = "see the group's offsets: cometmq admin consumerProgress -g {group}"

    # Why is this write refused?
    NOTHING_TAKES_MESSAGES = (
        "start a broker with the name servers in namesrvAddr; a slave takes messages when it is made "
        "the master (docs/replication.md)"
    )
    TOPIC_RESERVED = "send to a topic of your own"
    TOPIC_UNWRITABLE = "give it the permission to write: topics.update({topic!r}, permission=6)"
    NO_WRITE_QUEUES = "give it some: topics.update({topic!r}, write_queues=4)"
    TOPIC_UNKNOWN = (
        "make it: topics.create({topic!r}); or check the topic's name (topics.names() has all)"
    )
    PAGE_CACHE_BUSY = (
        "send again, as producers do by themselves; if it lasts, the disk is too slow for the load: "
        "spread it over more brokers, or raise osPageCacheBusyTimeOutMills"
    )
    STORE_FULL = (
        "free or add space, or lower fileReservedTime and call brokers.delete_expired_files(); "
        "`cometmq explain disk` says which file goes next"
    )
    STORE_REFUSES = "do as the text says, and look at the broker's log"
    MESSAGE_TOO_LARGE = (
        "compress or split it, or raise maxMessageSize at every broker and max_message_size_bytes of "
        "the producer"
    )
    NOT_IN_ROUTE = (
        "wait for the broker's next registration (30 s); if that does not help, see that the broker "
        "has all name servers in namesrvAddr"
    )
    WRITE_PERMISSION_WIPED = "give it back: brokers.add_write_permission({broker!r})"

    # Which file is deleted next, and what would a restart cost?
    NO_MASTER = "start a broker with the name servers in namesrvAddr"
    BROKER_AWAY = "start it, or open its port in firewalls; meanwhile producers use other brokers"
    DISK_FULL = (
        "free or add space, or lower fileReservedTime and call brokers.delete_expired_files()"
    )
    DELETION_UNKNOWN = (
        "its oldest file goes fileReservedTime hours after its last change, at the hour deleteWhen, or "
        "when the disk is fuller than diskMaxUsedSpaceRatio; `cometmq store explain DIR` computes it "
        "on the broker's machine"
    )
    RESTART_UNKNOWN = (
        "a start after a clean stop reads the last three files of the log, 3 GiB by default; after a "
        "crash it reads from the last checkpoint on"
    )
    NO_OTHER_BROKER = (
        "give senders retries that last longer than the restart, or add a second broker that has the "
        "topics"
    )


class Shown(TextKey):
    """Lists the figures of evidence that are words, and values that are."""

    OF = "{figure} of {of}"
    NONE = "none"
    NEVER = "never"
    YES = "yes"
    NOT_YET = "not yet"
    NOT_THERE = "not there"
    NOT_REPORTED = "not reported"
    NO_MESSAGE = "no message"
    QUEUES_LOOKED_AT = "queues looked at"
    MEMBERS_ONLINE = "members online"
    CONNECTED_MEMBERS = "connected members"
    SUBSCRIBED_TOPICS = "subscribed topics"
    SUBSCRIPTIONS = "subscriptions"
    SUBSCRIPTION = "subscription"
    QUEUES_OF_MEMBER = "queues that it has"
    LAG = "lag of {queue}"
    PROGRESS = "{lag} (consumed up to {consumed}, handed out up to {pulled}, end {end})"
    AS_MEMBER_SAYS = "{own} as its member says, {committed} committed"
    OFFSET_AND_END = "{offset} (end {end})"
    HELD = "held of {queue}"
    MESSAGES_HELD = "{count} messages held, pullThresholdForQueue={limit}"
    MEBIBYTES_HELD = "{count} MiB held, pullThresholdSizeForQueue={limit}"
    SPAN_HELD = "offsets held span {span}, consumeConcurrentlyMaxSpan={limit}"
    LAST_CONSUMED = "{count}, last consumed {when}"
    SECONDS_AGO = "{seconds:.0f} s ago"
    IN_LAST_MINUTE = "{count} in the last minute"
    SELECTED = "selected of {queue}"
    SELECTED_OF = "{selected} of {looked}"
    WAS_AT = "{beginning} (the message was at {offset})"
    STORED = "stored"
    STORED_AS_HALF = "stored as half"
    INDEXED = "indexed"
    DELAY = "delay"
    WAITS = "waits"
    PRODUCER_GROUP = "producer group"
    DEAD_LETTER = "dead letter in {topic}"
    OFFSETS_OF_GROUP = "offsets of group {group} in {queue}"
    CONSUMED_UP_TO = "consumed up to {consumed}, handed out up to {pulled}"
    FIRST_NOT_DONE = "first offset that is not done"
    POPPED_AT = "popped at"
    IN_FLIGHT_OF = "in flight of {topic}"
    AGAIN_OF = "of these delivered before, of {topic}"
    HIDDEN_UNTIL = "invisible until"
    HANDED_TO = "handed to"
    NOT_KNOWN_ANY_MORE = "not known any more"
    POPPED_BEFORE = "to be popped before it"
    HAS = "has {queue}"
    MEMBER = "member {member}"
    PLACE = "broker {broker}, queue {queue}, offset {offset}, at {time}"
    COPIES = "{place} ({count} copies)"
    TOPIC = "topic {topic}"
    BROKERS_IN_ROUTE = "brokers in the route of {topic}"
    PERM_IN_ROUTE = "perm of {broker} in the route"
    PERM_AT_BROKER = "perm of {topic} at the broker"
    RATIO_AND_LIMIT = "{ratio:.2f} (limit {limit:.2f})"
    LOG_READ_A_SECOND = "log read a second"
    MEASURED = "{rate} (measured at its last start)"
    ASSUMED = "{rate} (assumed: its last start read too little)"
    GROUPS_ONLINE = "groups online"
    GROUPS_IN_PART = "{groups}; {more} groups were not asked about"
