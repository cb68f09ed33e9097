"""Names the topic, the group and the schema of an order, on which both sides of the service agree."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from cometmq.payloads import Json

TOPIC: Final = "orders"
GROUP: Final = "billing"


class Order(BaseModel):
    """Is an order. `id` is chosen by the customer, so that an order that is sent twice is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[\w-]{1,64}$")]
    customer: Annotated[str, Field(min_length=1, max_length=100)]
    cents: Annotated[int, Field(gt=0)]


ORDERS: Final = Json(Order)
CODECS: Final = {TOPIC: ORDERS}
