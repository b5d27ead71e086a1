"""What the members of a group of consumers subscribe to, read out of what they say for their protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from barnabas.wire import compiler_decode
from barnabas.wire.primitives import ProtocolError

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

_VERSION_BYTES: Final = 2


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all subscriptions together; None where one of them cannot be read.

    Reads what version 0 has, which every version begins with, so that no client is too new.
    """
    decode = compiler_decode.decoder("ConsumerProtocolSubscription", 0)
    topics: set[str] = set()
    for subscription in subscriptions:
        version = int.from_bytes(subscription[:_VERSION_BYTES], "big", signed=True)
        if len(subscription) < _VERSION_BYTES or version < 0:
            return None
        try:
            message, _ = decode(subscription, _VERSION_BYTES, len(subscription))
        except ProtocolError:
            return None
        topics.update(message.topics)
    return frozenset(topics)
