"""The `hashee` command: a thin shell over the library, one file for each command.

Nothing here or in `deferred` imports torch or transformers; a command imports what it uses when it is called.
"""

import os
import sys
from typing import Annotated, Any

import typer
from typer.main import get_command

from hashee import __version__
from hashee.cli.deferred import DeferredCommand, DeferredGroup
from hashee.errors import HasheeError, one_line
from hashee.training.stopping import Stopped, as_stopped, sigterm_raises

BROKEN_PIPE = 1
"""Exit code when the reader of the output has gone (`| head`)."""
USER_ERROR = 2
"""Exit code for errors that the user can correct."""

STUDY = DeferredGroup(
    name="study", help="Compare methods on one footing: the paper's tables and figures.", no_args_is_help=True
)
DIFFICULTY = DeferredGroup(
    name="difficulty", help="Can difficulty be learned? The paper's study, and a probe of a task.", no_args_is_help=True
)
KERNELS = DeferredGroup(name="kernels", help="The compiled kernels of this machine.", no_args_is_help=True)
COMMANDS = (
    DeferredGroup(name="table", help="Build and look at exit tables.", no_args_is_help=True),
    DeferredGroup(name="export", help="Write converted models for other runtimes.", no_args_is_help=True),
    DeferredCommand(
        "fit",
        "hashee.cli.fit:fit",
        "Fit a model with exits to labelled texts: dense model, exit table, hashed model, the best of them on dev.",
    ),
    DeferredCommand(
        "speedup",
        "hashee.cli.speedup:speedup",
        "Make an embedder, reranker or encoder several times cheaper with texts alone, without labels.",
    ),
    DeferredCommand(
        "evaluate",
        "hashee.cli.evaluate:evaluate",
        "Measure quality, cost and speed of a model on a split, with its exits and its worst examples.",
    ),
    DeferredCommand(
        "tradeoff",
        "hashee.cli.evaluate:tradeoff",
        "Fit models at several speed-ups, shallower ones and the dense one, and draw quality against cost.",
    ),
    STUDY,
    DeferredCommand(
        "predict",
        "hashee.cli.predict:predict",
        "Score every text of a file or folder: labels, scores, tags, embeddings; in parts, it goes on after a kill.",
    ),
    DeferredCommand(
        "embed",
        "hashee.cli.embed:embed",
        "Write the embedding of every text of a file, in their order, as .npy, .parquet or lines of JSON.",
    ),
    DeferredCommand(
        "rank",
        "hashee.cli.embed:rank",
        "Rank the documents of a file for every query of another, with an embedder or a reranker.",
    ),
    DeferredCommand(
        "generate",
        "hashee.cli.generate:generate",
        "Write a text for every text of a file with a seq2seq model, such as a translation, as lines of JSON.",
    ),
    DeferredCommand(
        "summarize",
        "hashee.cli.generate:summarize",
        "Summarize every document of a file with a seq2seq model, as lines of JSON.",
    ),
    DeferredCommand(
        "serve",
        "hashee.cli.serve:serve",
        "Serve models over HTTP to clients of OpenAI, Hugging Face and text-embeddings-inference.",
    ),
    DeferredCommand(
        "flops",
        "hashee.cli.flops:flops",
        "Count what texts cost: the paper's count, the executed count and full depth; plan what many take.",
    ),
    DeferredCommand(
        "explain",
        "hashee.cli.explain:explain",
        "Show every token of a text with its exit layer, and what the text costs.",
    ),
    DeferredCommand(
        "speed",
        "hashee.cli.speed:speed",
        "Clock hashee and baselines side by side on the same texts, each in its own process, in interleaved rounds.",
    ),
    DeferredCommand(
        "info",
        "hashee.cli.info:info",
        "Print processor, instruction sets, kernels in use and why, threads and versions: what a bug report needs.",
    ),
    KERNELS,
)
"""The help of each is the first line of its function's docstring, which a test compares."""
COMMANDS[0].add_commands(
    (
        DeferredCommand("build", "hashee.cli.table:build_table", "Build an exit table and save it."),
        DeferredCommand("show", "hashee.cli.table:show_table", "Print tokens and occurrences per layer."),
    )
)
STUDY.add_commands(
    (
        DeferredCommand(
            "run",
            "hashee.cli.study:run",
            "Run methods on a task, each over its whole curve, and write one result file per run.",
        ),
        DeferredCommand(
            "run-all",
            "hashee.cli.study:run_all",
            "Run what is missing or stale of a file of runs; start it again at any time, and it goes on.",
        ),
        DeferredCommand(
            "clock",
            "hashee.cli.study:clock",
            "Time methods side by side on the same texts, transformers among them, with the models that runs kept.",
        ),
        DeferredCommand("table", "hashee.cli.study:table", "Print a table of the paper with its figures beside ours."),
        DeferredCommand("figure", "hashee.cli.study:figure", "Draw a figure of the paper from result files."),
        DeferredCommand("list", "hashee.cli.study:list_all", "List methods, tables and figures."),
        DIFFICULTY,
    )
)
DIFFICULTY.add_commands(
    (
        DeferredCommand(
            "build",
            "hashee.cli.difficulty:build",
            "Build a set of difficulties: from annotators who disagree, or from which layers of a model are right.",
        ),
        DeferredCommand(
            "run",
            "hashee.cli.difficulty:run",
            "Run what is missing or stale of the study of difficulty; start it again at any time, and it goes on.",
        ),
        DeferredCommand(
            "probe",
            "hashee.cli.difficulty:probe",
            "Tell whether learned exits could work on a task, and what a hash gives instead: one page with a figure.",
        ),
    )
)
KERNELS.add_commands(
    (
        DeferredCommand(
            "build",
            "hashee.cli.info:build_kernels",
            "Compile the kernels for this processor unless they are there, and say where they are.",
        ),
    )
)
COMMANDS[1].add_commands(
    (
        DeferredCommand(
            "onnx",
            "hashee.cli.export:export_onnx",
            "Write a converted model as one ONNX file with the exits inside, and its tokenizer.",
        ),
    )
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"hashee {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Transformer encoders in which every token has a fixed exit layer."""


def _make_app() -> Any:
    bare = typer.Typer(cls=DeferredGroup, no_args_is_help=True)
    bare.callback()(_options)
    group: Any = get_command(bare)
    group.add_commands(COMMANDS)
    return group


app = _make_app()


def main() -> None:
    """Run the command line: an error is one line and exit code 2, Ctrl-C exits with 130 and SIGTERM with 143."""
    # Progress and loading reports of transformers would bury our own output.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    code: Any = None
    with sigterm_raises():
        try:
            try:
                app()
            except SystemExit as stopped:
                code = stopped.code
                if isinstance(stopped, Stopped):
                    print(stopped.reason, file=sys.stderr)
            # The buffer is flushed here, where a failure to write can still be reported.
            if sys.stdout is not None:
                sys.stdout.flush()
        except KeyboardInterrupt as error:
            stop = as_stopped(error)
            print(stop.reason, file=sys.stderr)
            code = stop.code
        except BrokenPipeError:
            _discard_output()
            code = BROKEN_PIPE
        except HasheeError as error:
            code = _refuse(str(error))
        except OSError as error:
            _discard_output()
            code = _refuse(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    sys.exit(code)


def _refuse(message: str) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return USER_ERROR


def _discard_output() -> None:
    """Discard what is still in the buffer of standard output, so that it does not fail a second time at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    main()
