"""Every token of a text with its exit layer, and what the text costs."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from hashee.data.tokenizing import TextTokenizer
from hashee.errors import InputError
from hashee.families.adapters import adapter_for
from hashee.hf.flops import FlopCount, count_flops
from hashee.tables.table import ExitTable

PALETTE = ("grey50", "blue", "cyan", "green", "yellow", "orange1", "red")
"""Colours from exits before the first layer to the last layer."""


@dataclass(frozen=True)
class Explanation:
    """The tokens of a text, the exit layer of each, and the cost of the text."""

    text: str
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    exit_layers: tuple[int, ...]
    num_layers: int
    cost: FlopCount

    def colour(self, exit_layer: int) -> str:
        """Return the colour in which an exit layer is drawn."""
        return PALETTE[round((len(PALETTE) - 1) * exit_layer / self.num_layers)]

    def summary(self) -> str:
        """Say in one line what the text costs."""
        return (
            f"{len(self.tokens)} tokens, {self.cost.paper_macs / 1e6:,.1f} MMACs: "
            f"{self.cost.paper_speedup:.2f}x less than the same model at full depth, "
            f"{self.cost.speedup_vs_bert_base:.2f}x less than 12-layer BERT-base"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return tokens, exits and cost as plain values for JSON."""
        return asdict(self) | {"cost": self.cost.to_dict()}

    def __str__(self) -> str:
        width = max((len(token) for token in self.tokens), default=0)
        lines = [
            f"{token:<{width}}  {'#' * layer:<{self.num_layers}}  {layer}"
            for token, layer in zip(self.tokens, self.exit_layers, strict=True)
        ]
        return "\n".join([*lines, self.summary()])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text()
        for token, layer in zip(self.tokens, self.exit_layers, strict=True):
            line.append(token, style=self.colour(layer))
            line.append(f"{layer} ", style="dim")
        yield line
        yield Text(self.summary(), style="italic")


def explain(
    config: Any,
    table: ExitTable,
    tokenizer: Any,
    text: str,
    text_pair: str | None = None,
    *,
    reads_first_row: bool = False,
) -> Explanation:
    """Tokenize a text and look its exits up in a table; `config` is that of the model, converted or not.

    reads_first_row: whether the head reads the first position only, which a config does not tell.
    """
    (ids,) = TextTokenizer(tokenizer)([text if text_pair is None else (text, text_pair)])["input_ids"]
    max_length = adapter_for(config).max_length(config)
    if len(ids) > max_length:
        raise InputError(f"the text has {len(ids)} tokens but the model takes {max_length}; shorten it")
    return Explanation(
        text=text,
        tokens=tuple(tokenizer.convert_ids_to_tokens(ids)),
        token_ids=tuple(ids),
        exit_layers=tuple(table.exit_layers[ids].tolist()),
        num_layers=table.num_layers,
        cost=count_flops(config, [ids], table, reads_first_row=reads_first_row),
    )
