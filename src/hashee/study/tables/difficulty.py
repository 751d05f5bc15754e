"""How well difficulty is predicted, the paper's figures beside ours, and what its hypothesis is worth in numbers."""

from collections.abc import Sequence
from statistics import mean, stdev

from hashee.errors import InputError
from hashee.study.difficulty.conclusion import gains_of, on_hypothesis, on_predictors
from hashee.study.difficulty.hypothesis_results import HypothesisResult, read_hypotheses
from hashee.study.difficulty.results import DifficultyResult, Group, by_group, read_results
from hashee.study.options import ReportOptions
from hashee.study.paper import DIFFICULTIES, DIFFICULTY, HUMAN_ACCURACY, Difficulty
from hashee.study.results import RunResult
from hashee.study.tables.table import NOT_APPLICABLE, NOT_RUN, Cell, Content, Table, times

PREDICTORS = ("Majority", "Linear-M", "Linear-B", "BiLSTM", "Transformer")

LEVELS = ("human", "sentence", "token")
COLUMNS = ("level", "set", "predictor", "backbone", "accuracy", "precision", "recall", "F1", "ECE")


def difficulty(results: list[RunResult], options: ReportOptions) -> Table:
    """Set the predictors of difficulty beside the paper's, set by set."""
    own = [each for each in read_results(options.difficulty) if options.backbone in (None, each.backbone, "")]
    own = [each for each in own if options.task in (None, each.data)]
    groups = sorted(by_group(own).items(), key=lambda each: _order(each[0]))
    rows: list[tuple[Content, ...]] = []
    for level in LEVELS:
        here = [(group, seeds) for group, seeds in groups if group.level == level]
        rows += [_ours(group, seeds) for group, seeds in here] or [_not_run(level)]
        rows += _papers(level)
    return Table(
        "Can difficulty be learned? Percent on test",
        COLUMNS,
        tuple(rows),
        (
            "precision, recall, F1: micro-averages over the negative label, a layer that is wrong; "
            "- where it is never predicted",
            "ours: mean over seeds (± standard deviation); ECE: expected calibration error",
            f"paper: {DIFFICULTY.label}, with BERT-base; token level on OntoNotes, ours on what the set's name says",
            *on_predictors(own),
            *on_hypothesis(read_hypotheses(options.difficulty)),
        ),
    )


def hypothesis(results: list[RunResult], options: ReportOptions) -> Table:
    """Set consistency beside what is learned, at equal cost."""
    found = [each for each in read_hypotheses(options.difficulty) if options.task in (None, each.task)]
    found = [each for each in found if options.backbone in (None, each.backbone)]
    if not found:
        raise InputError(
            f"no comparisons in {options.difficulty}; run them with `hashee study difficulty run --hypothesis`"
        )
    rows = [
        row for key in dict.fromkeys((each.task, each.backbone) for each in found) for row in _compared(found, *key)
    ]
    return Table(
        "Consistency, or learned difficulty: accuracy in percent on test (times fewer multiply-accumulates)",
        ("task", "comparison", "first", "second", "difference", "seeds"),
        tuple(rows),
        (
            "difference: first - second, mean over seeds with an interval of 95 % (one seed: over texts)",
            "shuffled exits: the mean over all orders in which the same exit layers can be dealt out to the texts",
            *on_hypothesis(found),
        ),
    )


def _order(group: Group) -> tuple[int, str, int, str, str]:
    known = PREDICTORS.index(group.predictor) if group.predictor in PREDICTORS else len(PREDICTORS)
    return LEVELS.index(group.level), group.data, known, group.backbone, group.variant


def _ours(group: Group, seeds: Sequence[DifficultyResult]) -> tuple[Content, ...]:
    variant = f" ({group.variant})" if group.variant else ""
    figures: tuple[Sequence[float | None], ...] = (
        [each.accuracy for each in seeds],
        [each.precision for each in seeds],
        [each.recall for each in seeds],
        [each.f1 for each in seeds],
        [each.calibration_error for each in seeds],
    )
    return (group.level, group.data, group.predictor + variant, group.backbone or None, *map(_cell, figures))


def _cell(values: Sequence[float | None]) -> Content:
    known = [100 * value for value in values if value is not None]
    if len(known) < len(values):
        return NOT_APPLICABLE
    std = stdev(known) if len(known) > 1 else None
    text = f"{mean(known):.1f}" + ("" if std is None else f" ±{std:.1f}")
    return Cell(text, {"source": "ours", "mean": mean(known), "std": std, "seeds": len(known)})


def _not_run(level: str) -> tuple[Content, ...]:
    return (level, *(NOT_RUN for _ in COLUMNS[1:]))


def _papers(level: str) -> list[tuple[Content, ...]]:
    if level == "human":
        cell = Cell(f"~{HUMAN_ACCURACY:.0f}", {"source": "paper", "mean": HUMAN_ACCURACY})
        return [("human", "paper", "BERT", "bert-base", cell, None, None, None, None)]
    return [_paper(each) for each in DIFFICULTIES if each.level == level]


def _paper(row: Difficulty) -> tuple[Content, ...]:
    cells = [
        NOT_APPLICABLE if value is None else Cell(f"{value:.1f}", {"source": "paper", "mean": value})
        for value in (row.precision, row.recall, row.f1)
    ]
    return (row.level, "paper", row.model, "bert-base", None, *cells, None)


def _compared(found: Sequence[HypothesisResult], task: str, backbone: str) -> list[tuple[Content, ...]]:
    own = [each for each in found if (each.task, each.backbone) == (task, backbone)]
    rows: list[tuple[Content, ...]] = []
    for name, gain in gains_of(own).items():
        same = [each for result in own for each in result.comparisons if each.name == name]
        arms = []
        for side in ("first", "second"):
            accuracy = mean(getattr(each, f"{side}_accuracy") for each in same)
            speedup = mean(getattr(each, f"{side}_speedup") for each in same)
            text = f"{accuracy:.1f} ({times(speedup)})"
            arms.append(Cell(text, {"accuracy": accuracy, "speedup": speedup, "arm": getattr(same[0], side)}))
        shown = Cell(str(gain), {"mean": gain.mean, "low": gain.low, "high": gain.high})
        rows.append((f"{task}, {backbone}", name, *arms, shown, gain.seeds))
    return rows
