"""Leaders that are not in sync are elected only where nobody who is in sync is there, or can be expected."""

from __future__ import annotations

import dataclasses

import pytest

from barnabas.controller.leadership import LeaderAndIsr
from barnabas.controller.settings import ControllerSettings
from barnabas.wire.topics import TopicPartition
from tests.unit.controller.memory_store import LISTENER
from tests.unit.controller.term_harness import CONTROLLER, Terms

T0 = TopicPartition("t", 0)
SETTINGS = ControllerSettings(CONTROLLER, LISTENER, unclean_leader_election_enable=True)


def led_by_one_and_two(settings: ControllerSettings = SETTINGS) -> Terms:
    """Brokers 1, 2 and 3, of which the last is down and has left the ISR; the time for members to come is over."""
    terms = Terms(1, 2, 3, settings=settings)
    terms.elect()
    terms.create("t", (3, 1, 2))
    terms.settle()
    terms.run(terms.term.allow_unclean_elections())
    terms.stop_broker(3)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1, 2))
    return terms


def known(terms: Terms) -> LeaderAndIsr:
    found = terms.state("t")
    assert found is not None
    return found


def power_fails(terms: Terms) -> None:
    """Every broker is gone while nobody is the controller."""
    terms.watches.end()
    for broker_id in (1, 2):
        terms.stop_broker(broker_id)


@pytest.mark.parametrize("delay_ms", [0, 18_000])
def test_members_that_started_anew_without_a_controller_lead_and_no_stale_replica(delay_ms: int) -> None:
    terms = led_by_one_and_two(dataclasses.replace(SETTINGS, unclean_election_delay_ms=delay_ms))
    before = known(terms)
    power_fails(terms)
    for broker_id in (3, 1, 2):
        terms.start_broker(broker_id)
    terms.elect()
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1, 2))
    assert known(terms).leader_epoch > before.leader_epoch


def test_a_stale_replica_that_comes_first_waits_for_the_members() -> None:
    terms = led_by_one_and_two()
    power_fails(terms)
    terms.start_broker(3)
    terms.elect()
    terms.settle()
    assert known(terms).leader == -1
    terms.start_broker(2)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (2, (2,))


def test_a_member_whose_former_session_ends_late_is_waited_for() -> None:
    terms = led_by_one_and_two()
    terms.watches.end()
    terms.stop_broker(1)
    for broker_id in (3, 1):
        terms.start_broker(broker_id)
    # Broker 2 is dead, and does not look it.
    terms.elect()
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (2, (2,))
    terms.stop_broker(2)
    terms.settle()
    assert known(terms).leader == -1
    terms.start_broker(2)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (2, (2,))


def test_when_no_member_has_come_in_time_a_stale_replica_leads() -> None:
    terms = led_by_one_and_two()
    power_fails(terms)
    terms.start_broker(3)
    terms.elect()
    terms.settle()
    terms.run(terms.term.allow_unclean_elections())
    assert (known(terms).leader, known(terms).isr) == (3, (3,))


def test_where_nobody_waits_the_end_of_the_time_does_nothing() -> None:
    terms = led_by_one_and_two()
    terms.elect()
    sent = len(terms.shell.requests)
    terms.run(terms.term.allow_unclean_elections())
    assert len(terms.shell.requests) == sent


def test_topics_without_unclean_elections_stay_without_a_leader() -> None:
    terms = led_by_one_and_two(dataclasses.replace(SETTINGS, unclean_leader_election_enable=False))
    power_fails(terms)
    terms.start_broker(3)
    terms.elect()
    terms.settle()
    terms.run(terms.term.allow_unclean_elections())
    assert known(terms).leader == -1


def test_in_a_term_that_has_lasted_a_stale_replica_leads_at_once() -> None:
    terms = led_by_one_and_two()
    terms.start_broker(3)
    terms.settle()
    for broker_id in (2, 1):
        terms.stop_broker(broker_id)
        terms.settle()
    assert (known(terms).leader, known(terms).isr) == (3, (3,))


def test_a_member_that_bounces_is_not_overtaken_by_a_stale_replica() -> None:
    terms = led_by_one_and_two()
    terms.start_broker(3)
    terms.stop_broker(2)
    terms.settle()
    assert known(terms).isr == (1,)
    before = known(terms)
    terms.stop_broker(1)
    terms.start_broker(1)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1,))
    assert known(terms).leader_epoch > before.leader_epoch


def test_members_of_which_one_bounces_and_one_dies_at_once_do_not_lose_to_a_stale_replica() -> None:
    terms = led_by_one_and_two()
    terms.start_broker(3)
    terms.settle()
    terms.stop_broker(1)
    terms.start_broker(1)
    terms.stop_broker(2)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (1, (1,))


def test_a_leader_that_shuts_down_is_not_overtaken_while_it_is_there() -> None:
    terms = led_by_one_and_two()
    terms.stop_broker(2)
    terms.settle()
    terms.run(terms.term.shut_down(1, -1))
    terms.start_broker(3)
    terms.start_broker(2)
    terms.settle()
    terms.stop_broker(2)
    terms.settle()
    assert known(terms).isr == (1,)
    terms.stop_broker(1)
    terms.settle()
    assert (known(terms).leader, known(terms).isr) == (3, (3,))


@pytest.mark.parametrize("delay_ms", [0, 18_000])
def test_the_delay_may_be_nothing(delay_ms: int) -> None:
    terms = led_by_one_and_two(dataclasses.replace(SETTINGS, unclean_election_delay_ms=delay_ms))
    power_fails(terms)
    terms.start_broker(3)
    terms.elect()
    assert known(terms).leader == (-1 if delay_ms else 3)
