"""SpecDec++ for Hugging Face transformers.

Importing the package registers the acceptance head with PEFT and lets `generate` take `candidate_generator`.
"""

from .acceptance import AcceptanceHeadConfig
from .decoding.specdecpp import SpecDecPP
from .decoding.static import free_static
from .drafting.compact_llama import CompactLlamaConfig, CompactLlamaForCausalLM
from .drafting.config import DraftingConfig
from .drafting.lookup import LookupStore
from .drafting.recycling import RecyclingTable
from .evidence.statistics import GenerationStatistics, collect_stats
from .generate import disable, enable
from .hub.loading import load_draft
from .hub.push import push_head
from .stopping import StoppingConfig

__version__ = "0.2.0"

__all__ = [
    "AcceptanceHeadConfig",
    "CompactLlamaConfig",
    "CompactLlamaForCausalLM",
    "DraftingConfig",
    "GenerationStatistics",
    "LookupStore",
    "RecyclingTable",
    "SpecDecPP",
    "StoppingConfig",
    "collect_stats",
    "disable",
    "enable",
    "free_static",
    "load_draft",
    "push_head",
]

enable()
