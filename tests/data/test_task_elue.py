"""The ELUE score: the leaderboard's own figures, and the unit in which a cost is given."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertConfig

import hashee
from hashee.data import ELASTICBERT, elue_score, load_task, mflops_per_text
from hashee.embedded import minilm_folder
from hashee.errors import InputError

# (MFLOPs, accuracy) on SST-2, read off the leaderboard's curves; the score by hand; the score on the leaderboard.
CURVES = {
    "RoBERTa": ([(1042, 81.8), (1390, 84.6), (2083, 86.8), (4164, 88.3)], -0.90, -0.89),
    "LayerDrop": ([(1042, 81.9), (1390, 84.3), (2083, 86.3), (4164, 87.9)], -1.17, -1.17),
    "PABEE": ([(1450, 83.1), (1914, 85.4), (2361, 86.0), (2802, 86.8), (3195, 86.9), (3568, 87.0)], -1.30, -1.33),
    "patience": ([(1521, 86.5), (1902, 86.4), (2309, 88.0), (2699, 88.4), (3062, 88.0), (3392, 88.0)], 0.424, 0.40),
}


@pytest.mark.parametrize("system", CURVES)
def test_published_curves_get_their_scores(system: str) -> None:
    points, by_hand, on_the_board = CURVES[system]
    assert elue_score(points) == pytest.approx(by_hand, abs=0.005)
    assert elue_score(points, task="SST-2") == pytest.approx(on_the_board, abs=0.035)


curves = st.lists(st.tuples(st.floats(1, 1e4), st.floats(50, 100)), min_size=2, max_size=8, unique_by=lambda p: p[0])


@given(curve=curves, shift=st.floats(-20, 20))
def test_a_curve_scores_what_it_lies_above_itself(curve: list[tuple[float, float]], shift: float) -> None:
    gaps = sorted(flops for flops, _ in curve)
    # Else so steep that rounding decides.
    assume(min(after - before for before, after in pairwise(gaps)) > 1e-3)
    assert elue_score(curve, baseline=curve) == pytest.approx(0, abs=1e-9)
    raised = [(flops, performance + shift) for flops, performance in curve]
    assert elue_score(raised, baseline=curve[::-1]) == pytest.approx(shift, abs=1e-9)


def test_the_baseline_goes_on_beyond_its_ends() -> None:
    line = [(100, 50.0), (200, 60.0), (400, 70.0)]
    assert elue_score([(50, 50.0)], line) == pytest.approx(5)
    assert elue_score([(150, 50.0)], line) == pytest.approx(-5)
    assert elue_score([(600, 80.0)], line) == pytest.approx(0)


def test_a_baseline_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps([[100, 50.0], [200, 60.0]]))
    assert elue_score([(100, 51.0)], path) == elue_score([(100, 51.0)], str(path)) == pytest.approx(1)
    for content in ("{}", "[]", "[[1, 2]]", '[["a", 2], [3, 4]]', "[[1, 2], [1, 3]]", "no JSON"):
        path.write_text(content)
        with pytest.raises(InputError):
            elue_score([(100, 51.0)], path)


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        ([], {}, "at least one point"),
        ([(1000,)], {}, "not a point"),
        ([(1000, float("nan"))], {}, "not a point"),
        ([(0, 80.0)], {}, "above 0"),
        ([(1000, 0.85)], {}, "in percent; take it times 100"),
        ([(9.36e12, 85.0)], {}, r"mflops_per_text\(macs, texts\)"),
        ([(1000, 85.0)], {"task": "imdb"}, "known for sst2 only.*baseline="),
        ([(1000, 85.0)], {"baseline": 5}, "of type int"),
        ([(1000, 85.0)], {"baseline": "missing.json"}, "missing.json"),
    ],
)
def test_what_is_no_curve_is_refused(points: list[tuple[float, ...]], options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        elue_score(points, **options)  # type: ignore[arg-type]


def test_cost_per_text() -> None:
    assert mflops_per_text(3_000_000, 2) == 3
    with pytest.raises(InputError, match="0 texts"):
        mflops_per_text(5, 0)


@pytest.mark.data
def test_our_count_is_in_the_unit_of_the_curve(data_dir: Path) -> None:
    test = load_task("sst2").test
    assert test is not None
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    count = hashee.count_flops(BertConfig(), test.texts, tokenizer=tokenizer)
    whole = mflops_per_text(count.paper_macs, count.texts)
    # ElasticBERT's figures have the pooler and the embeddings' norm besides: 1.3 MFLOPs at any depth.
    expected = [whole * layers / 12 + 1.3 for layers in (3, 4, 6, 12)]
    assert [flops for flops, _ in ELASTICBERT["sst2"]] == pytest.approx(expected, abs=0.5)
