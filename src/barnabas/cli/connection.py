"""How a command reaches a cluster: its options, a client for its body, and what an error becomes.

    @click.command(name="list")
    @bootstrap_option
    @json_option
    def list_topics(bootstrap: str, as_json: bool) -> None:
        async def body(client: Client) -> None: ...

        run_with_client(bootstrap, body)

Every error is one line on standard error that begins with the command and says what to do, and an exit status.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from barnabas.cli.command_config import COMMAND_CONFIG_VARIABLE, access_of_command, command_config_option
from barnabas.cli.output import give_up_output, printable
from barnabas.cli.profiles import is_on_command_line, profile_of_command, profile_option

if TYPE_CHECKING:
    from barnabas.cli.command_config import Access
    from barnabas.client.client import Client
    from barnabas.kernel.host import Host
    from barnabas.kernel.real_host import RealHost
    from barnabas.wire.errors import KafkaError

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_PORT: Final = 9092
DEFAULT_BOOTSTRAP_SERVER: Final = f"127.0.0.1:{DEFAULT_PORT}"
"""The first broker of `barnabas up`, when it is told nothing else."""
BOOTSTRAP_VARIABLE: Final = "BARNABAS_BOOTSTRAP_SERVERS"
CONNECT_TIMEOUT_MS: Final = 10_000
"""How long a broker may take to tell who is in the cluster."""
API_TIMEOUT_MS: Final = 30_000
"""How long one call may take, its repetitions included."""
_TOPIC_NAME_LENGTH_MAX: Final = 249
_TOO_LONG: Final = "a string of [0-9]+ bytes; at most [0-9]+ are allowed"


class ExitStatus(enum.IntEnum):
    """What a command ends with."""

    DONE = 0
    FAILED = 1
    """Refused or failed: the cluster, or a file, said no."""
    USAGE = 2
    """The command was written wrongly; nothing was tried."""
    UNREACHABLE = 3
    """No broker can be reached, or no answer came in time."""
    MISSING = 4
    """What was named does not exist: a topic, a partition, a group, a broker, a config, a file."""
    INTERRUPTED = 130
    """Ctrl-C before it was done."""


class CommandError(Exception):
    """Ends a command: one line that says what is wrong and what to do, and the exit status."""

    def __init__(self, message: str, status: ExitStatus = ExitStatus.FAILED) -> None:
        super().__init__(message)
        self.status = status


def with_ports(bootstrap: str) -> str:
    """The addresses, each with Kafka's port where it has none: `host`, `[::1]`."""
    servers = [server.strip() for server in bootstrap.split(",") if server.strip()]
    return ",".join(server if ":" in server.rpartition("]")[2] else f"{server}:{DEFAULT_PORT}" for server in servers)


def _servers(context: click.Context, parameter: click.Parameter, bootstrap: str) -> str:
    profile = profile_of_command(context)
    if profile is not None and not is_on_command_line(context, parameter.name):
        bootstrap = profile.bootstrap
    return with_ports(bootstrap)


addresses_option = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    default=DEFAULT_BOOTSTRAP_SERVER,
    envvar=BOOTSTRAP_VARIABLE,
    show_default=True,
    show_envvar=True,
    metavar="HOST[:PORT][,...]",
    callback=_servers,
    help=f"Some brokers of the cluster; they name the others. The port is {DEFAULT_PORT} where none is given.",
)
"""Gives a command the parameter `bootstrap`, where it cannot log in."""


def bootstrap_option(command: Command) -> Command:
    """Gives a command the parameter `bootstrap`, and lets it be told how to log in, and both by a profile."""
    return addresses_option(command_config_option(_profile_option(command)))


_profile_option = profile_option(BOOTSTRAP_VARIABLE)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
"""Gives a command the parameter `as_json`."""


def run_with_client(
    bootstrap: str,
    body: Callable[[Client], Awaitable[None]],
    *,
    topics: Sequence[str] = (),
    interrupted: ExitStatus = ExitStatus.INTERRUPTED,
) -> NoReturn:
    """Runs `body` with a client that knows the cluster, and of it these topics, and exits with the status of how it
    ended.

    Ctrl-C cancels `body`, which may tidy up, and the status is `interrupted` then. `body` raises CommandError, or lets
    through what the client raises.
    """

    async def on_host(host: RealHost) -> None:
        async with _client(host, bootstrap, topics) as client:
            await body(client)

    run_on_host(on_host, interrupted=interrupted)


def run_on_host(
    body: Callable[[RealHost], Awaitable[None]], *, interrupted: ExitStatus = ExitStatus.INTERRUPTED
) -> NoReturn:
    """Like `run_with_client`, without a client: for commands that need the machine only, or open clients themselves."""

    async def on_host(host: RealHost) -> None:
        await body(host)

    with exiting(interrupted=interrupted):
        on_this_machine(on_host)
    sys.exit(ExitStatus.DONE)


def load_loops() -> None:
    """For who imports the client before the command runs: loops do no TLS here, and OpenSSL takes a while to load."""
    from barnabas.kernel.real_tls import import_loops_without_tls

    import_loops_without_tls()


def ask_cluster(
    bootstrap: str, body: Callable[[Client], Coroutine[Any, Any, Result]], access: Access | None = None
) -> Result:
    """What `body` returns with a client that knows the cluster, for commands that go on with it afterwards. It comes in
    by `access`, or else as the command was told.

    Call it within `exiting`, which has words for what it raises.
    """

    async def on_host(host: RealHost) -> Result:
        async with _client(host, bootstrap) if access is None else _connected(host, bootstrap, access) as client:
            return await body(client)

    return on_this_machine(on_host)


@contextlib.contextmanager
def exiting(*, interrupted: ExitStatus = ExitStatus.INTERRUPTED) -> Iterator[None]:
    """Turns the errors of the block into a line on standard error and the exit status. Goes on after a block that went
    well. What is no error of use, of the cluster or of a file passes as it is: it is a mistake of ours.
    """
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        if interrupted is ExitStatus.INTERRUPTED:
            _complain("interrupted")
        sys.exit(interrupted)
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does.
        give_up_output()
        sys.exit(ExitStatus.DONE)
    except Exception as error:
        status = report(error)
        if status is None:
            raise
        give_up_output()
        sys.exit(status)


def report(error: Exception) -> ExitStatus | None:
    """Writes the line for an error, and returns the status to end with; None, and nothing is written, for an error
    that is a mistake of ours. For commands that go on after an error.
    """
    found = (str(error), error.status) if isinstance(error, CommandError) else _explained(error)
    if found is not None:
        _complain(found[0])
    return None if found is None else found[1]


def on_this_machine(main: Callable[[RealHost], Coroutine[Any, Any, Result]]) -> Result:
    """What `main` returns on the machine's host. It raises what `main` raises."""
    load_loops()

    from barnabas.kernel.real_host import run

    return run(main, name="cli")


@contextlib.asynccontextmanager
async def client_of_command(host: Host, bootstrap: str) -> AsyncIterator[Client]:
    """A client as `run_with_client` has it, for a body that goes on without one too. Raises CommandError with
    UNREACHABLE where no broker answers.
    """
    async with _client(host, bootstrap) as client:
        yield client


@contextlib.asynccontextmanager
async def client_at(host: Host, bootstrap: str, command_config: str | None) -> AsyncIterator[Client]:
    """A client of another cluster than the command's own, which logs in as the file says, and as nobody without one."""
    from barnabas.cli.command_config import Access, read_access

    try:
        access = Access() if command_config is None else read_access(command_config)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--to-command-config") from error
    async with _connected(host, bootstrap, access, "--to") as client:
        yield client


@contextlib.asynccontextmanager
async def _client(host: Host, bootstrap: str, topics: Sequence[str] = ()) -> AsyncIterator[Client]:
    try:
        access = access_of_command()
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"--command-config or {COMMAND_CONFIG_VARIABLE}") from error
    async with _connected(host, bootstrap, access, topics=topics) as client:
        yield client


@contextlib.asynccontextmanager
async def _connected(
    host: Host,
    bootstrap: str,
    access: Access,
    option: str = f"--bootstrap-server or {BOOTSTRAP_VARIABLE}",
    *,
    topics: Sequence[str] = (),
) -> AsyncIterator[Client]:
    import logging

    from barnabas.client.client import Client
    from barnabas.client.errors import ClientTimeoutError
    from barnabas.client.settings import ClientSettings

    servers = tuple(server.strip() for server in bootstrap.split(",") if server.strip())
    try:
        settings = ClientSettings(
            bootstrap_servers=servers,
            client_id="barnabas-cli",
            api_timeout_ms=API_TIMEOUT_MS,
            login=access.login,
            tls=access.tls,
        )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    # What the client logs of its attempts is in the error that it raises when they are in vain.
    logger = logging.getLogger("barnabas.cli")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    client = Client(host, settings, logger)
    # What cannot be sent is no topic's name; who asks for it by itself has words for that.
    client.metadata.use(*(name for name in topics if name.isascii() and len(name) <= _TOPIC_NAME_LENGTH_MAX))
    try:
        try:
            await client.start(CONNECT_TIMEOUT_MS)
        except ClientTimeoutError as error:
            raise CommandError(_unreachable(servers, error, option), ExitStatus.UNREACHABLE) from error
        yield client
    finally:
        await client.close()


def _unreachable(servers: tuple[str, ...], error: BaseException, option: str) -> str:
    reason = str(error.__cause__ or error).removeprefix("no broker answers: ")
    several = "any of " if len(servers) > 1 else ""
    return (
        f"no broker answers at {several}{', '.join(servers)} ({reason}); start one with `barnabas up`, or name others "
        f"with {option}"
    )


def _explained(error: Exception) -> tuple[str, ExitStatus] | None:
    """The line and the status for an error; None for what is a mistake of ours."""
    from barnabas.client.errors import ClientTimeoutError, NoBrokerError
    from barnabas.link.errors import AuthenticationFailedError, RequestTimeoutError, UnsupportedVersionError
    from barnabas.wire.errors import KafkaError
    from barnabas.wire.primitives import EncodeError, ProtocolError

    match error:
        case EncodeError():
            return _of_what_was_given(error)
        case KafkaError():
            return _of_kafka(error)
        case UnsupportedVersionError():
            return f"{error}; the broker is too old for this command, or too new", ExitStatus.FAILED
        case ClientTimeoutError() | RequestTimeoutError() | TimeoutError():
            return (
                f"{str(error) or 'no answer came in time'}; check that all brokers are running",
                ExitStatus.UNREACHABLE,
            )
        case AuthenticationFailedError():
            return f"{error}; check --command-config or {COMMAND_CONFIG_VARIABLE}", ExitStatus.FAILED
        case NoBrokerError() | ConnectionError():
            return f"{error}; check that all brokers are running", ExitStatus.UNREACHABLE
        case ProtocolError():
            return f"the answer makes no sense: {error}; is that the address of a Kafka broker?", ExitStatus.FAILED
        case FileExistsError(filename=str() as name):
            return f"{name}: there is such a file already; choose another name, or remove it", ExitStatus.FAILED
        case FileNotFoundError():
            return f"{error.filename}: there is no such file or directory", ExitStatus.MISSING
        case OSError(filename=str() as name, strerror=str() as reason):
            return f"{name}: {reason}", ExitStatus.FAILED
        case OSError(errno=errno.EBADF):
            return "the output cannot be written: standard output is closed", ExitStatus.FAILED
        case OSError():
            return f"the output cannot be written: {error.strerror or error}", ExitStatus.FAILED
    return None


def _of_what_was_given(error: Exception) -> tuple[str, ExitStatus] | None:
    """Of a request that cannot be written: a name that no cluster has. None where it is no name."""
    cause = error.__cause__
    if isinstance(cause, UnicodeEncodeError):
        return f"{cause.object} is no UTF-8, and so no name that a cluster could have", ExitStatus.USAGE
    found = re.search(_TOO_LONG, str(error))
    return None if found is None else (f"{found[0]}, of a name too", ExitStatus.USAGE)


def _of_kafka(error: KafkaError) -> tuple[str, ExitStatus]:
    from barnabas.wire.errors import ErrorCode

    missing = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
    }
    message = error.code.message if error.detail is None else error.detail
    if error.detail is not None:
        what, _, words = error.detail.partition(": ")
        # Only what it is about; a broker's own words are behind a colon. Of what it refuses, Apache Kafka says nothing
        # there, or shows the object in its memory.
        if not words.strip() or words.startswith("Request Request("):
            message = f"{what.rstrip(': ')}: {error.code.message}"
    status = ExitStatus.MISSING if error.code in missing else ExitStatus.FAILED
    return f"{message.rstrip('. ')} ({error.code.name})", status


def _complain(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    click.echo(f"{click.get_current_context().command_path}: {printable(message)}", err=True)
