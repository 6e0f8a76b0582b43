"""A recipe: how the heads of a pair are made and judged, as a YAML that `recipes/train_head.py` executes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from ..acceptance import AcceptanceHeadConfig
from ..decoding import Decoding
from .labels import Rows
from .trainer import AcceptanceTrainingArguments


@dataclass
class Recipe:
    """The settings of a pair. All but those with a default must be given, so that a recipe says what was done.

    Args:
        target (`str`), draft (`str`): Hub ids or folders.
        prompts (`list[str]`): sources of the prompts to label, see `load_rows`.
        judge (`dict[str, str]`): sources of prompts to judge the heads on, by name.
        modes (`dict[str, Decoding]`): ways of decoding, by name, given as their fields. Each gets labels and a head.
        rows (`Rows`): the procedure that labels are made by, likewise.
        head (`dict`), training (`dict`): fields of `AcceptanceHeadConfig` and `AcceptanceTrainingArguments`.
        states (`list[str]`), max_new_tokens (`int`), batch_size (`int`): see `LabelsCard`.
        patience (`int`, *optional*): stop after so many epochs without a better one.
        unseen (`str`, *optional*): file that lists which of the prompts to take, see `listed`.
        limit (`int`, *optional*), judge_limit (`int`, *optional*): only the first prompts of each source.
        server (`str`, *optional*), server_model (`str`, *optional*): who writes the responses, see
            `request_responses`; left out, the target.
        server_key_variable (`str`, *optional*): the environment variable with the server's API key.
        device_map (`str` or `dict`, *optional*), attention (`str`, *optional*), quantization (`dict`, *optional*): how
            the pair is loaded to label, see `load_pair`.
        dtype (`str`): of both models.
        seed (`int`): of responses, labels and training.

    Raises:
        ValueError: for a setting that there is not, or a value that it cannot have.
    """

    target: str
    draft: str
    prompts: list[str]
    judge: dict[str, str]
    modes: dict[str, Decoding]
    rows: Rows
    head: dict[str, Any]
    training: dict[str, Any]
    states: list[str]
    max_new_tokens: int
    batch_size: int = 64
    patience: int | None = None
    unseen: str | None = None
    limit: int | None = None
    judge_limit: int | None = None
    server: str | None = None
    server_model: str | None = None
    server_key_variable: str | None = None
    device_map: str | dict | None = None
    attention: str | None = None
    quantization: dict[str, Any] | None = None
    dtype: str = "bfloat16"
    seed: int = 0
    # The target as the recipe was published, where a run has a copy of it in a folder.
    target_name: str = field(default="", init=False)

    def __post_init__(self):
        self.target_name = self.target
        self.prompts = [self.prompts] if isinstance(self.prompts, str) else self.prompts
        self.modes = {name: built(Decoding, settings, f"the mode {name}") for name, settings in self.modes.items()}
        self.rows = built(Rows, self.rows, "rows")
        if not set(self.states) <= {"before", "after"}:
            raise ValueError(f'states are those "before" and "after" a token, got {self.states}')
        for mode in self.modes:
            self.head_config(mode)
        self.training_arguments(Path("checkpoints"))

    @classmethod
    def read(cls, path: Path, changes: Iterable[str] = ()) -> Recipe:
        """The recipe in the file `path`, with changes such as `training.num_train_epochs=1`."""
        settings = parsed(path.read_text(), path.name)
        if not isinstance(settings, dict):
            raise ValueError(f"{path.name} holds no settings by name: see the recipes of this repository")
        published = settings.get("target")
        for change in changes:
            key, equals, value = change.partition("=")
            *groups, name = key.split(".")
            place: Any = settings
            for group in groups:
                place = place.get(group) if isinstance(place, dict) else None
            if not equals or not isinstance(place, dict):
                raise ValueError(f"a change looks like training.num_train_epochs=1, got {change!r}")
            place[name] = parsed(value, change)
        recipe = built(cls, settings, path.name)
        if Path(recipe.target).exists():
            recipe.target_name = published
        return recipe

    def head_config(self, mode: str) -> AcceptanceHeadConfig:
        """The head for `mode`, with the rule that needs no threshold."""
        given = {"decoding": asdict(self.modes[mode]), "target_name_or_path": self.target_name}
        return built(AcceptanceHeadConfig, self.head, "head", rule="cost-aware", min_draft_length=1, **given)

    def training_arguments(self, checkpoints: Path) -> AcceptanceTrainingArguments:
        return built(
            AcceptanceTrainingArguments, self.training, "training", output_dir=str(checkpoints), seed=self.seed
        )


class Loader(yaml.SafeLoader):
    """Takes 1e-3 for a number, as YAML 1.2 does."""


NUMBER = re.compile(r"[-+]?\d+(\.\d*)?e[-+]?\d+$")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+0123456789"))


def parsed(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is no YAML: {' '.join(str(error).split())}") from error


def built(cls: type, settings: Any, where: str, **given: Any) -> Any:
    """A `cls` of `settings` and of what they may not say.

    Raises:
        ValueError: if a field is missing in `settings`, or is none of `cls`.
    """
    known = {f.name for f in fields(cls) if f.init} - set(given)
    if unknown := sorted(set(settings) - known):
        raise ValueError(f"{where} may not say {', '.join(unknown)}: its settings are fields of {cls.__name__}")
    try:
        return cls(**settings, **given)
    except TypeError as error:
        raise ValueError(f"{where} lacks settings or has wrong ones: {error}") from error
