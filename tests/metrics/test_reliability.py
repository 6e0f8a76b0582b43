import random
from itertools import chain

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from hf_specdecpp.metrics import all_metrics
from hf_specdecpp.metrics.reliability import plot_reliability


@pytest.fixture(scope="module")
def found():
    draw = random.Random(0)
    drafts = [[draw.random() for _ in range(draw.randrange(1, 8))] for _ in range(300)]
    accepted = [[float(draw.random() < p * p) for p in draft] for draft in drafts]
    return all_metrics(list(chain(*drafts)), list(chain(*accepted)), (drafts, accepted))


@pytest.mark.parametrize("panels", [1, 2])
def test_the_diagram_is_a_png_of_one_panel_or_two(found, tmp_path, panels):
    plot_reliability(found["bins"], tmp_path / "found.png", by_length=found["by_length"] if panels == 2 else None)
    assert imread(tmp_path / "found.png").shape == (900, 750 * panels, 4)


def test_the_diagram_shows_the_numbers_of_the_metrics(found, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))
    plot_reliability(found["bins"], tmp_path / "found.png", "A head", found["by_length"])
    reliability, survival, histogram, drafts = figures[0].axes
    legend = reliability.get_legend()
    assert f"gap, ECE {found['expected_calibration_error']:.3f}" in [text.get_text() for text in legend.get_texts()]
    tokens = sum(b["count"] for b in found["bins"])
    assert legend.get_title().get_text() == f"{tokens:,} tokens" and figures[0].get_suptitle() == "A head"
    points, gaps = reliability.collections
    assert points.get_offsets().tolist() == [[b["predicted"], b["actual"]] for b in found["bins"]]
    ends = [[[b["predicted"], b["predicted"]], [b["predicted"], b["actual"]]] for b in found["bins"]]
    assert [segment.tolist() for segment in gaps.get_segments()] == ends
    assert [bar.get_height() for bar in histogram.patches] == [b["count"] for b in found["bins"]]
    for line, key in zip(survival.lines, ("predicted", "actual"), strict=True):
        assert list(line.get_ydata()) == [row[key] for row in found["by_length"]]
    assert [bar.get_height() for bar in drafts.patches] == [row["count"] for row in found["by_length"]]
