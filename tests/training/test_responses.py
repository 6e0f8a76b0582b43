import copy
import logging

import torch
from models import prompt

from hf_specdecpp.decoding import Decoding
from hf_specdecpp.training.responses import generate_responses, sampling_of


def test_batched_greedy_responses_equal_single_generation(target):
    """Rows of different lengths leave the batch at different times; each must get what it gets alone."""
    lengths = (3, 9, 5, 7, 20, 4, 11, 6, 8, 3, 14)  # more than are read in one pass
    prompts = [prompt(length, seed)[0].tolist() for seed, length in enumerate(lengths)]
    alone = [
        target.generate(torch.tensor([p]), max_new_tokens=25, do_sample=False)[0, len(p) :].tolist() for p in prompts
    ]
    # A token that some rows reach early and others never: those must go on alone.
    stop = alone[0][4]
    expected = [a[: a.index(stop) + 1] if stop in a else a for a in alone]
    assert len({len(e) for e in expected}) > 1
    assert generate_responses(target, prompts, Decoding(), 25, [stop]) == expected


def test_sampled_responses_repeat_with_their_seed(target):
    prompts = [prompt(5)[0].tolist(), prompt(6, 1)[0].tolist()]
    first = generate_responses(target, prompts, Decoding(True), 12, [2], seed=3)
    assert first == generate_responses(target, prompts, Decoding(True), 12, [2], seed=3)
    assert first != generate_responses(target, prompts, Decoding(True), 12, [2], seed=4)


def test_what_labels_leave_out_of_a_targets_generation_config_is_said(target, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("hf_specdecpp"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("hf_specdecpp"), "level", logging.WARNING)
    monkeypatch.setattr(target, "generation_config", copy.deepcopy(target.generation_config))
    assert sampling_of(target) == Decoding(True) and not caplog.text
    target.generation_config.update(top_k=20, repetition_penalty=1.1, min_p=0.0)
    assert sampling_of(target, top_p=0.5) == Decoding(True, 1.0, 20, 0.5)
    assert "asks for repetition_penalty=1.1, which responses and labels leave out" in caplog.text
