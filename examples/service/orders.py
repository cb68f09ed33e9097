"""Define the topic, the group and the schema of an order, which both sides of the service share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from cometmq.payloads import Json

TOPIC: Final = "orders"
GROUP: Final = "billing"


class Order(BaseModel):
    """An order. The customer chooses `id`, so that the service recognises an order that is sent twice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[\w-]{1,64}$")]
    customer: Annotated[str, Field(min_length=1, max_length=100)]
    cents: Annotated[int, Field(gt=0)]


ORDERS: Final = Json(Order)
CODECS: Final = {TOPIC: ORDERS}
