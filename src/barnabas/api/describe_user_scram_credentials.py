"""DescribeUserScramCredentials, 0: which SCRAM credentials users have, and of how many iterations (KIP-554).

Any broker answers, from ZooKeeper.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from barnabas.api.administration.guarded_writes import as_kafka_error
from barnabas.api.authorization import check_cluster
from barnabas.api.context import RequestContext
from barnabas.coordination.errors import CoordinationError, NoNodeError
from barnabas.coordination.layout.configs import (
    DEFAULT_ENTITY,
    ConfigEntityType,
    EntityConfig,
    config_path,
    config_type_path,
    desanitize,
    sanitize,
)
from barnabas.coordination.layout.payload import LayoutError
from barnabas.coordination.ports import Store
from barnabas.kernel.steps import STEP_ELEMENTS
from barnabas.sasl.scram_mechanisms import ScramCredential, ScramMechanism
from barnabas.security.acls import AclOperation
from barnabas.wire.api_keys import ApiKey
from barnabas.wire.errors import ErrorCode, KafkaError
from barnabas.wire.messages import DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse

Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
Info = DescribeUserScramCredentialsResponse.CredentialInfo
_NO_CREDENTIAL: Final = "Attempt to describe a user credential that does not exist"


class DescribeUserScramCredentialsHandler:
    """Reads what `/config/users` has, and tells all but the keys."""

    api_key = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    versions = (0, 0)

    def __init__(self, store: Store, logger: logging.Logger) -> None:
        self._store = store
        self._logger = logger

    async def handle(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        check_cluster(context, AclOperation.DESCRIBE)
        try:
            results = await (self._named(context, request) if request.users else self._all(context))
        except CoordinationError as error:
            raise as_kafka_error(error, self._logger, "Describing SCRAM credentials") from None
        return DescribeUserScramCredentialsResponse(results=results)

    def error_response(
        self, _context: RequestContext, _request: DescribeUserScramCredentialsRequest, error: KafkaError
    ) -> DescribeUserScramCredentialsResponse:
        return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.detail)

    async def _all(self, context: RequestContext) -> list[Result]:
        """Every user that has a credential, in order."""
        (names,) = await self._store.get_children_names_of_many([config_type_path(ConfigEntityType.USERS)])
        if isinstance(names, NoNodeError):
            return []
        if isinstance(names, CoordinationError):
            raise names
        results: list[Result] = []
        users = sorted((desanitize(name), name) for name in names if name != DEFAULT_ENTITY)
        for start in range(0, len(users), STEP_ELEMENTS):
            if start:
                await context.turn()
            some = users[start : start + STEP_ELEMENTS]
            found = await self._read([name for _, name in some])
            described = (self._described(user, texts) for (user, _), texts in zip(some, found, strict=True))
            results += [result for result in described if result is not None]
        return results

    async def _named(self, context: RequestContext, request: DescribeUserScramCredentialsRequest) -> list[Result]:
        """Each user that is asked for, once, in the order of the request."""
        counts: Counter[str] = Counter()
        asked = request.users or []
        for start in range(0, len(asked), STEP_ELEMENTS):
            if start:
                await context.turn()
            counts.update(user.name for user in asked[start : start + STEP_ELEMENTS])
        names = list(counts)
        results: list[Result] = []
        for start in range(0, len(names), STEP_ELEMENTS):
            if start:
                await context.turn()
            some = names[start : start + STEP_ELEMENTS]
            good = [name for name in some if name and counts[name] == 1]
            found = dict(zip(good, await self._read([sanitize(name) for name in good]), strict=True))
            results += [self._one(name, counts[name], found.get(name, {})) for name in some]
        return results

    def _one(self, name: str, count: int, texts: Mapping[str, str] | None) -> Result:
        if not name:
            return _refused(name, ErrorCode.RESOURCE_NOT_FOUND, "Username must not be empty")
        if count > 1:
            what = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            return _refused(name, ErrorCode.DUPLICATE_RESOURCE, what)
        result = self._described(name, texts)
        return result or _refused(name, ErrorCode.RESOURCE_NOT_FOUND, f"{_NO_CREDENTIAL}: {name}")

    def _described(self, user: str, texts: Mapping[str, str] | None) -> Result | None:
        """None for a user without credentials. One that cannot be read is an error of its user."""
        if texts is None:
            return _refused(user, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR.message)
        infos = []
        for mechanism in ScramMechanism:
            text = texts.get(mechanism.value)
            if text is None:
                continue
            try:
                credential = ScramCredential.decode(mechanism, text)
            except ValueError as error:
                self._logger.error("The credential of the user %r cannot be read: %s", user, error)  # noqa: TRY400
                return _refused(user, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR.message)
            infos.append(Info(mechanism=mechanism.number, iterations=credential.iterations))
        return Result(user=user, credential_infos=infos) if infos else None

    async def _read(self, names: Sequence[str]) -> list[Mapping[str, str] | None]:
        """The configs of users (sanitized); None, which is logged, for a znode that cannot be read."""
        paths = [config_path(ConfigEntityType.USERS, name) for name in names]
        texts: list[Mapping[str, str] | None] = []
        for path, found in zip(paths, await self._store.get_many(paths), strict=True):
            if isinstance(found, NoNodeError):
                texts.append({})
                continue
            if isinstance(found, CoordinationError):
                raise found
            try:
                texts.append(EntityConfig.decode(found.data, path).config)
            except LayoutError:
                # What it says may be a secret.
                self._logger.error("Credentials cannot be read, the znode is no config: %s", path)  # noqa: TRY400
                texts.append(None)
        return texts


def _refused(user: str, code: ErrorCode, message: str) -> Result:
    return Result(user=user, error_code=code, error_message=message)
