"""The noise of plain sampling, ahead of its time."""

import pytest
import torch

from hf_specdecpp.decoding.noise import Noise

CPU = torch.device("cpu")


@pytest.fixture
def probabilities():
    return torch.randn(40, 3, 50, generator=torch.Generator().manual_seed(0)).mul(2).softmax(-1)


def multinomial(probabilities) -> tuple[torch.Tensor, torch.Tensor]:
    """What plain decoding draws step by step, and where it leaves the generator."""
    torch.manual_seed(7)
    drawn = [torch.multinomial(p, 1).squeeze(-1) for p in probabilities]
    return torch.stack(drawn) if drawn else drawn, torch.get_rng_state()


def test_its_choices_are_those_of_multinomial(probabilities):
    expected, after = multinomial(probabilities)
    torch.manual_seed(7)
    noise = Noise(3, 50, CPU)
    for step, p in enumerate(probabilities):
        assert (p / noise.at(step)).argmax(-1).tolist() == expected[step].tolist()
    noise.leave(len(probabilities))
    assert torch.equal(torch.get_rng_state(), after)


def test_rows_may_be_at_different_steps_and_come_back(probabilities):
    expected, _ = multinomial(probabilities)
    torch.manual_seed(7)
    noise = Noise(3, 50, CPU)
    for rows, steps in (([2, 0], [9, 3]), ([1], [30]), ([0, 1, 2, 0], [0, 8, 31, 12])):
        drawn = torch.stack([probabilities[s, r] for r, s in zip(rows, steps, strict=True)]) / noise.of(rows, steps)
        assert drawn.argmax(-1).tolist() == [expected[s, r] for r, s in zip(rows, steps, strict=True)]
    assert noise.of([1, 1], [4, 4]).shape == (2, 50)


def test_draws_beyond_what_is_kept_are_made_again(probabilities, monkeypatch):
    """Memory is bounded however far the fastest row is ahead, and what was dropped is drawn as before."""
    expected, after = multinomial(probabilities)
    monkeypatch.setattr(Noise, "most_kept", 5)
    torch.manual_seed(7)
    noise = Noise(3, 50, CPU)
    for step in (39, 0, 20, 7, 38, 1, 39, 2, 25):
        assert (probabilities[step] / noise.at(step)).argmax(-1).tolist() == expected[step].tolist()
        assert len(noise.drawn) <= 5
    noise.leave(40)
    assert torch.equal(torch.get_rng_state(), after)


def test_it_leaves_the_generator_after_any_number_of_steps(probabilities):
    for used, left in ((5, 12), (12, 5), (0, 3), (9, 9), (4, 0)):
        torch.manual_seed(7)
        noise = Noise(3, 50, CPU)
        for step in range(used):
            noise.at(step)
        noise.forget(min(left, used, 2))
        noise.leave(left)
        found = torch.get_rng_state()
        multinomial(probabilities[:left])
        assert torch.equal(torch.get_rng_state(), found)


def test_what_all_rows_have_passed_is_forgotten(probabilities):
    expected, _ = multinomial(probabilities)
    torch.manual_seed(7)
    noise = Noise(3, 50, CPU)
    for step in range(0, 36, 4):
        noise.at(step + 3)
        noise.forget(step)
        assert min(noise.drawn) >= step and len(noise.states) <= 5
        for ahead in range(4):
            p = probabilities[step + ahead]
            assert (p / noise.at(step + ahead)).argmax(-1).tolist() == expected[step + ahead].tolist()
