"""What the compiled kernels can run, for the tests that need them."""

import pytest

from hashee import native

needs_kernels = pytest.mark.skipif(native.library() is None, reason="no compiler or no AVX2: everything runs in torch")
FUSED = {"bart", "bert", "camembert", "cpt", "distilbert", "elasticbert", "electra", "roberta", "xlm-roberta"}
"""Families with layers of their own, norms after the sums and no position bias, which run in one call."""
