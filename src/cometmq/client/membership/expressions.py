"""Ask a broker whether it serves an expression (Java: MQClientInstance.checkClientInBroker)."""

from __future__ import annotations

from cometmq.client.instance import ClientInstance
from cometmq.errors import RemotingError
from cometmq.filtering.tags import is_tag_type
from cometmq.logs.loggers import get_logger
from cometmq.model.subscription import SubscriptionData

log = get_logger(__name__)


async def check_expression(
    instance: ClientInstance, group: str, subscription: SubscriptionData
) -> None:
    """Ask one broker of the topic whether it serves the subscription's expression.

    One broker is enough, since the brokers of a cluster are set up alike.
    Does nothing for tags, which every broker serves, and without a route. Raises RemoteError with
    code 23 for an expression that does not parse (the remark gives the place), and with code 1 from
    a broker that is not set up for the expression.
    """
    if is_tag_type(subscription.expression_type):
        return
    route = instance.routes.route(subscription.topic)
    brokers = [broker.broker_name for broker in route.broker_datas] if route is not None else []
    if not brokers:
        return
    address = instance.need_reader(brokers[0], subscription.topic)
    try:
        await instance.brokers.check_client(address, instance.client_id, group, subscription)
    except RemotingError as error:
        # Go on without the check: a broker that does not serve the expression refuses the pulls.
        log.warning("expression not checked", group=group, address=address, reason=str(error))
