"""Make client ids (Java: ClientConfig.buildMQClientId)."""

from __future__ import annotations

from typing import Final

from cometmq.runtime.randomness import SYSTEM_RANDOMNESS, Randomness
from cometmq.runtime.surroundings import current

DEFAULT_INSTANCE_NAME: Final = "DEFAULT"


def client_id(
    address: str,
    instance_name: str,
    unit_name: str | None = None,
    *,
    unique: bool = True,
    randomness: Randomness = SYSTEM_RANDOMNESS,
) -> str:
    """Return the client id `ip@instance[@unit]`.

    The default instance name becomes `pid#number`, with a random number. Without `unique` it stays
    as it is, so that the id is the same from one start to the next.
    """
    if unique and instance_name == DEFAULT_INSTANCE_NAME:
        instance_name = f"{current().process_id()}#{randomness.getrandbits(63)}"
    parts = [address, instance_name]
    if unit_name:
        parts.append(unit_name)
    return "@".join(parts)
