"""`hashee study difficulty`: build sets of difficulties, run what predicts them, and probe a task of one's own."""

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hashee.cli.shared import AsJson
from hashee.cost.threads import wait_passively
from hashee.errors import HasheeError, InputError

if TYPE_CHECKING:
    from hashee.study.difficulty.datasets import DifficultySet
    from hashee.study.difficulty.plan import Plan
    from hashee.study.difficulty.results import DifficultyResult
    from hashee.study.difficulty.run import Trial

OUTPUT = Path("results/study/difficulty")
Backbone = Annotated[str, typer.Option(help="Folder or Hub id of a model, or minilm.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training examples of each stage.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens of a text at the most.", min=3)]
Limit = Annotated[int | None, typer.Option(help="Train on so many examples only.", min=1)]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Train Transformers in bfloat16 mixed precision.")]
Threads = Annotated[int | None, typer.Option(help="Threads; default: the usable cores.", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of all that is random.", min=0)]


def build(
    level: Annotated[str, typer.Argument(help="human, sentence or token.")],
    task: Annotated[list[str], typer.Option(help="A task or file; for human, files with several labels per row.")],
    output: Annotated[Path, typer.Option(help="Folder for the set.")],
    backbone: Backbone = "minilm",
    method: Annotated[str, typer.Option(help="How exits of texts are trained: pabee, deebert, ...")] = "pabee",
    label_split: Annotated[
        list[str] | None, typer.Option(help="dev or test, or both: whose texts are labelled.")
    ] = None,
    labels_column: Annotated[str, typer.Option(help="For human: a list of labels in each row.")] = "annotator_labels",
    test_share: Annotated[
        float | None, typer.Option(help="Of the set; default: the paper's.", min=0.01, max=0.99)
    ] = None,
    limit: Limit = None,
    epochs: Epochs = None,
    max_length: MaxLength = None,
    bf16: Bf16 = False,
    seed: Seed = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Build a set of difficulties: from annotators who disagree, or from which layers of a model are right."""
    wait_passively()
    from hashee.cost.threads import torch_threads
    from hashee.hf.pretrained import quiet_transformers
    from hashee.study.difficulty.building_human import HumanSettings
    from hashee.study.difficulty.building_model import ModelSettings
    from hashee.study.difficulty.datasets import LEVELS
    from hashee.study.difficulty.plan import Build

    if level not in LEVELS:
        raise InputError(f"unknown level {level!r} of difficulty; choose from {', '.join(LEVELS)}")
    own = _given(test_share=test_share, seed=seed)
    settings: Any
    if level == "human":
        settings = HumanSettings(output.name, [Path(each) for each in task], labels_column, **own)
    else:
        if len(task) > 1:
            raise InputError(f"model-defined difficulty is of one task, not of {len(task)}; give --task once")
        fit = _given(epochs=epochs, max_length=max_length, bf16=bf16 or None)
        own |= _given(label_splits=tuple(label_split) if label_split else None, limits=(limit, None, None), fit=fit)
        settings = ModelSettings(output.name, task[0], backbone, method=method, **own)
    with quiet_transformers(), torch_threads(threads):
        made = Build(level, output, settings).run()
    shutil.rmtree(output / "work", ignore_errors=True)
    if as_json:
        print(json.dumps({"name": made.name, "level": made.level} | made.statistics()))
    else:
        Console().print(statistics(made, output))


def run(
    data: Annotated[
        list[str] | None, typer.Option("--set", help="snli-human, snli-model or a folder; repeat for more.")
    ] = None,
    predictor: Annotated[list[str] | None, typer.Option(help="Repeat for more; default: all that apply.")] = None,
    backbone: Annotated[list[str] | None, typer.Option(help="Folder, Hub id or minilm; repeat for more.")] = None,
    seeds: Annotated[int, typer.Option(help="Run with so many seeds.", min=1)] = 1,
    hypothesis: Annotated[
        bool, typer.Option("--hypothesis", help="Test consistency against learned exits instead.")
    ] = False,
    task: Annotated[str, typer.Option(help="Of the hypothesis.")] = "sst2",
    limit: Limit = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of the whole study, instead of the options.")] = None,
    oversampling: Annotated[float, typer.Option(help="How far classes are evened out.", min=0, max=1)] = 0.5,
    epochs: Epochs = None,
    max_length: MaxLength = None,
    bf16: Bf16 = False,
    output: Annotated[Path | None, typer.Option(help=f"Folder for result files; default: {OUTPUT}.")] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Run what is missing or stale of the study of difficulty; start it again at any time, and it goes on."""
    wait_passively()
    from hashee.study.difficulty.hypothesis import HypothesisSettings
    from hashee.study.difficulty.plan import Plan, read_plan
    from hashee.study.difficulty.predictors import PREDICTORS
    from hashee.study.difficulty.run import Block

    if config is not None:
        plan = read_plan(config)
    elif hypothesis:
        fit = _given(epochs=epochs, max_length=max_length, bf16=bf16 or None)
        shared: dict[str, Any] = {"seeds": seeds, "limits": (limit, None, None), "fit": fit}
        chosen = [(each, seed) for each in backbone or ["minilm"] for seed in range(seeds)]
        plan = Plan(hypotheses=tuple(HypothesisSettings(task, *each, **shared) for each in chosen))
    else:
        settings = _given(oversampling=oversampling, epochs=epochs, max_length=max_length, bf16=bf16 or None)
        sets, backbones = data or ["snli-human", "snli-model"], backbone or ["minilm"]
        plan = Plan(blocks=(Block(sets, predictor or tuple(PREDICTORS), backbones, seeds, settings),))
    _run(plan, output or (plan.output if config else OUTPUT), threads, as_json, everything=predictor is None)


def probe(
    task: Annotated[str, typer.Option(help="A file of labelled texts, a folder, or sst2, mrpc, ...")],
    backbone: Backbone = "minilm",
    output: Annotated[Path, typer.Option(help="Folder for the page, its figure and its numbers.")] = Path("probe"),
    speedup: Annotated[float, typer.Option(help="At which exits are compared.", min=1)] = 3.0,
    predictor: Annotated[list[str] | None, typer.Option(help="Repeat for more; default: all but transformer.")] = None,
    limit: Limit = None,
    epochs: Epochs = None,
    max_length: MaxLength = None,
    bf16: Bf16 = False,
    seed: Seed = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Tell whether learned exits could work on a task, and what a hash gives instead: one page with a figure."""
    wait_passively()
    from hashee.cost.threads import torch_threads
    from hashee.hf.pretrained import quiet_transformers
    from hashee.study.difficulty.probe import WORK, ProbeSettings
    from hashee.study.difficulty.probe import probe as run_probe
    from hashee.study.difficulty.probe_page import verdict, write_page

    own: dict[str, Any] = {} if not predictor else {"predictors": tuple(predictor)}
    fit = _given(epochs=epochs, max_length=max_length, bf16=bf16 or None)
    with quiet_transformers(), torch_threads(threads):
        found = run_probe(ProbeSettings(task, output, backbone, limit, speedup, seed=seed, fit=fit, **own))
    page = write_page(found, output)
    shutil.rmtree(output / WORK, ignore_errors=True)
    if as_json:
        print(json.dumps(asdict(found), allow_nan=False))
        return
    for sentence in verdict(found):
        Console().print(sentence.replace("**", ""), markup=False, highlight=False)
    Console().print(f"written to {page}", markup=False, highlight=False, soft_wrap=True)


def _run(plan: "Plan", output: Path, threads: int | None, as_json: bool, everything: bool) -> None:
    """Build, run and compare, say after each what came out, and fail if any did.

    everything: no predictor was asked for by name, so those that a set and a backbone do not fit are left out.
    """
    from hashee.cost.threads import torch_threads
    from hashee.hf.pretrained import quiet_transformers
    from hashee.study.difficulty.hypothesis import run_hypothesis
    from hashee.study.difficulty.run import applies, run_trials
    from hashee.training.stopping import STOPS, as_stopped

    failures: list[str] = []
    done = 0

    def failed(name: str, error: HasheeError) -> None:
        failures.append(f"{name}: {error}")
        print(f"failed: {failures[-1]}", file=sys.stderr, flush=True)

    def report(trial: "Trial", outcome: "DifficultyResult | HasheeError") -> None:
        if isinstance(outcome, HasheeError):
            failed(trial.name, outcome)
        else:
            print(json.dumps(asdict(outcome)) if as_json else line_of(outcome), flush=True)

    try:
        with quiet_transformers(), torch_threads(threads):
            for build in plan.builds:
                made = build.run()
                done += 1
                if not as_json:
                    Console().print(statistics(made, build.output))
            trials = [trial for block in plan.blocks for trial in block.trials()]
            if everything:
                trials = [trial for trial in trials if applies(trial, lambda line: print(line, file=sys.stderr))]
            run_trials(trials, output, report)
            for settings in plan.hypotheses:
                found = run_hypothesis(settings, output)
                print(json.dumps(asdict(found)) if as_json else f"{found.path}: written", flush=True)
    except STOPS as error:
        stopped = as_stopped(error)
        print(f"{stopped.reason}; the same command goes on where it stopped", file=sys.stderr)
        raise typer.Exit(stopped.code) from None
    if failures:
        raise InputError(f"{len(failures)} of {len(trials)} runs failed: {failures[0]}")


def line_of(result: "DifficultyResult") -> str:
    """Return a result in one line."""
    cells = {"precision": result.precision, "recall": result.recall, "F1": result.f1}
    shown = ", ".join(f"{name} {'-' if value is None else f'{100 * value:.1f}'}" for name, value in cells.items())
    backbone = f", {result.backbone}" if result.backbone else ""
    return (
        f"{result.predictor} on {result.data}{backbone}, seed {result.seed}: accuracy {100 * result.accuracy:.1f}, "
        f"{shown} ({result.seconds:,.0f} s)"
    )


def statistics(data: "DifficultySet", folder: Path) -> Table:
    """Return how many texts or words of each split each layer gets right, as a table."""
    found = data.statistics()
    shown = Table(title=f"{data.name}: {data.level}-level difficulty", caption=str(folder))
    for column in ("", *(f"{split} ({found[split]['instances']:,})" for split in ("train", "test"))):
        shown.add_column(column, justify="right" if column else "left")
    for number, shares in enumerate(zip(found["train"]["right"], found["test"]["right"], strict=True), start=1):
        name = "annotators agree" if data.level == "human" else f"layer {number} is right"
        shown.add_row(name, *(f"{100 * share:.1f} %" for share in shares))
    return shown


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
