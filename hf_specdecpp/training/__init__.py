"""From prompts to a calibrated head: responses, labels, training, and how good the head is."""

from .trainer import AcceptanceTrainer, AcceptanceTrainingArguments

__all__ = ["AcceptanceTrainer", "AcceptanceTrainingArguments"]
