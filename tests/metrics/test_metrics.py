"""The values of the metrics, against a few lines of plain Python each."""

import json
import math
import random

import evaluate
import pytest
import torch

from hf_specdecpp.metrics import METRICS, all_metrics, load_metric

SOFT = random.Random(0)
# One digit: ties, predictions on the edges of bins, and 0 and 1 occur.
PREDICTIONS = [round(SOFT.random(), 1) for _ in range(200)]
LABELS = {
    "soft": [SOFT.random() for _ in PREDICTIONS],
    "greedy": [float(SOFT.random() < (0.1 + 0.8 * p)) for p in PREDICTIONS],
}


@pytest.fixture(params=LABELS)
def pairs(request):
    return list(zip(PREDICTIONS, LABELS[request.param], strict=True))


def compute(name, pairs, **options):
    return load_metric(name).compute(predictions=[p for p, _ in pairs], references=[a for _, a in pairs], **options)


def test_binary_kl_is_the_mean_of_the_divergences(pairs):
    inside = [(p, a) for p, a in pairs if 0 < p < 1]
    divergences = [
        sum(x * math.log(x / y) for x, y in ((a, p), (1 - a, 1 - p)) if x > 0)  # KL(Bernoulli(a) || Bernoulli(p))
        for p, a in inside
    ]
    assert compute("binary_kl", inside)["binary_kl"] == pytest.approx(sum(divergences) / len(inside))


@pytest.mark.parametrize(
    ("prediction", "reference", "nats"),
    [(0.0, 0.0, 0), (1.0, 1.0, 0), (0.0, 1.0, 12 * math.log(10)), (1.0, 0.0, 12 * math.log(10))],
)
def test_binary_kl_of_certainty_is_nothing_when_right_and_finite_when_wrong(prediction, reference, nats):
    assert compute("binary_kl", [(prediction, reference)])["binary_kl"] == pytest.approx(nats)


def test_brier_score_is_the_squared_error_and_the_spread_of_the_outcome(pairs):
    expected = sum((p - a) ** 2 + a * (1 - a) for p, a in pairs) / len(pairs)
    assert compute("brier_score", pairs)["brier_score"] == pytest.approx(expected)


@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_expected_calibration_error_is_the_mean_gap_of_the_bins(pairs, n_bins):
    error, expected = 0.0, []
    for i in range(n_bins):
        members = [(p, a) for p, a in pairs if i / n_bins < p <= (i + 1) / n_bins or i == p == 0]
        if members:
            predicted, actual = (sum(side) / len(members) for side in zip(*members, strict=True))
            error += len(members) / len(pairs) * abs(predicted - actual)
            expected.append((i / n_bins, (i + 1) / n_bins, len(members), predicted, actual))
    result = compute("expected_calibration_error", pairs, n_bins=n_bins)
    assert result["expected_calibration_error"] == pytest.approx(error)
    found = [(b["lower"], b["upper"], b["count"], b["predicted"], b["actual"]) for b in result["bins"]]
    assert found == [pytest.approx(b) for b in expected]


def test_roc_auc_is_the_share_of_ordered_pairs(pairs):
    above = total = 0.0
    for p, a in pairs:
        for q, b in pairs:
            total += a * (1 - b)
            above += a * (1 - b) * ((p > q) + (p == q) / 2)
    assert compute("roc_auc", pairs)["roc_auc"] == pytest.approx(above / total)


def chains(pairs):
    """The pairs as drafts of 0 to 7 tokens: predictions, references."""
    lengths, drafts = random.Random(1), []
    while pairs:
        length = lengths.randrange(8)
        drafts.append(pairs[:length])
        pairs = pairs[length:]
    return [[p for p, _ in d] for d in drafts], [[a for _, a in d] for d in drafts]


def test_survival_calibration_compares_products_by_length_and_pooled(pairs):
    predictions, references = chains(pairs)
    result = load_metric("survival_calibration").compute(predictions=predictions, references=references)
    pooled = []
    for row in result["by_length"]:
        n = row["length"]
        survivals = [
            (math.prod(p[:n]), math.prod(a[:n])) for p, a in zip(predictions, references, strict=True) if len(p) >= n
        ]
        predicted, actual = (sum(side) / len(survivals) for side in zip(*survivals, strict=True))
        expected = {"predicted": predicted, "actual": actual, "bias": predicted - actual}
        assert row == pytest.approx({"length": n, "count": len(survivals)} | expected, abs=1e-12)
        pooled += survivals
    assert [row["length"] for row in result["by_length"]] == [1, 2, 3, 4, 5, 6, 7] and len(pooled) == len(pairs)
    error = compute("expected_calibration_error", pooled)["expected_calibration_error"]
    assert result["survival_calibration_error"] == pytest.approx(error)


def test_the_bias_of_survival_is_positive_for_a_head_that_believes_too_much():
    result = load_metric("survival_calibration").compute(predictions=[[0.9, 0.9]], references=[[0.5, 0.5]])
    assert [row["bias"] for row in result["by_length"]] == pytest.approx([0.4, 0.81 - 0.25])


BAD = {
    "nothing": ([], [], r"at least one of each, got none"),
    "too large": ([0.5, 1.5], [0.5, 0.5], r"probabilities in \[0, 1\].* got 1.5"),
    "negative": ([0.5], [-0.25], r"probabilities in \[0, 1\].* got -0.25"),
    "nan": ([math.nan], [0.5], r"probabilities in \[0, 1\].* got nan"),
    "missing": ([0.5, None], [0.5, 0.5], r"probabilities in \[0, 1\].* got nan"),
    "lengths": ([0.5, 0.5], [0.5], r"number of predictions \(2\) and references \(1\)"),
}


@pytest.mark.parametrize(("predictions", "references", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("name", METRICS)
def test_bad_input_gets_one_sentence_and_the_metric_goes_on(name, predictions, references, message):
    nested = (lambda values: [[v] for v in values]) if name == "survival_calibration" else list
    metric = load_metric(name)
    with pytest.raises(ValueError, match=message):
        metric.compute(predictions=nested(predictions), references=nested(references))
    assert metric.compute(predictions=nested([0.5, 0.5]), references=nested([0.0, 1.0]))


@pytest.mark.parametrize(
    ("name", "references", "options", "message"),
    [
        ("roc_auc", [1.0, 1.0], {}, "some of each"),
        ("roc_auc", [0.0, 0.0], {}, "some of each"),
        ("expected_calibration_error", [0.0, 1.0], {"n_bins": 0}, "n_bins must be 1 or more, got 0"),
        ("survival_calibration", [[1.0], [1.0, 1.0]], {}, "draft 1 has 1 predictions, but 2 references"),
        ("survival_calibration", [[1.0], [1.0]], {"n_bins": -1}, "n_bins must be 1 or more, got -1"),
    ],
)
def test_what_a_metric_cannot_judge_is_said(name, references, options, message):
    predictions = [[0.5], [0.5]] if name == "survival_calibration" else [0.5, 0.5]
    with pytest.raises(ValueError, match=message):
        load_metric(name).compute(predictions=predictions, references=references, **options)


def test_an_unknown_metric_is_refused():
    with pytest.raises(ValueError, match=r"binary_kl, .* got 'accuracy'"):
        load_metric("accuracy")


def test_all_metrics_are_those_of_the_modules_and_go_into_json(pairs):
    drafts = chains(pairs)
    found = all_metrics(*(torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True)), drafts)
    expected = load_metric("survival_calibration").compute(predictions=drafts[0], references=drafts[1])
    for name in METRICS[:4]:
        expected |= compute(name, pairs)
    assert json.loads(json.dumps(found, allow_nan=False)) == expected
    assert found.keys() - all_metrics(*zip(*pairs, strict=True)).keys() == {"survival_calibration_error", "by_length"}


def test_all_metrics_need_no_cache_that_can_be_written(pairs, monkeypatch):
    """The end of a training must not fail because the home is read-only."""

    def read_only(*args, **kwargs):
        raise OSError("Read-only file system")

    monkeypatch.setattr(evaluate, "load", read_only)
    assert all_metrics(*zip(*pairs, strict=True), chains(pairs))["binary_kl"] > 0


@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_where_all_tokens_are_alike_there_is_no_auc_but_the_rest(acceptance):
    found = all_metrics([0.5, 0.75], [acceptance] * 2)
    assert found["roc_auc"] is None and found["binary_kl"] > 0
