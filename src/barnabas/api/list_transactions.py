"""ListTransactions, 0 to 1: the transactional ids that this broker coordinates, in some states, of some producers.

Those that may not be described are left out. Version 1 may ask for those whose transaction is open for longer
(KIP-994). States that do not exist are named in the answer.
"""

from __future__ import annotations

from barnabas.api.authorization import Decisions
from barnabas.api.context import RequestContext
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.kernel.steps import Steps, each
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import KafkaError
from barnabas.wire.messages import ListTransactionsRequest, ListTransactionsResponse


class ListTransactionsHandler:
    """Asks the coordinator."""

    api_key = ApiKey.LIST_TRANSACTIONS
    versions = (0, 1)

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def handle(self, context: RequestContext, request: ListTransactionsRequest) -> Steps[ListTransactionsResponse]:
        response = yield from self._transactions.list_transactions(
            frozenset(request.producer_id_filters), frozenset(request.state_filters), request.duration_filter
        )
        may_describe = Decisions(context, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, quietly=True)
        if not may_describe.allow_all:
            shown = yield from each(
                lambda state: state if may_describe.allow(state.transactional_id) else None, response.transaction_states
            )
            response.transaction_states = [state for state in shown if state is not None]
        return response

    def error_response(
        self, _context: RequestContext, _request: ListTransactionsRequest, error: KafkaError
    ) -> ListTransactionsResponse:
        return ListTransactionsResponse(error_code=error.code)
