"""AlterUserScramCredentials, 0: sets and deletes SCRAM credentials of users, on the controller (KIP-554).

The client has salted and hashed the password; what is kept is enough to check a login, and not to log in. All changes
of one user are one write, against the version that was read.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Coroutine, Mapping
from itertools import islice
from typing import Any, Final

from barnabas.api.administration.config_alteration import ConfigAlterer
from barnabas.api.administration.ports import ControllerStatus
from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.kernel.steps import Steps, each
from barnabas.sasl.scram_mechanisms import ITERATIONS_MIN, ScramCredential, ScramMechanism
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse

ITERATIONS_ALTERED_MAX: Final = 16_384
"""More can be set by Kafka's tools for ZooKeeper only."""
_SORTED_PER_STEP: Final = 2048
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


class AlterUserScramCredentialsHandler:
    """Checks everything that a user is to have, and writes it."""

    api_key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    versions = (0, 0)

    def __init__(self, controller: ControllerStatus, alterer: ConfigAlterer) -> None:
        self._controller = controller
        self._alterer = alterer

    def handle(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> Coroutine[Any, Any, AlterUserScramCredentialsResponse]:
        if not self._controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        check_cluster(context, AclOperation.ALTER)
        return self._alter(context, request)

    def error_response(
        self, _context: RequestContext, request: AlterUserScramCredentialsRequest, error: KafkaError
    ) -> Steps[AlterUserScramCredentialsResponse]:
        names: dict[str, None] = {}
        yield from each(lambda change: names.setdefault(change.name), _changes(request))
        runs: list[list[str]] = []
        unsorted = iter(names)
        while run := sorted(islice(unsorted, _SORTED_PER_STEP)):
            runs.append(run)
            yield
        results = yield from each(lambda name: _result(name, error), heapq.merge(*runs))
        return AlterUserScramCredentialsResponse(results=results)

    async def _alter(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> AlterUserScramCredentialsResponse:
        refused, changes = await context.in_steps(_sorted(request))
        written: list[Result] = []
        for user, by_mechanism in changes.items():
            try:
                await self._alterer.alter_user(user, by_mechanism)
            except KafkaError as error:
                refused[user] = error.with_traceback(None)
            else:
                written.append(Result(user=user, error_code=ErrorCode.NONE))
        results = await context.in_steps(each(lambda item: _result(*item), refused.items()))
        return AlterUserScramCredentialsResponse(results=results + written)


def _sorted(
    request: AlterUserScramCredentialsRequest,
) -> Steps[tuple[dict[str, KafkaError], dict[str, Mapping[str, str | None]]]]:
    """By user: what is wrong, or else the credentials by mechanism that are to be written, None for deleted."""
    refused: dict[str, KafkaError] = {}
    counts: Counter[tuple[str, int]] = Counter()
    changes: dict[str, dict[str, str | None]] = {}

    def look(change: Deletion | Upsertion) -> None:
        error = _fault(change)
        if error is not None:
            refused[change.name] = error
        counts[change.name, change.mechanism] += 1

    def take(change: Deletion | Upsertion) -> None:
        if change.name in refused:
            return
        if counts[change.name, change.mechanism] > 1:
            refused[change.name] = KafkaError(
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            )
            changes.pop(change.name, None)
            return
        mechanism = ScramMechanism.numbered(change.mechanism)
        if mechanism is not None:
            changes.setdefault(change.name, {})[mechanism.value] = _text(mechanism, change)

    every = _changes(request)
    yield from each(look, every)
    yield from each(take, every)
    return refused, dict(changes)


def _changes(request: AlterUserScramCredentialsRequest) -> list[Deletion | Upsertion]:
    return [*request.deletions, *request.upsertions]


def _fault(change: Deletion | Upsertion) -> KafkaError | None:
    if not change.name:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if ScramMechanism.numbered(change.mechanism) is None:
        return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, Upsertion):
        if change.iterations < ITERATIONS_MIN:
            return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
        if change.iterations > ITERATIONS_ALTERED_MAX:
            return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
        if not change.salted_password or not change.salt:
            return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")
    return None


def _text(mechanism: ScramMechanism, change: Deletion | Upsertion) -> str | None:
    if not isinstance(change, Upsertion):
        return None
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    return ScramCredential.of_salted_password(mechanism, salt, salted, change.iterations).encode()


def _result(user: str, error: KafkaError) -> Result:
    return Result(user=user, error_code=error.code, error_message=error.detail)
