"""Say who may send what, of the request table and apart from `cometmq.access`."""

from __future__ import annotations

from typing import Final

from tests.access.actors import Actor
from tests.access.samples import Sample, named

from cometmq.protocol.request_type import ResourceKind, Right

# What an account of ACL 1.0 needs of each topic and group, one of these.
_ACTIONS: Final = {Right.PUB: {"Pub"}, Right.SUB: {"Sub"}, Right.ANY: {"Pub", "Sub"}}


def may(acl: int, actor: Actor, sample: Sample) -> bool:
    """Return whether a server with ACL 1.0 or 2.0 lets the account send the request."""
    if actor.is_admin:
        return True
    return _may_1(actor, sample) if acl == 1 else _may_2(actor, sample)


def _may_1(actor: Actor, sample: Sample) -> bool:
    right = sample.row.right
    if right is Right.NONE:
        return True
    if right not in _ACTIONS:
        return False
    return all(
        _ACTIONS[right].intersection(actor.owned(resource.kind)) for resource, _ in named(sample)
    )


def _may_2(actor: Actor, sample: Sample) -> bool:
    row = sample.row
    actions = {action.value for action in row.actions}
    # What a request does with the cluster as a whole has no name in it, or the cluster's.
    asked = [resource.kind for resource, _ in named(sample)] or [ResourceKind.CLUSTER]
    return not actions or all(actions.intersection(actor.owned(kind)) for kind in asked)
