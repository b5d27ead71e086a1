"""Which replica a consumer is sent to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from barnabas.cluster.image import Broker, MetadataImage
from barnabas.serving.replica_selection import replica_in_rack
from barnabas.wire.endpoints import BrokerEndpoint
from tests.unit.leader.partition_setting import BrokerSetting

LISTENER = "PLAINTEXT"
RACKS: Mapping[int, str | None] = {1: "a", 2: "b", 3: "b"}


def image(racks: Mapping[int, str | None], listener: str = LISTENER) -> MetadataImage:
    endpoint = BrokerEndpoint(listener, "host", 9092, "PLAINTEXT")
    return MetadataImage(brokers={broker: Broker(broker, {listener: endpoint}, rack) for broker, rack in racks.items()})


def leading(isr: tuple[int, ...] = (1, 2, 3)) -> BrokerSetting:
    """Leads with ten records, of which broker 2 has eight and broker 3 nine."""
    setting = BrokerSetting()
    setting.lead(isr=isr)
    setting.append(*range(10))
    setting.fetch(2, 8, log_start_offset=2)
    setting.fetch(3, 9, log_start_offset=4)
    return setting


@pytest.mark.parametrize(
    ("racks", "rack", "isr", "offset", "expected"),
    [
        (RACKS, "b", (1, 2, 3), 5, 3),  # the most caught-up
        (RACKS, "b", (1, 2), 5, 2),  # in the ISR
        (RACKS, "b", (1, 2, 3), 3, 2),  # has not deleted it
        (RACKS, "b", (1, 2, 3), 9, 3),  # has it already, or is about to
        (RACKS, "b", (1, 2, 3), 10, None),  # nobody else has it
        (RACKS, "b", (1, 2, 3), 1, None),
        (RACKS, "b", (1,), 5, None),
        (RACKS, "a", (1, 2, 3), 5, None),  # the leader is there
        (RACKS, "c", (1, 2, 3), 5, None),  # nobody is there
        ({1: "b", 2: "b", 3: "b"}, "b", (1, 2, 3), 5, None),  # the leader before others in its rack
        ({1: "a", 2: "b"}, "b", (1, 2, 3), 5, 2),  # broker 3 is not alive
        ({1: None, 2: None, 3: None}, "b", (1, 2, 3), 5, None),
    ],
)
def test_the_most_caught_up_replica_in_sync_of_the_rack(
    racks: Mapping[int, str | None], rack: str, isr: tuple[int, ...], offset: int, expected: int | None
) -> None:
    partition = leading(isr).partition
    assert replica_in_rack(partition, offset, rack, LISTENER, image(racks)) == expected


def test_who_lacks_the_listener_by_which_the_consumer_came_is_not_named() -> None:
    assert replica_in_rack(leading().partition, 5, "b", "OTHER", image(RACKS)) is None


def test_of_two_that_are_as_far_who_caught_up_last_and_then_the_greater_id() -> None:
    setting = leading()
    setting.fetch(2, 9, log_start_offset=2)
    assert replica_in_rack(setting.partition, 5, "b", LISTENER, image(RACKS)) == 3
    setting.fetch(3, 10)
    setting.now += 1
    setting.fetch(2, 10)
    assert replica_in_rack(setting.partition, 5, "b", LISTENER, image(RACKS)) == 2
