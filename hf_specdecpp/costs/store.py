"""What a pair costs on this machine, measured once and kept: `specdecpp calibrate` writes it, `SpecDecPP` finds it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..acceptance import model_signature
from ..evidence.conditions import device_name
from ..evidence.files import write_atomically
from ..hub import loading
from ..stopping import CostProfile

logger = logging.get_logger(__name__)

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
        profiles = {str(length): asdict(profile) for length, profile in self.profiles.items()}
        write_atomically(
            path, json.dumps({"pair": self.pair, "profiles": profiles, "linear_fit": self.linear_fit()}, indent=1)
        )

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Reads what `save` wrote.

        Raises:
            ValueError: if the file is none of ours.
            OSError: if it cannot be read.
        """
        try:
            found = json.loads(path.read_text())
            profiles = {int(n): CostProfile(**p) for n, p in found["profiles"].items()}
            if not profiles:
                raise ValueError("no profiles")
            return cls(found["pair"], profiles)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{str(path)!r} holds no calibration: make one with `specdecpp calibrate`") from error


def pair_identity(
    target: PreTrainedModel | PretrainedConfig, draft: PreTrainedModel, running: str = "eager"
) -> dict[str, str]:
    """What a measurement depends on: devices, threads, both models and how they were loaded, and the libraries.

    Models are told as they are now: moved or cast, they are another pair.

    Args:
        target: the model, or its configuration, which is taken to lie where the draft lies.
        running (`str`): how both run, see `Running.name`.
    """
    loaded = isinstance(target, PreTrainedModel)
    return {
        "draft_device": device_name(draft.device),
        "target_device": device_name(target.device if loaded else draft.device),
        "threads": str(torch.get_num_threads()),
        "running": running,
        "target": loaded_as(target.config if loaded else target, target.dtype),
        "draft": loaded_as(draft.config, draft.dtype),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def loaded_as(config: PretrainedConfig, dtype: torch.dtype | str | None) -> str:
    """A model's shape, dtype, attention implementation and quantisation."""
    quantisation = getattr(config, "quantization_config", None) or {}
    if not isinstance(quantisation, dict):
        quantisation = quantisation.to_dict()
    kinds = json.dumps(quantisation, sort_keys=True, default=str) if quantisation else "not quantised"
    return f"{model_signature(config)} {str(dtype).removeprefix('torch.')} {config._attn_implementation} {kinds}"


def stored_path(pair: dict[str, str]) -> Path:
    """Where the calibration of a pair is kept: another device, dtype, model or library has another file."""
    name = hashlib.sha256(json.dumps(pair, sort_keys=True).encode()).hexdigest()[:16]
    return CACHE / f"{name}.json"


def stored_calibration(
    target: PreTrainedModel | PretrainedConfig | None, draft: PreTrainedModel, running: str = "eager"
) -> Calibration | None:
    """What `specdecpp calibrate` measured for this pair on this machine, if it did, see `pair_identity`.

    A file that cannot be read counts as none, with a warning: generation does not depend on it.
    """
    if target is None:
        return None
    path = stored_path(pair_identity(target, draft, running))
    try:
        return Calibration.load(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning_once(f"the stored calibration of this pair is left out: {error}")
        return None
