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
