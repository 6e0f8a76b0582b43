# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""From raw prompts to the acceptance heads of a pair, one for each way of decoding, judged and reported.

    python recipes/train_head.py recipes/smollm2-135m.yaml --output runs/smollm2-135m

Labels the recipe's prompts and those of the sets to judge on, trains, judges each head beside predictors without one,
and writes `report.json` and `report.md`. What is done is skipped and what was interrupted goes on, so the command can
be killed and given again. `--set` changes a setting for one run, such as a Hub id for the path of a copy. Under
`accelerate launch` several processes share the work, each with a copy of the models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers import PreTrainedModel

from hf_specdecpp.drafting.pair import check_pair
from hf_specdecpp.evidence.conditions import public
from hf_specdecpp.evidence.files import write_atomically
from hf_specdecpp.hub.data import fingerprint, listed, load_rows, tokenized_prompts
from hf_specdecpp.hub.loading import load_model, load_pair, load_tokenizer
from hf_specdecpp.training.judging import judge, predictor_table
from hf_specdecpp.training.label_folder import LabelsCard, read_card
from hf_specdecpp.training.pipeline import label_prompts, leave_processes, process_state, served, train_head
from hf_specdecpp.training.recipe import Recipe
from hf_specdecpp.training.run_report import RunReport
from hf_specdecpp_cli import speaks_plainly


def label(recipe: Recipe, models: Callable, mode: str, name: str, folder: Path, say: Callable) -> dict[str, Any]:
    """Labels for one mode, on responses that were decoded in it, of the recipe's prompts or of a set to judge on."""
    tokenizer, (target, draft), decoding = load_tokenizer(recipe.target), models(), recipe.modes[mode]
    if name == "prompts":
        sources, limit = [load_rows(source) for source in recipe.prompts], recipe.limit
        if recipe.unseen:
            sources = [listed(rows, Path(recipe.unseen)) for rows in sources]
    else:
        sources, limit = [load_rows(recipe.judge[name])], recipe.judge_limit
    rows = tokenized_prompts(tokenizer, *(s.select(range(min(limit or len(s), len(s)))) for s in sources))
    card = LabelsCard.of(
        target, draft, decoding, {mode: decoding}, recipe.rows, states=recipe.states, batch_size=recipe.batch_size,
        max_new_tokens=recipe.max_new_tokens, seed=recipe.seed, prompts=len(rows), prompts_sha256=fingerprint(rows),
    )  # fmt: skip
    respond = None
    if recipe.server:
        name = recipe.server_model or recipe.target_name
        respond = served(recipe.server, name, tokenizer, target, card, recipe.server_key_variable)
    done = 0

    def on_batch(n: int, rate: float) -> None:
        nonlocal done
        done += n
        say(f"  {done} of {len(rows)} responses, {rate:.0f} tokens/s")

    label_prompts(target, draft, rows, folder, card, respond, on_batch)
    return {"responses": len(rows)}


def train(recipe: Recipe, mode: str, labels: Path, output: Path) -> dict[str, Any]:
    """A head for one mode."""
    config, arguments = recipe.head_config(mode), recipe.training_arguments(output / "checkpoints")
    config.target_signature = read_card(labels).target_signature
    draft = load_model(recipe.draft, recipe.dtype)
    return numbers(train_head(draft, labels, output, config, arguments, mode, patience=recipe.patience))


def compare(recipe: Recipe, head: Path, labels: Path, trained_on: Path) -> dict[str, Any]:
    """The metrics of a head on a set, and of predictors without a head."""
    found = judge(load_model(recipe.draft, recipe.dtype), head, labels, trained_on)
    return {predictor: numbers(metrics) for predictor, metrics in found.items()}


def numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not isinstance(value, list)}


def main(
    recipe: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="YAML of a pair.")],
    output: Annotated[Path, typer.Option(help="Folder for labels, heads and report; a killed run goes on in it.")],
    changes: Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Repeat it for more.")] = (),
) -> None:
    """From raw prompts to the acceptance heads of a pair, judged and reported."""
    process = process_state()  # chooses the GPU that this process loads models on
    settings = Recipe.read(recipe, changes)
    report = RunReport(output, asdict(settings))

    @cache
    def models() -> tuple[PreTrainedModel, PreTrainedModel]:
        target, draft = load_pair(
            settings.target, settings.draft, settings.dtype, settings.device_map, settings.attention,
            settings.quantization,
        )  # fmt: skip
        check_pair(None, draft.config, target.config)
        return target, draft

    def labels(name: str, mode: str) -> Path:
        return output / "labels" / f"{name}-{mode}"

    for mode in settings.modes:
        for name in ("prompts", *settings.judge):
            work = partial(label, settings, models, mode, name, labels(name, mode), report.say)
            report.stage(f"label {name}, {mode}", work)
    models.cache_clear()  # room for training
    for mode in settings.modes:
        report.stage(f"train, {mode}", partial(train, settings, mode, labels("prompts", mode), output / mode))
    tables = ""
    for mode in settings.modes:
        for name in settings.judge:
            work = partial(compare, settings, output / mode, labels(name, mode), labels("prompts", mode))
            found = report.stage(f"judge {name}, {mode}", work)
            tables += f"\n## {name}, {mode}\n\n{predictor_table(found)}\n"
    if process.is_main_process:
        pair = f"{public(settings.draft)} drafts for {settings.target_name}"
        write_atomically(output / "report.md", f"# {recipe.stem}: {pair}\n\n{report.markdown()}{tables}")
    report.say(f"heads and report.md are in {output}")
    leave_processes()


if __name__ == "__main__":
    typer.run(speaks_plainly(main))
