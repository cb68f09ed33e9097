"""Take orders by HTTP and send them to the topic: `uvicorn --factory service.api:create_app`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from cometmq import CometMQError, Message
from cometmq.aio import Producer

from .orders import CODECS, TOPIC, Order
from .settings import Settings
from .telemetry import measured


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the application. Its lifespan starts the producer, and closes it after the last request."""
    given = settings or Settings.of_environment()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        producer = Producer("orders-api", namesrv=given.namesrv, codecs=CODECS)
        with measured("orders-api", producer, given):
            async with producer:
                app.state.producer = producer
                yield

    app = FastAPI(title="Orders", lifespan=lifespan)

    @app.post("/orders", status_code=202)
    async def take(order: Order, request: Request) -> dict[str, str]:
        """Accept an order. The message is stored when the answer comes; billing charges later, once."""
        producer: Producer = request.app.state.producer
        sent = await producer.send(Message(TOPIC, value=order, keys=order.id), key=order.customer)
        return {"id": order.id, "message": sent.msg_id}

    @app.exception_handler(CometMQError)
    async def not_sent(_request: Request, error: CometMQError) -> JSONResponse:
        # The order may be stored nevertheless. The shop may send it again, because billing knows its id.
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "1"})

    return app
