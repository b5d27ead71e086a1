"""One configuration key: its name in Kafka, type, default, what is allowed, what it is for, and how it may change.

Values are written as text (`server.properties`, DescribeConfigs, `/config` znodes) and used as Python values; a
`ConfigKey` goes both ways. Source of types and of their text forms: Kafka's documentation of broker and topic configs.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar, cast

Value = TypeVar("Value")
Checked_contra = TypeVar("Checked_contra", contravariant=True)


class ConfigType(enum.Enum):
    """The types of Kafka's configs; the value is the number that DescribeConfigs gives (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(enum.Enum):
    """How likely it is that a user must think about a key."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(enum.Enum):
    """Whether a broker takes a new value without a restart (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Support(enum.Enum):
    """What this version of Barnabas does with a key that Kafka knows."""

    ACTIVE = "active"
    """It acts as in Kafka."""
    NOT_YET = "not yet"
    """Accepted and checked; what it steers is not built, which start-up says once."""
    WITHOUT_EFFECT = "without effect"
    """Accepted and checked; it steers something that this broker does not have, such as a thread pool."""


class ConfigError(ValueError):
    """A value that a key cannot have; says key, value and what is allowed, as Kafka's ConfigException does."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        shown = "null" if value is None else _write(value)
        super().__init__(
            f"Invalid value {shown if shown.isprintable() else repr(shown)} for configuration {key}: {allowed}"
        )
        self.key = key
        self.value = value
        self.allowed = allowed


class Validator(Protocol[Checked_contra]):
    """A restriction on the values of one key."""

    def allows(self, value: Checked_contra, /) -> bool: ...

    def describe(self) -> str:
        """What is allowed, for the reference."""
        ...

    def refusal(self, value: Checked_contra, /) -> tuple[object, str]:
        """Of a value that is not allowed what is wrong, and what is allowed, in Kafka's words where it has any."""
        ...


@dataclass(frozen=True, slots=True)
class Between:
    """Numbers from `least` to `most`, both included; None is no limit."""

    least: float | None = None
    most: float | None = None

    def allows(self, value: float, /) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def describe(self) -> str:
        if self.most is None:
            return f"it must be at least {self.least}"
        if self.least is None:
            return f"it must be at most {self.most}"
        return f"it must be between {self.least} and {self.most}"

    def refusal(self, value: float, /) -> tuple[object, str]:
        if self.least is not None and value < self.least:
            return value, f"Value must be at least {self.least}"
        return value, f"Value must be no more than {self.most}"


@dataclass(frozen=True, slots=True)
class BetweenOr:
    """Whole numbers from `least` to `most`, both included, and one more that stands for something else."""

    least: int
    most: int
    other: int

    def allows(self, value: int, /) -> bool:
        return value == self.other or self.least <= value <= self.most

    def describe(self) -> str:
        return f"it must be between {self.least} and {self.most}, or {self.other}"

    def refusal(self, value: int, /) -> tuple[object, str]:
        return value, self.describe()


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words; case counts as in Kafka, unless `any_case`."""

    words: tuple[str, ...]
    any_case: bool = False

    def allows(self, value: str | None, /) -> bool:
        if value is None:
            return False
        return value in self.words or (self.any_case and value.lower() in {word.lower() for word in self.words})

    def describe(self) -> str:
        return f"it must be one of {', '.join(self.words)}"

    def refusal(self, value: str | None, /) -> tuple[object, str]:
        return value, f"String must be one of{' (case insensitive)' * self.any_case}: {', '.join(self.words)}"


@dataclass(frozen=True, slots=True)
class EachOf:
    """A list whose every entry is one of some words; `may_be_empty` says whether no entry is fine."""

    words: tuple[str, ...]
    may_be_empty: bool = True

    def allows(self, value: tuple[str, ...], /) -> bool:
        return (self.may_be_empty or bool(value)) and all(entry in self.words for entry in value)

    def describe(self) -> str:
        return f"it must be a list{'' if self.may_be_empty else ', not empty,'} of {', '.join(self.words)}"

    def refusal(self, value: tuple[str, ...], /) -> tuple[object, str]:
        wrong = next((entry for entry in value if entry not in self.words), "")
        return wrong, f"String must be one of: {', '.join(self.words)}"


class NotEmpty:
    """A text or list with something in it."""

    __slots__ = ()

    def allows(self, value: str | tuple[str, ...] | None, /) -> bool:
        return bool(value.strip() if isinstance(value, str) else value)

    def describe(self) -> str:
        return "it must not be empty"

    def refusal(self, value: str | tuple[str, ...] | None, /) -> tuple[object, str]:
        return value, self.describe()


_PAIRS: Final = re.compile(r"(?:[0-9]+:[0-9]+)?(?:,(?:[0-9]+:[0-9]+)?)*")


class ThrottledReplicas:
    """Pairs partition:broker, or `*` for all (KIP-73)."""

    __slots__ = ()

    def allows(self, value: tuple[str, ...], /) -> bool:
        # A topic of very many partitions may name all of them: one look at the whole text, not one at each.
        text = ",".join(value)
        return "".join(value) == "*" or (
            _PAIRS.fullmatch(text) is not None and text.count(",") == max(0, len(value) - 1)
        )

    def describe(self) -> str:
        return "it must be * or a list of partition:broker pairs, such as 0:101,1:102"

    def refusal(self, value: tuple[str, ...], /) -> tuple[object, str]:
        return value, self.describe()


class Password(str):
    """A secret text: equal to the text, but never shown."""

    __slots__ = ()
    HIDDEN: Final = "[hidden]"

    def __repr__(self) -> str:
        return self.HIDDEN

    def __str__(self) -> str:
        return self.HIDDEN

    def reveal(self) -> str:
        """The secret itself, for the one place that needs it."""
        return "".join(self)


def _read_boolean(text: str) -> bool:
    word = text.lower()
    if word not in {"true", "false"}:
        raise ValueError("Expected value to be either true or false")
    return word == "true"


def _whole_number(bits: int, name: str) -> Callable[[str], int]:
    limit = 1 << (bits - 1)
    complaint = f"Not a number of type {name}"

    def read(text: str) -> int:
        digits = text[1:] if text[:1] in {"+", "-"} else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise ValueError(complaint)
        number = int(text)
        if not -limit <= number < limit:
            raise ValueError(complaint)
        return number

    return read


_DOUBLE: Final = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|Infinity)")


def _read_double(text: str) -> float:
    if not _DOUBLE.fullmatch(text):
        raise ValueError("Not a number of type DOUBLE")
    return float(text)


def _read_list(text: str) -> tuple[str, ...]:
    if text.split(None, 1) == [text]:  # no white space, as in very long lists
        return tuple(text.split(","))
    return tuple(entry.strip() for entry in text.split(",")) if text.strip() else ()


_JAVA_WHITE_SPACE: Final = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` takes off both ends of any value, secrets included."""

_READERS: dict[ConfigType, Callable[[str], object]] = {
    ConfigType.BOOLEAN: _read_boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _whole_number(32, "INT"),
    ConfigType.SHORT: _whole_number(16, "SHORT"),
    ConfigType.LONG: _whole_number(64, "LONG"),
    ConfigType.DOUBLE: _read_double,
    ConfigType.LIST: _read_list,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: Password,
}


def _write_double(value: float) -> str:
    """As Java writes it: with a fraction always, and with an exponent from ten millions up and below a thousandth."""
    text = repr(value)
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return text
    from decimal import Decimal  # few brokers have such a value, and it is 0.3 MiB

    # The shortest digits that read back as the value, with the point behind the first.
    digits = text.partition("e")[0].replace(".", "").replace("-", "").strip("0")
    exponent = Decimal(text).adjusted()
    return f"{'-' if value < 0 else ''}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _write(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _write_double(value)
    if isinstance(value, tuple):
        return ",".join(str(entry) for entry in value)
    if isinstance(value, Password):
        return value.reveal()
    return str(value)


class Required(enum.Enum):
    """The default of a key that has none: a value must be given."""

    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ConfigKey(Generic[Value]):
    """A key whose values are of the Python type `Value`: bool, int, float, str, Password, tuple of str, or one or None.

    `synonyms` are the keys it falls back to, nearest first, as DescribeConfigs lists them (KIP-226): `log.retention.ms`
    falls back to `log.retention.minutes`. `documentation` is a sentence or two in our own words.
    """

    name: str
    type: ConfigType
    default: Value | Required
    documentation: str
    importance: Importance = Importance.MEDIUM
    validator: Validator[Value] | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    support: Support = Support.ACTIVE
    synonyms: tuple[str, ...] = ()
    internal: bool = False
    """Known to Kafka's own tests and developers; DescribeConfigs shows it only where it has been given."""

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret, shown by nothing."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> Value:
        """The value that a text stands for. Raises ConfigError."""
        try:
            value = cast("Value", _READERS[self.type](text.strip(_JAVA_WHITE_SPACE)))
        except ValueError as error:
            raise ConfigError(self.name, text, str(error)) from None
        return self.check(value)

    def check(self, value: Value) -> Value:
        """The value itself, when the validator allows it; no value where that is the default. Raises ConfigError."""
        if value is None and self.default is None:
            return value
        if self.validator is not None and not self.validator.allows(value):
            wrong, allowed = self.validator.refusal(value)
            raise ConfigError(self.name, Password.HIDDEN if self.sensitive else wrong, allowed)
        return value

    def format(self, value: Value) -> str | None:
        """The text that `parse` reads back; None for no value. A secret comes out in the clear: mind where it goes."""
        return None if value is None else _write(value)
