"""What a Hub repository can carry so that its users need no keyword of ours."""

from __future__ import annotations

from pathlib import Path

CUSTOM_GENERATE = """\
# model.generate(..., assistant_model=draft, custom_generate="this/repository", trust_remote_code=True)
from hf_specdecpp import SpecDecPP


def generate(model, **kwargs):
    return model.generate(candidate_generator=SpecDecPP, **kwargs)
"""


def write_custom_generate(folder: str | Path) -> None:
    """Adds `custom_generate/generate.py` and its requirements to `folder`, say a head before it is uploaded."""
    target = Path(folder) / "custom_generate"
    target.mkdir(parents=True, exist_ok=True)
    (target / "generate.py").write_text(CUSTOM_GENERATE)
    (target / "requirements.txt").write_text("hf_specdecpp\n")
