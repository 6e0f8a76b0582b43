"""What a pair costs on this machine, measured once and kept: `specdecpp calibrate` writes it, `SpecDecPP` finds it."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedModel

from . import loading
from .acceptance import model_signature
from .files import write_atomically
from .stopping import CostProfile

CACHE = loading.CACHE / "costs"


@dataclass(frozen=True)
class Calibration:
    """Cost profiles of a pair, by context length.

    Args:
        pair (`dict[str, str]`): what they hold for, see `pair_identity`.
        profiles (`dict[int, CostProfile]`): by the number of tokens in the cache.
    """

    pair: dict[str, str]
    profiles: dict[int, CostProfile]

    def at(self, context_length: int) -> CostProfile:
        """The profile that was measured nearest to `context_length`."""
        return self.profiles[min(self.profiles, key=lambda length: abs(length - context_length))]

    def linear_fit(self) -> dict[str, float]:
        """The paper's cost model over all profiles, `t_verify(n) = base + slope n`, by least squares.

        Returns:
            `draft_seconds`, `base_seconds`, `slope_seconds` and `r2`, the share of variance that the line explains. A
            low `r2` means steps, which the cost-aware rule plans over and the line does not see.
        """
        points = [(n + 1, s) for p in self.profiles.values() for n, s in enumerate(p.verify_seconds)]
        n, seconds = torch.tensor(points, dtype=torch.double).T
        design = torch.stack([torch.ones_like(n), n], -1)
        solution = torch.linalg.lstsq(design, seconds).solution
        base, slope = solution.tolist()
        errors = seconds - design @ solution
        spread = ((seconds - seconds.mean()) ** 2).sum()
        drafts = [p.draft_seconds for p in self.profiles.values()]
        return {
            "draft_seconds": sum(drafts) / len(drafts),
            "base_seconds": base,
            "slope_seconds": slope,
            "r2": 1 - ((errors**2).sum() / spread).item() if spread > 0 else 1.0,
        }

    def save(self, path: Path) -> None:
        """Writes JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        profiles = {str(length): asdict(profile) for length, profile in self.profiles.items()}
        write_atomically(
            path, json.dumps({"pair": self.pair, "profiles": profiles, "linear_fit": self.linear_fit()}, indent=1)
        )

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Reads what `save` wrote.

        Raises:
            ValueError: if the file is none of ours.
        """
        try:
            found = json.loads(path.read_text())
            profiles = {int(n): CostProfile(**p) for n, p in found["profiles"].items()}
            return cls(found["pair"], profiles)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{str(path)!r} holds no calibration: make one with `specdecpp calibrate`") from error


def pair_identity(target: PretrainedConfig, draft: PreTrainedModel) -> dict[str, str]:
    """What a measurement depends on: device, threads, dtypes, both models, and the libraries that run them."""
    on_gpu = draft.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(draft.device) if on_gpu else f"{draft.device.type} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
        "target": f"{model_signature(target)} {str(target.dtype).removeprefix('torch.')}",
        "draft": f"{model_signature(draft.config)} {str(draft.dtype).removeprefix('torch.')}",
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def stored_path(pair: dict[str, str]) -> Path:
    """Where the calibration of a pair is kept: another device, dtype, model or library has another file."""
    name = hashlib.sha256(json.dumps(pair, sort_keys=True).encode()).hexdigest()[:16]
    return CACHE / f"{name}.json"


def stored_calibration(target: PretrainedConfig | None, draft: PreTrainedModel) -> Calibration | None:
    """What `specdecpp calibrate` measured for this pair on this machine, if it did."""
    if target is None:
        return None
    path = stored_path(pair_identity(target, draft))
    return Calibration.load(path) if path.exists() else None
