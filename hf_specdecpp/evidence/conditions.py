"""What a number cannot be read without: how, of what and where it was measured."""

from __future__ import annotations

import json
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..acceptance import model_signature
from ..hub.demo_pair import public_name
from .files import write_atomically

PACKAGES = ("torch", "transformers", "peft", "datasets", "hf_specdecpp", "scikit-learn")
ROOT = Path(__file__).parents[2]
LISTED = re.compile(r"(?<=[\s\[{,])/[^\s\[\]{},]+")  # absolute paths in YAML's lists and mappings


def conditions(**models: PreTrainedConfig) -> dict[str, Any]:
    """Command, revision, versions and device of this process, and the models by their role.

    Without scikit-learn transformers' assisted decoding does not adapt its threshold, so its absence is told as well.
    """
    script = sys.argv[0]
    called = ["python", public(script)] if script.endswith(".py") else [Path(script).name]
    return {
        "command": shlex.join([*called, *map(public, sys.argv[1:])]),
        "git_revision": git_revision(),
        "versions": {name: installed(name) for name in PACKAGES},
        "device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "threads": torch.get_num_threads(),
        "models": {
            role: {"name": public(config._name_or_path), "signature": model_signature(config)}
            for role, config in models.items()
        },
    }


def write_result(output: Path, result: dict[str, Any], **models: PreTrainedConfig) -> None:
    """Writes `result` into `output`, below the conditions of this process."""
    write_atomically(output, json.dumps(conditions(**models) | result, indent=1) + "\n")


def git_revision() -> str | None:
    """Of the clone that this file lies in, if it lies in one and there is a git to ask."""
    if not (ROOT / ".git").exists():
        return None
    git = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def device_name(device: torch.device) -> str:
    """The model of a GPU or of the processor, as its maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor() if device.type == "cpu" else f"{device.type} {processor()}"


@cache
def processor() -> str:
    """On Linux the model, where the system knows it; elsewhere what Python knows."""
    found = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        # ARM has no name in there, but numbers for it.
        names = ("model name", "CPU implementer", "CPU part", "cpu model")
        found = [line.partition(":")[2].strip() for line in lines if line.startswith(names)]
    return " ".join(dict.fromkeys([platform.machine(), *found])) if found else platform.processor() or "cpu"


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def public(word: str) -> str:
    """A name, NAME=SOURCE or a list of sources, as other machines may read it: absolute paths lose their folders."""
    names = [public_name(part) for part in word.split("=")]
    return "=".join(
        Path(name).name if Path(name).is_absolute() else LISTED.sub(lambda path: Path(path[0]).name, name)
        for name in names
    )
