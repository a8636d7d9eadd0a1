"""How a command ends: its exit code, and the one line on stderr that says what went wrong.

    exit code  when
    0          done
    1          failed: the store, a stream, the operating system or the data says no
    2          wrong usage; also a destructive verb that has nobody to ask and no --force
    3          `jstream mirror`: the source is no longer what was mirrored
    130        interrupted (Ctrl-C), quietly
    143        `jstream etl run`: SIGTERM ended it before all was read
    141        whoever read our output has closed it (`| head`), quietly

Nobody ever sees a traceback: what we did not foresee is one line too, and JSTREAM_TRACEBACK=1 shows where it was.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo

from spark_stream.cli.front_options import in_front
from spark_stream.cli.interrupts import EXIT_INTERRUPTED, begin
from spark_stream.look.terminal import naming_stdout

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_CLOSED_PIPE = 0, 1, 2, 141

# Verbs whose product is what they print: they fail where nobody can get it. Others have done what they are for.
PRINTING = frozenset(
    ("check", "dump", "events", "export", "find", "gaps", "get", "info", "ls", "metrics", "next", "report", "status",
     "sub", "subjects", "view")
)  # fmt: skip

HELP, VERSION = "help", "version"  # words that many put where options are meant: `jstream help stream add`
ALIASES = {"del": "rm", "list": "ls", "show": "info"}  # as the command line of NATS has them

NUMBER_MAX = 2**63 - 1
SENTENCE_MAX = 400  # letters, of the help of a command

PROGRAM = "jstream"
COMPLETION_VARIABLE = "_JSTREAM_COMPLETE"  # set by a shell that wants to know how a line may go on

# Whatever the parser of the command line raises derives from this class. Typer has moved it about (Click's own, then
# a copy inside Typer), while BadParameter has stayed where it is.
_PARSER_ERROR: type[Any] = typer.BadParameter.__mro__[2]


class CommandFailed(Exception):
    """A command's own refusal: exit code 1 and this text."""


class WrongUsage(Exception):
    """The command line asks for something that makes no sense: exit code 2 and this text."""


class ClosedStdout(io.TextIOWrapper):
    """Stands for a stdout that was closed before the process began: takes everything, or nothing once it `refuses`."""

    def __init__(self) -> None:
        self._nowhere = _Nowhere()
        super().__init__(self._nowhere, "utf-8", write_through=True)  # type: ignore[arg-type]

    def refuse(self) -> None:
        """Fail every write from here on."""
        self._nowhere.refuses = True


class _Nowhere(io.RawIOBase):
    def __init__(self) -> None:
        self.refuses = False
        self._descriptor = os.open(os.devnull, os.O_WRONLY)  # no file of a store gets its number

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        if self.refuses:
            raise OSError(errno.EBADF, "closed: the output of this command would be lost", "standard output")
        return len(data)


class VerbGroup(TyperGroup):
    """Commands under one word; a word that is none of them is answered with the nearest.

    Each verb is built when it is used: the options of all the others would be a good part of a start.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._verbs: dict[str, CommandInfo] = {}

    def take_verbs(self, verbs: Sequence[CommandInfo]) -> None:
        """Take functions as further commands; they come first in the list of all."""
        self._verbs = {str(verb.name): verb for verb in verbs}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self._verbs, *(name for name in super().list_commands(ctx) if name not in self._verbs)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in self._verbs:
            alone = typer.Typer(rich_markup_mode=None, add_completion=False)
            alone.registered_commands = [self._verbs[cmd_name]]
            self.commands[cmd_name] = typer.main.get_command(alone)
        return super().get_command(ctx, cmd_name)

    def get_params(self, ctx: Any) -> Any:
        return _prepared(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each command: all of its first sentence, where Typer cuts it off."""
        commands: list[tuple[str, Any]] = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(SENTENCE_MAX)) for name, command in commands])

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            print(self.get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        verbs = self.list_commands(ctx)
        if args[0] == HELP:
            args = [*args[1:], f"--{HELP}"]
            if len(args) == 1:
                print(self.get_help(ctx))
                ctx.exit()
        if args[0] not in verbs and ALIASES.get(args[0]) in verbs:
            args = [ALIASES[args[0]], *args[1:]]
        if args[0] not in verbs and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise WrongUsage(f"no such command: {args[0]}{nearest(args[0], verbs)}{_help_hint(ctx)}")
        name, command, arguments = super().resolve_command(ctx, args)
        if command is not None:
            _prepared(command.get_params(ctx))
        if name in PRINTING and isinstance(sys.stdout, ClosedStdout):
            sys.stdout.refuse()
        return name, command, arguments


class RootGroup(VerbGroup):
    """The root of all commands: runs one and exits with its code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        if os.environ.get(COMPLETION_VARIABLE):
            self._complete(extra)
        words = list(sys.argv[1:] if args is None else args)
        words = [f"--{VERSION}"] if words == [VERSION] else words
        sys.exit(self._run(words, **extra))

    def _complete(self, extra: dict[str, Any]) -> NoReturn:
        """Answer a shell's question how its line may go on."""
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
        self._main_shell_completion(extra, PROGRAM, COMPLETION_VARIABLE)
        sys.exit(EXIT_DONE)

    def _run(self, words: list[str], **extra: Any) -> int:
        """Return the exit code of the command that `words` name; its complaint has been printed then."""
        try:
            begin()
            try:
                with self.make_context(PROGRAM, in_front(words), **extra) as context:
                    self.invoke(context)
            finally:
                with naming_stdout():
                    sys.stdout.flush()
        except typer.Exit as stop:
            return stop.exit_code
        except (KeyboardInterrupt, typer.Abort):
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            _discard_stdout()
            return EXIT_CLOSED_PIPE
        except Exception as error:
            code, text = _verdict(error)
            _complain(text)
            if code == EXIT_FAILED and os.environ.get("JSTREAM_TRACEBACK"):
                raise
            _discard_stdout_if_broken()
            return code
        return EXIT_DONE


def nearest(name: str, names: Sequence[str]) -> str:
    """Return `; did you mean 'x'?` for the closest of `names`, or nothing if none is close."""
    from storage_core.suggestions import did_you_mean  # what is spelled right starts without the storage

    return did_you_mean(name, names)


def explain(error: Exception) -> str:
    """Return what an error says, as it is printed."""
    return _operating_system(error) if isinstance(error, OSError) else str(error) or type(error).__name__


def _verdict(error: Exception) -> tuple[int, str]:
    """Return the exit code and the text for an error."""
    if isinstance(error, _PARSER_ERROR):
        return _parser_verdict(error)
    if isinstance(error, WrongUsage):
        return EXIT_USAGE, str(error)

    from storage_core.errors import StorageError  # not needed, and not paid for, by whoever mistypes an option

    coded = error.__cause__ if isinstance(error, CommandFailed) else error
    if isinstance(coded, StorageError):  # what is a ValueError, too, is wrong words in a file
        return EXIT_USAGE if isinstance(coded, ValueError) else EXIT_FAILED, f"[{coded.code}] {explain(error)}"
    if isinstance(error, (CommandFailed, OSError)):
        return EXIT_FAILED, explain(error)
    if isinstance(error, UnicodeEncodeError):
        return EXIT_USAGE, f"{error.object!a} is not UTF-8"
    # Arrow's errors derive from ValueError too, and say nothing about the words of the command line.
    if isinstance(error, ValueError) and not type(error).__module__.startswith("pyarrow"):
        return EXIT_USAGE, str(error)
    if "pyspark" in sys.modules:
        from spark_stream.pipelines.failures import SPARK_ERRORS, in_words

        if isinstance(error, SPARK_ERRORS):
            return EXIT_FAILED, in_words(error)
    return EXIT_FAILED, f"internal error, {type(error).__name__}: {error} (JSTREAM_TRACEBACK=1 shows where)"


def _parser_verdict(error: Any) -> tuple[int, str]:
    """Return the code and text for an error of the parser, with the nearest option and where help is."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return EXIT_USAGE, "no verb given" + _help_hint(context)
    from spark_stream.cli.parser_errors import in_our_words

    text = in_our_words(error.format_message())
    wrong = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and context is not None:
        taken = [name for parameter in context.command.params for name in parameter.opts + parameter.secondary_opts]
        text = f"no such option: {wrong}{nearest(str(wrong), taken)}"
    return int(error.exit_code), text + _help_hint(context)


def _prepared(parameters: Any) -> Any:
    """Return the parameters of a command: flags without a type in help, numbers within what a store can hold.

    `--json <bool>` would seem to want a value. A bound of 64 bits as the type of each option would stand in its help.
    """
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        elif parameter.callback is None:
            parameter.callback = _within_64_bits
    return parameters


def _within_64_bits(context: Any, parameter: Any, value: Any) -> Any:
    for number in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(number, int) and abs(number) > NUMBER_MAX:
            raise typer.BadParameter(f"{number} is too large: {NUMBER_MAX} at most", ctx=context, param=parameter)
    return value


def _help_hint(context: Any) -> str:
    return f" (help: {context.command_path} --help)" if context is not None else ""


def _operating_system(error: OSError) -> str:
    """Return `/path: permission denied`: the place first, then what the system says about it."""
    reason = (error.strerror or str(error) or type(error).__name__).strip()
    reason = reason[:1].lower() + reason[1:]
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' and '.join(names)}: {reason}" if names else reason


def _complain(text: str) -> None:
    """Print one line on stderr. Names come from outside: what could steer a terminal is shown escaped."""
    line = " ".join(text.split())
    safe = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    try:
        print(f"error: {safe}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens; the exit code still says it


def _discard_stdout_if_broken() -> None:
    """Keep Python's own flush at exit from complaining once more about an output that took nothing."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _discard_stdout() -> None:
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # not a real file: nothing is flushed at exit
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, descriptor)
    os.close(sink)
