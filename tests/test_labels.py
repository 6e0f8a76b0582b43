import pytest
import torch
from conftest import prompt, similar_draft

from hf_specdecpp.decoding import Decoding
from hf_specdecpp.labels import UNLABELLED, LabelsCard, acceptance, label_responses, read_labels
from hf_specdecpp.pipeline import label_prompts

PROMPTS = [prompt(5)[0].tolist(), prompt(9, 1)[0].tolist(), prompt(4, 2)[0].tolist()]
RESPONSES = [prompt(12, 3)[0].tolist(), prompt(3, 4)[0].tolist(), prompt(20, 5)[0].tolist()]


@pytest.fixture
def pair(target):
    return target, similar_draft(target)


def labelled(pair, decoding=None, mixing=0.15, seed=0):
    return label_responses(*pair, PROMPTS, RESPONSES, decoding or Decoding(True), mixing, seed)


def test_acceptance_is_min_1_p_over_q_of_the_warped_distributions():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(50, 10, generator=generator) * 2 for _ in range(2))
    drawn = Decoding(True, top_k=4).draw(q, generator)
    found = acceptance(p, q, drawn, Decoding(True, top_k=4))
    for i, y in enumerate(drawn.tolist()):
        kept_p, kept_q = p[i].topk(4), q[i].topk(4)
        p_y = dict(zip(kept_p.indices.tolist(), kept_p.values.softmax(-1).tolist(), strict=True)).get(y, 0.0)
        q_y = dict(zip(kept_q.indices.tolist(), kept_q.values.softmax(-1).tolist(), strict=True))[y]
        assert found[i].item() == pytest.approx(min(1, p_y / q_y), abs=1e-5)
    greedy = acceptance(p, q, q.argmax(-1), Decoding())
    assert greedy.tolist() == (p.argmax(-1) == q.argmax(-1)).float().tolist() and 0 < greedy.mean() < 1


def test_labels_are_those_of_one_sequence_at_a_time(pair):
    """The batched, padded passes against unbatched ones: the same tokens are judged the same."""
    judged = 0
    for decoding in (Decoding(), Decoding(True, top_k=20)):
        for row, p, r in zip(labelled(pair, decoding, mixing=0.4), PROMPTS, RESPONSES, strict=True):
            assert row["input_ids"][: len(p)] == p and len(row["input_ids"]) == len(row["acceptance"]) == len(p + r)
            assert row["acceptance"][: len(p)] == [UNLABELLED] * len(p)
            with torch.no_grad():
                target_logits, draft_logits = (m(torch.tensor([p + r])).logits[0, len(p) - 1 : -1] for m in pair)
            mixed = torch.tensor(row["input_ids"][len(p) :])
            found = torch.tensor(row["acceptance"][len(p) :])
            expected = acceptance(target_logits, draft_logits, mixed, decoding)
            on = found != UNLABELLED
            judged += on.sum()
            torch.testing.assert_close(found[on], expected[on], atol=1e-4, rtol=1e-3)
            # Where there is no label, the input is the target's token.
            assert mixed[~on].tolist() == torch.tensor(r)[~on].tolist()
    assert judged > 20


def test_mixing_is_the_share_of_the_targets_tokens(pair):
    assert all(UNLABELLED not in row["acceptance"][-3:] for row in labelled(pair, mixing=0.0))
    only_targets = labelled(pair, mixing=1.0)
    assert [row["input_ids"] for row in only_targets] == [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)]


def rows(n=10):
    return [{"prompt": f"What is {i} plus {i * i}?"} for i in range(n)]


def card(pair, **changes):
    settings = {"mixing": 0.15, "max_new_tokens": 8, "seed": 0} | changes
    return LabelsCard.of(*pair, Decoding(True), **settings)


def test_an_interrupted_run_goes_on_and_ends_in_the_same_dataset(pair, tokenizer, tmp_path):
    label_prompts(*pair, tokenizer, rows(), tmp_path / "whole", card(pair), batch_size=4)

    class Stopped(Exception):
        pass

    def stop_after_the_second(n, rate, batches=[]):  # noqa: B006
        batches.append(n)
        if len(batches) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        label_prompts(*pair, tokenizer, rows(), tmp_path / "cut", card(pair), 4, stop_after_the_second)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cut").glob("*.parquet")}
    (tmp_path / "cut" / "labels-00002.parquet.partial").write_text("half a file")
    label_prompts(*pair, tokenizer, rows(), tmp_path / "cut", card(pair), 4)
    assert len(written) == 2 and all(path.stat().st_mtime_ns == time for path, time in written.items())
    whole, cut = (read_labels(tmp_path / name) for name in ("whole", "cut"))
    assert whole.to_list() == cut.to_list() and len(whole) == 10


def test_given_responses_are_kept(pair, tokenizer, tmp_path):
    given = [{"prompt": "a", "response_ids": [20, 21, 22]}, {"prompt": "bc", "response_ids": None}]
    label_prompts(*pair, tokenizer, given, tmp_path, card(pair, mixing=1.0))
    found = sorted(row["input_ids"][-3:] for row in read_labels(tmp_path).to_list())
    assert [20, 21, 22] in found and len(found) == 2


def test_a_folder_of_other_labels_is_not_written_into(pair, tokenizer, tmp_path):
    label_prompts(*pair, tokenizer, rows(2), tmp_path, card(pair))
    with pytest.raises(ValueError, match="labels made with another mixing, seed: choose another output folder"):
        label_prompts(*pair, tokenizer, rows(2), tmp_path, card(pair, mixing=0.5, seed=1))


def test_a_folder_without_labels_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no labels yet"):
        read_labels(tmp_path)
