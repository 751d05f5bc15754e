"""Figures of the study: what is drawn is what the results say, and what cannot be drawn is refused."""

from pathlib import Path
from typing import Any

import pytest
from made_up_results import baselines, point, result

from hashee.errors import InputError
from hashee.study.clocks import ClockRow, Clocks
from hashee.study.figures import FIGURES, save
from hashee.study.figures.hash_functions import hash_scores
from hashee.study.figures.style import LOOKS, look_of
from hashee.study.options import ReportOptions

pytest.importorskip("matplotlib")

SST2 = ReportOptions(task="SST-2", backbone="minilm")


def lines(axes: Any) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each line by its name in the legend."""
    handles, labels = axes.get_legend_handles_labels()
    drawn = [getattr(handle, "lines", [handle])[0] for handle in handles]
    return {
        label: [(x, pytest.approx(y)) for x, y in zip(*line.get_data(), strict=True)]
        for label, line in zip(labels, drawn, strict=True)
    }


def test_a_line_goes_through_the_points_that_dev_would_choose() -> None:
    trap = point(3.0, dev=0.5, test=0.99, knob=2)
    seeds = [
        result("pabee", point(2.0, 0.9, 0.8, knob=3), trap, point(4.0, 0.7, 0.6, knob=1), seed=0),
        result("pabee", point(2.0, 0.9, 0.9, knob=3), trap, point(4.0, 0.7, 0.7, knob=1), seed=1),
    ]
    figure = FIGURES["quality-cost"]([*seeds, *baselines()], SST2)
    drawn = lines(figure.axes[0])
    assert drawn["PABEE"] == [(2.0, 85.0), (4.0, 65.0)]
    assert drawn["dense"] == [(1.0, 90.0)]
    assert figure.axes[0].get_xscale() == "log"


def test_a_model_cut_shorter_is_no_point_of_its_backbone() -> None:
    short = result("hash-frequency", point(5.0, 0.9, 0.7), settings={"depth": 3})
    whole = result("hash-frequency", point(2.5, 0.9, 0.8))
    drawn = lines(FIGURES["quality-cost"]([whole, short], SST2).axes[0])
    assert drawn[LOOKS["hash-frequency"].label] == [(2.5, 80.0)]


def test_backbones_stand_side_by_side_on_one_scale() -> None:
    found = [*baselines(), *baselines(backbone="other"), result("pabee", point(3.0, 0.8, 0.7), backbone="other")]
    figure = FIGURES["backbones"](found, ReportOptions(task="sst2"))
    left, right = figure.axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("minilm", "other")
    assert left.get_ylim() == right.get_ylim()
    assert lines(right)["PABEE"] == [(3.0, 70.0)]
    assert lines(left)["PABEE"] == []


def test_scores_of_hash_functions_are_those_above_the_baseline() -> None:
    # At 1.25x, 1600 MFLOPs, the baseline has 86.
    found = [*baselines(), result("hash-mi", point(1.25, 0.9, 0.88)), result("hash-frequency", point(2.0, 0.8, 0.79))]
    scores = hash_scores(found)
    assert scores == {"hash-mi": {"sst2": pytest.approx(2.0)}, "hash-frequency": {"sst2": pytest.approx(-1.0)}}
    bars = FIGURES["hash-functions"](found, ReportOptions()).axes[0].patches
    assert [bar.get_height() for bar in bars] == [pytest.approx(2.0), pytest.approx(-1.0)]


def test_times_are_medians_in_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "clocks.json"
    Clocks(
        (
            ClockRow("dense", "SNLI", 8, (0.002, 0.003, 0.009)),
            ClockRow("dense", "SNLI", 1, (0.005,)),
            ClockRow("pabee", "IMDb", 1, (0.050,)),
        )
    ).write(path)
    short, long = FIGURES["inference-time"]([], ReportOptions(clocks=path)).axes
    assert lines(short)["dense"] == [(1, 5.0), (8, 3.0)]
    assert lines(long)["PABEE"] == [(1, 50.0)]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no results"):
        FIGURES["quality-cost"]([], ReportOptions())
    with pytest.raises(InputError, match="minilm, other"):
        FIGURES["quality-cost"]([*baselines(), *baselines(backbone="other")], ReportOptions())
    with pytest.raises(InputError, match="say which task"):
        FIGURES["backbones"]([*baselines("mrpc"), *baselines("stsb")], ReportOptions())
    with pytest.raises(InputError, match="nothing to draw"):
        FIGURES["hash-functions"](baselines(), ReportOptions())
    with pytest.raises(InputError, match="measure them first"):
        FIGURES["inference-time"]([], ReportOptions(clocks=tmp_path / "none.json"))


def test_no_two_methods_look_alike_in_grey() -> None:
    looks = [(look.marker, str(look.line), look.ours, look.filled) for look in LOOKS.values()]
    assert len(set(looks)) == len(looks)
    assert look_of("new-method", 1).label == "new-method"


def test_a_figure_is_written_as_its_ending_says(tmp_path: Path) -> None:
    figure = FIGURES["quality-cost"](baselines(), SST2)
    assert save(figure, tmp_path / "a" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in save(figure, tmp_path / "figure.svg").read_bytes()
