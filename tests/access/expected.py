"""Say who may send what, of the request table and apart from `cometmq.access`."""

from __future__ import annotations

from tests.access.actors import Actor
from tests.access.samples import Sample, named

from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.request_type import ResourceKind, Right


def may(acl: int, actor: Actor, sample: Sample) -> bool:
    """Return whether a server with ACL 1.0 or 2.0 lets the account send the request."""
    if actor.is_admin:
        return True
    return _may_1(actor, sample) if acl == 1 else _may_2(actor, sample)


def _may_1(actor: Actor, sample: Sample) -> bool:
    right = sample.row.right
    if right is Right.NONE:
        return True
    if right in (Right.ADMIN, Right.BROKER, Right.INSPECT):
        return False
    actions = {"Pub", "Sub"} if right is Right.ANY else {right.name.capitalize()}
    return all(actions.intersection(actor.owned(kind)) for kind in _kinds(sample))


def _kinds(sample: Sample) -> list[ResourceKind]:
    kinds = [resource.kind for resource, _ in named(sample)]
    # The message that is sent back is found by its offset, and it lies in the matrix's topic.
    return kinds + [ResourceKind.TOPIC] * (sample.row.code == Code.CONSUMER_SEND_MSG_BACK)


def _may_2(actor: Actor, sample: Sample) -> bool:
    row = sample.row
    actions = {action.value for action in row.actions}
    # What a request does with the cluster as a whole has no name in it, or the cluster's.
    asked = _kinds(sample) or [ResourceKind.CLUSTER]
    return not actions or all(actions.intersection(actor.owned(kind)) for kind in asked)
