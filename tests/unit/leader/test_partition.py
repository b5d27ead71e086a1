from __future__ import annotations

import pytest

from barnabas.leader.remote_replica import FetchClock
from barnabas.log.partition.leader_epochs import EpochEnd
from barnabas.wire.errors import ErrorCode, KafkaError
from tests.unit.leader.partition_setting import BrokerSetting, leader_and_isr


def refusal(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def isr(setting: BrokerSetting) -> tuple[int, ...]:
    return setting.partition.isr


def maximal_isr(setting: BrokerSetting) -> tuple[int, ...]:
    return setting.partition.in_sync.state.maximal


class TestBecoming:
    def test_a_leader_begins_its_epoch_at_the_end_of_its_log(self) -> None:
        setting = BrokerSetting()
        setting.log.append_as_leader(["a", "b"], 3)
        assert setting.lead(leader_epoch=5)
        assert setting.partition.leader_epoch_start_offset == 2
        assert setting.log.latest_epoch == 5
        assert not setting.lead(leader_epoch=6, partition_epoch=1)  # it led already
        assert setting.partition.leader_epoch == 6

    @pytest.mark.parametrize(("next_epoch", "high_watermark"), [(1, 2), (2, 0)])
    def test_what_a_leader_knows_of_followers_is_void_where_somebody_else_may_have_led_since(
        self, next_epoch: int, high_watermark: int
    ) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1, 2, 3))
        setting.append("a", "b")
        setting.fetch(2, 2)  # and then, under another leader, the follower may cut its log off
        setting.lead(isr=(1, 2), leader_epoch=next_epoch, partition_epoch=next_epoch)
        assert setting.partition.high_watermark == high_watermark
        setting.fetch(2, 2)
        assert setting.partition.high_watermark == 2

    def test_what_is_older_than_known_changes_nothing(self) -> None:
        setting = BrokerSetting()
        setting.lead(leader_epoch=5, partition_epoch=4)
        assert not setting.follow(2, leader_epoch=5, partition_epoch=3)
        assert setting.partition.is_leader
        assert not setting.lead(leader_epoch=5, isr=(1,), partition_epoch=3)
        assert (setting.partition.partition_epoch, setting.partition.in_sync.state.committed) == (4, (1, 2, 3))

    def test_a_later_leader_epoch_counts_though_its_znode_was_made_again_with_fewer_versions(self) -> None:
        setting = BrokerSetting()
        setting.lead(leader_epoch=5, partition_epoch=40)
        setting.lead(leader_epoch=6, isr=(1,), partition_epoch=3)
        assert (setting.partition.partition_epoch, setting.partition.in_sync.state.committed) == (3, (1,))
        assert setting.follow(2, leader_epoch=7, partition_epoch=2)
        assert not setting.partition.is_leader

    def test_a_follower_starts_to_fetch_anew_for_each_epoch(self) -> None:
        setting = BrokerSetting()
        assert setting.follow(2, leader_epoch=1)
        assert not setting.follow(2, leader_epoch=1)
        assert setting.follow(2, leader_epoch=2)
        assert (setting.partition.leader_id, setting.partition.isr) == (2, ())

    def test_a_leader_that_becomes_follower_forgets_its_followers(self) -> None:
        setting = BrokerSetting()
        setting.lead()
        setting.fetch(2, 0)
        setting.follow(2, leader_epoch=1)
        assert setting.partition.followers == ()
        with refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            setting.append("a")
        setting.fetch(2, 7)  # too late, and harmless

    def test_one_that_went_offline_says_so(self) -> None:
        setting = BrokerSetting()
        setting.lead()
        setting.partition.close(is_offline=True)
        with refusal(ErrorCode.KAFKA_STORAGE_ERROR):
            setting.partition.leader_log()


class TestEpochs:
    def test_of_clients(self) -> None:
        setting = BrokerSetting()
        setting.lead(leader_epoch=5)
        assert setting.partition.leader_log(5) is setting.partition.leader_log()
        with refusal(ErrorCode.FENCED_LEADER_EPOCH):
            setting.partition.leader_log(4)
        with refusal(ErrorCode.UNKNOWN_LEADER_EPOCH):
            setting.partition.leader_log(6)

    def test_a_follower_may_be_read_from(self) -> None:
        setting = BrokerSetting()
        setting.follow(2, leader_epoch=5)
        assert setting.partition.readable_log(5, leader_only=False) is setting.log.as_log
        with refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            setting.partition.readable_log(5, leader_only=True)

    def test_of_followers_that_are_not_assigned(self) -> None:
        setting = BrokerSetting()
        setting.lead(leader_epoch=5)
        assert setting.partition.check_follower(2, 5).broker_id == 2
        with refusal(ErrorCode.UNKNOWN_LEADER_EPOCH):
            setting.partition.check_follower(9, 5)
        with refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            setting.partition.check_follower(9, -1)

    def test_a_log_that_parts_from_ours_is_told_where(self) -> None:
        setting = BrokerSetting()
        setting.log.append_as_leader(["a", "b"], 1)
        setting.log.append_as_leader(["c"], 4)
        setting.lead(leader_epoch=7)
        partition = setting.partition
        assert partition.diverging_epoch(4, 3) is None
        assert partition.diverging_epoch(3, 3) == EpochEnd(1, 2)
        assert partition.diverging_epoch(1, 3) == EpochEnd(1, 2)
        with refusal(ErrorCode.OFFSET_OUT_OF_RANGE):
            partition.diverging_epoch(8, 3)
        setting.log.log_start_offset = 1
        with refusal(ErrorCode.OFFSET_OUT_OF_RANGE):
            partition.diverging_epoch(4, 0)


class TestHighWatermark:
    def test_is_what_all_in_sync_have(self) -> None:
        setting = BrokerSetting()
        setting.lead()
        setting.append("a", "b", "c")
        setting.fetch(2, 3)
        assert setting.log.high_watermark == 0
        setting.fetch(3, 2)
        assert setting.log.high_watermark == 2
        setting.fetch(3, 3)
        assert setting.log.high_watermark == 3

    def test_of_a_leader_alone_moves_with_the_append(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.append("a")
        assert setting.log.high_watermark == 1

    def test_waits_for_a_replica_that_is_about_to_join(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1, 2))
        setting.append("a")
        setting.fetch(2, 1)
        setting.alive.discard(3)  # so that it is not asked for yet
        setting.fetch(3, 1)
        setting.append("b")
        setting.alive.add(3)
        setting.fetch(2, 2)
        assert setting.log.high_watermark == 1
        setting.fetch(3, 2)
        assert setting.log.high_watermark == 2

    def test_goes_on_when_the_replica_does_not_come(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1, 2))
        setting.fetch(2, 0)
        setting.alive.discard(3)
        setting.fetch(3, 0)
        setting.alive.add(3)
        setting.append("a")
        setting.fetch(2, 1)
        assert setting.log.high_watermark == 0
        setting.now += 31
        setting.fetch(2, 1)  # says nothing new
        setting.partition.in_sync.expire()
        assert setting.log.high_watermark == 1

    def test_does_not_move_below_min_insync_replicas(self) -> None:
        setting = BrokerSetting(min_insync_replicas=2)
        setting.lead(isr=(1,))
        setting.append("a", acks=1)
        assert setting.log.high_watermark == 0
        assert setting.partition.is_under_min_isr

    def test_never_asks_for_more_replicas_than_there_are(self) -> None:
        setting = BrokerSetting(min_insync_replicas=3)
        state = leader_and_isr(1, 0, (1,), replicas=(1,))
        setting.partition.become_leader(state, lambda: setting.log.as_log)
        setting.append("a")
        assert setting.log.high_watermark == 1
        assert setting.partition.is_at_min_isr

    def test_waits_for_all_of_the_maximal_isr(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1, 2))
        setting.append("a")
        setting.fetch(2, 1)
        setting.fetch(3, 1)
        assert maximal_isr(setting) == (1, 2, 3)
        setting.append("b")
        setting.now += 1000  # neither is caught up by now
        setting.fetch(2, 2)
        assert setting.log.high_watermark == 1

    def test_a_new_leader_whose_high_watermark_is_behind_does_not_say_the_latest_offset(self) -> None:
        setting = BrokerSetting()
        setting.log.append_as_leader(["a", "b"], 0)
        setting.lead(leader_epoch=1)
        assert setting.partition.latest_offset_error() is ErrorCode.OFFSET_NOT_AVAILABLE
        setting.fetch(2, 2)
        setting.fetch(3, 2)
        assert setting.partition.latest_offset_error() is None


class TestAcks:
    def test_too_few_in_sync_before_the_append(self) -> None:
        setting = BrokerSetting(min_insync_replicas=2)
        setting.lead(isr=(1,))
        with refusal(ErrorCode.NOT_ENOUGH_REPLICAS):
            setting.append("a", acks=-1)
        assert setting.log.log_end_offset == 0

    def test_counts_the_confirmed_isr(self) -> None:
        setting = BrokerSetting(min_insync_replicas=2)
        setting.lead(isr=(1,))
        setting.fetch(2, 0)
        assert maximal_isr(setting) == (1, 2)
        with refusal(ErrorCode.NOT_ENOUGH_REPLICAS):
            setting.append("a", acks=-1)

    def test_too_few_in_sync_after_the_append(self) -> None:
        setting = BrokerSetting(min_insync_replicas=2)
        setting.lead(isr=(1, 2))
        setting.append("a")
        assert setting.partition.is_replicated(1) is None
        setting.fetch(2, 1)
        assert setting.partition.is_replicated(1) is ErrorCode.NONE
        setting.append("b")
        setting.now += 31
        setting.partition.in_sync.expire()
        setting.answer()
        assert isr(setting) == (1,)
        assert setting.partition.is_replicated(1) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert setting.partition.is_replicated(2) is None

    def test_one_that_leads_no_more_cannot_tell(self) -> None:
        setting = BrokerSetting()
        setting.lead()
        setting.append("a")
        setting.follow(2, leader_epoch=1)
        assert setting.partition.is_replicated(1) is ErrorCode.NOT_LEADER_OR_FOLLOWER


class TestIsr:
    def test_shrinks_when_a_follower_is_stuck_or_slow(self) -> None:
        setting = BrokerSetting()
        setting.lead()
        setting.append("a", "b")
        setting.now += 29
        setting.fetch(3, 1)  # fetches, and does not catch up
        setting.partition.in_sync.expire()
        assert not setting.asked
        setting.now += 2
        setting.partition.in_sync.expire()
        assert tuple(setting.asked[0].change.isr) == (1,)
        assert isr(setting) == (1, 2, 3)
        assert maximal_isr(setting) == (1, 2, 3)
        setting.answer()
        assert isr(setting) == (1,)
        assert setting.partition.partition_epoch == 1
        assert setting.context.shrinks.count == 1
        assert setting.log.high_watermark == 2

    def test_an_idle_follower_stays(self) -> None:
        setting = BrokerSetting()
        setting.lead()
        setting.fetch(2, 0)
        setting.fetch(3, 0)
        setting.now += 10_000
        setting.partition.in_sync.expire()
        assert not setting.asked

    def test_a_follower_whose_session_fetches_survives_an_append_after_a_long_rest(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1, 2))
        clock = FetchClock(setting.now)
        setting.partition.update_follower(
            2, fetch_offset=0, log_start_offset=0, leader_end_offset=0, now=setting.now, clock=clock
        )
        setting.now += 10_000
        clock.time = setting.now - 0.5
        setting.append("a")
        setting.partition.in_sync.expire()
        assert not setting.asked
        setting.partition.follower_left(2, clock)
        setting.now += 31
        clock.time = setting.now
        setting.partition.in_sync.expire()
        assert tuple(setting.asked[0].change.isr) == (1,)

    def test_an_election_shrinks_nothing_by_itself(self) -> None:
        setting = BrokerSetting()
        setting.log.append_as_leader(["a"], 0)
        setting.lead(leader_epoch=1)
        setting.now += 29
        setting.partition.in_sync.expire()
        assert not setting.asked

    def test_a_follower_returns_at_the_high_watermark_and_the_start_of_the_epoch(self) -> None:
        setting = BrokerSetting()
        setting.log.append_as_leader(["a", "b"], 0)
        setting.lead(leader_epoch=1, isr=(1,))
        setting.append("c")
        assert (setting.log.high_watermark, setting.partition.leader_epoch_start_offset) == (3, 2)
        setting.fetch(2, 2)
        assert not setting.asked
        setting.fetch(2, 3)
        assert tuple(setting.asked[0].change.isr) == (1, 2)
        setting.answer()
        assert isr(setting) == (1, 2)
        assert setting.context.expands.count == 1

    def test_below_the_start_of_the_epoch_nobody_returns(self) -> None:
        setting = BrokerSetting(min_insync_replicas=2)
        setting.log.append_as_leader(["a", "b"], 0)
        setting.lead(leader_epoch=1, isr=(1,))
        setting.fetch(2, 1)
        assert setting.log.high_watermark == 0
        assert not setting.asked

    def test_one_change_at_a_time(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.fetch(2, 0)
        setting.fetch(3, 0)
        setting.now += 31
        setting.partition.in_sync.expire()
        assert [tuple(asked.change.isr) for asked in setting.asked] == [(1, 2)]

    def test_a_broker_that_is_not_alive_is_looked_at_again(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.alive.discard(2)
        clock, since = FetchClock(setting.now), setting.now
        setting.partition.update_follower(
            2, fetch_offset=0, log_start_offset=0, leader_end_offset=0, now=setting.now, clock=clock
        )
        assert not setting.asked
        assert setting.noted == [(setting.partition.in_sync, since)]
        setting.alive.add(2)
        assert setting.partition.in_sync.reconsider(since)  # it has not fetched since
        assert not setting.asked
        setting.now += 1
        clock.time = setting.now  # it fetches, and names nothing
        setting.partition.in_sync.reconsider(since)
        assert tuple(setting.asked[0].change.isr) == (1, 2)

    def test_a_change_names_the_life_in_which_each_follower_has_fetched(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1, 3))
        setting.fetch(2, 0, broker_epoch=5)
        assert setting.asked[0].change.isr == {1: -1, 3: -1, 2: 5}, "3 has not fetched since this broker leads"

    def test_a_follower_that_has_started_anew_is_wanted_for_what_its_former_life_had(self) -> None:
        """As long as it has not fetched again the leader cannot know; the controller does, by the epoch."""
        setting = BrokerSetting()
        setting.lead(isr=(1, 3))
        setting.append("a", "b")
        setting.alive.discard(2)
        clock, since = FetchClock(setting.now, 5), setting.now
        setting.partition.update_follower(
            2,
            fetch_offset=2,
            log_start_offset=0,
            leader_end_offset=2,
            now=since,
            clock=clock,
            broker_epoch=5,
        )
        setting.now += 1
        clock.time = setting.now
        setting.alive.add(2)  # in its next life
        setting.partition.in_sync.reconsider(since)
        assert setting.asked[0].change.isr == {1: -1, 3: -1, 2: 5}
        setting.answer(ErrorCode.INELIGIBLE_REPLICA)
        assert setting.partition.isr == (1, 3)
        setting.fetch(2, 0, broker_epoch=6)
        assert setting.partition.in_sync.by_id[2].broker_epoch == 6

    def test_a_fetch_of_a_former_life_is_refused_and_changes_nothing(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.append("a", "b")
        setting.fetch(2, 0, broker_epoch=6)
        with pytest.raises(KafkaError) as refused:
            setting.fetch(2, 2, broker_epoch=5)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert setting.partition.in_sync.by_id[2].log_end_offset == 0
        assert setting.asked == []

    def test_a_follower_that_was_silent_for_long_is_looked_at_when_its_session_goes_on(self) -> None:
        """It names nothing then of a partition in which nothing has happened, so nobody else would look at it."""
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.alive.discard(2)
        clock, since = FetchClock(setting.now), setting.now
        setting.partition.update_follower(
            2, fetch_offset=0, log_start_offset=0, leader_end_offset=0, now=setting.now, clock=clock
        )
        setting.alive.add(2)
        setting.now += 3_600
        assert setting.partition.in_sync.reconsider(since)
        clock.time = setting.now
        setting.partition.in_sync.reconsider(since)
        assert tuple(setting.asked[0].change.isr) == (1, 2)
        setting.alive.discard(2)  # in its next life it names all that it fetches
        setting.answer(ErrorCode.INELIGIBLE_REPLICA)
        setting.now += 3_600
        assert not setting.partition.in_sync.reconsider(setting.now - 1)

    def test_a_follower_whose_broker_is_back_is_looked_at_when_its_session_goes_on(self) -> None:
        """Its session with ZooKeeper was over, but the broker never stopped: it names nothing of a quiet partition, and
        the controller tells nothing of one whose ISR it was not in.
        """
        setting = BrokerSetting()
        setting.lead(isr=(1, 3))
        in_sync = setting.partition.in_sync
        setting.alive.discard(2)
        clock, since = FetchClock(setting.now, 5), setting.now
        setting.partition.update_follower(
            2, fetch_offset=0, log_start_offset=0, leader_end_offset=0, now=setting.now, clock=clock, broker_epoch=5
        )
        setting.now += 3_600
        assert not in_sync.reconsider(since)
        setting.alive.add(2)
        setting.noted.clear()
        in_sync.brokers_returned({3, 4})
        assert setting.noted == []
        in_sync.brokers_returned({2, 4})
        ((noted, since),) = setting.noted
        assert noted is in_sync
        assert in_sync.reconsider(since)
        assert setting.asked == []
        setting.now += 1
        clock.time, clock.broker_epoch = setting.now, 9
        in_sync.reconsider(since)
        assert setting.asked[0].change.isr == {1: -1, 3: -1, 2: 9}

    def test_a_follower_without_a_session_names_all_when_its_broker_is_back(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.fetch(2, 0)
        setting.answer(ErrorCode.INELIGIBLE_REPLICA)
        setting.noted.clear()
        setting.partition.in_sync.brokers_returned({2})
        assert setting.noted == []

    def test_a_follower_that_the_controller_refuses_again_and_again_is_in_nobodys_way(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        clocks = [FetchClock(setting.now), FetchClock(setting.now)]
        for follower_id, clock in zip((2, 3), clocks, strict=True):
            setting.partition.update_follower(
                follower_id, fetch_offset=0, log_start_offset=0, leader_end_offset=0, now=setting.now, clock=clock
            )
        asked: list[tuple[int, ...]] = []
        for _ in range(3):
            asked.append(tuple(setting.asked[0].change.isr))
            setting.answer(ErrorCode.INELIGIBLE_REPLICA if 2 in asked[-1] else ErrorCode.NONE)
            since = setting.now
            setting.now += 1
            for clock in clocks:
                clock.time = setting.now
            setting.partition.in_sync.reconsider(since)
        assert asked == [(1, 2), (1, 3), (1, 3, 2)]

    def test_a_follower_that_fetches_no_more_is_not_looked_at_for_ever(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.alive.discard(2)
        setting.fetch(2, 0)
        since = setting.now
        setting.now += 31
        assert not setting.partition.in_sync.reconsider(since)

    @pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
    def test_a_change_that_was_not_made_is_rolled_back(self, error: ErrorCode) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.fetch(2, 0)
        setting.answer(error)
        assert maximal_isr(setting) == (1,)
        assert setting.noted
        assert setting.context.failed_updates.count == 1

    @pytest.mark.parametrize("error", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
    def test_a_change_of_unknown_outcome_stays_until_the_controller_tells(self, error: ErrorCode) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.fetch(2, 0)
        setting.answer(error)
        assert maximal_isr(setting) == (1, 2)
        setting.now += 31
        setting.partition.in_sync.expire()
        assert not setting.asked
        setting.lead(leader_epoch=1, isr=(1,), partition_epoch=7)
        assert maximal_isr(setting) == (1,)

    def test_other_errors_are_asked_again(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.fetch(2, 0)
        setting.answer(ErrorCode.UNKNOWN_SERVER_ERROR)
        assert tuple(setting.asked[0].change.isr) == (1, 2)
        setting.answer()
        assert isr(setting) == (1, 2)

    def test_an_answer_that_is_out_of_date_is_ignored(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.fetch(2, 0)
        setting.lead(leader_epoch=1, isr=(1, 3), partition_epoch=5)
        setting.answer()
        assert isr(setting) == (1, 3)
        assert setting.partition.partition_epoch == 5


class TestWakeUps:
    def test_append_that_followers_have_to_fetch_is_news_for_watchers_only(self) -> None:
        setting = BrokerSetting()
        setting.lead()
        setting.fetch(2, 0)
        setting.fetch(3, 0)
        woken, grown = setting.woken.count, setting.woken.grown_count
        setting.append("a")
        assert (setting.woken.count, setting.woken.grown_count) == (woken, grown + 1)
        setting.fetch(2, 1)
        assert setting.woken.count == woken
        setting.fetch(3, 1)
        assert (setting.woken.count, setting.woken.grown_count) == (woken + 1, grown + 1)

    def test_append_that_is_committed_at_once_is_news_for_all(self) -> None:
        setting = BrokerSetting()
        setting.lead(isr=(1,))
        setting.partition.in_sync.replace((1,), (1,))
        woken = setting.woken.count
        setting.append("a", acks=1)
        assert (setting.woken.count, setting.woken.grown_count) == (woken + 1, 0)


class TestLowWatermark:
    def test_is_the_least_of_those_that_are_alive(self) -> None:
        setting = BrokerSetting()
        setting.lead()
        setting.append("a", "b", "c")
        setting.fetch(2, 3, log_start_offset=2)
        setting.fetch(3, 3, log_start_offset=1)
        assert setting.partition.delete_records(-1) == 1
        setting.alive.discard(3)
        assert setting.partition.low_watermark == 2
        woken = setting.woken.count
        setting.fetch(2, 3, log_start_offset=3)
        assert setting.woken.count == woken + 1
        assert setting.partition.low_watermark == 3
