"""The command line application, and what its commands share."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from recallmap.results.escape import one_line
from recallmap.search.cli import completion
from recallmap.search.cli.streams import complain, say
from recallmap.search.documents.nodes import SpecError

if TYPE_CHECKING:
    import torch

    from recallmap.search.cli.sources import Found
    from recallmap.search.cli.terminal import Terminal

Verb = TypeVar("Verb", bound=Callable[..., Any])

MANY_RECORDS = 5000  # a page of so many takes seconds to make


class Precision(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float64 = "float64"


class Verbs(TyperGroup):
    """Commands that turn a user's fault into lines on stderr and exit code 2. A traceback is a bug of ours."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SpecError as error:
            outside = sys.modules.get("recallmap.search.documents.outside")
            refuse(*map(str, error.faults), *(outside.broken() if outside is not None else ()))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except OSError as error:
            from recallmap.results.atomic_write import FULL, remedy

            if error.filename is None:  # an output stream, see `made_ready`
                raise
            refuse(
                f"{error.filename or 'a file'}: cannot be written: {remedy(error)}"
                if error.errno in FULL
                else f"{error.filename}: {error.strerror}"
            )
        except UnicodeEncodeError as error:
            said = error.object[max(0, error.start - 40) : error.end]
            refuse(f"half of a surrogate pair cannot be written to a file: '{said}'; mend the record that has it")
        except Exception as error:
            if _is_ledger_error(error):
                refuse(str(error))
            raise
        finally:
            if (outside := sys.modules.get("recallmap.search.documents.outside")) is not None:
                outside.forget()


Use = Annotated[
    list[str],
    typer.Option(
        "--use", metavar="FILE|MODULE", help="Execute a Python file or module, and take its mixers, tasks and samplers."
    ),
]


class Application(typer.Typer):
    """An application whose commands all have --use."""

    def command(self, name: str | None = None, **said: Any) -> Callable[[Verb], Verb]:
        register = super().command(name, **said)

        def add(verb: Verb) -> Verb:
            register(_with_use(verb))
            return verb

        return add


def _with_use(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The command with one more option, which it does not see."""

    @functools.wraps(verb)
    def wrapped(*args: Any, use: list[str], **said: Any) -> Any:
        if use:
            from recallmap.search.documents import outside

            outside.use(use)
        return verb(*args, **said)

    own = inspect.signature(verb, eval_str=True)
    option = inspect.Parameter("use", inspect.Parameter.KEYWORD_ONLY, default=[], annotation=Use)
    wrapped.__dict__["__signature__"] = own.replace(parameters=[*own.parameters.values(), option])
    wrapped.__annotations__ = {**verb.__annotations__, "use": Use}
    return wrapped


app = Application(
    cls=Verbs,
    name="recallmap",
    help="Maps the memory capacity of sequence models against their recall on synthetic tasks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Sets = Annotated[
    list[str], typer.Option("--set", metavar="PATH=VALUE", help="Change a value of the study, such as trial.seed=1.")
]

LedgerPath = Annotated[Path | None, typer.Option("--ledger", help="File of the ledger.  [default: runs/NAME.sqlite]")]

Study = Annotated[str, typer.Argument(help="A study: a built-in name or a file.", autocompletion=completion.studies)]

Source = Annotated[
    str,
    typer.Argument(
        metavar="STUDY|RECORDS",
        help="A study; or a ledger, a .jsonl of records, or a folder of these.",
        autocompletion=completion.sources,
    ),
]

Records = Annotated[
    Path | None,
    typer.Option(
        "--ledger", help="Records of the study: a ledger, a .jsonl file, a folder.  [default: runs/NAME.sqlite]"
    ),
]

Only = Annotated[
    list[str],
    typer.Option(
        "--only",
        metavar="KEY=VALUE",
        help="Only records that match, such as arch=mesa, pairs=4 or lr=1e-3; two values of one key match either.",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, its numbers unrounded.")]


def _say_version(wanted: bool) -> None:
    if wanted:
        from recallmap.search.training.origin import summary

        say(summary())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the versions of recallmap and torch."
        ),
    ] = False,
) -> None:
    """Options before a command."""


# Shared by commands. ------------------------------------------------------------------------------


def refuse(*lines: str) -> NoReturn:
    """Refuse bad input: lines on stderr, exit code 2."""
    for line in lines:
        complain(one_line(line))
    raise typer.Exit(2)


def remedy_of(error: OSError) -> str:
    from recallmap.results.atomic_write import remedy

    return remedy(error)


def _is_ledger_error(error: Exception) -> bool:
    """True for an error of the ledger. The ledger is not imported: a command that raised one has imported it."""
    ledger = sys.modules.get("recallmap.results.ledger")
    return ledger is not None and isinstance(error, ledger.LedgerError)


def terminal() -> Terminal:
    from recallmap.search.cli.terminal import Terminal

    return Terminal()


def write_rows(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a .jsonl file, if there is one to write."""
    import json

    if path is not None:
        write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def write_text(path: Path, text: str) -> None:
    from recallmap.results.atomic_write import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        refuse(f"{path}: cannot be written: {remedy_of(error)}")


def records_of(
    source: str,
    ledger: Path | None,
    sets: Sequence[str],
    only: Sequence[str],
    *,
    patient: bool = False,
    curves: bool = True,
) -> Found:
    """The records that a command is to show; a note about them goes to stderr."""
    from recallmap.results.ledger import unswept
    from recallmap.search.cli import sources

    with unswept():  # a study brings torch, which takes a sixth longer to import while garbage is looked for
        found = with_note(sources.found(source, ledger, sets, patient=patient, curves=curves))
    return found._replace(records=sources.only(found.records, only)) if only else found


def with_note(found: Found) -> Found:
    if found.note:
        complain(one_line(found.note))
    return found


def device_of(name: str | None) -> torch.device:
    """The device that is asked for, if this machine has it."""
    import torch

    from recallmap.search.training.devices import default_device

    try:
        device = torch.device(name or default_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        why = reason if len(reason) < 80 else "no such device"
        refuse(f"--device: got {name}, which cannot be used here ({why}), expected cpu, cuda, cuda:1, ...")
    return device


def refuse_to_share(device: torch.device, cohorts_per_gpu: int | None, instead: str) -> None:
    """Refuse several cohorts at once on a device that trains one after another."""
    if (cohorts_per_gpu or 1) > 1 and device.type != "cuda":
        refuse(
            f"--cohorts-per-gpu must be 1 on a CPU, where --engine inline trains one cohort after another; got "
            f"{cohorts_per_gpu}; {instead}"
        )
