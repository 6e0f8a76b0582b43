"""Draws what the metrics found: a reliability diagram, and survival by the length of the draft."""

from __future__ import annotations

from pathlib import Path


def plot_reliability(
    bins: list[dict], path: Path, title: str = "Predicted acceptance", by_length: list[dict] | None = None
) -> None:
    """Draws actual over predicted acceptance and a histogram of the predictions, as a PNG.

    Args:
        bins: those of `expected_calibration_error`.
        by_length: that of `survival_calibration`, for a second panel of predicted and actual survival.
    """
    from matplotlib.figure import Figure  # without pyplot, whose state is the caller's

    columns = 2 if by_length else 1
    figure = Figure(figsize=(5 * columns, 6), layout="constrained")
    above, beneath = figure.subplots(2, columns, sharex="col", height_ratios=[4, 1], squeeze=False)
    figure.suptitle(title)
    predicted, actual, counts = ([b[key] for b in bins] for key in ("predicted", "actual", "count"))
    error = sum(n * abs(p - a) for n, p, a in zip(counts, predicted, actual, strict=True)) / sum(counts)
    areas = [400 * n / max(counts) for n in counts]
    widths = [b["upper"] - b["lower"] for b in bins]
    above[0].plot([0, 1], [0, 1], "--", color="grey", label="perfectly calibrated")
    above[0].scatter(predicted, actual, areas, alpha=0.7, label="mean of a bin, area by its tokens")
    above[0].vlines(predicted, predicted, actual, color="C1", zorder=0, label=f"gap, ECE {error:.3f}")
    above[0].set(ylabel="actual acceptance", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    above[0].legend(loc="upper left", fontsize="small", title_fontsize="small", title=f"{sum(counts):,} tokens")
    beneath[0].bar([b["lower"] for b in bins], counts, widths, align="edge", edgecolor="white")
    beneath[0].set(xlabel="predicted acceptance", ylabel="tokens")
    if by_length:
        lengths, predicted, actual, counts = (
            [row[key] for row in by_length] for key in ("length", "predicted", "actual", "count")
        )
        above[1].plot(lengths, predicted, "o--", label="predicted")
        above[1].plot(lengths, actual, "s-", label="actual")
        above[1].set(ylabel="mean survival of the first i tokens", ylim=(-0.03, 1.03))
        above[1].legend(loc="upper right", fontsize="small", title_fontsize="small", title=f"{counts[0]:,} drafts")
        beneath[1].bar(lengths, counts, edgecolor="white")
        beneath[1].set(xlabel="i (drafts of i tokens or more)", ylabel="drafts")
        beneath[1].xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=150)
