"""What all tests share: one thread, no stored calibration, and the fixtures of the tiny models in `models.py`."""

from __future__ import annotations

import json

import pytest
import torch
from hub_stand_in import HubStandIn
from huggingface_hub import constants
from models import byte_tokenizer, similar_draft, tiny_model, with_head
from transformers import logging

from hf_specdecpp.costs import store as calibration

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_stored_calibration(monkeypatch, tmp_path):
    """Nothing that was measured on this machine reaches a test, and no test leaves anything behind."""
    monkeypatch.setattr(calibration, "CACHE", tmp_path / "costs")


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def target():
    return tiny_model("llama")


@pytest.fixture
def draft(target):
    return with_head(similar_draft(target))


@pytest.fixture
def hub(monkeypatch):
    """The Hub that huggingface_hub talks to: a stand-in, where `user` is logged in with the token `hub.token`."""
    with HubStandIn() as stand_in:
        stand_in.token = "hf_stand_in_token"
        stand_in.users[stand_in.token] = "user"
        monkeypatch.setenv("HF_TOKEN", stand_in.token)
        for name, value in {
            "ENDPOINT": stand_in.endpoint,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(constants, name, value)
        yield stand_in
    assert stand_in.unknown == []


@pytest.fixture(scope="module")
def pair(target, tokenizer, tmp_path_factory):
    """A pair on disk: folders `target`, `draft` and `head`, and a file of twelve prompts."""
    folder = tmp_path_factory.mktemp("pair")
    target.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    draft = similar_draft(target)
    draft.save_pretrained(folder / "draft")
    with_head(draft, threshold=0.6).save_pretrained(folder / "head")
    rows = [{"instruction": f"Say {i}.", "input": ""} for i in range(12)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
