"""The asyncio producer (Java: DefaultMQProducer)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cometmq.errors import ClientStateError, CometMQError, TooManyRequestsError
from cometmq.model.message import Message
from cometmq.model.names import MAX_GROUP_LENGTH
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult
from cometmq.protocol.compression import CompressionType
from cometmq.runtime.tasks import TaskOwner

from .encoding import COMPRESS_OVER_BYTES, MessageEncoder, Outgoing
from .identity import DEFAULT_INSTANCE_NAME
from .instance import ClientInstance
from .lifecycle import AsyncClient
from .limits import MAX_MESSAGE_SIZE_BYTES, MessageChecks, check_range
from .selectors import QueueSelector, select_queue
from .sending import Sender, SendLimits
