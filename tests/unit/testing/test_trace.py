"""The record of what happened."""

from __future__ import annotations

from barnabas.testing.trace import Event, EventTrace, Occurrence


def fill(trace: EventTrace, count: int) -> None:
    label = trace.label("host")
    for number in range(count):
        trace.add(number / 8, Occurrence.TICK, label, number)


def test_events_come_back_as_they_were_added() -> None:
    trace = EventTrace()
    trace.add(1.5, Occurrence.NOTE, trace.label("here"), -7)
    trace.add(2.5, Occurrence.TICK, trace.label("there"))
    assert list(trace.events()) == [Event(1.5, Occurrence.NOTE, "here", -7), Event(2.5, Occurrence.TICK, "there", 0)]
    assert list(trace.events(last=1)) == [Event(2.5, Occurrence.TICK, "there", 0)]
    assert len(trace) == 2


def test_memory_is_bounded_and_the_digest_is_of_everything() -> None:
    small, large = EventTrace(kept_bytes_max=1_000), EventTrace()
    for trace in (small, large):
        fill(trace, 1_000)
    assert small.digest() == large.digest()
    assert len(small) == len(large) == 1_000
    kept = list(small.events())
    assert 0 < len(kept) < 60
    assert kept == list(large.events(last=len(kept)))
    fill(small, 1)
    assert small.digest() != large.digest()


def test_the_digest_depends_on_every_part_of_an_event() -> None:
    digests = set()
    for time, occurrence, label, number in (
        (1.0, Occurrence.TICK, "a", 1),
        (1.0000000001, Occurrence.TICK, "a", 1),
        (1.0, Occurrence.NOTE, "a", 1),
        (1.0, Occurrence.TICK, "b", 1),
        (1.0, Occurrence.TICK, "a", 2),
    ):
        trace = EventTrace()
        trace.add(time, occurrence, trace.label(label), number)
        digests.add(trace.digest())
    assert len(digests) == 5


def test_asking_for_the_digest_changes_nothing() -> None:
    one, two = EventTrace(), EventTrace()
    for trace in (one, two):
        fill(trace, 10)
    one.digest()
    fill(one, 5)
    fill(two, 5)
    assert one.digest() == two.digest()


def test_labels_are_bounded_and_still_count_in_the_digest() -> None:
    traces = [EventTrace(labels_max=2) for _ in range(2)]
    for trace, last in zip(traces, ("three", "another"), strict=True):
        for text in ("one", "two", "one", last):
            trace.add(1.0, Occurrence.NOTE, trace.label(text))
        assert [event.label for event in trace.events()] == ["one", "two", "one", "(one of too many)"]
    assert traces[0].digest() != traces[1].digest()
