import pytest
import torch

from hf_specdecpp.decoding import Decoding


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
