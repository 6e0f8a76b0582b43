"""What rebuilds an acceptance head and tells how to use it; stored as `adapter_config.json`."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from peft import PeftConfig, TaskType

from ..stopping import StoppingConfig
from .features import FEATURES


class AcceptancePeftType(str, enum.Enum):
    """The `peft_type` of an acceptance head.

    `peft.PeftType` is closed, and every look-up in PEFT is a dictionary look-up keyed by a `str` enum, so a sibling
    enum whose member compares like its value finds its entries and survives the round trip through JSON.
    """

    ACCEPTANCE_HEAD = "ACCEPTANCE_HEAD"


@dataclass
class AcceptanceHeadConfig(PeftConfig):
    """Configuration of an acceptance head: its shape, what it was trained on, and how to use it.

    Args:
        num_layers (`int`): residual SiLU blocks before the output layer; 0 makes the head a linear probe. The paper's
            best is 3.
        reads (`str`): which hidden state of the draft a token is judged by. `"after"`, the state after the draft read
            the token, as in the paper: the verdict comes with the pass that draws the next token. `"before"`, the
            state that the token was drawn from: the verdict comes at once, so no pass is spent on a lost round.
        features (`list[str]`): numbers that drafting has at hand and the head sees besides: probability, entropy,
            position, see `FEATURES`.
        tied (`bool`): one block applied `num_layers` times, as the authors' code does, instead of independent blocks,
            as their paper says.
        hidden_size (`int`, *optional*): width of the draft's last hidden state. Filled in when the head is attached
            and checked when it is loaded.
        vocab_size (`int`, *optional*): size of the draft's vocabulary, filled in and checked likewise.
        rejection_weight (`float`): weight of rejections in the training loss, `w_rej` in the paper. The head's raw
            output overstates rejection by this factor of odds; `acceptance_logits` takes it out again.
        decoding (`dict`): how the decoding works that the labels were made for, the fields of `Decoding`.
        calibration_scale (`float`), calibration_offset (`float`): the calibrated logit of acceptance is
            `scale * logit + offset`, fitted on held-out labels after the rejection weight was taken out.
        threshold (`float`): recommended threshold of `StoppingConfig`, a probability.
        min_draft_length (`int`), max_draft_length (`int`): recommended bounds, in tokens.
        rule (`str`), rule_settings (`dict`): recommended rule and its settings, see `StoppingConfig`.
        target_name_or_path (`str`, *optional*): the target whose verdicts the head predicts. The draft's name is
            PEFT's `base_model_name_or_path`.
        draft_signature (`str`, *optional*), target_signature (`str`, *optional*): see `model_signature`; a head
            refuses models with other ones.
    """

    num_layers: int = field(default=3)
    reads: str = field(default="after")
    features: list[str] = field(default_factory=list)
    tied: bool = field(default=False)
    hidden_size: int | None = field(default=None)
    vocab_size: int | None = field(default=None)
    rejection_weight: float = field(default=6.0)
    decoding: dict[str, Any] = field(default_factory=lambda: {"do_sample": False})
    calibration_scale: float = field(default=1.0)
    calibration_offset: float = field(default=0.0)
    threshold: float = field(default=0.7)
    min_draft_length: int = field(default=2)
    max_draft_length: int = field(default=20)
    rule: str = field(default="specdec++")
    rule_settings: dict[str, Any] = field(default_factory=dict)
    target_name_or_path: str | None = field(default=None)
    draft_signature: str | None = field(default=None)
    target_signature: str | None = field(default=None)
    task_type: str | TaskType | None = field(default=TaskType.CAUSAL_LM)

    # Read by BaseTuner. Not a field, so never stored: the head sits on the output embedding whatever its name, and a
    # config that named `lm_head` would make PEFT save that whole matrix with every head.
    target_modules: ClassVar[None] = None

    def __post_init__(self):
        super().__post_init__()
        self.peft_type = AcceptancePeftType.ACCEPTANCE_HEAD
        if self.num_layers < 0:
            raise ValueError(f"num_layers counts residual blocks and must be 0 or more, got {self.num_layers}")
        if self.reads not in ("after", "before"):
            raise ValueError(f'a head reads the state "before" or "after" a token, got reads={self.reads!r}')
        if not set(self.features) <= set(FEATURES) or len(set(self.features)) < len(self.features):
            raise ValueError(f"features are some of {', '.join(FEATURES)}, each once, got {self.features}")
        if not self.rejection_weight > 0:
            raise ValueError(f"rejection_weight multiplies a loss and must be positive, got {self.rejection_weight}")
        # Raises for what no generation could use.
        StoppingConfig(self.threshold, self.min_draft_length, self.max_draft_length)
        StoppingConfig(rule=self.rule, settings=self.rule_settings)

    def acceptance_logits(self, raw_logits):
        """The calibrated logit of acceptance from the head's raw output, elementwise.

        The weighted loss is minimal at `Ph = P / (P + w (1 - P))`, so `logit P = logit Ph + log w`, exactly.
        """
        return self.calibration_scale * (raw_logits + math.log(self.rejection_weight)) + self.calibration_offset


def model_signature(config) -> str:
    """What identifies a model for a head: family, layers, width and vocabulary, e.g. `"llama-30x576-49152"`.

    Names will not do: the same weights are a Hub id for one user and a folder for another.
    """
    config = config.get_text_config()
    return f"{config.model_type}-{config.num_hidden_layers}x{config.hidden_size}-{config.vocab_size}"
