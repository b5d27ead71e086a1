"""Frozen dataclasses with slots that cost next to nothing until they are used.

    @fact
    class Position:
        offset: int
        leader_epoch: int | None = None

is in every respect `@dataclass(frozen=True, slots=True)`, which compiles six functions for each class, half a
millisecond: a short command spent a tenth of its time on classes of which it used half, and compared and showed
hardly any. Here the first use of each function makes it; from then on it is the one that `dataclasses` would have made.

For modules that commands load; elsewhere `dataclasses` will do. What only that can, `fact` refuses: fields of a base,
fields that are no parameters, `InitVar`, `KW_ONLY`, and `__init__`, `__eq__` or `__hash__` of one's own. It refuses
what `dataclasses` refuses: defaults that could be changed, and parameters without a default behind those with one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, NoReturn, TypeVar, dataclass_transform, get_origin, overload

Fact = TypeVar("Fact")


class _Factory:
    """Stands in a signature for a default that is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


_FRESH: Final = _Factory()
_COMPLETED: Final = ("__repr__", "__eq__", "__hash__")
_NOT_OF_ONES_OWN: Final = frozenset({"__init__", "__eq__", "__hash__", "__setattr__", "__delattr__"})


@overload
def fact(cls: type[Fact], /) -> type[Fact]: ...
@overload
def fact(*, kw_only: bool) -> Callable[[type[Fact]], type[Fact]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def fact(cls: type[Fact] | None = None, /, *, kw_only: bool = False) -> Any:
    """The class with slots for its annotated names, and what a frozen dataclass has.

    Raises TypeError for a class that needs `dataclasses`.
    """
    return (lambda found: _made(found, kw_only=kw_only)) if cls is None else _made(cls, kw_only=kw_only)


def _made(cls: type[Any], *, kw_only: bool) -> type[Any]:
    space = dict(vars(cls))
    annotations = {name: kind for name, kind in space.get("__annotations__", {}).items() if not _is_of_class(kind)}
    own = _NOT_OF_ONES_OWN.intersection(space)
    if own or any(hasattr(base, "__dataclass_fields__") for base in cls.__bases__):
        raise TypeError(
            f"{cls.__qualname__} has {', '.join(sorted(own)) or 'fields of a base'}: use dataclasses for it"
        )
    defaults = {name: space.pop(name) for name in annotations if name in space}
    _check(cls.__qualname__, annotations, defaults, kw_only=kw_only)
    space.pop("__dict__", None)
    space.pop("__weakref__", None)
    names = tuple(annotations)
    space |= {"__slots__": names, "__setattr__": _set, "__delattr__": _delete}
    space |= {"__dataclass_fields__": _Fields(), "__signature__": _Signature(), "__replace__": dataclasses.replace}
    space = {"__getstate__": _state, "__setstate__": _set_state, **space}
    if not kw_only:
        space.setdefault("__match_args__", names)
    kind: Any = type(cls)
    made: type[Any] = kind(cls.__name__, cls.__bases__, space)
    made.__qualname__ = cls.__qualname__
    twin = made.__fact__ = _Twin(made, annotations, defaults, kw_only=kw_only)
    made.__init__ = _until_used("__init__", twin.init)
    for name in _COMPLETED:
        if name not in space:
            setattr(made, name, _until_used(name, twin.complete))
    return made


def _is_of_class(kind: object) -> bool:
    return _says(kind, "ClassVar") if isinstance(kind, str) else kind is ClassVar or get_origin(kind) is ClassVar


def _says(kind: object, name: str) -> bool:
    """Whether an annotation, as a text, is of that name, or of parameters of it."""
    return isinstance(kind, str) and kind.partition("[")[0].rpartition(".")[2].strip() == name


def _check(
    class_name: str, annotations: Mapping[str, object], defaults: Mapping[str, object], *, kw_only: bool
) -> None:
    """Raises TypeError for fields that are not what they look like."""
    former = ""
    for name, kind in annotations.items():
        place, default = f"{class_name}.{name}", defaults.get(name, dataclasses.MISSING)
        is_parameter = not (
            _says(kind, "InitVar")
            or _says(kind, "KW_ONLY")
            or kind is dataclasses.KW_ONLY
            or kind is dataclasses.InitVar
            or isinstance(kind, dataclasses.InitVar)
        )
        is_made = False
        if isinstance(default, dataclasses.Field):
            is_parameter = is_parameter and default.init and default.kw_only is not True
            is_made, default = default.default_factory is not dataclasses.MISSING, default.default
        if not is_parameter:
            raise TypeError(f"{place} is no parameter as others: use dataclasses for it")
        if type(default).__hash__ is None:  # as `dataclasses` finds it out
            raise TypeError(f"{place} has a default that all would share, and could change: use default_factory")
        if is_made or default is not dataclasses.MISSING:
            former = name
        elif former and not kw_only:
            raise TypeError(f"{place} has no default, and stands behind {former}, which has one")


class _Twin:
    """What is yet to be made of a class."""

    def __init__(
        self, made: type[Any], annotations: dict[str, Any], defaults: dict[str, Any], *, kw_only: bool
    ) -> None:
        self.made = made
        self._annotations = annotations
        self._defaults = defaults
        self._kw_only = kw_only

    def init(self, name: str) -> Any:
        """Makes `__init__`, as `dataclasses` does for a frozen class."""
        space: dict[str, Any] = {"set_": object.__setattr__, "FRESH_": _FRESH}
        parameters, lines = [], []
        for field in self._annotations:
            value = field
            if field in self._defaults:
                default = self._defaults[field]
                if isinstance(default, dataclasses.Field):
                    if default.default_factory is not dataclasses.MISSING:
                        space[f"make_{field}_"] = default.default_factory
                        value, default = f"make_{field}_() if {field} is FRESH_ else {field}", _FRESH
                    else:
                        default = default.default
                space[f"default_{field}_"] = default
                parameters.append(field if default is dataclasses.MISSING else f"{field}=default_{field}_")
            else:
                parameters.append(field)
            lines.append(f"  set_(self, {field!r}, {value})")
        if hasattr(self.made, "__post_init__"):
            lines.append("  self.__post_init__()")
        head = ", ".join(["self", *(["*"] if self._kw_only and parameters else []), *parameters])
        exec("\n".join([f"def __init__({head}):", *(lines or ["  pass"])]), space)  # noqa: S102 - names of fields alone
        function: Any = space["__init__"]
        function.__qualname__ = f"{self.made.__qualname__}.__init__"
        function.__annotations__ = {**self._annotations, "return": None}
        setattr(self.made, name, function)
        return function

    def complete(self, name: str) -> Any:
        """Takes over all else that a dataclass of the same fields has."""
        made = self.made
        # With a text, or `dataclasses` would make one of the signature, by `inspect`.
        space = {"__annotations__": self._annotations, "__module__": made.__module__, "__doc__": "-", **self._defaults}
        twin: type[Any] = dataclasses.dataclass(frozen=True, kw_only=self._kw_only)(type(made.__name__, (), space))
        for each in (*_COMPLETED, "__dataclass_fields__", "__dataclass_params__"):
            if each not in _COMPLETED or hasattr(vars(made)[each], "until_used"):
                setattr(made, each, vars(twin)[each])
        return vars(made)[name]


def _until_used(name: str, make: Callable[[str], Any]) -> Any:
    """Stands for a function until it is called first."""

    def function(self: object, *arguments: Any, **others: Any) -> Any:
        return make(name)(self, *arguments, **others)

    function.__name__ = name
    function.until_used = True  # type: ignore[attr-defined]
    return function


class _Fields:
    """The fields as `dataclasses` knows them, found out when it first asks."""

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        return owner.__fact__.complete("__dataclass_fields__")


class _Signature:
    """The signature as `inspect` asks for it."""

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        if instance is not None:  # it may be callable, and has a signature as that
            raise AttributeError("__signature__")
        import inspect

        if owner.__init__ is not vars(owner.__fact__.made)["__init__"]:  # a class that stands on it has its own
            found = inspect.signature(owner.__init__)
            return found.replace(parameters=list(found.parameters.values())[1:])
        of_init = inspect.signature(owner.__fact__.init("__init__"))
        return of_init.replace(parameters=list(of_init.parameters.values())[1:])


def _set(self: object, name: str, value: object) -> NoReturn:  # noqa: ARG001 - the signature of `__setattr__`
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: object, name: str) -> NoReturn:  # noqa: ARG001 - the signature of `__delattr__`
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
