"""What an administrator asks for about users: the credentials of SCRAM that brokers keep (KIP-554)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from barnabas.client.admin_calls import AdminCalls
from barnabas.wire import messages
from barnabas.wire.errors import ErrorCode, raise_for_code

if TYPE_CHECKING:
    from barnabas.client.cluster import BrokerNode

_NO_SUCH_USER: Final = frozenset({ErrorCode.RESOURCE_NOT_FOUND})


@dataclass(frozen=True, slots=True)
class UserCredential:
    """That a user can log in by a mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512); there is no way to the password."""

    user: str
    mechanism: int
    iterations: int


@dataclass(frozen=True, slots=True)
class NewCredential:
    """A password, as brokers are told it."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


class UserAdmin(AdminCalls):
    """Calls about users; use it as a context, or `close` it."""

    async def describe_users(
        self, names: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> list[UserCredential]:
        """The credentials of these users, or of all with None, in the order of names; users without any are left
        out.
        """
        user_name = messages.DescribeUserScramCredentialsRequest.UserName
        # None would mean all too, but who may not ask so gets no answer from Apache Kafka: it fails over it.
        users = [user_name(name=name) for name in names or ()]
        request = messages.DescribeUserScramCredentialsRequest(users=users)

        async def ask(node: BrokerNode, attempt_ms: float) -> list[UserCredential]:
            response = await self._client.ask(node, self._lane, request, attempt_ms)
            raise_for_code(response.error_code, f"users: {response.error_message or ''}")
            found: list[UserCredential] = []
            for result in response.results:
                if result.error_code not in _NO_SUCH_USER:
                    raise_for_code(result.error_code, f"user {result.user}: {result.error_message or ''}")
                found += [
                    UserCredential(result.user, info.mechanism, info.iterations) for info in result.credential_infos
                ]
            return sorted(found, key=lambda each: (each.user, each.mechanism))

        return await self._somewhere("describing users", ask, timeout_ms)

    async def set_credentials(self, credentials: Iterable[NewCredential], timeout_ms: float | None = None) -> None:
        """Sets what these users log in with. Nothing of a user is changed where one of its changes is refused."""
        upsertion = messages.AlterUserScramCredentialsRequest.ScramCredentialUpsertion
        await self._alter(
            messages.AlterUserScramCredentialsRequest(
                deletions=[],
                upsertions=[
                    upsertion(
                        name=each.user,
                        mechanism=each.mechanism,
                        iterations=each.iterations,
                        salt=each.salt,
                        salted_password=each.salted_password,
                    )
                    for each in credentials
                ],
            ),
            timeout_ms,
        )

    async def delete_credentials(self, credentials: Iterable[tuple[str, int]], timeout_ms: float | None = None) -> None:
        """Deletes credentials, each of a user and by its mechanism. RESOURCE_NOT_FOUND where there is none; also when
        an attempt of this very call has deleted it and the answer was lost.
        """
        deletion = messages.AlterUserScramCredentialsRequest.ScramCredentialDeletion
        deletions = [deletion(name=user, mechanism=mechanism) for user, mechanism in credentials]
        request = messages.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[])
        await self._alter(request, timeout_ms)

    async def _alter(self, request: messages.AlterUserScramCredentialsRequest, timeout_ms: float | None) -> None:
        def codes(response: Any) -> list[tuple[str, int, str | None]]:
            return [(f"user {each.user}", each.error_code, each.error_message) for each in response.results]

        await self._at_controller("changing users", lambda _broker_ms: request, codes, timeout_ms)
