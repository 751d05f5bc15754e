"""The activation equals torch's, and torch caches few primitives whatever the numbers of rows."""

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

from architectures import converted, make_exits, make_model
from hashee.engine import native
from hashee.engine.activation import activate


@pytest.fixture(params=["kernels", "torch"])
def runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with the compiled kernels, and as if there were none."""
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no compiler or no AVX2: everything runs in torch")
    return str(request.param)


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("width", [24, 13])
def test_rows_are_activated_as_torch_does_it(name: str, width: int) -> None:
    activation, expand = ACT2FN[name], nn.Linear(8, width)
    for rows in (0, 1, 15, 16, 17, 63, 64, 100, 257):
        inner = torch.randn(rows, width)
        expected = activation(inner)
        with torch.inference_mode():
            assert torch.allclose(activate(activation, expand, inner.clone()), expected, atol=1e-6)


def test_tensors_that_something_else_refers_to_are_not_overwritten() -> None:
    kept: list[Tensor] = []
    expand = nn.Linear(8, 24)
    expand.register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.inference_mode():
        found = activate(ACT2FN["gelu"], expand, expand(torch.randn(5, 8)))
    assert torch.allclose(found, F.gelu(kept[0]))
    inner = torch.randn(5, 24, requires_grad=True)
    activate(ACT2FN["gelu"], nn.Linear(8, 24), inner).sum().backward()
    assert inner.grad is not None


def kept_by_torch(run: Callable[[], object], capfd: pytest.CaptureFixture[str]) -> int:
    """Return how many activations torch compiled and kept while something ran, by oneDNN's own log."""
    ctypes.CDLL(None).fflush(None)
    capfd.readouterr()
    with torch.inference_mode(), torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
        run()
        ctypes.CDLL(None).fflush(None)
    return sum("eltwise" in line and "cache_miss" in line for line in capfd.readouterr().out.splitlines())


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch is built without oneDNN")
def test_few_primitives_are_kept_whatever_the_numbers_of_rows(runtime: str, capfd: pytest.CaptureFixture[str]) -> None:
    # Widths that no other test has: what they made torch keep would not be made again.
    width, other_width = {"kernels": (88, 89), "torch": (104, 105)}[runtime]

    def plain_gelu() -> None:
        for rows in range(1, 40):
            F.gelu(torch.zeros(rows, other_width))

    # The log works as this test assumes: one miss for every number of rows, none when it is repeated.
    assert kept_by_torch(plain_gelu, capfd) == 39
    assert kept_by_torch(plain_gelu, capfd) == 0

    model = converted(make_model("bert", intermediate_size=width), make_exits("random exits"))

    def many_lengths() -> None:
        for length in range(1, 40):
            model(torch.randint(5, 97, (1 + length % 9, length)))

    made = kept_by_torch(many_lengths, capfd)
    assert made == 0 if runtime == "kernels" else 0 < made <= 24
