"""Profiles: names for clusters, each with its brokers and how to log in, in a file of the user's.

    [prod]
    bootstrap-server = "a.example:9092,b.example:9092"
    command-config = "/home/ann/prod.properties"

The file is `$BARNABAS_PROFILES`, or `barnabas/profiles.toml` in the user's directory of configurations. It holds no
secret: these are in the file of the login.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from barnabas.kernel.facts import fact

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

PROFILE_VARIABLE: Final = "BARNABAS_PROFILE"
FILE_VARIABLE: Final = "BARNABAS_PROFILES"
_Command = TypeVar("_Command", bound=Callable[..., Any])
_META: Final = "barnabas.cli.profiles"
_NOT_FOUND: Final = f"{_META}.not_found"
_NAME: Final = r"[A-Za-z0-9._-]{1,64}"
_BYTES_MAX: Final = 1024 * 1024
_MODE: Final = 0o777
_KEYS: Final = {"bootstrap-server": "bootstrap", "command-config": "command_config"}


@fact
class Profile:
    """A cluster: its brokers, and the file of the login, None where it wants none."""

    bootstrap: str
    command_config: str | None = None


class ProfileError(Exception):
    """A file of profiles, or a name, that cannot be used; the message says why."""


def profiles_file() -> Path:
    """Where the profiles are. Raises ProfileError where there is no such place."""
    from pathlib import Path

    if told := os.environ.get(FILE_VARIABLE):
        return Path(told)
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "barnabas" / "profiles.toml"
    except RuntimeError:
        raise ProfileError(f"this user has no home: name the file of profiles by {FILE_VARIABLE}") from None


def read_profiles() -> dict[str, Profile]:
    """All profiles, by name; none where there is no file. Raises ProfileError, and OSError."""
    import tomllib

    path = profiles_file()
    try:
        with path.open("rb") as opened:
            data = opened.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    if len(data) > _BYTES_MAX:
        raise ProfileError(f"{path} is larger than {_BYTES_MAX} bytes: it is no file of profiles")
    try:
        document = tomllib.loads(data.decode())
    except ValueError as error:  # also of what is no UTF-8
        raise ProfileError(f"{path}: {error}") from None
    return {name: _profile(path, name, entry) for name, entry in document.items()}


def write_profiles(profiles: Mapping[str, Profile]) -> None:
    """Replaces the file as a whole; a link to it stays one. Raises ProfileError, and OSError."""
    told = profiles_file()
    path = told.resolve()
    lines: list[str] = []
    for name, profile in sorted(profiles.items()):
        lines.append(f"[{_quoted(name)}]")
        for key, attribute in _KEYS.items():
            if (value := getattr(profile, attribute)) is not None:
                lines.append(f"{key} = {_quoted(value)}")
        lines.append("")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text("\n".join(lines), encoding="utf-8")
        if path.exists():
            beside.chmod(path.stat().st_mode & _MODE)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(told)) from error


def _quoted(text: str) -> str:
    """As a string of TOML. Raises ProfileError for what is no text."""
    import json

    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProfileError(f"{text} is no UTF-8, and cannot be kept in {profiles_file()}") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def check_name(name: str) -> str:
    """The name. Raises ProfileError for one that no profile has."""
    if not re.fullmatch(_NAME, name):
        raise ProfileError(f"{name!r} is no name of a profile: it has letters, digits, '.', '_' and '-', 64 at most")
    return name


def find_profile(name: str) -> Profile:
    """The profile of that name. Raises ProfileError, which says what there is, and OSError."""
    profiles = read_profiles()
    if name in profiles:
        return profiles[name]
    known = ", ".join(sorted(profiles)) or "none yet"
    raise ProfileError(f"there is no profile {name!r} in {profiles_file()}; there are: {known}")


def profile_of_command(context: click.Context) -> Profile | None:
    """What `--profile` of this command names."""
    found: Profile | None = context.meta.get(_META)
    return found


def names_no_profile(context: click.Context) -> bool:
    """Whether `--profile` of this command names one that is not there, or cannot be read."""
    return bool(context.meta.get(_NOT_FOUND))


def is_on_command_line(context: click.Context, parameter: str | None) -> bool:
    """Whether the user has typed the option, and not put it into the environment."""
    return context.get_parameter_source(parameter or "") is click.core.ParameterSource.COMMANDLINE


def _note(bootstrap_variable: str) -> Any:
    def note(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
        if name is None or (not is_on_command_line(context, parameter.name) and os.environ.get(bootstrap_variable)):
            return
        try:
            context.meta[_META] = find_profile(name)
        except (ProfileError, OSError) as error:
            context.meta[_NOT_FOUND] = True  # a shell that completes does not hear of the error
            raise click.BadParameter(str(error), param_hint=f"--profile or {PROFILE_VARIABLE}") from None

    return note


def complete_profiles(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of profiles for the shell."""
    from click.shell_completion import CompletionItem

    try:
        names = sorted(read_profiles())
    except (ProfileError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def profile_option(bootstrap_variable: str) -> Callable[[_Command], _Command]:
    """Gives a command no parameter: `profile_of_command` finds what was named. A profile that only the environment
    names gives way to brokers that the environment names.
    """
    return click.option(
        "--profile",
        envvar=PROFILE_VARIABLE,
        show_envvar=True,
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_note(bootstrap_variable),
        shell_complete=complete_profiles,
        help="Brokers and login as `barnabas profile set` has kept them under this name.",
    )


def _profile(path: Path, name: str, entry: object) -> Profile:
    if not isinstance(entry, dict) or not isinstance(entry.get("bootstrap-server"), str):
        raise ProfileError(f"{path}: profile {name!r} has no bootstrap-server")
    unknown = sorted(set(entry) - set(_KEYS))
    if unknown:
        raise ProfileError(f"{path}: profile {name!r} has {unknown[0]!r}; it may have {' and '.join(_KEYS)}")
    config = entry.get("command-config")
    if config is not None and not isinstance(config, str):
        raise ProfileError(f"{path}: command-config of profile {name!r} is no text")
    return Profile(entry["bootstrap-server"], config)
