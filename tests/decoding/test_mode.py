import math

import pytest
import torch

from hf_specdecpp.decoding import Decoding, draw_beside, draw_tokens


def test_the_modes_are_those_of_generate(target):
    """What `generate` draws from, step by step, is what `Decoding.processed` makes of the same logits."""
    for decoding in (Decoding(), Decoding(True), Decoding(True, 0.6, 0, 0.9), Decoding(True, 1.5, 5, 0.8)):
        output = target.generate(
            torch.tensor([[5, 6, 7]]), max_new_tokens=3, return_dict_in_generate=True, output_scores=True,
            output_logits=True, **decoding.generate_kwargs(),
        )  # fmt: skip
        for scores, logits in zip(output.scores, output.logits, strict=True):
            torch.testing.assert_close(decoding.processed(logits.float()), scores)


def test_draws_follow_the_distribution_and_greedy_takes_the_likeliest():
    logits = torch.tensor([[0.0, 2.0, 1.0]]).expand(4000, 3)
    generator = torch.Generator().manual_seed(0)
    assert Decoding().draw(logits, generator).unique().tolist() == [1]
    drawn = Decoding(True, top_k=2).draw(logits, generator).bincount(minlength=3) / 4000
    torch.testing.assert_close(drawn, torch.tensor([0.0, 0.7311, 0.2689]), atol=0.03, rtol=0)


@pytest.mark.parametrize("setting", ({"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.2}))
def test_impossible_warpers_are_refused(setting):
    with pytest.raises(ValueError, match="temperature must be above 0"):
        Decoding(True, **setting)


@pytest.mark.parametrize("bad", ([0.0, 0.0, 0.0], [0.5, math.nan, 0.5], [0.5, math.inf, 0.5]))
def test_a_row_that_no_token_can_be_drawn_from_is_refused(bad):
    """It used to be the id after the last of the vocabulary."""
    with pytest.raises(ValueError, match="NaN, infinite or all 0"):
        draw_tokens(torch.tensor([[0.5, 0.25, 0.25], bad]))


def test_distributions_that_differ_by_rounding_leave_a_token_to_draw():
    p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 0.5]])  # no residual, however q lost its mass
    assert draw_beside(q, p, torch.tensor([0])).tolist() == [1]


class OnMPS(torch.Tensor):
    """A tensor that has no double precision, as on Apple's GPUs."""

    device = torch.device("mps")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if (kwargs or {}).get("dtype") == torch.double:
            raise TypeError("MPS has no float64")
        return super().__torch_function__(function, types, args, kwargs)


def test_drawing_needs_no_double_precision_on_mps():
    probabilities = torch.tensor([0.7, 0.0, 0.3]).expand(4000, 3).as_subclass(OnMPS)
    drawn = draw_tokens(probabilities, torch.Generator().manual_seed(0)).as_subclass(torch.Tensor)
    assert drawn.shape == (4000, 1)
    torch.testing.assert_close(
        drawn[:, 0].bincount(minlength=3) / 4000, torch.tensor([0.7, 0.0, 0.3]), atol=0.03, rtol=0
    )
