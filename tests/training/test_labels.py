import pytest
import torch
from models import prompt, similar_draft

from hf_specdecpp.decoding import Decoding, draw_beside, draw_tokens
from hf_specdecpp.training.labels import Rows, acceptance, label_responses, overlap

PROMPTS = [prompt(5)[0].tolist(), prompt(9, 1)[0].tolist(), prompt(4, 2)[0].tolist()]
RESPONSES = [prompt(12, 3)[0].tolist(), prompt(3, 4)[0].tolist(), prompt(20, 5)[0].tolist()]
MODES = {"greedy": Decoding(), "sampling": Decoding(True, top_k=20)}


@pytest.fixture
def pair(target):
    return target, similar_draft(target)


def labelled(pair, rows=None, seed=0):
    return label_responses(*pair, PROMPTS, RESPONSES, MODES, rows or Rows(), seed)


def warped(logits, k):
    """Of the `k` largest logits, the probabilities by token."""
    kept = logits.topk(k)
    return dict(zip(kept.indices.tolist(), kept.values.softmax(-1).tolist(), strict=True))


def test_acceptance_is_min_1_p_over_q_of_the_warped_distributions():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(50, 10, generator=generator) * 2 for _ in range(2))
    mode = Decoding(True, top_k=4)
    drawn = mode.draw(q, generator)
    warped_p, warped_q = mode.probabilities(p), mode.probabilities(q)
    found, expected = acceptance(warped_p, warped_q, drawn, "rejection"), overlap(warped_p, warped_q)
    for i, y in enumerate(drawn.tolist()):
        kept_p, kept_q = warped(p[i], 4), warped(q[i], 4)
        assert found[i].item() == pytest.approx(min(1, kept_p.get(y, 0.0) / kept_q[y]), abs=1e-5)
        by_hand = sum(min(kept_p.get(v, 0.0), kept_q[v]) for v in kept_q)
        assert expected[i].item() == pytest.approx(by_hand, abs=1e-5)
        assert by_hand == pytest.approx(sum(kept_q[v] * min(1, kept_p.get(v, 0.0) / kept_q[v]) for v in kept_q))
    certain = [Decoding().probabilities(logits) for logits in (p, q)]
    greedy = acceptance(*certain, q.argmax(-1), "rejection")
    assert greedy.equal(acceptance(*certain, q.argmax(-1), "seeded"))
    assert greedy.tolist() == (p.argmax(-1) == q.argmax(-1)).float().tolist() and 0 < greedy.mean() < 1
    assert greedy.tolist() == overlap(*certain).tolist()


@pytest.mark.parametrize("procedure", ("on-policy", "specdec++"))
def test_labels_of_every_mode_are_those_of_one_sequence_at_a_time(pair, procedure):
    """The batched, padded passes against unbatched ones: the same tokens are judged the same."""
    for row, p, r in zip(labelled(pair, Rows(procedure, 0.4)), PROMPTS, RESPONSES, strict=True):
        assert (row["prompt_ids"], row["response_ids"]) == (p, r)
        with torch.no_grad():
            target_logits, draft_logits = (m(torch.tensor([p + r])).logits[0, len(p) - 1 : -1] for m in pair)
        q = draft_logits.softmax(-1)
        torch.testing.assert_close(torch.tensor(row["entropy"]), -(q * q.log()).sum(-1), atol=1e-3, rtol=1e-3)
        for name, mode in MODES.items():
            drawn = torch.tensor(row[f"{name}_drawn"])
            both = [mode.probabilities(logits) for logits in (target_logits, draft_logits)]
            expected = {
                "acceptance": acceptance(*both, drawn, mode.coupling),
                "overlap": overlap(*both),
                "probability": mode.processed(draft_logits).softmax(-1).gather(-1, drawn[:, None])[:, 0],
            }
            for kind, values in expected.items():
                torch.testing.assert_close(torch.tensor(row[f"{name}_{kind}"]), values, atol=1e-4, rtol=1e-3)
            assert (f"{name}_mixed" in row) == (procedure == "specdec++")


def under_one_noise(p, q, n, generator):
    """`n` simulated draws of the target and the draft that share the exponential races."""
    noise = torch.empty(n, len(p)).exponential_(generator=generator)
    return (p / noise).argmax(-1), (q / noise).argmax(-1)


def pair_of_laws(seed, ruled_out=False):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, 6, generator=generator).mul(1.5).softmax(-1)
    if ruled_out:  # as warpers do, different tokens for each
        p, q = (law.scatter(0, torch.tensor(out), 0.0) for law, out in ((p, [0, 1]), (q, [1, 2])))
        p, q = p / p.sum(), q / q.sum()
    return p, q, generator


@pytest.mark.parametrize("ruled_out", (False, True))
@pytest.mark.parametrize("seed", range(3))
def test_acceptance_under_one_noise_is_what_200000_draws_say(seed, ruled_out):
    """The closed form against counts of how often the target chooses the draft's token too: 5 standard errors."""
    p, q, generator = pair_of_laws(seed, ruled_out)
    x, y = under_one_noise(p, q, 200_000, generator)
    for token in range(6):
        own = y == token
        if q[token] == 0:
            assert not own.any()
            continue
        [expected] = acceptance(p[None], q[None], torch.tensor([token]), "seeded").tolist()
        count = int(own.sum())
        error = max(expected * (1 - expected) / count, 1e-12) ** 0.5
        assert (x[own] == token).double().mean().item() == pytest.approx(expected, abs=5 * error + 1e-6)


@pytest.mark.parametrize("coupling", ("seeded", "rejection"))
def test_equal_laws_always_agree_and_ruled_out_tokens_never(coupling):
    p, _, _ = pair_of_laws(1, True)
    drawn = p.nonzero()[:, 0]
    ones = acceptance(p.expand(len(drawn), -1), p.expand(len(drawn), -1), drawn, coupling)
    torch.testing.assert_close(ones, torch.ones(len(drawn)))
    q = torch.full((1, 6), 1 / 6)
    assert acceptance(p[None], q, torch.tensor([0]), coupling).tolist() == [0.0]


@pytest.mark.parametrize("ruled_out", (False, True))
@pytest.mark.parametrize("coupling", ("seeded", "rejection"))
def test_tokens_beside_the_targets_have_the_joint_law_of_decoding(coupling, ruled_out):
    """The draft's token alone has the law q, and it is the target's as often as drafts are accepted."""
    p, q, generator = pair_of_laws(4, ruled_out)
    n = 200_000
    x = draw_tokens(p.expand(n, -1), generator).squeeze(-1)
    y = draw_beside(q.expand(n, -1), p.expand(n, -1), x, generator, coupling)
    joint = torch.bincount(6 * x + y, minlength=36).view(6, 6) / n
    assert (joint.sum(0) - q).abs().max() < 5 * 0.5 / n**0.5
    accepted = acceptance(p.expand(6, -1), q.expand(6, -1), torch.arange(6), coupling).nan_to_num() * q
    assert (joint.diagonal() - accepted).abs().max() < 5 * 0.5 / n**0.5 and accepted.sum() < 0.9
    if coupling == "rejection":
        assert joint.diagonal().sum() == pytest.approx(overlap(p, q).item(), abs=5 * 0.5 / n**0.5)
    else:
        one, other = under_one_noise(p, q, n, generator)
        simulated = torch.bincount(6 * one + other, minlength=36).view(6, 6) / n
        assert (joint - simulated).abs().max() < 7 * 0.5 / n**0.5


def test_mixing_is_the_share_of_the_targets_tokens(pair):
    for share in (0.0, 1.0):
        rows = labelled(pair, Rows("specdec++", share))
        assert {value for row in rows for value in row["greedy_mixed"]} == {bool(share)}


@pytest.mark.parametrize(
    ("given", "message"), [(("paper",), "got 'paper'"), (("on-policy", 1.5), "in \\[0, 1\\], got 1.5")]
)
def test_other_procedures_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Rows(*given)
