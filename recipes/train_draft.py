# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Trains a draft that reads its target, EAGLE-3, on the target's own responses.

    python recipes/train_draft.py --target TARGET --responses responses.jsonl --teacher runs/teacher \\
        --output runs/eagle3

Responses are JSONL with `prompt` and `response_ids`, as `recipes/smollm2-135m/sample_responses.py` makes them; every
32nd prompt (by its `row`) is held out. The target reads each text once and what it says is kept in `--teacher`, in
bfloat16 (of SmolLM2-135M 3.5 kB a token); without it the target is asked anew in every epoch, which takes no disk.
`OUTPUT/draft` is in the format of speculators, which `hf_specdecpp.load_draft`, vLLM and SGLang load. `metrics.json`
beside it has the losses, and by position of the draft how often it and the target agree, on what was held out and on
the responses of each `--evaluate NAME=FILE`.

With `--start DRAFT` it goes on from a draft, of one's own or a published one, on new text.

Killed, the same command goes on from the last checkpoint and ends as if it had not been. `accelerate launch` instead
of `python` shares the work among GPUs. The defaults are of a target of 135M parameters; larger ones want a lower
`--learning-rate`, such as 1e-4 for 8B. Two CPU cores train 2,000 tokens a second of that target, and take 1,350 for
the teacher.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from accelerate import Accelerator

from hf_specdecpp.drafting.informed.config import layers_read
from hf_specdecpp.evidence.conditions import conditions, public
from hf_specdecpp.evidence.files import atomically, keep_settings, write_atomically
from hf_specdecpp.hub.loading import DTYPES, load_model, load_tokenizer
from hf_specdecpp.training.informed_draft import (
    CHECKPOINT,
    DraftTraining,
    Teacher,
    choose_vocabulary,
    in_batches,
    initial_draft,
    judge_draft,
    train_draft,
    trained_draft,
    training_texts,
)
from hf_specdecpp.training.pipeline import leave_processes
from hf_specdecpp_cli import speaks_plainly

DEFAULTS = DraftTraining()


def main(
    target: Annotated[str, typer.Option(help="A folder, or an id on the Hub.")],
    responses: Annotated[list[Path], typer.Option(help="JSONL of the target's responses; repeat it for more.")],
    output: Annotated[Path, typer.Option(help="Folder for the draft; a killed run goes on in it.")],
    teacher: Annotated[Path | None, typer.Option(help="Folder where what the target says is kept.")] = None,
    evaluate: Annotated[list[str], typer.Option(metavar="NAME=FILE", help="Responses to judge the draft on.")] = (),
    start: Annotated[
        str | None, typer.Option(help="An EAGLE-3 draft to go on from, with its vocabulary and the states it reads.")
    ] = None,
    draft_vocab_size: Annotated[int, typer.Option(help="Tokens that the draft can say.")] = 12288,
    target_layers: Annotated[
        list[int] | None, typer.Option(help="Indices of the hidden states that it reads.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Unrolled.")] = DEFAULTS.steps,
    epochs: Annotated[float, typer.Option()] = DEFAULTS.epochs,
    max_steps: Annotated[int | None, typer.Option(help="Steps of the optimizer, instead of epochs.")] = None,
    learning_rate: Annotated[float, typer.Option()] = DEFAULTS.learning_rate,
    batch_tokens: Annotated[int, typer.Option(help="Of each process.")] = DEFAULTS.batch_tokens,
    top: Annotated[int, typer.Option(help="The target's likeliest tokens that are learned.")] = DEFAULTS.top,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = DEFAULTS.save_every,
    dtype: Annotated[str, typer.Option(help="Of the target's passes and the saved draft.")] = "bfloat16",
) -> None:
    """Trains a draft that reads its target, EAGLE-3, on the target's own responses."""
    training = DraftTraining(
        steps, epochs, learning_rate, batch_tokens=batch_tokens, top=top, save_every=save_every
    )  # fmt: skip
    accelerator = Accelerator(mixed_precision="bf16" if dtype == "bfloat16" else "no")
    tokenizer = load_tokenizer(target)
    texts = training_texts(responses, evaluate, tokenizer)

    model = load_model(target, dtype).to(accelerator.device)
    if start is None:
        size = min(draft_vocab_size, model.config.get_text_config().vocab_size)
        token_ids = choose_vocabulary(texts["train"], size, model.config.get_text_config().vocab_size)
        draft = initial_draft(model, token_ids, target_layers)
        draft.borrow(model)
    else:
        if target_layers:
            raise ValueError(f"the draft in {start!r} says which layers it reads: leave --target-layers out")
        draft = trained_draft(start, model)
        size = draft.config.draft_vocab_size
    draft.config.target_name_or_path = public(target)
    draft.to(accelerator.device)

    main_process = accelerator.is_main_process
    layers = layers_read(draft.config, model.config)
    teachers = {
        name: Teacher(
            model, in_batches(found, batch_tokens), layers, top, teacher and teacher / name, writes=main_process
        )
        for name, found in texts.items()
    }
    settings = asdict(training) | {
        "target": public(target), "draft_vocab_size": size, "target_layers": list(layers), "max_steps": max_steps,
        "start": start and public(start), "dtype": dtype, "texts": {name: len(found) for name, found in texts.items()},
        "processes": accelerator.num_processes,
    }  # fmt: skip
    keep_settings(output / "settings.json", settings, f"{str(output)!r} holds a draft trained", writes=main_process)
    if (output / "draft").exists():
        if main_process:
            print(f"{output / 'draft'} is trained")
        return leave_processes()
    begun = time.monotonic()

    def say(step: int, of: int, loss: float) -> None:
        if main_process and (step % 20 == 0 or step == of):
            print(f"step {step} of {of}, loss {loss:.3f}, {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)

    losses = train_draft(draft, teachers["train"], training, output, accelerator, max_steps, say)
    if main_process:
        judged = {name: judge_draft(draft, each) for name, each in teachers.items() if name != "train"}
        result = conditions(target=model.config) | {"settings": settings, "quality": judged, "losses": losses}
        write_atomically(output / "metrics.json", json.dumps(result, indent=1) + "\n")
        with atomically(output / "draft") as partial:
            draft.to(DTYPES[dtype]).save_pretrained(partial)
        (output / CHECKPOINT).unlink()
        print(json.dumps(judged, indent=1))
    leave_processes()


if __name__ == "__main__":
    typer.run(speaks_plainly(main))
