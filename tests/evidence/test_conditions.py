import subprocess

import pytest
import torch

from hf_specdecpp.evidence.conditions import conditions, device_name


@pytest.mark.parametrize("trouble", (FileNotFoundError, PermissionError))
def test_a_machine_without_git_still_tells_the_rest(monkeypatch, trouble):
    def run(*args, **kwargs):
        raise trouble("git")

    monkeypatch.setattr(subprocess, "run", run)
    found = conditions()
    assert found["git_revision"] is None and found["versions"]["torch"] and found["device"]


def test_a_device_is_named_by_its_model():
    assert device_name(torch.device("cpu")) != "cpu" and "meta" in device_name(torch.device("meta"))


def test_the_command_is_told_without_the_folders_of_this_machine(monkeypatch):
    words = [
        "/home/me/train_head.py",
        "--set",
        "prompts=[/data/a.jsonl,/data/b.jsonl]",
        "{x: /data/x.jsonl, y: org/set:test}",
    ]
    monkeypatch.setattr("sys.argv", [*words, "NAME=/data/my set.jsonl", "runs/out"])
    told = conditions()["command"]
    assert "/data" not in told and "/home" not in told
    for word in ("prompts=[a.jsonl,b.jsonl]", "{x: x.jsonl, y: org/set:test}", "NAME=my set.jsonl", "runs/out"):
        assert word in told
