"""Groups that go along with a copy, in virtual time: what keeps one back harms neither others nor the copy."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.cli.starts import parse_start
from barnabas.client.admin import Admin
from barnabas.client.client import Client
from barnabas.client.consumer import Consumer
from barnabas.client.errors import ClientTimeoutError
from barnabas.client.records import OffsetAndMetadata
from barnabas.client.settings import ClientSettings, ConsumerSettings
from barnabas.testing import SimulatedCluster
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.topics import TopicPartition
from tests.support.simulated_copies import asked, begun, plan, run, values_of, wait_for_copied

Told = pytest.CaptureFixture[str]


@pytest.fixture
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(brokers=1) as running:
        yield running


def filled(cluster: SimulatedCluster, *groups: str, count: int = 20, at: int = 7) -> None:
    """A topic `s` with so many records, an empty `t`, and groups that have read `s` up to an offset."""
    cluster.create_topic("s")
    cluster.create_topic("t")
    cluster.produce("s", *(b"%d" % number for number in range(count)))
    for group in groups:
        commit(cluster, group, at)


def commit(cluster: SimulatedCluster, group: str, offset: int, topic: str = "s") -> None:
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, metadata="mine")}
    asked(cluster, lambda admin: admin.alter_group_offsets(group, offsets))


def offset_of(cluster: SimulatedCluster, group: str, topic: str = "t") -> int | None:
    at = TopicPartition(topic, 0)
    found = asked(cluster, lambda admin: admin.list_group_offsets(group, [at])).get(at)
    return None if found is None else int(found.offset)


def told_groups(told: Told) -> dict[str, Any]:
    """By group, why it was left alone, of the last copy."""
    (document,) = [json.loads(line) for line in told.readouterr().out.splitlines() if line.startswith("{")][-1:]
    return {group["group"]: group["left"] for group in document["groups"]}


async def member(cluster: SimulatedCluster, group: str, topic: str) -> None:
    settings = ClientSettings(bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")))
    consuming = ConsumerSettings(group_id=group, auto_commit=False)
    async with (
        Client(cluster.host, settings, logging.getLogger("tests.member")) as client,
        Consumer(client, consuming) as consumer,
    ):
        consumer.subscribe([topic])
        while True:
            await consumer.poll(500)


def test_a_member_that_comes_in_the_last_moment_is_left_alone(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    filled(cluster, "a", "b")
    cluster.start(member, cluster, "a", "t")
    cluster.run_for(10)

    async def as_if_it_was_empty(_admin: Admin, group_id: str) -> Any:
        class Described:
            state = "Dead" if group_id == "a" else "Empty"

        return Described

    monkeypatch.setattr(Admin, "describe_group", as_if_it_was_empty)
    run(cluster, plan(groups=["*"]))
    assert (offset_of(cluster, "a"), offset_of(cluster, "b")) == (None, 7)
    assert "it has members at the target (UNKNOWN_MEMBER_ID)" in told_groups(capsys)["a"]
    monkeypatch.undo()
    run(cluster, plan(groups=["*"]))
    assert "it has members at the target (Stable)" in told_groups(capsys)["a"]


def test_nobody_is_moved_back(cluster: SimulatedCluster) -> None:
    filled(cluster, "a", "b")
    commit(cluster, "a", 15, "t")
    commit(cluster, "b", 3, "t")
    run(cluster, plan(groups=["*"]))
    assert (offset_of(cluster, "a"), offset_of(cluster, "b")) == (15, 7)
    at = TopicPartition("t", 0)
    assert asked(cluster, lambda admin: admin.list_group_offsets("b"))[at].metadata == "mine"


def test_a_group_that_may_not_be_seen_keeps_no_other_back(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    filled(cluster, "a", "b")
    look = Admin.list_group_offsets

    async def refused(admin: Admin, group_id: str, *arguments: Any, **options: Any) -> Any:
        if group_id == "a":
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return await look(admin, group_id, *arguments, **options)

    monkeypatch.setattr(Admin, "list_group_offsets", refused)
    run(cluster, plan(groups=["*"]))
    assert "GROUP_AUTHORIZATION_FAILED" in told_groups(capsys)["a"]
    monkeypatch.undo()
    assert offset_of(cluster, "b") == 7


def test_groups_that_take_long_hold_up_neither_records_nor_a_transaction(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(cluster, "a", "b", "c")
    look = Admin.list_group_offsets

    async def slowly(admin: Admin, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(40)
        return await look(admin, *arguments, **options)

    monkeypatch.setattr(Admin, "list_group_offsets", slowly)
    process = begun(cluster, plan(follows=True, transactional="copier", groups=["?"]))
    wait_for_copied(cluster, 20)
    cluster.run_for(70)  # and now groups are looked at
    for number in range(10):
        cluster.produce("s", b"later %d" % number)
        cluster.run_for(10)
    assert len(values_of(cluster)) == 30
    cluster.run_for(200)
    assert not process.ended
    process.terminate()
    cluster.run_until(lambda: process.ended)
    monkeypatch.undo()
    assert [offset_of(cluster, group) for group in "abc"] == [7, 7, 7]


def test_brokers_that_do_not_answer_about_groups_end_no_copy(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    filled(cluster, "a")
    look, asked_for = Admin.list_groups, []

    async def silent_once(admin: Admin) -> Any:
        asked_for.append(admin)
        if len(asked_for) == 1:
            raise ClientTimeoutError("listing groups: no answer")
        return await look(admin)

    monkeypatch.setattr(Admin, "list_groups", silent_once)
    process = begun(cluster, plan(follows=True, groups=["a"]))
    cluster.run_for(70)
    assert offset_of(cluster, "a") is None
    assert (
        "Groups were not moved, which is tried again in a minute: listing groups: no answer" in capsys.readouterr().err
    )
    cluster.run_for(60)
    assert offset_of(cluster, "a") == 7
    assert not process.ended
    process.terminate()
    cluster.run_until(lambda: process.ended)


def test_where_no_broker_answers_not_every_group_is_waited_for(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    filled(cluster, *"abcdefgh")
    looks: list[str] = []

    async def silent(_admin: Admin, group_id: str, *_arguments: Any, **_options: Any) -> Any:
        looks.append(group_id)
        await asyncio.sleep(60)
        raise ClientTimeoutError(f"offsets of {group_id}: no answer")

    monkeypatch.setattr(Admin, "list_group_offsets", silent)
    process = begun(cluster, plan(groups=["*"]))
    cluster.run_until(lambda: process.ended, 300)
    assert process.result() == ""
    assert looks == ["a", "b", "c"]
    left = told_groups(capsys)
    assert left["a"] == "offsets of a: no answer"
    assert left["h"] == "brokers did not answer about 3 others"


def test_a_name_with_brackets_means_itself_and_a_pattern_that_nobody_has_is_told(
    cluster: SimulatedCluster, capsys: Told
) -> None:
    filled(cluster, "a[1]", "a1")
    run(cluster, plan(groups=["a[1]", "b*"]))
    assert (offset_of(cluster, "a[1]"), offset_of(cluster, "a1")) == (7, None)
    assert "No group at the source is called b*." in capsys.readouterr().err


def test_who_is_behind_what_the_target_has_deleted_goes_on_at_its_beginning(cluster: SimulatedCluster) -> None:
    filled(cluster, "behind", at=3)
    commit(cluster, "ahead", 15)
    process = begun(cluster, plan(follows=True, groups=["*"]))
    wait_for_copied(cluster, 20)
    asked(cluster, lambda admin: admin.delete_records({TopicPartition("t", 0): 10}))
    cluster.run_for(70)
    assert (offset_of(cluster, "behind"), offset_of(cluster, "ahead")) == (10, 15)
    process.terminate()
    cluster.run_until(lambda: process.ended)


def test_an_offset_is_never_past_what_was_copied(cluster: SimulatedCluster) -> None:
    filled(cluster, "ahead", at=20)
    commit(cluster, "end", 20)
    commit(cluster, "beyond", 1_000)
    run(cluster, plan(last=parse_start("12"), groups=["*"]))
    assert {group: offset_of(cluster, group) for group in ("ahead", "end", "beyond")} == dict.fromkeys(
        ("ahead", "end", "beyond"), 12
    )
