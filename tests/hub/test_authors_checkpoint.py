"""The converter, on checkpoints of the authors' format made here, by a class that behaves as theirs does."""

import json
import pickle

import pytest
import torch
from huggingface_hub import PyTorchModelHubMixin
from models import HIDDEN, tiny_model
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn

from hf_specdecpp import AcceptanceHeadConfig
from hf_specdecpp.acceptance import acceptance_layer
from hf_specdecpp.hub.authors_checkpoint import convert_authors_head


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + nn.functional.silu(self.linear(x))


class TwoLogits(nn.Module, PyTorchModelHubMixin):
    """Logits of rejection and acceptance; one block in several places, in a Sequential called `model`."""

    def __init__(self, config):
        super().__init__()
        block = Residual(config["hidden_size"])
        self.model = nn.Sequential(*(block for _ in range(config["num_layers"])), nn.Linear(config["hidden_size"], 2))


@pytest.fixture
def pair(tmp_path, target):
    """Keywords that name a draft and a target on disk."""
    target.save_pretrained(tmp_path / "target")
    tiny_model("gpt_neox", seed=5).save_pretrained(tmp_path / "draft")
    return {"draft": str(tmp_path / "draft"), "target": str(tmp_path / "target")}


def theirs(folder, num_layers=3, hidden_size=HIDDEN):
    torch.manual_seed(num_layers)
    config = {"hidden_size": hidden_size, "num_layers": num_layers}
    head = TwoLogits(config)
    head.save_pretrained(folder, config=config)
    return head


@pytest.mark.parametrize("num_layers", [0, 1, 3])
def test_the_converted_head_is_equal(tmp_path, pair, num_layers):
    head = theirs(tmp_path / "theirs", num_layers)
    convert_authors_head(tmp_path / "theirs", tmp_path / "ours", **pair)

    loaded = PeftModel.from_pretrained(tiny_model("gpt_neox", seed=5), tmp_path / "ours")
    layer = acceptance_layer(loaded)
    ours, config = layer.acceptance_head["default"], layer.head_configs["default"]
    hidden_states = torch.randn(4, 50, HIDDEN)
    with torch.no_grad():
        rejection, acceptance = head.model(hidden_states).unbind(-1)
        assert (ours(hidden_states) - (acceptance - rejection)).abs().max() < 1e-6
        # Without the correction for the weight, the probability that their decoding compares with its threshold.
        raw = AcceptanceHeadConfig(rejection_weight=1.0).acceptance_logits(ours(hidden_states)).sigmoid()
        assert (raw - head.model(hidden_states).softmax(-1)[..., 1]).abs().max() < 1e-6
    assert len(ours.blocks) == min(num_layers, 1) and config.tied == (num_layers == 3)
    assert config.num_layers == num_layers and config.rejection_weight == 6.0
    assert config.decoding == {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "coupling": "rejection",
    }
    assert config.base_model_name_or_path == pair["draft"] and config.target_name_or_path == pair["target"]
    assert config.target_signature == "llama-2x32-264" and config.draft_signature == "gpt_neox-2x32-264"


def test_blocks_that_differ_stay_apart(tmp_path, pair):
    """As a file has them that was written after the blocks were copied and trained."""
    head = theirs(tmp_path / "theirs")
    head.model = nn.Sequential(Residual(HIDDEN), Residual(HIDDEN), Residual(HIDDEN), nn.Linear(HIDDEN, 2))
    save_file(head.state_dict(), tmp_path / "theirs" / "model.safetensors")
    convert_authors_head(tmp_path / "theirs", tmp_path / "ours", **pair)
    loaded = PeftModel.from_pretrained(tiny_model("gpt_neox", seed=5), tmp_path / "ours")
    ours = acceptance_layer(loaded).acceptance_head["default"]
    hidden_states = torch.randn(50, HIDDEN)
    with torch.no_grad():
        rejection, acceptance = head.model(hidden_states).unbind(-1)
        assert (ours(hidden_states) - (acceptance - rejection)).abs().max() < 1e-6


def test_only_the_head_is_written_and_fields_can_be_chosen(tmp_path, pair):
    theirs(tmp_path / "theirs")
    convert_authors_head(tmp_path / "theirs", tmp_path / "ours", **pair, rejection_weight=3.0, threshold=0.5)
    assert len(load_file(tmp_path / "ours" / "adapter_model.safetensors")) == 4
    config = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    assert config["rejection_weight"] == 3.0 and config["threshold"] == 0.5


def spoil(folder, how):
    weights, config = folder / "model.safetensors", folder / "config.json"
    if how == "pickle":
        weights.unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    elif how == "nothing":
        weights.unlink()
    elif how == "no configuration":
        config.unlink()
    elif how == "other configuration":
        config.write_text('{"hidden_size": 32, "num_layers": 2}')
    elif how == "cut off":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif how == "other weights":
        save_file({"weight": torch.zeros(2)}, weights)
    elif how == "lost block":
        tensors = load_file(weights)
        copy = {name.replace("model.0", "model.1"): tensor.clone() for name, tensor in tensors.items()}
        save_file(tensors | copy, weights)


@pytest.mark.parametrize(
    "how, message",
    [
        ("pickle", "holds only pytorch_model.bin, a pickle.*: give one with config.json and model.safetensors"),
        ("nothing", "holds no checkpoint"),
        ("no configuration", "not in the authors' format"),
        ("other configuration", "not in the authors' format"),
        ("cut off", "not in the authors' format"),
        ("other weights", "not in the authors' format"),
        ("lost block", "not in the authors' format"),
    ],
)
def test_what_is_not_in_their_format_is_refused(tmp_path, pair, how, message):
    theirs(tmp_path / "theirs")
    spoil(tmp_path / "theirs", how)
    with pytest.raises(ValueError, match=message):
        convert_authors_head(tmp_path / "theirs", tmp_path / "ours", **pair)
    assert not (tmp_path / "ours").exists()


def test_another_draft_is_refused(tmp_path, pair):
    theirs(tmp_path / "theirs", hidden_size=16)
    with pytest.raises(ValueError, match=r"reads hidden states of size 16, but those of .* have size 32"):
        convert_authors_head(tmp_path / "theirs", tmp_path / "ours", **pair)
    with pytest.raises(ValueError, match="there is no folder '/nowhere/at/all'"):
        convert_authors_head(tmp_path / "theirs", tmp_path / "ours", **pair | {"draft": "/nowhere/at/all"})
