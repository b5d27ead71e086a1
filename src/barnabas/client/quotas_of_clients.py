"""Quotas of clients as brokers tell of them; users import this from `barnabas.client.admin`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientQuotas:
    """The quotas of one entity: its names by type (`user`, `client-id`, `ip`; None is the default of the type), and the
    values by the names of the quotas."""

    entity: Mapping[str, str | None]
    values: Mapping[str, float]
