"""How shells complete what follows `barnabas`: the scripts that they load, and what the command answers to these.

A script gives the line up to the cursor, and gets a line for each completion (zsh: three), which says how it is meant:
`plain`, `part` (more follows, and no space), `file` or `dir`. What it is asked ends within `SECONDS_MAX`, whatever does
not answer: a shell waits for it, with the user.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any, ClassVar, Final

from click.shell_completion import CompletionItem, ShellComplete, add_completion_class

from barnabas.cli.typed_line import Quote, TypedLine, read_line

PROGRAM: Final = "barnabas"
VARIABLE: Final = "_BARNABAS_COMPLETE"
LINE_VARIABLE: Final = "_BARNABAS_LINE"
BREAKS_VARIABLE: Final = "_BARNABAS_BREAKS"
SECONDS_MAX: Final = 3.0
"""A cluster has one second to answer (`connection.COMPLETION_TIMEOUT_MS`); the rest is for a machine that is busy."""
_OPTION_WITH_VALUE: Final = re.compile("--?[A-Za-z0-9-]+=")
_PART_ENDS: Final = (":", "=")
_NEEDS_BACKSLASH: Final = re.compile(r"[^\w@%+=:,./-]")
_HISTORY: Final = "!"
_NEEDS_BACKSLASH_WITHIN_QUOTES: Final = re.compile(r'[\\"$`]')


class _Shell(ShellComplete):
    """Completes the words of a line, and keeps `--option=` ahead of values."""

    breaks = ""
    """The characters that break words in this shell."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.line = TypedLine()

    def get_completion_args(self) -> tuple[list[str], str]:
        self.line = read_line(os.environ.get(LINE_VARIABLE, ""), self.breaks)
        return self.line.words[1:], self.line.incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        if self.line.is_redirection:
            return [CompletionItem(incomplete, type="file")]
        found = super().get_completions(args, incomplete)
        option = _OPTION_WITH_VALUE.match(incomplete)
        if option is not None and "--" not in args:
            for item in found:
                item.value = option[0] + item.value
        for item in found:
            if item.type == "plain" and item.value.endswith(_PART_ENDS):
                item.type = "part"
        return found


class Bash(_Shell):
    """Bash takes what it is given as it is, quotes and all, in the place of what is behind the last break."""

    name = "bash"
    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local answer kind value
    COMPREPLY=()
    while IFS= read -r answer; do
        kind=${answer%%%%,*}
        value=${answer#*,}
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            part) COMPREPLY+=("$value"); compopt -o nospace ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(
        _BARNABAS_LINE="${COMP_LINE:0:COMP_POINT}" _BARNABAS_BREAKS="$COMP_WORDBREAKS" \\
            %(complete_var)s=bash_complete "${1/#\\~/$HOME}" 2> /dev/null
    )
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    @property
    def breaks(self) -> str:  # type: ignore[override]
        return os.environ.get(BREAKS_VARIABLE, "")

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        for item in found:
            if item.type in ("plain", "part"):
                item.value = self._inserted(item.value)
        return [item for item in found if item.value is not None]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value}"

    def _inserted(self, value: str) -> str | None:
        """What stands for it in the place of what bash takes for the word; None for what cannot be written there."""
        value = value.removeprefix(self.line.stem)
        if self.line.quote is Quote.NONE:
            return _NEEDS_BACKSLASH.sub(r"\\\g<0>", value)
        if self.line.quote is Quote.DOUBLE:
            if _HISTORY in value:  # there it stands for an earlier command, whatever is before it
                return None
            return _NEEDS_BACKSLASH_WITHIN_QUOTES.sub(r"\\\g<0>", value)
        return None if Quote.SINGLE.value in value else value


class Zsh(_Shell):
    """Zsh quotes by itself."""

    name = "zsh"
    source_template: ClassVar[str] = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a answers plain parts described
    local kind value help
    answers=("${(@f)$(_BARNABAS_LINE="${words[1,CURRENT]}" %(complete_var)s=zsh_complete ${~words[1]} 2> /dev/null)}")
    for kind value help in "${(@)answers}"; do
        case $kind in
            plain) [[ -z $help ]] && plain+=("$value") || described+=("${${value//\\\\/\\\\\\\\}//:/\\\\:}:$help") ;;
            part) parts+=("$value") ;;
            file) _files ;;
            dir) _files -/ ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V unsorted -a plain
    (( $#parts )) && compadd -U -V unsorted -S '' -a parts
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

    def format_completion(self, item: CompletionItem) -> str:
        help_line = " ".join((item.help or "").split())
        return f"{item.type}\n{item.value}\n{help_line}"


class Fish(_Shell):
    """Fish quotes by itself, and adds no space behind a colon."""

    name = "fish"
    source_template: ClassVar[str] = """\
function %(complete_func)s
    for answer in (_BARNABAS_LINE=(commandline -cp | string collect) %(complete_var)s=fish_complete \\
            %(prog_name)s 2> /dev/null)
        set -l parts (string split --max 1 "," -- $answer)
        switch $parts[1]
            case plain part
                echo $parts[2]
            case file
                __fish_complete_path (commandline -ct)
            case dir
                __fish_complete_directories (commandline -ct)
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""

    def format_completion(self, item: CompletionItem) -> str:
        help_line = " ".join((item.help or "").split())
        return f"{item.type},{item.value}\t{help_line}" if help_line else f"{item.type},{item.value}"


SHELLS: Final[dict[str, type[_Shell]]] = {shell.name: shell for shell in (Bash, Zsh, Fish)}


def begin_completion() -> None:
    """Has click answer these scripts, and this process end in time, also where something does not let it: a name
    service, a file system, whatever waits for them at the end of a process.
    """
    for shell in SHELLS.values():
        add_completion_class(shell)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
