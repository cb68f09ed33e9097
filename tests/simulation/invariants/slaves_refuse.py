"""A slave takes no message from anybody but its master (Java: SendMessageProcessor answers
SLAVE_NOT_AVAILABLE; a slave's store rejects a put with a role of SLAVE).

- The server whose address is in the offset message id of an acknowledged message was the master of its
  broker at some time of the send.
- A record of any log was stored, as its store host says, by a server that was a master in the run.

There is no leniency.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import Evidence, Violation
from tests.simulation.history import MasterChanged, SendAcknowledged
from tests.simulation.store_reader import Store, host_of

NAME: Final = "slaves refuse writes"


def judge(evidence: Evidence) -> Iterator[Violation]:
    hosts = {each.host: server for server, each in evidence.servers.items() if each.host}
    for acknowledged in evidence.acknowledged.values():
        yield from _acknowledgement(evidence, hosts, acknowledged)
    # A server that was killed while it was promoted may have begun as a master.
    promoted = {each.server for each in evidence.history.of(MasterChanged)}
    masters = promoted | evidence.brokers.keys()
    for server, store in (*evidence.stores.items(), *evidence.slave_stores.items()):
        yield from _log(hosts, masters, server, store)


def _acknowledgement(
    evidence: Evidence, hosts: dict[str, str], acknowledged: SendAcknowledged
) -> Iterator[Violation]:
    started, broker = evidence.sends[acknowledged.send], acknowledged.queue.broker
    masters = {
        evidence.master_at(broker, started.at_s),
        evidence.master_at(broker, acknowledged.at_s),
        *(
            each.server
            for each in evidence.switches
            if each.broker == broker and started.at_s <= each.at_s <= acknowledged.at_s
        ),
    }
    for text in acknowledged.offset_msg_ids:
        server = hosts.get(host_of(text) or "")
        if server is not None and server not in masters:
            what = f"{server}, a slave of {broker}, stored message {started.messages[0].number}"
            yield Violation(invariant=NAME, what=what, events=(started, acknowledged))


def _log(
    hosts: dict[str, str], masters: set[str], server: str, store: Store
) -> Iterator[Violation]:
    for record in store.records:
        stored_by = hosts.get(record.store_host)
        if stored_by is not None and stored_by not in masters:
            what = (
                f"the record at {record.position} of {server} ({record.topic}) was stored by {stored_by}, "
                "a slave"
            )
            yield Violation(invariant=NAME, what=what)
