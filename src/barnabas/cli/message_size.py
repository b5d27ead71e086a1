"""How large a record of a topic may be, and what `barnabas produce` makes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barnabas.client.admin import Admin, ResourceType
from barnabas.client.settings import BUFFER_BYTES_DEFAULT, REQUEST_BYTES_DEFAULT
from barnabas.wire.errors import KafkaError

if TYPE_CHECKING:
    from barnabas.client.client import Client

KEY: Final = "max.message.bytes"
REQUEST_BYTES_MAX: Final = 100 * 1024 * 1024 - 64 * 1024
"""Brokers close a connection on which a request exceeds `socket.request.max.bytes`, 100 MiB unless set otherwise."""
_OVERHEAD_BYTES: Final = 4 * 1024
"""What a request has besides its records, and by what a record may be counted for more than it takes."""


async def message_bytes_max(client: Client, topic: str) -> int | None:
    """The `max.message.bytes` of a topic; None where brokers do not tell."""
    async with Admin(client) as admin:
        try:
            entry = (await admin.describe_configs(ResourceType.TOPIC, topic, keys=[KEY])).get(KEY)
        except KafkaError:
            return None
    value = "" if entry is None else entry.value or ""
    return int(value) if value.isdecimal() else None


def request_bytes_max(limit: int | None, *, is_compressed: bool) -> int:
    """The largest request to send to a topic with this limit, which holds for what is left after compression."""
    if is_compressed:
        return REQUEST_BYTES_MAX
    wanted = REQUEST_BYTES_DEFAULT if limit is None else limit
    return min(max(wanted, REQUEST_BYTES_DEFAULT) + _OVERHEAD_BYTES, REQUEST_BYTES_MAX)


def buffer_bytes_max(request_bytes: int) -> int:
    """What may wait beside a request of that size: it has room, and so has the next."""
    return max(BUFFER_BYTES_DEFAULT, 2 * request_bytes)


def too_large(topic: str, limit: int | None) -> str:
    """What is wrong with a record that the topic does not take, and what to do."""
    if limit is not None and limit + _OVERHEAD_BYTES > REQUEST_BYTES_MAX:
        return (
            f"the record is larger than a request may be: {REQUEST_BYTES_MAX} bytes, which keeps within "
            "socket.request.max.bytes of the brokers; split it"
        )
    takes = "" if limit is None else f", {limit} bytes,"
    return (
        f"the record is larger than {KEY} of topic {topic}{takes} allows; raise it (`barnabas config set "
        f"topic:{topic} {KEY}=BYTES`), or split the record"
    )
