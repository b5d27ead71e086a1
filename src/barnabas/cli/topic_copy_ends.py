"""The two topics of a copy: the target is made ready, and that both stay the topics they were is watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from barnabas.cli.connection import CommandError, ExitStatus
from barnabas.cli.output import counted, printable, say
from barnabas.cli.required_topics import require_topics
from barnabas.client.admin import Admin, ConfigOperation, NewTopic, ResourceType
from barnabas.client.broker_views import BrokerViews
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from barnabas.client.client import Client
    from barnabas.client.cluster import TopicInfo

_TOPIC_CONFIG: Final = 1
"""The source of a config that a topic has of its own."""
_OF_ONE_CLUSTER: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Configs that name brokers."""
_GONE_SECONDS: Final = 10.0
"""A topic that brokers do not know for so long was deleted: one that has just started may not know it yet."""


class SameTopic:
    """Notices, by what the client knows of the cluster, that a topic was deleted, or made again under its name."""

    def __init__(self, client: Client, name: str, topic_id: bytes) -> None:
        self._client = client
        self._name = name
        self._topic_id = topic_id
        self._gone_since: float | None = None

    def check(self) -> None:
        """Raises CommandError where it is not the topic that it was."""
        info = self._client.cluster.topics.get(self._name)
        if info is None:
            return
        if info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            now = self._client.host.loop.time()
            self._gone_since = self._gone_since or now
            if now - self._gone_since >= _GONE_SECONDS:
                raise CommandError(f"topic {printable(self._name)} was deleted while it was copied", ExitStatus.MISSING)
            return
        self._gone_since = None
        if ZERO_UUID not in (self._topic_id, info.topic_id) and info.topic_id != self._topic_id:
            raise CommandError(
                f"topic {printable(self._name)} was deleted and made again while it was copied; begin anew, with "
                "another --state or --transactional"
            )


async def configs_to_copy(source: Client, name: str) -> dict[str, str]:
    """The configs that a topic has of its own, but those that name brokers."""
    async with Admin(source) as admin:
        entries = (await admin.describe_configs(ResourceType.TOPIC, name)).values()
    return {
        entry.name: entry.value
        for entry in entries
        if entry.source == _TOPIC_CONFIG and entry.value is not None and entry.name not in _OF_ONE_CLUSTER
    }


async def prepare_target(
    target: Client,
    name: str,
    partitions: int,
    *,
    creates: bool,
    replication_factor: int | None,
    configs: Mapping[str, str],
    needed: Sequence[int],
    may_choose: bool,
) -> TopicInfo:
    """Creates the target, with so many partitions, where that is wanted; checks that it has those that are `needed`,
    and gives it configs. Raises CommandError; `may_choose` is whether keys could choose partitions instead.
    """
    own = dict(configs)
    async with Admin(target) as admin, BrokerViews(target) as views:
        if creates:
            new = NewTopic(name, partitions, replication_factor or -1, own)
            try:
                await admin.create_topics([new])
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
            else:
                await views.wait_until_led([name])
                say(f"Created topic {printable(name)}: {counted(partitions, 'partition')}.")
                own = {}
        there = (await require_topics(target, [name]))[name]
        if missing := sorted(set(needed) - set(there.partitions)):
            raise CommandError(
                f"topic {printable(name)} has no partition {missing[0]}: add partitions (`barnabas topic alter "
                f"{name} --partitions {max(needed) + 1}`)"
                f"{', or have keys choose (--partitions key)' if may_choose else ''}"
            )
        if own:
            changes = [(key, ConfigOperation.SET, value) for key, value in own.items()]
            await admin.alter_configs(ResourceType.TOPIC, name, changes)
    return there
