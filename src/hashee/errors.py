"""Everything that hashee refuses, with the reason and the remedy in one line."""

LONGEST_MESSAGE = 500
"""Characters; whatever a message quotes, such as a line of ten million characters, it stays readable."""


class HasheeError(Exception):
    """Root of every error raised by hashee; the message, one line, says what is wrong and what to do."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class TableError(HasheeError):
    """An exit table is malformed, damaged, or could not be built from what was given."""


class ImpossibleSpeedup(TableError):
    """No table of the kind that was asked for reaches a speed-up; those from `lowest` to `highest` can be had."""

    def __init__(self, message: str, lowest: float, highest: float) -> None:
        super().__init__(message)
        self.lowest, self.highest = lowest, highest


class TableMismatch(HasheeError):
    """An exit table does not belong to this tokenizer, vocabulary or depth."""


class UnsupportedOption(HasheeError):
    """A request that a model with exits cannot honour without being silently wrong."""


class UnsupportedModel(HasheeError):
    """A model family, head or configuration that no adapter covers."""


class CheckpointError(HasheeError):
    """A model folder is incomplete, damaged, or holds weights that cannot be used."""


class InputError(HasheeError):
    """Texts, ids or masks that the model cannot read."""


FATAL = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What is never turned into an error of ours; whatever else is no Exception is a panic of the tokenizers library."""


def first_line(error: BaseException) -> str:
    """Return what an error of another library says, to be told on within one line."""
    return shortened((str(error).strip().splitlines() or [type(error).__name__])[0], 200)


def one_line(message: str) -> str:
    """Return a message without line ends and, if it is too long, without its middle: the remedy is at the end."""
    # Long texts are cut first, so that ten million characters are not looked through.
    line = " ".join(_without_middle(str(message), 2 * LONGEST_MESSAGE).split("\n")).replace("\r", " ")
    return _without_middle(line, LONGEST_MESSAGE)


def _without_middle(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 5]} ... {text[-end:]}"


def shortened(value: object, limit: int = 60) -> str:
    """Return a value as text of bounded length without line breaks, to be told on within one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
