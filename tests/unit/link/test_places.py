"""`barnabas.link.places`: who makes room for whom, without sockets."""

from __future__ import annotations

import random

import pytest

from barnabas.link.places import Places, Step

BOUNDS = {Step.COME: 8, Step.BEGUN: 4, Step.ASKED: 4, Step.ANSWERED: 2}


class Client:
    def __init__(self, places: Places, peer: str) -> None:
        self.peer = peer
        self.is_cut_off = False
        self._places = places
        places.enter(self)

    def abort(self) -> None:
        self.is_cut_off = True

    def goes_on(self, step: Step) -> bool:
        return self._places.go_on(self, step)


def many(places: Places, count: int, peer: str) -> list[Client]:
    return [Client(places, peer) for _ in range(count)]


def test_who_goes_on_at_once_keeps_his_place_in_any_flood_of_his_own_address() -> None:
    places = Places(BOUNDS)
    flood = many(places, 20, "one")
    good = Client(places, "one")
    flood += many(places, 7, "one")
    assert [each.is_cut_off for each in flood] == [True] * 20 + [False] * 7
    assert good.goes_on(Step.BEGUN)
    flood += many(places, 100, "one")
    assert not good.is_cut_off, "who has only come takes no place of who has begun"
    assert all(each.goes_on(Step.BEGUN) for each in flood[-3:])
    assert good.goes_on(Step.ASKED)
    for each in flood[-6:]:
        each.goes_on(Step.BEGUN)
    assert not good.is_cut_off
    assert good.goes_on(Step.ANSWERED)
    assert [places.count(step) for step in Step] == [2, 4, 0, 1]
    assert places.step(good) is Step.ANSWERED
    places.leave(good)
    places.leave(good)
    assert places.step(good) is None


def test_those_of_the_address_that_has_most_go_first_at_each_step() -> None:
    for step in (Step.COME, Step.BEGUN, Step.ANSWERED):
        places = Places(dict.fromkeys(Step, 8))

        def come(peer: str, places: Places = places, step: Step = step) -> Client:
            client = Client(places, peer)
            assert step is Step.COME or client.goes_on(step)
            return client

        flood = [come("flood") for _ in range(8)]
        others = [come("a"), come("b")]
        flood += [come("flood") for _ in range(40)]
        assert not any(each.is_cut_off for each in others)
        assert [each.is_cut_off for each in flood] == [True] * 42 + [False] * 6
    # Where all have as many, who has been there longest.
    places = Places(BOUNDS)
    each_of_another = [Client(places, str(number)) for number in range(9)]
    assert [each.is_cut_off for each in each_of_another] == [True] + [False] * 8


def test_whom_an_answer_is_made_for_is_cut_off_for_nobody_and_one_address_has_not_all_of_these() -> None:
    places = Places(BOUNDS)
    asking = many(places, 4, "one")
    assert [each.goes_on(Step.ASKED) for each in asking] == [True, True, True, False]
    other, further = many(places, 2, "other")
    assert other.goes_on(Step.ASKED)
    assert not further.goes_on(Step.ASKED)
    assert not any(each.is_cut_off for each in (*asking, other))
    assert places.step(further) is None
    assert places.count(Step.ASKED) == len(places.held) == 4


def test_who_was_cut_off_goes_no_further() -> None:
    places = Places(BOUNDS)
    first, *_ = many(places, 9, "one")
    assert first.is_cut_off
    assert not first.goes_on(Step.BEGUN)
    assert places.count(Step.BEGUN) == 0


@pytest.mark.parametrize("seed", range(10))
def test_bounds_hold_whatever_happens(seed: int) -> None:
    chance, places = random.Random(seed), Places(BOUNDS)
    clients: list[Client] = []
    refused = cut_off = 0
    for _ in range(2_000):
        if chance.random() < 0.5 or not clients:
            clients.append(Client(places, chance.choice("aaab")))
        else:
            client = chance.choice(clients)
            step = places.step(client)
            later = [each for each in Step if step is not None and list(Step).index(each) > list(Step).index(step)]
            if step is not None and later:
                refused += not client.goes_on(chance.choice(later))
            else:
                places.leave(client)
            if places.step(client) is None:
                clients.remove(client)
        for each in [each for each in clients if each.is_cut_off]:
            cut_off += 1
            assert places.step(each) is None
            clients.remove(each)
        assert set(places.held) == set(clients)
        for step in Step:
            assert places.count(step) == sum(places.step(each) is step for each in clients) <= BOUNDS[step]
    assert refused > 20
    assert cut_off > 20
