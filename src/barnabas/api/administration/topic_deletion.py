"""Asks the controller to delete topics."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from barnabas.api.administration.guarded_writes import answer_of, as_kafka_error
from barnabas.coordination.errors import ConnectionLossError, CoordinationError, NodeExistsError, NoNodeError
from barnabas.coordination.layout.admin import delete_topic_path
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.layout.topics import decode_topic_id, topic_path
from barnabas.coordination.operations import Create, Exists, GetData
from barnabas.coordination.ports import Store
from barnabas.kernel.ids import Uuid
from barnabas.wire.errors import ErrorCode, KafkaError

NO_IDS: Final[Mapping[str, Uuid]] = MappingProxyType({})


class TopicDeleter:
    """Makes the znodes below `/admin/delete_topics` that ask for deletions."""

    def __init__(self, store: Store, logger: logging.Logger) -> None:
        self._store = store
        self._logger = logger

    async def request(self, topics: Sequence[str], ids: Mapping[str, Uuid] = NO_IDS) -> dict[str, KafkaError | None]:
        """Asks for the deletion of each topic; returns by name what forbids it, or None. A topic of which the deletion
        is under way counts as asked for. Of `ids` only the topic that has the id now is deleted: a namesake may have
        been made since the name was looked up. (One that is made between the two transactions here is not seen: a
        request names a topic, and a version of the znode does not tell two topics apart.)
        """
        outcomes: dict[str, KafkaError | None] = {}
        existing: list[str] = []
        reads = [(GetData if topic in ids else Exists)(topic_path(topic)) for topic in topics]
        for topic, found in zip(topics, await self._store.submit(reads), strict=True):
            try:
                if topic in ids:
                    _check_id(found, topic, ids[topic])
                elif answer_of(found) is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic `{topic}` does not exist.")
            except KafkaError as error:
                outcomes[topic] = error
            except CoordinationError as error:
                outcomes[topic] = as_kafka_error(error, self._logger, f"Deleting topic {topic}")
            else:
                existing.append(topic)
        paths = [delete_topic_path(topic) for topic in existing]
        creations = [Create(path, None) for path in paths]
        for topic, outcome in zip(existing, await self._submit_twice(creations), strict=True):
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NodeExistsError):
                outcomes[topic] = as_kafka_error(outcome, self._logger, f"Deleting topic {topic}")
            else:
                outcomes[topic] = None
        return outcomes

    async def _submit_twice(self, creations: Sequence[Create]) -> list[object]:
        """Once more where a connection broke; what was made by then exists."""
        outcomes = await self._store.submit(creations)
        again = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, ConnectionLossError)]
        if again:
            repeated = await self._store.submit([creations[index] for index in again])
            for index, outcome in zip(again, repeated, strict=True):
                outcomes[index] = outcome
        return outcomes


def _check_id(found: Any, topic: str, topic_id: Uuid) -> None:
    """Raises `KafkaError` (UNKNOWN_TOPIC_ID) where the topic is gone, or is another one."""
    if isinstance(found, NoNodeError):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with the id {topic_id} any more.")
    try:
        present = decode_topic_id(answer_of(found).data, topic_path(topic))
    except LayoutError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
    if present != topic_id:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"Topic `{topic}` has another id than {topic_id} now.")
