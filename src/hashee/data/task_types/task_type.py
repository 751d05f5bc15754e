"""What a type of task owns: how labels are read, what is learnt from them, and how predictions are judged."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from numpy.typing import NDArray

from hashee.data.reading import Rows
from hashee.data.registry import Layout
from hashee.data.task import Kind, Recipe, Target, Task
from hashee.errors import InputError

if TYPE_CHECKING:  # torch is imported when a loss is computed: commands that only read tasks start without it
    from torch import Tensor

Array: TypeAlias = NDArray[Any]
Parts: TypeAlias = dict[str, float]
"""A metric under its own name, with the metrics that it is made of."""
ComputeMetric: TypeAlias = Callable[[Task, Any, Any], Parts]
"""(task, predictions, targets) -> parts; both as `TaskType.checked` returns them."""


@dataclass(frozen=True)
class Agreement:
    """How far the predictions of two models are the same."""

    metric: str
    """`equal predictions` as a share, or for scores `pearson`."""
    value: float


class TaskType(ABC):
    """What differs between classification, multi-label classification, regression, tagging and summarization."""

    kind: ClassVar[Kind]
    head: ClassVar[str]
    """How the names of transformers' classes with such a head end; `Auto` classes are called likewise."""
    problem_type: ClassVar[str | None]
    """What transformers' config calls it; None where it has no name for it."""
    pipeline: ClassVar[str] = "text-classification"
    """The transformers pipeline that runs such models."""
    target_name: ClassVar[str]
    """What messages call a target."""
    metrics: ClassVar[Mapping[str, ComputeMetric]]
    """Every metric of such tasks by name."""
    recipe: ClassVar[Recipe] = Recipe()
    """How a task is trained for which no recipe is given."""
    tags_words: ClassVar[bool] = False
    """Whether the words of a text have targets of their own, rather than the text."""
    writes_text: ClassVar[bool] = False
    """Whether a model writes a text, token by token, which then stands where others have logits."""
    named_outputs: ClassVar[bool] = True
    """Whether each output of a model stands for a label; a score is the only output and has no name."""
    right_or_wrong: ClassVar[bool] = True
    """Whether a prediction is right or wrong, rather than more or less off."""
    one_decision: ClassVar[bool] = False
    """Whether a prediction is one choice, so that errors can be ordered by how confident it was."""

    def __repr__(self) -> str:
        # Fingerprints of trainings hold objectives, which hold types.
        return f"{type(self).__name__}()"

    # --- reading examples ------------------------------------------------------------------------------------

    def text(self, example: Any) -> Any:
        """Return the text, or pair of texts, of an example as a tokenizer takes it."""
        return example

    @abstractmethod
    def label_names(self, rows: Rows) -> tuple[str, ...]:
        """Return the names of the labels that train has, in their order: the data's, or sorted."""

    @abstractmethod
    def read_targets(self, rows: Rows, task: Task, train: Rows, layout: Layout | None) -> list[Target]:
        """Turn the labels of a split into targets, refusing labels that the task does not know.

        train: the rows of train, which decide how labels are written. layout: of a benchmark, whose labels are given.
        """

    def distinct(self, targets: Sequence[Target]) -> set[Any]:
        """Return the different things that the targets ask to predict."""
        return set(targets)

    def refuse_constant(self, rows: Rows, targets: Sequence[Target]) -> None:
        """Refuse to learn from targets that are all the same. rows: those of train."""
        if len(self.distinct(targets)) < 2:
            assert rows.labels is not None
            raise InputError(
                f"{rows.label_column} has only one {self.target_name} in all of {len(targets):,} rows "
                f"({rows.labels[0]!r}); there is nothing to learn from it: check the column, and that the file is not "
                f"sorted and cut off"
            )

    def stratified(self, order: list[int], targets: Sequence[Any]) -> list[int]:
        """Return the indices of the examples that may become dev, sorted so that equal steps sample evenly.

        order: the indices of all examples, shuffled.
        """
        return order

    # --- learning --------------------------------------------------------------------------------------------

    def smoothed(self, share: float) -> "TaskType":
        """Return the type with a share of label smoothing, which only summaries have."""
        return self

    @abstractmethod
    def targets(self, targets: Sequence[Any]) -> Array | list[Array]:
        """Return targets as arrays: (examples, ...), or one (words,) for each example."""

    @abstractmethod
    def loss(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the summed loss: a scalar. logits: (predictions, labels); targets: (predictions, ...)."""

    @abstractmethod
    def distillation_loss(self, logits: "Tensor", teacher_logits: "Tensor", temperature: float) -> "Tensor":
        """Return the summed distance from a teacher's logits: a scalar. Both: (predictions, labels).

        It is scaled by the square of the temperature, with which gradients would shrink otherwise.
        """

    def text_labels(self, targets: Sequence[Any]) -> list[Any] | None:
        """Return one label for each text, for mutual information; None where texts have no label of their own."""
        return list(targets)

    # --- judging ---------------------------------------------------------------------------------------------

    @abstractmethod
    def decode(self, task: Task, logits: Array) -> Any:
        """Return the prediction for an example. logits: (labels,), or for tags (words, labels)."""

    @abstractmethod
    def default_metric(self, labels: Sequence[str]) -> str:
        """Return the name of the metric of a task for which none is given."""

    @abstractmethod
    def checked(self, task: Task, values: Any, what: str) -> Any:
        """Return predictions or targets as metrics take them, or refuse them. what: `prediction` or `target`."""

    @abstractmethod
    def example_loss(self, logits: Array, target: Any) -> float:
        """Return how far the prediction for one example is off. logits: (labels,), or for tags (words, labels)."""

    @abstractmethod
    def confidence(self, logits: Array) -> float | None:
        """Return the probability that a model gives to its prediction, the least of several; None where it has none.

        logits: (labels,), or for tags (words, labels).
        """

    def agreement(self, predictions: Sequence[Any], others: Sequence[Any]) -> Agreement:
        """Compare two models' predictions for the same examples: the share of equal ones."""
        equal = sum(one == other for one, other in zip(predictions, others, strict=True))
        return Agreement("equal predictions", equal / max(len(predictions), 1))

    @abstractmethod
    def names(self, task: Task, text: Any, target: Any, prediction: Any) -> tuple[str, str]:
        """Return the target and the prediction for a text as reports show them."""

    def submission_field(self, task: Task, index: int, prediction: Any, names: bool) -> str:
        """Return a prediction as leaderboards take it. names: classes by name rather than number."""
        raise InputError(f"{task.name} is {task.kind}; leaderboards take classes and scores")
