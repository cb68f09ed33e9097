"""Lists the tests that use private names of our own code, with the reason of each file.

A test sees what a user or a caller sees. The listed files patch or look at one step inside, because
what they prove does not show from outside. `setattr` of a constant (`_PAUSE_S`) needs no reason: it makes the time
or the size of a mechanism small. tests/unit/test_tidy.py holds this list to the tests.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Final

from tests.source_trees import nodes_of

TESTS: Final = Path(__file__).parent
SOURCE: Final = TESTS.parent / "src"
_PRIVATE: Final = re.compile(r"_[a-z]|_[A-Z][a-z]")
_WORD: Final = re.compile(r"\b_\w+")
# Other people's names that ours have, too.
_OF_OTHERS: Final = frozenset({"_replace", "_fields", "_gateway", "_jvm", "_scheduled"})

REASONS: Final[dict[str, tuple[str, frozenset[str]]]] = {
    path: (reason, frozenset(names.split()))
    for path, names, reason in (
        ("console/test_groups.py", "_put", "one request of several fails in the middle"),
        (
            "integration/client_faces.py",
            "_async _member",
            "tests of membership ask a member itself",
        ),
        ("integration/test_explain_groups.py", "_servers", "only its clock is another one"),
        (
            "integration/test_limits.py",
            "_descriptor_limit _getter _most_descriptors",
            "a process has one limit of descriptors, and a restart would cut the client",
        ),
        (
            "integration/test_message_pages.py",
            "_End _Merge _at_time",
            "stands for a broker before 5.0",
        ),
        ("integration/test_metrics.py", "_open_store", "a start stands still in the middle"),
        (
            "integration/test_proxy_admin.py",
            "_peer_of _unregister",
            "a client calls from another machine; a broker leaves without a word",
        ),
        (
            "integration/test_proxy_limits.py",
            "_by_id _most_descriptors",
            "a process has one limit of descriptors; nobody sees what was forgotten",
        ),
        ("integration/test_proxy_port.py", "_relays", "nobody sees what was forgotten"),
        (
            "integration/test_slave_role.py",
            "_capture _copy_from _copying _decoded _known",
            "a master is lost, or another one begins, in the middle of a copy",
        ),
        ("integration/test_waiting_admin.py", "_begin_of_ops", "a look begins before the records"),
        (
            "simulation/canaries.py",
            (
                "_ack _again _answer _keep _max_times _move _once_more _put _put_back _put_in_place "
                "_take _take_over _whole"
            ),
            "a canary breaks one step, and the checker must see it",
        ),
        (
            "simulation/workloads/operator.py",
            "_running",
            "a client is sent to a server that its route would not name",
        ),
        (
            "simulation/workloads/pops.py",
            "_running",
            "asks the client's own route",
        ),
        (
            "simulation/workloads/push_by_pop.py",
            "_delivered",
            "sees a message where the client hands it to the listener",
        ),
        ("spark/test_published_tables.py", "_catalog", "a catalog fails in the middle"),
        ("unit/access/test_freshness.py", "_signers", "nobody sees how much is remembered"),
        (
            "unit/access/users/test_policies.py",
            "_by_resource _policies",
            "counts what is looked up",
        ),
        ("unit/admin/test_reading.py", "_query", "stands for a broker's answers"),
        (
            "unit/broker/test_clients.py",
            "_places_of _producers",
            "counts what is looked up; nobody sees what was forgotten",
        ),
        ("unit/broker/test_pops.py", "_read", "messages come again only when the test lets them"),
        ("unit/broker/test_pops_reported.py", "_read", "a request comes while a thread reads"),
        (
            "unit/broker/test_transactions.py",
            "_times_of_plain_half _unresolved",
            "counts what is looked up; a quicker way is proved by the slower one",
        ),
        ("unit/bulk/test_window_pulls.py", "_asked", "an answer stays under way"),
        (
            "unit/client/test_access.py",
            "_trace_instance",
            "users do not see the client of the traces",
        ),
        ("unit/client/test_consumption.py", "_sending_back", "waits for what is under way"),
        ("unit/console/test_connections.py", "_asked_s _check", "looks at a chosen moment"),
        ("unit/console/test_schemas.py", "_run", "looks at what a process is started with"),
        (
            "unit/protocol/test_register_body.py",
            "_decode",
            "proves that the slower way is not taken",
        ),
        ("unit/remoting/test_signing.py", "_orders", "nobody sees how much is remembered"),
        ("unit/remoting/test_turns.py", "_handler_of", "compiled methods cannot be replaced"),
        ("unit/replication/peers.py", "_connection", "a connection that its slave has not made"),
        ("unit/replication/test_divergence.py", "_walk", "counts how often it is gone through"),
        (
            "unit/replication/test_master.py",
            "_admit_arrival _door _read_in_thread _start_checked",
            "a step is taken at a chosen moment",
        ),
        ("unit/runtime/test_network.py", "_look_up", "stands for a resolver of names"),
        (
            "unit/store/test_store_damaged_units.py",
            "_rest_until",
            "the rest ends at a chosen moment",
        ),
        (
            "unit/store/test_store_index.py",
            "_files",
            "writes entries as Java's broker does behind the last message",
        ),
        ("unit/store/test_store_replica.py", "_filler", "a range comes for the second time"),
    )
}


@functools.cache
def _own_names() -> frozenset[str]:
    """Return the private names that src defines, without constants."""
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in nodes_of(path):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    names.add(node.name)
                case ast.Attribute(ctx=ast.Store()):
                    names.add(node.attr)
                case ast.Name(ctx=ast.Store()):
                    names.add(node.id)
    return frozenset(filter(_PRIVATE.match, names - _OF_OTHERS))


def private_uses() -> dict[str, frozenset[str]]:
    """Return which of these names each file of tests uses of another object than `self` and `cls`."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        if _own_names().isdisjoint(_WORD.findall(path.read_text("utf-8"))):
            continue  # most files: this search takes less time than a walk through their nodes
        used: set[str] = set()
        for node in nodes_of(path):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    pass
                case ast.Attribute():
                    used.add(node.attr)
                case ast.Call(
                    func=ast.Attribute(attr="setattr") | ast.Name(id="setattr" | "getattr")
                ):
                    texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
                    used.update(str(text).rpartition(".")[2] for text in texts)
        if used & _own_names():
            found[path.relative_to(TESTS).as_posix()] = frozenset(used & _own_names())
    return found
