"""What a number cannot be read without: how, of what and where it was measured."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from hf_specdecpp.acceptance import model_signature
from hf_specdecpp.files import write_atomically


def write_result(output: Path, result: dict[str, Any], **models: PreTrainedConfig) -> None:
    """Writes `result` into `output`, below the conditions of this process. Absolute paths lose their folders."""
    git = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    conditions = {
        "command": shlex.join(["python", *map(public, sys.argv)]),
        "git_revision": subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip(),
        "versions": {name: version(name) for name in ("torch", "transformers", "peft", "datasets", "hf_specdecpp")},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "models": {
            role: {"name": public(config._name_or_path), "signature": model_signature(config)}
            for role, config in models.items()
        },
    }
    write_atomically(output, json.dumps(conditions | result, indent=1) + "\n")


def public(name: str) -> str:
    return Path(name).name if Path(name).is_absolute() else name
