"""The reference page of all config keys: `python -m barnabas.config.reference > docs/configuration.md`.

A test holds the committed page against this module's output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from barnabas.config.key_table import BROKER_SUBJECTS, DYNAMIC_SUBJECT, PLUGIN_SUBJECT, TOPIC_SUBJECT, subject
from barnabas.config.keys import ConfigKey, ConfigType, Required

_INTRODUCTION: Final = """# Configuration

Barnabas reads Kafka's `server.properties`. This page lists every name of Apache Kafka 3.9, and is generated from
`src/barnabas/config/kafka_keys` by `python -m barnabas.config.reference`.

- A name that is not here is ignored, with a warning. A value that is not allowed stops the broker from starting; all
  such values are reported at once.
- *Change* says whether a value can be changed while the broker runs: for one broker (`per-broker`), also for all
  brokers at once (`cluster-wide`), or not at all (`read-only`). The configs of topics can all be changed.
- *Status* says what this version of Barnabas does with a key. `active`: what Kafka does. `not yet`: the value is
  checked, and what it steers is still to come; the broker says so when it starts. `without effect`: the value is
  checked, and steers something that Barnabas does not have, such as a thread pool or KRaft.
- `listener.name.NAME.KEY` sets a key for one listener, and `listener.name.NAME.MECHANISM.KEY` for one SASL mechanism
  of it.
- *Falls back to* names the keys that are asked when a key has no value, nearest first.
"""
_HEAD: Final = ("Name", "Type", "Default", "Allowed", "Change", "Status", "Meaning")


def page() -> Iterator[str]:
    """The lines of the page, in Markdown."""
    yield from _INTRODUCTION.splitlines()
    for name in (*BROKER_SUBJECTS, PLUGIN_SUBJECT, DYNAMIC_SUBJECT, TOPIC_SUBJECT):
        found = subject(name)
        yield ""
        yield f"## {found.title}"
        yield ""
        yield from _table(found.keys, of_topics=name == TOPIC_SUBJECT)


def _table(keys: Iterable[ConfigKey[Any]], *, of_topics: bool) -> Iterator[str]:
    yield _row(_HEAD)
    yield _row("---" for _ in _HEAD)
    for key in keys:
        yield _row(
            (
                f"`{key.name}`",
                key.type.name.lower(),
                _default(key),
                _allowed(key),
                key.update_mode.value,
                key.support.value,
                _meaning(key, of_topics=of_topics),
            )
        )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(key: ConfigKey[Any]) -> str:
    text = None if isinstance(key.default, Required) else key.format(key.default)
    if text is None:
        return "none"
    shown = text.replace(",", ", ") if key.type is ConfigType.LIST else text
    return f"`{shown}`" if shown else "empty"


def _allowed(key: ConfigKey[Any]) -> str:
    if key.validator is None:
        return "true or false" if key.type is ConfigType.BOOLEAN else ""
    return key.validator.describe().removeprefix("it must be ").removeprefix("it must ")


def _meaning(key: ConfigKey[Any], *, of_topics: bool) -> str:
    remarks = [key.documentation]
    if key.synonyms:
        whose = "the broker's " if of_topics else ""
        remarks.append(f"Falls back to {whose}{', '.join(f'`{name}`' for name in key.synonyms)}.")
    if key.internal:
        remarks.append("For Kafka's developers.")
    return " ".join(remarks)


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in page())
