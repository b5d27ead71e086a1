"""How ACLs are written on the command line and shown: resources, operations, and what producers and consumers need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from barnabas.cli.completed_names import complete_groups, complete_topics, complete_transactional_ids, complete_users
from barnabas.cli.output import Column, Mark, Marked
from barnabas.security.acls import (
    CLUSTER_NAME,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from barnabas.client.acl_admin import Acl

    _ResourceType = click.ParamType[ResourcePattern]
else:
    _ResourceType = click.ParamType

KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "token": ResourceType.DELEGATION_TOKEN,
    "user": ResourceType.USER,
}
FORMS: Final = "topic:NAME, group:NAME, transactional-id:NAME, token:ID, user:NAME or cluster"
_COMPLETED: Final = {
    "topic": complete_topics,
    "group": complete_groups,
    "transactional-id": complete_transactional_ids,
    "user": complete_users,
}
_WORDS: Final = {kind: word for word, kind in KINDS.items()}
_OF_KIND: Final = {
    ResourceType.TOPIC: (
        *(AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER),
        *(AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE),
    ResourceType.CLUSTER: (
        *(AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION),
        *(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE),
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE, AclOperation.DESCRIBE),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations that brokers ask about, by the type of the resource; each type has ALL besides."""
OPERATIONS: Final = {
    operation.name.lower().replace("_", "-"): operation
    for operation in AclOperation
    if operation not in (AclOperation.UNKNOWN, AclOperation.ANY)
}
COLUMNS: Final = (
    Column("Resource", "resource"),
    Column("Pattern", "pattern"),
    Column("Principal", "principal"),
    Column("Host", "host"),
    Column("Permission", "permission"),
    Column("Operation", "operation"),
)


class ResourceArgument(_ResourceType):
    """An argument that is a resource, as a literal pattern."""

    name = "resource"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ResourcePattern:
        if isinstance(value, ResourcePattern):
            return value
        word, colon, name = str(value).partition(":")
        kind = KINDS.get(word)
        if kind is ResourceType.CLUSTER and name in ("", CLUSTER_NAME):
            return ResourcePattern(kind, CLUSTER_NAME)
        if kind is None or kind is ResourceType.CLUSTER or not colon or not name:
            self.fail(f"{value!r} is no resource of ACLs: write {FORMS}", param, ctx)
        return ResourcePattern(kind, name)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The types, and behind `topic:` and the like the names that there are."""
        from click.shell_completion import CompletionItem

        for word, complete in _COMPLETED.items():
            prefix = f"{word}:"
            if incomplete.startswith(prefix):
                found = complete(ctx, param, incomplete.removeprefix(prefix))
                return [CompletionItem(prefix + each.value) for each in found]
        forms = [word if kind is ResourceType.CLUSTER else f"{word}:" for word, kind in KINDS.items()]
        return [CompletionItem(form) for form in forms if form.startswith(incomplete)]


def check_principal_name(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    """Principals are `TYPE:NAME`. Raises click.BadParameter."""
    for each in (value,) if isinstance(value, str) else value or ():
        kind, colon, name = each.partition(":")
        if not (kind and colon and name):
            raise click.BadParameter(f"a principal is written TYPE:NAME, such as User:alice, and not {each!r}")
    return value


def check_operation(operation: AclOperation, kind: ResourceType) -> None:
    """Raises click.BadParameter for what no broker asks about a resource of this type."""
    fitting = _OF_KIND[kind]
    if operation is not AclOperation.ALL and operation not in fitting:
        known = ", ".join([*map(word_of, fitting), word_of(AclOperation.ALL)])
        raise click.BadParameter(f"a {_WORDS[kind]} has no {word_of(operation)}: it has {known}")


def wanted_by_clients(
    resources: Sequence[ResourcePattern], *, is_producer: bool, is_consumer: bool, is_idempotent: bool
) -> list[tuple[ResourcePattern, AclOperation]]:
    """What producers and consumers of these resources need, as `kafka-acls --producer` and `--consumer` have it.

    Raises click.UsageError where a resource is missing or of no use.
    """
    kinds = {resource.resource_type for resource in resources}
    fitting = {ResourceType.TOPIC}
    if is_producer:
        fitting.add(ResourceType.TRANSACTIONAL_ID)
    if is_consumer:
        fitting.add(ResourceType.GROUP)
    if ResourceType.TOPIC not in kinds:
        raise click.UsageError("--producer and --consumer are about topics: name at least one, as topic:NAME")
    if is_consumer and ResourceType.GROUP not in kinds:
        raise click.UsageError("--consumer is about a group too: name it, as group:NAME; group:* is every group")
    if kinds - fitting:
        other = next(resource for resource in resources if resource.resource_type not in fitting)
        raise click.UsageError(f"{spoken(other)} is nothing that --producer or --consumer is about")
    found: list[tuple[ResourcePattern, AclOperation]] = []
    for resource in resources:
        match resource.resource_type:
            case ResourceType.TOPIC:
                wanted = [AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE] if is_producer else []
                wanted += [AclOperation.READ, AclOperation.DESCRIBE] if is_consumer else []
            case ResourceType.TRANSACTIONAL_ID:
                wanted = [AclOperation.WRITE, AclOperation.DESCRIBE]
            case _:
                wanted = [AclOperation.READ]
        found += [(resource, operation) for operation in wanted]
    if is_idempotent:
        cluster = ResourcePattern(ResourceType.CLUSTER, CLUSTER_NAME)
        found.append((cluster, AclOperation.IDEMPOTENT_WRITE))
    return list(dict.fromkeys(found))


def word_of(member: AclOperation | AclPermissionType | PatternType) -> str:
    """As it is written here: `describe-configs`."""
    return member.name.lower().replace("_", "-")


def spoken(pattern: ResourcePattern) -> str:
    """As it is written here: `topic:flights`."""
    word = _WORDS.get(pattern.resource_type, "unknown")
    return word if pattern.resource_type is ResourceType.CLUSTER else f"{word}:{pattern.name}"


def pattern_of(acl: Acl) -> ResourcePattern:
    """What an ACL is about."""
    return ResourcePattern(ResourceType(acl.resource_type), acl.resource_name or "", PatternType(acl.pattern_type))


def row(acl: Acl) -> list[object]:
    """Its cells."""
    permission = AclPermissionType(acl.permission_type)
    return [
        spoken(pattern_of(acl)),
        word_of(PatternType(acl.pattern_type)),
        acl.principal,
        acl.host,
        Marked(word_of(permission), Mark.BAD if permission is AclPermissionType.DENY else Mark.GOOD),
        word_of(AclOperation(acl.operation)),
    ]


def document(acl: Acl) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "resource_type": ResourceType(acl.resource_type).name.lower(),
        "resource_name": acl.resource_name,
        "pattern_type": PatternType(acl.pattern_type).name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": AclOperation(acl.operation).name.lower(),
        "permission": AclPermissionType(acl.permission_type).name.lower(),
    }


def documents(acls: Iterable[Acl]) -> list[dict[str, Any]]:
    """As JSON has them."""
    return [document(acl) for acl in acls]
