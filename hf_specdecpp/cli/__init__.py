"""The command line, `specdecpp`. Every command is a thin layer over functions of the library."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils import logging

from ..decoding import Decoding
from ..drafting.pair import check_pair
from ..hub.loading import load_head, load_model, load_pair, load_tokenizer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Speculative decoding that knows when to stop.")
console = Console()


# How the pair is loaded, in every command that runs the target.
DEVICE_MAP = typer.Option(
    None,
    help="Where the parts of the target go: auto, balanced, cpu, ..., or JSON. (default: on the GPU if there is one)",
    show_default=False,
)
ATTENTION = typer.Option(
    None, help="Of both models: eager, sdpa, flash_attention_2, ... (default: transformers')", show_default=False
)
QUANTIZATION = typer.Option(
    None,
    help='Of the target, as JSON that transformers takes: {"quant_method": "bitsandbytes", "load_in_8bit": true}.',
    show_default=False,
)


def loading(device_map: str | None, attention: str | None, quantization: str | None) -> dict[str, Any]:
    """The three options as keywords of `load_pair`."""
    if device_map is not None and device_map.startswith("{"):
        device_map = json_object("--device-map", device_map)
    if quantization is not None:
        quantization = json_object("--quantization", quantization)
    return {"device_map": device_map, "attention": attention, "quantization": quantization}


def json_object(option: str, text: str) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    raise ValueError(f"{option} takes a JSON object, got {text!r}")


def speaks_plainly(command: Callable) -> Callable:
    """Shows the sentence of a `ValueError` or `TypeError` instead of a traceback, and exits with 1."""

    @wraps(command)
    def wrapped(*args, **kwargs):
        logging.disable_progress_bar()
        datasets.disable_progress_bars()
        # PEFT 0.21 under transformers 5.23, at every construction of a PeftModel.
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*", FutureWarning)
        try:
            return command(*args, **kwargs)
        except (ValueError, TypeError) as error:
            Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error

    return wrapped


def show_version(asked: bool) -> None:
    if asked:
        console.print(version("hf_specdecpp"), highlight=False)
        raise typer.Exit


@app.callback()
def main(
    asked: bool = typer.Option(False, "--version", callback=show_version, is_eager=True, help="Show it and exit."),
) -> None:
    """SpecDec++ for Hugging Face transformers."""


@app.command()
@speaks_plainly
def demo(
    prompt: list[str] = typer.Option([], help="Your own prompt; repeat it for more.", show_default=False),
    target: str = typer.Option(None, help="Hub id or folder. (default: SmolLM2-135M-Instruct)", show_default=False),
    draft: str = typer.Option(None, help="Hub id or folder. (default: the shipped draft)", show_default=False),
    head: str = typer.Option(None, help="Hub id or folder. (default: the shipped head)", show_default=False),
    threshold: float = typer.Option(None, help="In [0, 1]. (default: the head's)", show_default=False),
    max_new_tokens: int = typer.Option(48, min=2, help="Tokens generated for each prompt."),
    sample: bool = typer.Option(False, help="Sample (temperature 1, top-k 50) instead of greedy decoding."),
    repeats: int = typer.Option(2, min=1, help="Timed runs of every method on every prompt."),
    dtype: str = typer.Option("bfloat16", help="bfloat16, float16 or float32."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    json_file: Path = typer.Option(None, "--json", help="Write everything measured to this file.", show_default=False),
) -> None:
    """Answer a few prompts with plain, assisted and SpecDec++ decoding, and compare them."""
    from ..bench.demo import run_demo

    logging.set_verbosity_error()  # transformers warns of its own nested generate in assisted decoding
    run_demo(
        prompts=prompt, target=target, draft=draft, head=head, threshold=threshold, max_new_tokens=max_new_tokens,
        sample=sample, repeats=repeats, dtype=dtype, json_file=json_file, console=console,
        **loading(device_map, attention, quantization),
    )  # fmt: skip


bench_app = typer.Typer()
app.add_typer(bench_app, name="bench")


@bench_app.callback(invoke_without_command=True)
@speaks_plainly
def bench(
    context: typer.Context,
    target: str = typer.Option(None, help="Hub id or folder. (default: SmolLM2-135M-Instruct)", show_default=False),
    draft: str = typer.Option(None, help="Hub id or folder. (default: the shipped draft)", show_default=False),
    head: str = typer.Option(
        None,
        help="Hub id or folder; a draft of your own may go without. (default: the shipped head)",
        show_default=False,
    ),
    prompts: list[str] = typer.Option(
        ["mixed"], "--set", help="mixed, alpaca, gsm8k, humaneval, mt-bench, or NAME=SOURCE; repeat it for more."
    ),
    method: list[str] = typer.Option(
        [],
        help="plain, compiled, assisted, assisted=K, lookup, recommended, a rule, RULE=THRESHOLD, fixed=K, or all; "
        "repeat it for more. (default: those without the single rules)",
        show_default=False,
    ),
    quick: bool = typer.Option(
        False, help="A verdict in about five minutes: few methods (unless --method names some), one run of each."
    ),
    sample: bool = typer.Option(False, help="Sample (temperature 1, top-k 50) instead of greedy decoding."),
    count: int = typer.Option(12, min=1, help="Prompts of each set."),
    repeats: int = typer.Option(
        3, min=0, help="Timed runs of every method on every prompt, after one that counts; 0 times that. (--quick: 0)"
    ),
    max_new_tokens: int = typer.Option(64, min=2, help="Tokens generated for each prompt."),
    dtype: str = typer.Option("bfloat16", help="bfloat16, float16 or float32."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    threads: int = typer.Option(None, min=1, help="Of the CPU. (default: torch's)", show_default=False),
    output: Path = typer.Option(
        None,
        help="JSON file for the result; a killed run goes on beside it. (default: none is kept)",
        show_default=False,
    ),
) -> None:
    """Measure what this pair gains on this machine, on these prompts, beside the other ways to decode."""
    if context.invoked_subcommand is not None:
        return
    import tempfile

    from rich.table import Table

    from ..bench.methods import ALL, QUICK, USUAL
    from ..bench.report import COLUMNS, cells
    from ..bench.run import Settings, run_bench
    from ..bench.verdict import verdict

    logging.set_verbosity_error()  # transformers warns of its own nested generate in assisted decoding
    names = [name for given in method for name in (ALL if given == "all" else [given])]
    settings = Settings(
        target, draft, head, prompts, names or list(QUICK if quick else USUAL), sample, count, 0 if quick else repeats,
        max_new_tokens, dtype, threads, traced=4 if quick else None, minutes=5.0 if quick else None,
        **loading(device_map, attention, quantization),
    )  # fmt: skip
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=console) as progress:
        result = run_bench(
            settings, output or Path(folder) / "result.json",
            on_begin=lambda what, total: progress.add_task(what, total=total),
            on_step=lambda: progress.update(progress.task_ids[-1], advance=1),
        )  # fmt: skip
    for name, found in result["sets"].items():
        table = Table(*COLUMNS[:1], *COLUMNS[2:-2], title=name)  # what fits in a terminal
        for row in cells(found, sample):
            table.add_row(*row[:1], *row[2:-2])
        console.print(table)
    for name, reason in result["unavailable"].items():
        console.print(f"{name} is not available here: {reason}", highlight=False, soft_wrap=True)
    console.print(f"\n{verdict(result)}", highlight=False, soft_wrap=True)


@bench_app.command()
@speaks_plainly
def report(
    results: list[Path] = typer.Argument(help="JSON files of `specdecpp bench --output`."),
    output: Path = typer.Option(..., help="Folder for report.md and the figures."),
) -> None:
    """Make tables and figures from results of the benchmark."""
    from ..bench.report import write_report
    from ..bench.run import read_result

    found = {path.stem: read_result(path) for path in results}
    if len(found) < len(results):
        raise ValueError("two results have the same file name, which their figures are named by: rename one")
    files = write_report(found, output)
    console.print(f"{len(files)} files in {output}")


@app.command()
@speaks_plainly
def label(
    target: str = typer.Option(..., help="Hub id or folder of the target."),
    draft: str = typer.Option(..., help="Hub id or folder of the draft."),
    prompts: list[str] = typer.Option(
        ..., help="A JSONL file or Hub dataset (id, id:split or id:config:split). Rows with `response_ids` keep them."
    ),
    output: Path = typer.Option(..., help="Folder for the labels; an interrupted run goes on in it."),
    sample: bool = typer.Option(False, help="Responses and labels by sampling instead of greedy decoding."),
    mode: list[str] = typer.Option(
        [],
        help="greedy or sampling: label for it; repeat it for both. (default: as the responses)",
        show_default=False,
    ),
    temperature: float = typer.Option(
        None, help="Of sampling. (default: the target's generation config, else 1.0)", show_default=False
    ),
    top_k: int = typer.Option(
        None, help="Of sampling; 0 keeps all tokens. (default: likewise, else 50)", show_default=False
    ),
    top_p: float = typer.Option(None, help="Of sampling. (default: likewise, else 1.0)", show_default=False),
    procedure: str = typer.Option("on-policy", help="on-policy, or specdec++ for the paper's mixed sequences."),
    mixing: float = typer.Option(0.15, help="For specdec++: share of the target's tokens (r in the paper)."),
    states: list[str] = typer.Option(
        [],
        help="before or after: store these hidden states, so that training never runs the draft.",
        show_default=False,
    ),
    server: str = typer.Option(
        None, help="URL of an OpenAI-compatible server that writes the responses.", show_default=False
    ),
    server_model: str = typer.Option(None, help="Its name for the target. (default: --target)", show_default=False),
    server_key_variable: str = typer.Option(
        None, help="Environment variable with its API key. (default: none is sent)", show_default=False
    ),
    max_new_tokens: int = typer.Option(192, min=1, help="Longest response."),
    limit: int = typer.Option(None, min=1, help="Only the first rows of each source.", show_default=False),
    batch_size: int = typer.Option(64, min=1, help="Responses generated at once."),
    dtype: str = typer.Option("bfloat16", help="bfloat16, float16 or float32."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    seed: int = typer.Option(0),
) -> None:
    """Label the draft's tokens with the target's verdicts, on the target's own responses."""
    from ..hub.data import fingerprint, load_rows, tokenized_prompts
    from ..training.label_folder import LabelsCard
    from ..training.labels import Rows
    from ..training.pipeline import label_prompts, leave_processes, process_state, served
    from ..training.responses import sampling_of

    process_state()  # under `accelerate launch`, chooses the GPU that this process loads models on
    own = "sampling" if sample else "greedy"
    for name, known in [(m, ("greedy", "sampling")) for m in mode] + [(s, ("before", "after")) for s in states]:
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(known)}")
    sources = [load_rows(source) for source in prompts]
    tokenizer = load_tokenizer(target)
    rows = tokenized_prompts(tokenizer, *(s.select(range(min(limit or len(s), len(s)))) for s in sources))
    models = load_pair(target, draft, dtype, **loading(device_map, attention, quantization))
    check_pair(None, models[1].config, models[0].config)
    modes = {"greedy": Decoding(), "sampling": sampling_of(models[0], temperature, top_k, top_p)}
    for name in dict.fromkeys([own, *mode]):
        settings = ", ".join(f"{key}={value}" for key, value in modes[name].generate_kwargs().items())
        console.print(f"{name}: {settings}", highlight=False, soft_wrap=True)
    card = LabelsCard.of(
        *models, modes[own], {name: modes[name] for name in mode or [own]}, Rows(procedure, mixing), states=states,
        max_new_tokens=max_new_tokens, batch_size=batch_size, seed=seed, prompts=len(rows),
        prompts_sha256=fingerprint(rows),
    )  # fmt: skip
    respond = None
    if server:
        respond = served(server, server_model or target, tokenizer, models[0], card, server_key_variable)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("{task.fields[rate]}"), console=console) as progress:
        task = progress.add_task("responses and labels", total=len(rows), rate="")
        label_prompts(
            *models, rows, output, card, respond,
            on_batch=lambda n, rate: progress.update(task, advance=n, rate=f"{rate:.0f} tokens/s" if rate else ""),
        )  # fmt: skip
    console.print(f"labels of {len(rows)} responses in {output}")
    leave_processes()


@app.command()
@speaks_plainly
def train(
    labels: list[Path] = typer.Option(..., help="Folder made by `specdecpp label`; a sweep takes several."),
    output: Path = typer.Option(..., help="Folder for the head; an interrupted run goes on in it."),
    draft: str = typer.Option(None, help="Hub id or folder. (default: the labels' draft)", show_default=False),
    mode: str = typer.Option(
        None, help="greedy or sampling. (default: the first that the labels hold)", show_default=False
    ),
    reads: str = typer.Option("before", help="The state before a token, or, as in the paper, the one after it."),
    feature: list[str] = typer.Option(
        ["probability", "entropy"], help="What the head sees besides: probability, entropy, position, or none."
    ),
    label: str = typer.Option("acceptance", help="Learn the acceptance of the drawn token, or the overlap."),
    num_layers: int = typer.Option(1, min=0, help="Residual blocks of the head (depth)."),
    tied: bool = typer.Option(False, help="One block applied repeatedly, as in the authors' code."),
    rejection_weight: float = typer.Option(6.0, help="Weight of rejections in the loss."),
    threshold: float = typer.Option(0.7, min=0, max=1, help="Recommended for the rule of SpecDec++."),
    max_draft_length: int = typer.Option(20, min=1, help="Recommended bound, stored with the head."),
    epochs: float = typer.Option(12.0, help="Passes over the labels, at most."),
    patience: int = typer.Option(3, min=1, help="Stop after so many epochs without a better one."),
    learning_rate: float = typer.Option(1e-3, help="Peak learning rate."),
    batch_size: int = typer.Option(8, min=1, help="Responses a step."),
    report_to: str = typer.Option("none", help="Where to log, as in transformers: tensorboard, wandb, ..."),
    dtype: str = typer.Option("bfloat16", help="Of the frozen draft: the one it will draft in."),
    seed: int = typer.Option(0),
    sweep: bool = typer.Option(False, help="Train variants of this head, one choice changed at a time; compare them."),
    choice: list[str] = typer.Option(
        [],
        help="For a sweep: depth, blocks, rejection-weight, reads, features, label or rows; repeat it for more. "
        "(default: all)",
        show_default=False,
    ),
    traces: Path = typer.Option(
        None,
        help="For a sweep: made by `specdecpp trace --states`, of prompts that are in no labels.",
        show_default=False,
    ),
    costs: Path = typer.Option(
        None, help="For a sweep: a JSON file of `specdecpp calibrate --output`.", show_default=False
    ),
) -> None:
    """Fit an acceptance head to labels, calibrate it on held-out ones, and save it."""
    from ..acceptance import AcceptanceHeadConfig
    from ..training.label_folder import read_card
    from ..training.pipeline import leave_processes, train_head
    from ..training.trainer import AcceptanceTrainingArguments

    if len(labels) > 1 and not sweep:
        raise ValueError(f"a head is trained on one folder of labels, got {len(labels)}: a --sweep compares several")
    card = read_card(labels[0])
    mode = mode or next(iter(card.decodings))
    if mode not in card.decodings:
        raise ValueError(f"the labels in {str(labels[0])!r} are for {', '.join(card.decodings)}, not for {mode!r}")
    config = AcceptanceHeadConfig(
        num_layers=num_layers, tied=tied, reads=reads, features=[name for name in feature if name != "none"],
        rejection_weight=rejection_weight, decoding=card.decodings[mode], rule="cost-aware", threshold=threshold,
        min_draft_length=min(1 if reads == "before" else 2, max_draft_length), max_draft_length=max_draft_length,
        target_name_or_path=card.target, target_signature=card.target_signature, draft_signature=card.draft_signature,
    )  # fmt: skip

    def arguments(checkpoints: Path) -> AcceptanceTrainingArguments:
        return AcceptanceTrainingArguments(
            str(checkpoints), num_train_epochs=epochs, learning_rate=learning_rate, seed=seed,
            per_device_train_batch_size=batch_size, report_to=report_to,
        )  # fmt: skip

    if sweep:
        run_sweep(
            partial(load_model, draft or card.draft, dtype), labels, output, config, arguments, traces, costs,
            patience, choice,
        )  # fmt: skip
        return
    model = load_model(draft or card.draft, dtype)
    metrics = train_head(model, labels[0], output, config, arguments(output / "checkpoints"), mode, label, patience)
    for name, value in metrics.items():
        if isinstance(value, float | int):
            console.print(f"{name:<28}{value:.4g}")
    console.print(f"head saved in {output}")
    leave_processes()


def run_sweep(new_draft, labels, output, config, arguments, traces, costs, patience, choices) -> None:
    """The sweep of `train`, with its table and its plot."""
    from rich.table import Table

    from ..bench.report import markdown
    from ..costs.store import Calibration
    from ..evidence.files import write_atomically
    from ..evidence.trace import read_states, read_traces
    from ..training.sweep import plot_sweep, sweep

    if traces is None or costs is None:
        raise ValueError("a sweep tells what heads are worth in decoding: give --traces and --costs")
    profile = next(iter(Calibration.load(costs).profiles.values()))
    rows = sweep(
        new_draft, labels, output, config, arguments, read_traces(traces), read_states(traces), profile, patience,
        choices,
        on_variant=lambda name, row: console.print(f"{name}: binary KL {row['binary_kl']:.4f}", highlight=False),
    )  # fmt: skip
    cells = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    table = Table(*rows[0])
    for row in cells:
        table.add_row(*row)
    console.print(table)
    columns = (name.replace("_", " ") for name in rows[0])
    write_atomically(output / "sweep.md", "\n".join([*markdown(columns, cells), ""]))
    plot_sweep(rows, output / "sweep.png")
    console.print(f"heads, table and plot in {output}")


@app.command()
@speaks_plainly
def trace(
    target: str = typer.Option(..., help="Hub id or folder of the target."),
    draft: str = typer.Option(..., help="Hub id or folder of the draft."),
    head: str = typer.Option(None, help="Hub id or folder of the draft's head, if it has one.", show_default=False),
    prompts: str = typer.Option(..., help="A JSONL file or Hub dataset (id, id:split or id:config:split)."),
    output: Path = typer.Option(..., help="JSONL file of traces; an interrupted run goes on in it."),
    sample: bool = typer.Option(False, help="Sample (temperature 1, top-k 50) instead of greedy decoding."),
    max_new_tokens: int = typer.Option(64, min=2, help="Tokens generated for each prompt."),
    max_length: int = typer.Option(None, help="Most tokens of prompt and response.", show_default=False),
    max_draft_length: int = typer.Option(20, min=1, help="Longest draft recorded."),
    limit: int = typer.Option(None, min=1, help="Only the first prompts.", show_default=False),
    states: bool = typer.Option(False, help="Keep the draft's hidden states, by which other heads can be judged."),
    dtype: str = typer.Option("bfloat16", help="bfloat16, float16 or float32."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
) -> None:
    """Record what a long draft would be at every position, so that any stopping rule can be replayed."""
    from ..evidence.trace import record_traces
    from ..hub.data import load_rows, prompt_ids, prompt_text

    if states and not head:
        raise ValueError("hidden states are kept where a head reads them: give --head, any head of this draft")
    models = load_pair(target, draft, dtype, **loading(device_map, attention, quantization))
    if head:
        load_head(models[1], head)
    tokenizer = load_tokenizer(target)
    rows = load_rows(prompts)
    ids = [prompt_ids(tokenizer, prompt_text(row)) for row in rows.take(min(limit or len(rows), len(rows)))]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("traces", total=len(ids))
        record_traces(
            *models, ids, output, Decoding(True) if sample else Decoding(), max_new_tokens, max_draft_length,
            on_prompt=lambda: progress.update(task, advance=1), keep_states=states, max_length=max_length,
        )  # fmt: skip
    console.print(f"traces of {len(ids)} prompts in {output}")


@app.command()
@speaks_plainly
def calibrate(
    target: str = typer.Option(..., help="Hub id or folder of the target."),
    draft: str = typer.Option(..., help="Hub id or folder of the draft."),
    head: str = typer.Option(None, help="Hub id or folder of the draft's head, if it has one.", show_default=False),
    dtype: list[str] = typer.Option(["bfloat16"], help="bfloat16, float16 or float32; repeat it for more."),
    device_map: str = DEVICE_MAP,
    attention: str = ATTENTION,
    quantization: str = QUANTIZATION,
    context: list[int] = typer.Option([128, 512, 1024], min=2, help="Tokens in the cache; repeat it for more."),
    max_draft_length: int = typer.Option(12, min=1, help="Longest draft."),
    output: Path = typer.Option(None, help="Folder for a copy of the JSON files and a plot.", show_default=False),
    force: bool = typer.Option(False, help="Measure again what was measured before."),
) -> None:
    """Measure what draft and target cost on this machine; the cost-aware rule then uses it without being told."""
    from rich.table import Table

    from ..costs.measure import calibrate as measure
    from ..costs.measure import plot
    from ..costs.store import pair_identity, stored_calibration, stored_path

    table = Table("dtype", "context", "draft, ms", *(f"verify {n}, ms" for n in (1, 2, 4, 8)), "draft / step")
    found = {}
    for name in dtype:
        models = load_pair(target, draft, name, **loading(device_map, attention, quantization))
        if head:
            load_head(models[1], head)
        path, before = stored_path(pair_identity(*models)), None if force else stored_calibration(*models)
        if before is not None:
            found[name] = before
            console.print(f"{name}: measured before, {path} (--force measures again)", soft_wrap=True)
        else:
            with console.status(f"measuring in {name}"):
                found[name] = measure(*models, context, max_draft_length)
            try:
                found[name].save(path)
            except (OSError, ValueError) as error:
                console.print(f"{name}: not kept, so generation will not find it: {error}", soft_wrap=True)
        for length, p in found[name].profiles.items():
            costs = [p.draft_seconds, *(p.verification(n) for n in (1, 2, 4, 8))]
            table.add_row(
                name, str(length), *(f"{1000 * s:.1f}" for s in costs), f"{p.draft_seconds / p.verification(1):.3f}"
            )
        if output:
            found[name].save(output / f"{name}.json")
    console.print(table)
    for name, calibration in found.items():
        fit = calibration.linear_fit()
        base, slope = 1000 * fit["base_seconds"], 1000 * fit["slope_seconds"]
        console.print(f"{name}: verifying n tokens takes {base:.1f} + {slope:.2f} n ms (R^2 {fit['r2']:.2f})")
    if output:
        plot(found, output / "costs.png")
        console.print(f"files and plot in {output}")


@app.command()
@speaks_plainly
def push(
    head: Path = typer.Argument(help="Folder that a head was saved in."),
    repo_id: str = typer.Argument(help="Repository on the Hub, user/name; created if there is none."),
    draft: str = typer.Option(None, help="Hub id of the draft, if the head was trained with a folder."),
    target: str = typer.Option(None, help="Hub id of the target, likewise."),
    private: bool = typer.Option(False, "--private", help="Hide the repository from others."),
    license: str = typer.Option("apache-2.0", help="Of the head."),
    data: list[str] = typer.Option([], help="Hub dataset behind the labels; repeat it for more.", show_default=False),
) -> None:
    """Upload a head to the Hub with a model card, as whoever `hf auth login` or HF_TOKEN says."""
    from ..hub.push import push_head

    url = push_head(head, repo_id, draft=draft, target=target, private=private, license=license, data=data)
    console.print(f"head uploaded to {url}", soft_wrap=True)
