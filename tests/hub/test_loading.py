"""One loader for every command: devices, attention and quantisation reach `from_pretrained`."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from hf_specdecpp.hub import loading
from hf_specdecpp.hub.loading import load_model, load_pair
from hf_specdecpp_cli import app


def test_a_device_map_and_an_attention_are_honoured(pair):
    target, draft = load_pair(str(pair / "target"), str(pair / "draft"), "float32", {"": "cpu"}, "eager")
    assert target.config._attn_implementation == draft.config._attn_implementation == "eager"
    assert target.dtype == draft.dtype == torch.float32 and not target.training


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device_map": "cuda:7"}, "device_map='cuda:7' on this machine"),
        (
            {"quantization": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
            "quantization_config={'quant_method': 'bitsandbytes', 'load_in_8bit': True} on this machine: .*bits",
        ),
        ({"attention": "flash_attention_2"}, "attn_implementation='flash_attention_2' on this machine"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU may well do it")
def test_what_this_machine_cannot_do_is_one_sentence(pair, asked, said):
    with pytest.raises(ValueError, match=f"target' cannot be loaded with dtype='float32', {said}"):
        load_model(str(pair / "target"), "float32", **asked)


COMMANDS = {
    "label": ("--prompts", "prompts.jsonl", "--output", "out"),
    "trace": ("--prompts", "prompts.jsonl", "--output", "out.jsonl"),
    "calibrate": (),
    "bench": ("--head", "head", "--count", 1),
    "demo": ("--head", "head"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_passes_them_to_the_target(pair, command, monkeypatch):
    """And attention to the draft; then the test has seen enough."""
    seen = []

    class Enough(ValueError):
        pass

    def from_pretrained(name, **how):
        seen.append(how)
        if len(seen) == 2:
            raise Enough("enough")
        return load(name)

    load = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.chdir(pair)
    quantization = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    given = [
        command, "--target", "target", "--draft", "draft", *COMMANDS[command], "--device-map", "auto", "--attention",
        "eager", "--quantization", json.dumps(quantization),
    ]  # fmt: skip
    result = CliRunner().invoke(app, [str(word) for word in given])
    assert result.exit_code == 1 and "enough" in result.output
    shared = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
    assert seen == [shared | {"device_map": "auto", "quantization_config": quantization}, shared]


@pytest.mark.parametrize("option", ("--device-map", "--quantization"))
def test_json_that_is_none_is_refused(pair, option):
    models = ("--target", str(pair / "target"), "--draft", str(pair / "draft"))
    result = CliRunner().invoke(app, ["calibrate", *models, option, "{load_in_8bit"])
    assert result.exit_code == 1 and f"{option} takes a JSON object, got '{{load_in_8bit'" in result.output
