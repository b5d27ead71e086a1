"""What `barnabas doctor` looks at in a directory of `barnabas up --secure`: who may read its secrets, and how long its
certificates hold.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator
from typing import Final

from barnabas.cli.doctor_aside import mode_of
from barnabas.cli.doctor_findings import Finding, State
from barnabas.cli.output import counted, printable

_OTHERS: Final = 0o077
_SOON_DAYS: Final = 30
_NAME: Final = "security"
_AGAIN: Final = "stop barnabas up and start it again with --secure, which makes new ones"


def secured_directories(directories: Iterable[str]) -> Iterator[str]:
    """Those of these data directories, of a cluster or of its brokers, that belong to a cluster which is secured."""
    found: dict[str, None] = {}
    for directory in directories:
        # That of broker 1 is broker-1/data.
        for root in (directory, os.path.dirname(os.path.dirname(os.path.abspath(directory)))):
            if mode_of(os.path.join(root, _NAME, "authority.pem")) is not None:
                found[os.path.join(root, _NAME)] = None
    yield from found


def check_security(directory: str, now: dt.datetime) -> list[Finding]:
    """Whether others may read secrets, and whether certificates hold, in this directory."""
    return [_of_rights(directory), _of_certificates(directory, now)]


def _of_rights(directory: str) -> Finding:
    where = printable(directory)
    modes = [os.lstat(path).st_mode for path in (directory, *(each.path for each in os.scandir(directory)))]
    if all(mode & _OTHERS == 0 for mode in modes):
        return Finding(_NAME, State.OK, f"only this user reads {where}")
    # Who may not come into the directory does not come to the files.
    state = State.CRITICAL if modes[0] & _OTHERS else State.WARNING
    return Finding(_NAME, state, f"others of this machine may read secrets in {where}", f"chmod -R go= {where}")


def _of_certificates(directory: str, now: dt.datetime) -> Finding:
    from barnabas.server.cluster_certificates import days_left

    left: dict[str, float | None] = {}
    try:
        for name in sorted(os.listdir(directory)):
            if name.endswith(".pem"):
                with open(os.path.join(directory, name), "rb") as stream:
                    left[name] = days_left(stream.read(), now)
    except ImportError:
        return Finding("certificates", State.NOTE, "certificates are not looked at", "pip install 'barnabas[tls]'")
    damaged = [name for name, days in left.items() if days is None]
    if damaged:
        what = f"{', '.join(damaged)} in {printable(directory)} cannot be read"
        return Finding("certificates", State.CRITICAL, what, _AGAIN)
    name, days = min(((name, days) for name, days in left.items() if days is not None), key=lambda each: each[1])
    place = f"the certificate {name} in {printable(directory)}"
    if days <= 0:
        return Finding("certificates", State.CRITICAL, f"{place} has ended: nobody comes in by it", _AGAIN)
    if days <= _SOON_DAYS:
        return Finding("certificates", State.WARNING, f"{place} ends in {counted(int(days), 'day')}", _AGAIN)
    return Finding("certificates", State.OK, f"certificates hold for {counted(int(days), 'day')}")
