"""List all sentences of a check-up: what was `Checked`, what was `Found`, and how to `Repair` it.

Catalogues of the console have the same keys.
"""

from __future__ import annotations

from cometmq.model.reports.keyed_text import TextKey
from cometmq.runtime.sockets.addresses import Reach


class Checked(TextKey):
    """Lists what a check-up looks at. The part before a colon names the server."""

    NAME_SERVER = "name server {address}"
    BROKER = "broker {name}"
    SLAVE = "slave {id} of {name}"
    BROKERS = "brokers"
    TRACES = "traces"
    ROUTES = "{server}: routes"
    ADDRESS = "{server}: address"
    CONSUMERS = "{server}: consumers"
    POPS = "{server}: pops of group {group}"
    IDENTITY = "{server}: identity"
    CLOCK = "{server}: clock"
    MESSAGES = "{server}: messages"
    DISK = "{server}: disk"


class Found(TextKey):
    """Lists what a check-up finds, and what should be."""

    ANSWERED = "answered in {ms:.0f} ms ({kind}, speaks {version})"
    ADDRESS_ANSWERED = "{address} {answer}"
    NO_ANSWER = "no answer within {seconds:g} s"
    NO_NAME_SERVER = "answers, but not as a name server: {refusal}"
    PROTECTED = "does not serve this machine: {refusal}"
    NO_BROKER = "no broker is registered"
    ASKED_IN_PART = "{asked} of {all} were asked"
    LOST = "was lost {seconds} s ago at {address}, without an unregistration"
    NO_TRACE_TOPIC = (
        "no broker has the topic {topic}: clients that write traces lose them unless sends may create "
        "the topic; create it"
    )
    TRACES_REFUSED = "no queue of the topic {topic} may be written to: traces are refused"
    NOT_REACHED = "{address}: {error}"
    NO_IP_ADDRESS = "{host} has no IP address here"
    REACHED_BY_OTHERS = "{host} can be reached from other machines, if the network lets it"
    REACHED_AS_IT_LISTENS = "{host}: for clients on the broker's machine only, as it listens"
    REACHED_BY = "{host} is reached by {reach}"
    NO_CONSUMER = "none is connected{part}"
    CONSUMERS = "{consumers}{part}"
    REVIVED_LATE = (
        "topic {topic}: messages that were not acknowledged should have been delivered again "
        "{seconds} s ago"
    )
    AGAIN_AND_AGAIN = "topic {topic}: messages come again and again: {count} of {all} in flight were delivered before"
    RETRIES_UNPOPPED = (
        "topic {topic}: {count:# message waits|# messages wait} in the retry topics, and nothing is in "
        "flight: no member pops"
    )
    RETRIES_UNREAD = (
        "topic {topic}: {count:# message waits|# messages wait} in the retry topics of earlier pops, and "
        "nothing is in flight: members that pull do not read them"
    )
    GROUPS_IN_PART = " (of {asked} of {all} groups)"
    NO_MASTER = "no master is registered, only {slaves}"
    SLAVE_AT = "slave {id} at {address}"
    ROUTES_MISSING = "does not know {brokers}{more}, which others know"
    OTHER_BROKER = "{address} leads to broker {name}"
    SAME_TIME = "as this machine's (±{unsure:.1f} s)"
    AHEAD = "{skew:.1f} s ahead of this machine's (±{unsure:.1f} s)"
    BEHIND = "{skew:.1f} s behind this machine's (±{unsure:.1f} s)"
    SECONDS = "{seconds:.0f} s"
    REFUSED = "are refused: {refusal}"
    USED = "{ratio:.0%} used"
    USED_LIMIT = "below diskMaxUsedSpaceRatio={limit:.0f}"


class Reached(TextKey):
    """Names the places from which an address can be reached."""

    ANYBODY = Reach.ANYBODY.value
    THIS_MACHINE = Reach.THIS_MACHINE.value
    CONTAINERS = Reach.CONTAINERS.value
    LINK = Reach.LINK.value
    NOBODY = Reach.NOBODY.value


class Repair(TextKey):
    """Lists what a check-up advises."""

    WRITE_ADDRESSES = "write -n 10.0.0.1:9876;10.0.0.2:9876"
    GIVE_NAME_SERVERS = "-n takes name servers (port 9876 by default), not brokers"
    START_NAME_SERVER = "start it, open its port in firewalls, or correct -n"
    SIGN = "give --accessKey and --secretKey, or --credentials, of a user who may ask servers"
    OPEN = (
        "there, give it access control or set protectedMode=false (docs/security.md), or run cometmq "
        "doctor on its own machine"
    )
    START_BROKER = "start one with the name servers in namesrvAddr or -n"
    START_AGAIN = "its messages are missing until it is back: start it again"
    START_MASTER = (
        "nobody can send to it, and consumers get only the messages that a slave has: start its "
        "master, or promote the slave that has most of its log (docs/replication.md)"
    )
    REGISTER_EVERYWHERE = (
        "give every broker all name servers in namesrvAddr; a broker that has just started needs half "
        "a minute"
    )
    LET_WRITE = "give it its write permission (updateTopicPerm -p 6)"
    REACH_BROKER = (
        "this is where clients are sent: start the broker, open the port in firewalls, or set "
        "brokerIP1 to an address that is reached from here"
    )
    SET_ADDRESS = "set brokerIP1 to an IP address or a name"
    SET_KNOWN_NAME = (
        "clients look the name up, too: set brokerIP1 to a name that they know, or to an IP address"
    )
    SET_REACHED_ADDRESS = "set brokerIP1 to the address at which clients reach the broker's machine"
    ONE_ADDRESS_EACH = (
        "two brokers advertise one address, or a port mapping leads astray: correct brokerIP1 and "
        "listenPort"
    )
    REVIVED_LATE = (
        "see the broker's log: copies cannot be stored, or its disk or processor is overloaded"
    )
    AGAIN_AND_AGAIN = (
        "see why its consumers do not acknowledge: their log has the listener's error, or their invisible "
        "time is shorter than their work"
    )
    RETRIES_UNREAD = (
        "start a member that pops until they are done (cometmq admin setConsumeMode -m POP), or subscribe "
        "a member to the retry topic"
    )
    RUN_NTP = (
        "delayed messages, retention and reading by time follow the broker's clock: run chrony or "
        "another NTP client on both machines"
    )
    FREE_DISK = "do as the text says, or free disk"
    ADD_SPACE = "free or add space, or lower fileReservedTime, before the broker deletes or refuses"
