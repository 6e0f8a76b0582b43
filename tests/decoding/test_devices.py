"""Several devices: offloaded weights lie on "meta", and tensors may say that they are elsewhere."""

import pytest
import torch
from accelerate import cpu_offload
from models import prompt, similar_draft, with_head
from transformers import AutoModelForCausalLM

from hf_specdecpp import SpecDecPP, StoppingConfig, collect_stats
from hf_specdecpp.acceptance import acceptance_layer

GREEDY = {"max_new_tokens": 20, "do_sample": False}
FEATURES = {"features": ["probability", "entropy"], "reads": "before"}


def rounds(target, draft, **settings):
    settings |= GREEDY
    with collect_stats() as stats:
        output = target.generate(
            prompt(), **settings, assistant_model=draft, candidate_generator=SpecDecPP,
            stopping_config=StoppingConfig(0.5),
        )  # fmt: skip
    assert output.tolist() == target.generate(prompt(), **settings).tolist()
    return stats.drafted, stats.accepted


@pytest.mark.parametrize("device_map", ({"model": "cpu", "lm_head": "disk"}, {"": "disk"}))
def test_a_draft_that_is_offloaded_drafts_as_ever(target, tmp_path, device_map):
    """The weight that the head sits on is "meta" between passes; the head used to be lost there."""
    draft = with_head(similar_draft(target), **FEATURES)
    expected = rounds(target, draft)
    draft.save_pretrained(tmp_path / "head")
    similar_draft(target).save_pretrained(tmp_path / "draft")
    spread = AutoModelForCausalLM.from_pretrained(
        tmp_path / "draft", device_map=device_map, offload_folder=str(tmp_path / "offload")
    )
    assert spread.lm_head.weight.device.type == "meta"
    spread.load_adapter(str(tmp_path / "head"))
    assert rounds(target, spread) == expected


def test_a_head_on_an_offloaded_draft_lies_where_its_hook_computes(target):
    draft = similar_draft(target)
    cpu_offload(draft, execution_device=torch.device("cpu"))
    assert draft.device.type == "meta"
    offloaded = with_head(draft, **FEATURES)
    assert acceptance_layer(offloaded).acceptance_head["default"].out.weight.device.type == "cpu"
    assert rounds(target, offloaded) == rounds(target, with_head(similar_draft(target), **FEATURES))


class Elsewhere(torch.Tensor):
    """A tensor of another device: it meets no tensor of this one before it is brought here."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to and isinstance(args[1], (torch.device, torch.Tensor)):
            return args[0].as_subclass(torch.Tensor).to(*args[1:])
        if any(isinstance(a, torch.Tensor) and not isinstance(a, cls) for a in (*args, *(kwargs or {}).values())):
            raise RuntimeError("Expected all tensors to be on the same device")
        return super().__torch_function__(function, types, args, kwargs)


@pytest.mark.parametrize("reads", ("before", "after"))
def test_logits_and_states_of_a_draft_on_another_device(target, reads):
    """Logits processors hold tensors of the target's device, and a state may lie where the last layer does."""
    draft = with_head(similar_draft(target), **(FEATURES | {"reads": reads}))
    expected = rounds(target, draft, suppress_tokens=[5, 6])
    layer = acceptance_layer(draft)
    layer.register_forward_pre_hook(lambda module, args: (args[0].as_subclass(Elsewhere),))
    layer.base_layer.register_forward_pre_hook(lambda module, args: (args[0].to(torch.device("cpu")),))
    layer.register_forward_hook(lambda module, args, output: output.as_subclass(Elsewhere))
    assert rounds(target, draft, suppress_tokens=[5, 6]) == expected
