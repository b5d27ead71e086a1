"""DescribeTransactions, 0: the transactions of some transactional ids that this broker coordinates.

Topics that may not be described are left out.
"""

from __future__ import annotations

from barnabas.api.authorization import Decisions
from barnabas.api.context import RequestContext
from barnabas.coordinators.transaction.coordinator import TransactionCoordinator
from barnabas.kernel.steps import Steps, each, each_within
from barnabas.security.acls import AclOperation, ResourceType
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

Described = DescribeTransactionsResponse.TransactionState
TopicData = DescribeTransactionsResponse.TopicData


class DescribeTransactionsHandler:
    """Asks the coordinator for each id."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    versions = (0, 0)

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def handle(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> Steps[DescribeTransactionsResponse]:
        ids = request.transactional_ids
        if context.authorizer is None:
            return DescribeTransactionsResponse(transaction_states=(yield from self._transactions.describe(ids)))
        may_describe = Decisions(context, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
        allowed = yield from each(lambda one: one if may_describe.allow(one) else None, ids)
        found = iter((yield from self._transactions.describe(one for one in allowed if one is not None)))
        denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        states = yield from each(
            lambda one: next(found) if may_describe.allow(one) else Described(transactional_id=one, error_code=denied),
            ids,
        )
        yield from _hide_topics(states, Decisions(context, AclOperation.DESCRIBE, ResourceType.TOPIC, quietly=True))
        return DescribeTransactionsResponse(transaction_states=states)

    def error_response(
        self, _context: RequestContext, request: DescribeTransactionsRequest, error: KafkaError
    ) -> Steps[DescribeTransactionsResponse]:
        states = yield from each(
            lambda transactional_id: Described(transactional_id=transactional_id, error_code=error.code),
            request.transactional_ids,
        )
        return DescribeTransactionsResponse(transaction_states=states)


def _hide_topics(states: list[Described], may_describe: Decisions) -> Steps[None]:
    """Leaves out what may not be described."""

    def show(state: Described, shown: list[TopicData | None]) -> None:
        state.topics = [topic for topic in shown if topic is not None]

    yield from each_within(
        states,
        lambda state: state.topics,
        lambda _, topic: topic if may_describe.allow(topic.topic) else None,
        show,
    )
