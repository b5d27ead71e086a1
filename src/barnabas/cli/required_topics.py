"""Topics that a command needs to be there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.output import printable
from barnabas.client.topic_queries import TopicQueries
from barnabas.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import TopicInfo

NEW_TOPIC_SECONDS: Final = 1.0
"""How long a topic may be unknown to the broker that is asked: news of a new one reach all brokers within that."""
_PAUSE_MS: Final = 100.0


async def topics_at_start(client: Client, names: Sequence[str]) -> dict[str, TopicInfo]:
    """As `require_topics`, for a client that has just begun, and knows them as a rule (`run_with_client`)."""
    known = {name: topic for name, topic in client.cluster.topics.items() if topic.error is ErrorCode.NONE}
    if all(name in known and known[name].partitions for name in names):
        return {name: known[name] for name in names}
    return await require_topics(client, names)


async def require_topics(client: Client, names: Sequence[str]) -> dict[str, TopicInfo]:
    """What is known of these topics. Raises CommandError for one that does not exist, and for a name that none has.

    A topic that is missing is asked for again for a moment, in case it was created just now.
    """
    loop = client.host.loop
    deadline = loop.time() + NEW_TOPIC_SECONDS
    async with TopicQueries(client) as admin:
        while True:
            try:
                return await admin.describe_topics(names)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                if loop.time() > deadline:
                    break
            await client.timers.sleep(_PAUSE_MS)
        known = set(await admin.list_topics())
    missing = [name for name in names if name not in known] or names
    shown = ", ".join(printable(name) for name in missing)
    raise CommandError(
        f"there is no topic {shown}; see `barnabas topic list`, or create it with `barnabas topic create`",
        ExitStatus.MISSING,
    )
