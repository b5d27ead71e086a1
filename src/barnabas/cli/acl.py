"""`barnabas acl`: who may do what with which topics, groups and the like."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from barnabas.cli.acl_words import (
    COLUMNS,
    FORMS,
    OPERATIONS,
    ResourceArgument,
    check_operation,
    check_principal_name,
    documents,
    row,
    spoken,
    wanted_by_clients,
    word_of,
)
from barnabas.cli.completed_names import complete_principals
from barnabas.cli.connection import CommandError, bootstrap_option, json_option, load_loops, run_with_client
from barnabas.cli.output import Column, counted, print_json, print_table, say, shown
from barnabas.security.acls import (
    WILDCARD_HOST,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourcePattern,
    ResourceType,
)

if TYPE_CHECKING:
    from barnabas.client.acl_admin import Acl, AclAdmin
    from barnabas.client.client import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])
_resources = click.argument("resources", metavar="[RESOURCE]...", nargs=-1, type=ResourceArgument())
_operation_type = click.Choice(list(OPERATIONS), case_sensitive=False)


def _filter_options(function: _Command) -> _Command:
    """Options that pick ACLs."""
    options = (
        click.option(
            "--principal",
            metavar="TYPE:NAME",
            callback=check_principal_name,
            shell_complete=complete_principals,
            help="Of this principal.",
        ),
        click.option("--host", metavar="ADDRESS", help="For this address; * is what holds for all."),
        click.option("--operation", type=_operation_type, help="About this operation."),
        click.option("--allow", "permission", flag_value="allow", help="Only what allows."),
        click.option("--deny", "permission", flag_value="deny", help="Only what denies."),
        click.option("--prefixed", is_flag=True, help="RESOURCE is a prefix of names, as it was added."),
        click.option("--matching", is_flag=True, help="All that hold for RESOURCE: by name, by prefix, and for all."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group(name="acl", epilog=f"RESOURCE is {FORMS}. topic:* is every topic.")
def command() -> None:
    """Show and change who may do what.

    An ACL allows or denies a principal one operation, from one address or all, with one resource or all whose names
    begin alike. What denies is stronger; what nothing allows is not permitted.
    """


@command.command(name="list")
@_resources
@_filter_options
@bootstrap_option
@json_option
def list_acls(resources: tuple[ResourcePattern, ...], bootstrap: str, as_json: bool, **picked: Any) -> None:
    """Show the ACLs, or those of resources, a principal, an operation."""
    filters = _filters(resources, picked)

    async def body(client: Client) -> None:
        found = await _described(client, filters)
        if as_json:
            print_json({"acls": documents(found)})
        elif found:
            print_table(COLUMNS, [row(acl) for acl in found])
        else:
            say("There is no such ACL." if resources or any(picked.values()) else "There is no ACL.")

    run_with_client(bootstrap, body)


@command.command(name="add")
@click.argument("resources", metavar="RESOURCE...", nargs=-1, required=True, type=ResourceArgument())
@click.option(
    "--principal",
    "principals",
    metavar="TYPE:NAME",
    shell_complete=complete_principals,
    multiple=True,
    required=True,
    callback=check_principal_name,
    help="Who, such as User:alice; User:* is everybody.",
)
@click.option("--host", "hosts", metavar="ADDRESS", multiple=True, help="From where.  [default: everywhere]")
@click.option("--operation", "operations", type=_operation_type, multiple=True, help="What.")
@click.option("--producer", is_flag=True, help="All that a producer to topics needs: write, describe, create.")
@click.option("--idempotent", is_flag=True, help="With --producer, for brokers before 2.8: idempotent-write.")
@click.option("--consumer", is_flag=True, help="All that a consumer of topics in a group needs: read, describe.")
@click.option("--deny", is_flag=True, help="Deny it, instead of allowing it.")
@click.option("--prefixed", is_flag=True, help="RESOURCE is the beginning of names: all that begin so.")
@click.option("--dry-run", is_flag=True, help="Show what would be added, and add nothing.")
@bootstrap_option
@json_option
def add(
    resources: tuple[ResourcePattern, ...],
    principals: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[str, ...],
    bootstrap: str,
    as_json: bool,
    **flags: bool,
) -> None:
    """Add ACLs: each operation on each resource, for each principal from each address."""
    acls = _wanted(resources, principals, hosts or (WILDCARD_HOST,), operations, flags)
    is_dry_run = flags["dry_run"]

    async def body(client: Client) -> None:

        async with _acls(client) as admin:
            known = {
                acl for pattern in {_of_pattern(acl) for acl in acls} for acl in await admin.describe_acls(pattern)
            }
            fresh = [acl for acl in acls if acl not in known]
            if fresh and not is_dry_run:
                await admin.create_acls(fresh)
        if as_json:
            old = [acl for acl in acls if acl in known]
            print_json({"is_dry_run": is_dry_run, "added": documents(fresh), "existing": documents(old)})
            return
        columns = (*COLUMNS, Column("State", "state"))
        print_table(columns, [[*row(acl), "there already" if acl in known else "new"] for acl in acls])
        if is_dry_run:
            say("Nothing was added: that was a dry run.")

    run_with_client(bootstrap, body)


@command.command(name="remove")
@_resources
@_filter_options
@click.option("--all", "is_all", is_flag=True, help="All ACLs of the cluster.")
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@bootstrap_option
@json_option
def remove(
    resources: tuple[ResourcePattern, ...], is_all: bool, execute: bool, bootstrap: str, as_json: bool, **picked: Any
) -> None:
    """Show which ACLs would go, and with --execute remove them: those that `acl list` shows for the same options."""
    if (bool(resources) or any(picked.values())) is is_all:
        raise click.UsageError("say which ACLs: by RESOURCE, --principal, --host, --operation; or --all")
    filters = _filters(resources, picked)

    async def body(client: Client) -> None:
        found = await _described(client, filters)
        if execute and found:
            async with _acls(client) as admin:
                # What was shown: what somebody adds meanwhile stays.
                found = await admin.delete_acls(found)
        if as_json:
            print_json({"is_executed": execute, "removed": documents(found)})
            return
        if found:
            print_table(COLUMNS, [row(acl) for acl in found])
        if not found:
            say("There is no such ACL.")
        elif execute:
            say(f"{counted(len(found), 'ACL')} removed.")
        else:
            say(f"Nothing was removed: add --execute to remove {counted(len(found), 'ACL')}.")

    run_with_client(bootstrap, body)


@command.command(name="check")
@click.argument("principal", metavar="TYPE:NAME", callback=check_principal_name, shell_complete=complete_principals)
@click.argument("operation", metavar="OPERATION", type=_operation_type)
@click.argument("resource", metavar="RESOURCE", type=ResourceArgument())
@click.option("--host", metavar="ADDRESS", help="From this address.  [default: one that no ACL names]")
@bootstrap_option
@json_option
def check(
    principal: str, operation: str, resource: ResourcePattern, host: str | None, bootstrap: str, as_json: bool
) -> None:
    """Tell whether the ACLs let a principal do it, and which of them decide. Ends with 0 if so, else with 1.

    Brokers tell nobody who their super users are, and what they permit where no ACL is about a resource
    (allow.everyone.if.no.acl.found): that is for server.properties to say.
    """
    wanted = OPERATIONS[operation.lower()]
    check_operation(wanted, resource.resource_type)

    async def body(client: Client) -> None:
        from barnabas.cli.acl_decision import decide
        from barnabas.client.acl_admin import Acl

        async with _acls(client) as admin:
            covering = await admin.describe_acls(
                Acl(int(resource.resource_type), resource.name, int(PatternType.MATCH))
            )
        decision = decide(covering, principal, host, wanted, resource)
        what = f"{shown(principal)} {word_of(wanted)} {shown(spoken(resource))}"
        if as_json:
            print_json(
                {
                    "is_allowed": decision.is_allowed,
                    "reason": decision.reason.value,
                    "acls": documents(decision.deciding),
                    "elsewhere": documents(decision.elsewhere),
                }
            )
        else:
            click.echo("allowed" if decision.is_allowed else "not allowed")
            if decision.deciding:
                print_table(COLUMNS, [row(acl) for acl in decision.deciding])
            if decision.is_allowed:
                say(decision.said(what))
        if not decision.is_allowed:
            raise CommandError(decision.said(what))

    run_with_client(bootstrap, body)


# Inside.


@contextlib.asynccontextmanager
async def _acls(client: Client) -> AsyncIterator[AclAdmin]:
    from barnabas.client.acl_admin import AclAdmin
    from barnabas.wire.errors import ErrorCode, KafkaError

    try:
        async with AclAdmin(client) as admin:
            yield admin
    except KafkaError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            raise CommandError(
                "the brokers have no authorizer, so that everybody may do everything; set authorizer.class.name in "
                "their server.properties (SECURITY_DISABLED)"
            ) from None
        raise


def _filters(resources: Sequence[ResourcePattern], picked: dict[str, Any]) -> list[Acl]:
    """One for each resource, or one for all. Raises click.UsageError."""
    load_loops()
    from barnabas.client.acl_admin import Acl

    if picked["prefixed"] and picked["matching"]:
        raise click.UsageError("--prefixed or --matching, not both")
    if (picked["prefixed"] or picked["matching"]) and not resources:
        raise click.UsageError("--prefixed and --matching are about RESOURCE: name one")
    pattern_type = (
        PatternType.PREFIXED if picked["prefixed"] else PatternType.MATCH if picked["matching"] else PatternType.LITERAL
    )
    operation = AclOperation.ANY if picked["operation"] is None else OPERATIONS[picked["operation"].lower()]
    permission = AclPermissionType.ANY if picked["permission"] is None else AclPermissionType.of(picked["permission"])
    rest = (picked["principal"], picked["host"], int(operation), int(permission))
    if not resources:
        return [Acl(1, None, int(PatternType.ANY), *rest)]
    return [Acl(int(each.resource_type), each.name, int(pattern_type), *rest) for each in dict.fromkeys(resources)]


async def _described(client: Client, filters: Sequence[Acl]) -> list[Acl]:
    async with _acls(client) as admin:
        return sorted({acl for each in filters for acl in await admin.describe_acls(each)})


def _wanted(
    resources: Sequence[ResourcePattern],
    principals: Sequence[str],
    hosts: Sequence[str],
    operations: Sequence[str],
    flags: dict[str, bool],
) -> list[Acl]:
    """The ACLs to be there. Raises click.UsageError and click.BadParameter."""
    load_loops()
    from barnabas.client.acl_admin import Acl

    for_clients = flags["producer"] or flags["consumer"]
    if bool(operations) is for_clients:
        raise click.UsageError("name what is meant: --operation, or --producer, --consumer or both of these")
    if for_clients and flags["deny"]:
        raise click.UsageError("--producer and --consumer allow; deny single operations, by --operation")
    if flags["idempotent"] and not flags["producer"]:
        raise click.UsageError("--idempotent goes with --producer")
    if for_clients:
        pairs = wanted_by_clients(
            resources,
            is_producer=flags["producer"],
            is_consumer=flags["consumer"],
            is_idempotent=flags["idempotent"],
        )
    else:
        pairs = [(resource, OPERATIONS[each.lower()]) for resource in resources for each in operations]
        for resource, operation in pairs:
            check_operation(operation, resource.resource_type)
    permission = AclPermissionType.DENY if flags["deny"] else AclPermissionType.ALLOW
    found = []
    for resource, operation in pairs:
        is_prefixed = flags["prefixed"] and resource.resource_type is not ResourceType.CLUSTER
        pattern_type = PatternType.PREFIXED if is_prefixed else PatternType.LITERAL
        if "/" in resource.name:
            # Brokers keep it in ZooKeeper, where that would be two nodes.
            raise click.BadParameter(f"the name of a resource of ACLs has no slash, but {shown(resource.name)} has")
        found += [
            Acl(
                int(resource.resource_type),
                resource.name,
                int(pattern_type),
                who,
                host,
                int(operation),
                int(permission),
            )
            for who in principals
            for host in hosts
        ]
    return list(dict.fromkeys(found))


def _of_pattern(acl: Acl) -> Acl:
    """All ACLs of the same pattern."""
    return type(acl)(acl.resource_type, acl.resource_name, acl.pattern_type)
