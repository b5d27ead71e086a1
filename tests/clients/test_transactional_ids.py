"""Producers with a transactional id end at once: nothing will come of asking again, until there are transactions."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TransactionalIdAuthorizationFailed
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import TransactionalIdAuthorizationFailedError

PATIENCE_SECONDS = 20.0
"""Less than any client's own patience."""


def test_confluent_kafka_fails_for_good_and_says_why(bootstrap_servers: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "nobody"})
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(PATIENCE_SECONDS)
    error = raised.value.args[0]
    assert (error.code(), error.fatal()) == (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, True)
    assert "There are no transactions on this cluster yet" in str(error)


def test_kafka_python_fails_for_good(bootstrap_servers: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id="nobody")
    with pytest.raises(TransactionalIdAuthorizationFailedError):
        producer.init_transactions()
    producer.close(timeout=0)


def test_aiokafka_fails_for_good(bootstrap_servers: str) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, transactional_id="nobody")
        try:
            with pytest.raises(TransactionalIdAuthorizationFailed):
                await asyncio.wait_for(producer.start(), PATIENCE_SECONDS)
        finally:
            await producer.stop()

    asyncio.run(start())
