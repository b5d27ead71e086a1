"""`barnabas txn` against a broker of ours, as a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.embedded_coordinator import embedded_coordinator
from tests.support.hanging_transactions import OVERRIDES, prepare
from tests.support.transaction_command_suite import TransactionCommandSuite


class TestOnBarnabas(TransactionCommandSuite):
    @pytest.fixture
    def bootstrap(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
        directory = tmp_path_factory.mktemp("transactions")
        with embedded_coordinator(directory / "coordinator") as coordinator:
            broker = BrokerProcess(directory / "broker", 0, coordinator.address, overrides=OVERRIDES)
            broker.start()
            try:
                prepare(broker.port)
                yield broker.address
            finally:
                broker.kill()
