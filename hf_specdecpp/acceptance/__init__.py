"""The acceptance head as a PEFT method, in PEFT's own tuner layout. Importing the package registers it."""

from peft import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING

from .config import AcceptanceHeadConfig, AcceptancePeftType, model_signature
from .features import FEATURES, token_features
from .head import AcceptanceHead
from .layer import AcceptanceHeadLayer, acceptance_layer, execution_device, listening
from .model import AcceptanceHeadModel, read_head, states_at

PEFT_TYPE_TO_CONFIG_MAPPING[AcceptancePeftType.ACCEPTANCE_HEAD] = AcceptanceHeadConfig
PEFT_TYPE_TO_TUNER_MAPPING[AcceptancePeftType.ACCEPTANCE_HEAD] = AcceptanceHeadModel
PEFT_TYPE_TO_PREFIX_MAPPING[AcceptancePeftType.ACCEPTANCE_HEAD] = AcceptanceHeadModel.prefix

__all__ = [
    "AcceptanceHead",
    "AcceptanceHeadConfig",
    "AcceptanceHeadLayer",
    "AcceptanceHeadModel",
    "AcceptancePeftType",
    "FEATURES",
    "acceptance_layer",
    "execution_device",
    "listening",
    "model_signature",
    "read_head",
    "states_at",
    "token_features",
]
