"""DescribeTransactions, 0: the transactions of some transactional ids that this broker coordinates.

Left out: the checks of the permissions to describe transactional ids and topics, until there are ACLs.
"""

from __future__ import annotations

from barnabas.api.context import RequestContext
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.kernel.steps import Steps, each
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

Described = DescribeTransactionsResponse.TransactionState


class DescribeTransactionsHandler:
    """Asks the coordinator for each id."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    versions = (0, 0)

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def handle(
        self, _context: RequestContext, request: DescribeTransactionsRequest
    ) -> Steps[DescribeTransactionsResponse]:
        states = yield from self._transactions.describe(request.transactional_ids)
        return DescribeTransactionsResponse(transaction_states=states)

    def error_response(
        self, _context: RequestContext, request: DescribeTransactionsRequest, error: KafkaError
    ) -> Steps[DescribeTransactionsResponse]:
        states = yield from each(
            lambda transactional_id: Described(transactional_id=transactional_id, error_code=error.code),
            request.transactional_ids,
        )
        return DescribeTransactionsResponse(transaction_states=states)
