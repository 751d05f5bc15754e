"""All predictors by name, in the order of the paper's table."""

from hashee.errors import InputError
from hashee.study.difficulty.bilstm import BiLstmPredictor
from hashee.study.difficulty.linear import LinearB, LinearM
from hashee.study.difficulty.predictor import Majority, Predictor
from hashee.study.difficulty.transformer import Transformer

_ALL: tuple[Predictor, ...] = (Majority(), LinearM(), LinearB(), BiLstmPredictor(), Transformer())
PREDICTORS: dict[str, Predictor] = {predictor.name.lower(): predictor for predictor in _ALL}
"""As `hashee study difficulty run --predictor` takes them."""


def predictor_named(name: str) -> Predictor:
    """Return the predictor of a name."""
    if name.lower() not in PREDICTORS:
        raise InputError(f"unknown predictor {name!r}; choose from {', '.join(PREDICTORS)}")
    return PREDICTORS[name.lower()]
