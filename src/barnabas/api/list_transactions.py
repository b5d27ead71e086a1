"""ListTransactions, 0 to 1: the transactional ids that this broker coordinates, in some states, of some producers.

Version 1 may ask for those whose transaction is open for longer (KIP-994). States that do not exist are named in the
answer. Left out: the check of the permission to describe a transactional id, until there are ACLs.
"""

from __future__ import annotations

from barnabas.api.context import RequestContext
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.kernel.steps import Steps
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import ListTransactionsRequest, ListTransactionsResponse


class ListTransactionsHandler:
    """Asks the coordinator."""

    api_key = ApiKey.LIST_TRANSACTIONS
    versions = (0, 1)

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def handle(self, _context: RequestContext, request: ListTransactionsRequest) -> Steps[ListTransactionsResponse]:
        return self._transactions.list_transactions(
            frozenset(request.producer_id_filters), frozenset(request.state_filters), request.duration_filter
        )

    def error_response(
        self, _context: RequestContext, _request: ListTransactionsRequest, error: KafkaError
    ) -> ListTransactionsResponse:
        return ListTransactionsResponse(error_code=error.code)
