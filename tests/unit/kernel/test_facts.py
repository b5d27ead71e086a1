"""A fact is what `dataclasses` would have made of the class, and makes what it is asked for when it is asked first."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
import typing
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, ClassVar

import pytest

from barnabas.kernel.facts import fact


class _Words:
    """What both classes below are made of."""

    NUMBER: ClassVar[int] = 3
    name: str
    parts: list[int] = field(default_factory=list)
    secret: str = field(default="s", repr=False)
    unseen: int = field(default=0, compare=False)
    number: int = 7


def both(base: type[Any], **options: Any) -> tuple[Any, Any]:
    """The class as a dataclass and as a fact."""

    def one(name: str) -> type[Any]:
        space = {key: value for key, value in vars(base).items() if key not in ("__dict__", "__weakref__")}
        return type(name, (), {**space, "__qualname__": name})

    make: Callable[[type[Any]], Any] = fact(**options) if options else fact
    return dataclass(frozen=True, slots=True, **options)(one("Words")), make(one("Words"))


@fact
class Point:
    """Of two numbers."""

    x: int
    y: int = 2

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")

    @property
    def total(self) -> int:
        return self.x + self.y


@fact(kw_only=True)
class Named:
    y: int = 1
    x: int

    def __repr__(self) -> str:
        return "mine"


def test_it_is_made_shown_compared_and_hashed_as_a_dataclass() -> None:
    known, made = both(_Words)
    for arguments, others in (
        (("a",), {}),
        (("a", [1]), {"number": 5}),
        ((), {"name": "b", "unseen": 4}),
        (("a", [], "t", 1, 2), {}),
    ):
        one, other = known(*arguments, **others), made(*arguments, **others)
        assert repr(one) == repr(other)
        assert [getattr(one, each.name) for each in dataclasses.fields(one)] == [
            getattr(other, each.name) for each in dataclasses.fields(other)
        ]
    assert made("a", unseen=1) == made("a", unseen=2) != made("b")
    assert made("a") != known("a")
    assert made("a").parts is not made("a").parts
    assert hash(Point(1)) == hash(Point(1, 2)) == hash((1, 2))
    assert {Point(1), Point(1)} == {Point(1, 2)}


@pytest.mark.parametrize("wrong", [(), ("a", [], "t", 1, 2, 3)])
def test_wrong_arguments_are_refused_as_ever(wrong: tuple[Any, ...]) -> None:
    known, made = both(_Words)
    errors = []
    for each in (known, made):
        with pytest.raises(TypeError) as error:
            each(*wrong)
        errors.append(str(error.value))
        with pytest.raises(TypeError):
            each("a", other=1)
    assert errors[0] == errors[1]


def test_its_fields_are_known_to_dataclasses() -> None:
    known, made = both(_Words)
    assert [dataclasses.is_dataclass(each) for each in (known, made, made("a"))] == [True, True, True]
    shown = [repr(dataclasses.fields(each)) for each in (known, made)]
    assert shown[0].replace("<class '_Words'>", "") == shown[1].replace("<class '_Words'>", "")
    assert made.__slots__ == known.__slots__ == made.__match_args__ == known.__match_args__
    assert (made.NUMBER, made.__doc__) == (known.NUMBER, known.__doc__)
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 2}
    assert dataclasses.replace(Point(1), y=5) == Point(1, 5)
    with pytest.raises(ValueError, match="x"):
        dataclasses.replace(Point(1), x=-1)


def test_its_signature_is_that_of_a_dataclass() -> None:
    known, made = both(_Words)
    assert str(inspect.signature(made)) == str(inspect.signature(known))
    assert str(inspect.signature(Named)) == "(*, y: 'int' = 1, x: 'int') -> None"


def test_it_cannot_be_changed_and_has_no_room_for_more() -> None:
    point: Any = Point(1)
    for name in ("x", "z"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(point, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert not hasattr(point, "__dict__")
    assert point.total == 3


def test_parts_are_matched_by_place() -> None:
    match Point(3):
        case Point(x, y):
            assert (x, y) == (3, 2)
        case _:
            pytest.fail("it does not match")


def test_it_is_copied_and_pickled() -> None:
    point = Point(1, 5)
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


def test_keywords_only_and_what_the_class_says_itself() -> None:
    assert (Named(x=1).x, repr(Named(x=1)), Named(x=1)) == (1, "mine", Named(x=1, y=1))
    made: Any = Named
    with pytest.raises(TypeError):
        made(1)
    assert not hasattr(Named, "__match_args__") or Named.__match_args__ == ()


def test_a_function_is_made_once_and_then_is_the_one_of_a_dataclass() -> None:
    known, made = both(_Words)
    first = vars(made)["__init__"], vars(made)["__eq__"]
    one = made("a")
    assert one == made("a")
    init, equal = vars(made)["__init__"], vars(made)["__eq__"]
    assert init is not first[0]
    assert equal is not first[1]
    assert equal.__code__.co_code == vars(known)["__eq__"].__code__.co_code
    made("b")
    assert vars(made)["__init__"] is init


def test_threads_that_come_first_at_the_same_time() -> None:
    _, made = both(_Words)
    barrier, found = threading.Barrier(8), []

    def use() -> None:
        barrier.wait(10)
        one = made("a")
        found.append((one == made("a"), repr(one), len(dataclasses.fields(made))))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == [(True, repr(made("a")), 5)] * 8


def test_a_class_may_stand_on_one() -> None:
    class Other(Point):
        __slots__ = ()

    assert (Other(1).total, repr(Other(1)).endswith("Other(x=1, y=2)"), Other(1) == Point(1)) == (3, True, False)

    @dataclass(frozen=True, slots=True)
    class More(Point):
        z: int = 3

    assert dataclasses.astuple(More(1)) == (1, 2, 3)
    assert More(1) == More(1, 2, 3)


def test_what_only_dataclasses_can_is_refused() -> None:
    def computed() -> None:
        @fact
        class _Computed:
            x: int = field(init=False)

    def equal() -> None:
        @fact
        class _Equal:  # noqa: PLW1641 - it is refused for that
            x: int

            def __eq__(self, other: object) -> bool:
                return True

    def based() -> None:
        @fact
        class _Based(Point):
            z: int = 3

    for make in (computed, equal, based):
        with pytest.raises(TypeError, match="use dataclasses"):
            make()


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"x": InitVar[int]}, {}),
        ({"x": "InitVar[int]"}, {}),
        ({"x": "dataclasses.InitVar[int]"}, {}),
        ({"_": KW_ONLY, "x": int}, {}),
        ({"_": "KW_ONLY", "x": "int"}, {}),
        ({"x": "int"}, {"x": field(kw_only=True)}),
        ({"x": "list[int]"}, {"x": []}),
        ({"x": "set[int]"}, {"x": field(default=set())}),
        ({"x": "int", "y": "int"}, {"x": 1}),
        ({"x": "list[int]", "y": "int"}, {"x": field(default_factory=list)}),
    ],
)
def test_fields_that_are_not_what_they_look_like_are_refused(fields: dict[str, Any], values: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Odd\.[xy_]"):
        fact(type("Odd", (), {"__annotations__": fields, **values}))


@pytest.mark.parametrize("of_class", [ClassVar, ClassVar[int], "ClassVar", "ClassVar[int]", "typing.ClassVar[int]"])
def test_what_is_of_the_class_is_no_field(of_class: Any) -> None:
    made: Any = fact(type("Some", (), {"__annotations__": {"N": of_class, "x": int}, "N": 3}))
    assert (made.N, made(1).N, made.__slots__, made(5).x) == (3, 3, ("x",), 5)
    assert [each.name for each in dataclasses.fields(made)] == ["x"]


def test_the_signature_of_what_stands_on_it_is_its_own() -> None:
    class Other(Point):
        def __init__(self, text: str) -> None:
            super().__init__(len(text))

    @dataclass(frozen=True)
    class More(Point):
        z: int = 3

    class Same(Point):
        def __call__(self, number: int) -> int:
            return number

    assert str(inspect.signature(Other)) == "(text: 'str') -> 'None'"
    assert str(inspect.signature(More)) == "(x: 'int', y: 'int' = 2, z: 'int' = 3) -> None"
    assert str(inspect.signature(Same)) == str(inspect.signature(Point))
    assert str(inspect.signature(Same(1))) == "(number: 'int') -> 'int'"


def test_a_class_may_say_itself_what_is_copied_of_it_and_is_replaced_as_later_pythons_do() -> None:
    @fact
    class Own:
        x: int

        def __getstate__(self) -> list[int]:
            return [self.x + 1]

    assert copy.copy(Own(1)) == Own(2)
    point: Any = Point(1, 5)
    assert point.__replace__(x=2) == Point(2, 5)


def test_a_parameter_of_a_type_is_no_hindrance() -> None:
    kind = typing.TypeVar("kind")

    @fact
    class Box(typing.Generic[kind]):
        content: kind

    assert Box[int](3) == Box(3)
