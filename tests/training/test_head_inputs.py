"""The states that a head learns from are those that it will judge by."""

import pytest
import torch
from models import CONFIGS, prompt, similar_draft, tiny_model

from hf_specdecpp.acceptance import states_at
from hf_specdecpp.decoding import Decoding
from hf_specdecpp.training.head_inputs import UNLABELLED, HeadInputs, add_states, places_in_rounds
from hf_specdecpp.training.labels import Rows, label_responses

PROMPTS = [prompt(5)[0].tolist(), prompt(9, 1)[0].tolist()]
RESPONSES = [prompt(12, 3)[0].tolist(), prompt(7, 4)[0].tolist()]
MODE = {"sampling": Decoding(True, top_k=20)}


def rows_of(draft, rows):
    return label_responses(tiny_model(), draft, PROMPTS, RESPONSES, MODE, rows, seed=0)


def state_by_hand(draft, row, i, procedure, reads):
    """The draft's last hidden state before or after the i-th token, by a pass over what it would have read."""
    line = row["response_ids"]
    if procedure == "specdec++":
        mixed = zip(row["sampling_mixed"], line, row["sampling_drawn"], strict=True)
        line = [x if keep else y for keep, x, y in mixed]
        own = line[i]
    else:
        own = row["sampling_drawn"][i]
    read = row["prompt_ids"] + line[:i] + ([own] if reads == "after" else [])
    with torch.no_grad():
        return draft(torch.tensor([read]), output_hidden_states=True).hidden_states[-1][0, -1]


@pytest.mark.parametrize("reads", ("before", "after"))
@pytest.mark.parametrize("procedure", ("on-policy", "specdec++"))
@pytest.mark.parametrize("architecture", list(CONFIGS))
def test_states_are_those_of_a_pass_for_each_token(architecture, procedure, reads):
    draft = tiny_model(architecture, seed=1)
    inputs = HeadInputs("sampling", Rows(procedure, 0.4), reads)
    rows = rows_of(draft, inputs.rows)
    states = states_at(draft, **inputs.passes(rows))
    for b, row in enumerate(rows):
        for i in range(len(row["response_ids"])):
            expected = state_by_hand(draft, row, i, procedure, reads)
            torch.testing.assert_close(states[b, i], expected, atol=1e-4, rtol=1e-3)


def test_stored_states_are_the_same_in_half_precision(target):
    draft = similar_draft(target)
    inputs = HeadInputs("sampling", Rows(), "after")
    rows = rows_of(draft, Rows())
    add_states(draft, rows, inputs)
    stored = HeadInputs("sampling", Rows(), "after", stored=True)(rows)["hidden_states"]
    states = states_at(draft, **inputs.passes(rows))
    assert stored.dtype == torch.float16 and stored.shape == states.shape == (2, 12, 32)
    for b, row in enumerate(rows):
        n = len(row["response_ids"])
        torch.testing.assert_close(stored[b, :n].float(), states[b, :n], atol=1e-2, rtol=2e-3)


def test_the_papers_rows_have_labels_where_the_input_is_the_drafts_own_token(target):
    rows = rows_of(similar_draft(target), Rows("specdec++", 0.5))
    labels = HeadInputs("sampling", Rows("specdec++", 0.5))(rows)["acceptance"]
    for found, row in zip(labels.tolist(), rows, strict=True):
        columns = zip(row["sampling_mixed"], row["sampling_drawn"], row["response_ids"], strict=True)
        own = [not keep or x == y for keep, y, x in columns]
        own += [False] * (len(found) - len(own))
        assert [value != UNLABELLED for value in found] == own and 0 < sum(own) < len(own)


def test_batches_are_padded_on_the_right_and_padding_is_unlabelled(target):
    batch = HeadInputs("sampling", Rows(), "before", ["position", "entropy"])(rows_of(similar_draft(target), Rows()))
    assert batch["acceptance"].shape == (2, 12) and batch["features"].shape == (2, 12, 2)
    assert batch["acceptance"][1, 7:].tolist() == [UNLABELLED] * 5
    assert batch["attention_mask"].sum(-1).tolist() == [17, 16]


def test_a_place_in_a_round_counts_from_the_last_rejection():
    accepted = torch.tensor([1, 1, 0, 0, 1, 1, 1, 0]).bool()
    assert places_in_rounds(accepted).tolist() == [1, 2, 3, 1, 1, 2, 3, 4]


def test_states_beyond_half_precision_are_refused(target):
    draft = similar_draft(target)
    draft.model.norm.weight.data.mul_(1e6)
    with pytest.raises(ValueError, match="too large for float16: label without states"):
        add_states(draft, rows_of(draft, Rows()), HeadInputs("sampling", Rows()))
