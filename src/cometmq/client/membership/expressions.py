"""Asking a broker whether it serves an expression (Java: MQClientInstance.checkClientInBroker)."""

from __future__ import annotations

import structlog

from cometmq.client.instance import ClientInstance
from cometmq.errors import RemotingError
from cometmq.filtering.tags import is_tag_type
from cometmq.model.subscription import SubscriptionData

log = structlog.get_logger(__name__)


async def check_expression(
    instance: ClientInstance, group: str, subscription: SubscriptionData
) -> None:
    """Ask one broker of the topic; tags need no asking, and without a route there is nobody to ask.

    Raises RemoteError: code 23 for an expression that does not parse (the remark gives the place), 1
    from a broker that is not set up for it.
    """
    if is_tag_type(subscription.expression_type):
        return
    route = instance.routes.route(subscription.topic)
    brokers = [broker.broker_name for broker in route.broker_datas] if route is not None else []
    address = next(filter(None, map(instance.routes.master_address, brokers)), None)
    if address is None:
        return
    try:
        await instance.brokers.check_client(address, instance.client_id, group, subscription)
    except RemotingError as error:
        # Brokers of a cluster are set up alike, so one is enough; pulls will tell if it was not.
        log.warning("expression not checked", group=group, address=address, reason=str(error))
