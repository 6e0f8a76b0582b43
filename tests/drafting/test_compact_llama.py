import pytest
import torch
from models import VOCAB, prompt, with_head
from transformers import AutoModelForCausalLM

from hf_specdecpp import CompactLlamaConfig, CompactLlamaForCausalLM, SpecDecPP
from hf_specdecpp.acceptance import acceptance_layer

KEPT = torch.arange(0, VOCAB, 2)


@pytest.fixture
def compact(target):
    """The target's layers behind a vocabulary of every second token."""
    settings = {k: v for k, v in target.config.to_dict().items() if k not in ("model_type", "architectures")}
    settings |= {"compact_vocab_size": len(KEPT), "tie_word_embeddings": True}
    model = CompactLlamaForCausalLM(CompactLlamaConfig(**settings)).eval()
    model.set_vocabulary(KEPT, target.get_input_embeddings().weight)
    model.model.layers.load_state_dict(target.model.layers.state_dict())
    return model


def test_logits_have_full_size_and_kept_tokens_have_their_own(compact, target):
    with torch.no_grad():
        ids = KEPT[torch.tensor([[5, 9, 11]])]
        logits = compact(ids).logits
        hidden = target.model(ids).last_hidden_state
    assert logits.shape == (1, 3, VOCAB)
    expected = hidden @ target.get_input_embeddings().weight[KEPT].T
    torch.testing.assert_close(logits[..., KEPT], expected)
    probabilities = logits.softmax(-1)
    assert probabilities[..., 1::2].max() == 0 and torch.special.entr(probabilities).isfinite().all()


def test_a_token_without_a_row_borrows_the_nearest(compact, target):
    embedding = torch.nn.functional.normalize(target.get_input_embeddings().weight.detach(), dim=-1)
    for token in (1, 33, 101):
        nearest = max(KEPT.tolist(), key=lambda k: (embedding[token] @ embedding[k]).item())
        assert torch.equal(
            compact.model.embed_tokens(torch.tensor(token)), compact.model.embed_tokens(torch.tensor(nearest))
        )


def test_it_saves_its_one_embedding_once_and_loads_like_any_model(compact, tmp_path):
    compact.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, CompactLlamaForCausalLM)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    with torch.no_grad():
        torch.testing.assert_close(loaded(prompt()).logits, compact(prompt()).logits)
    stored = (tmp_path / "model.safetensors").stat().st_size
    assert stored < 4 * sum(p.numel() for p in compact.parameters()) + 8 * (VOCAB + len(KEPT)) + 8000


def test_it_is_an_ordinary_assistant_and_carries_a_head(compact, target):
    plain = target.generate(prompt(), max_new_tokens=20, do_sample=False).tolist()
    assert target.generate(prompt(), max_new_tokens=20, do_sample=False, assistant_model=compact).tolist() == plain
    draft = with_head(compact)
    found = target.generate(
        prompt(), max_new_tokens=20, do_sample=False, assistant_model=draft, candidate_generator=SpecDecPP
    )
    assert found.tolist() == plain
    assert acceptance_layer(draft).get_base_layer() is compact.lm_head.get_base_layer()
