# /// script
# dependencies = ["hf_specdecpp @ git+https://github.com/hf-specdecpp/hf_specdecpp@v0.2.0"]
# ///
"""Peak resident memory of `specdecpp label` at growing numbers of prompts.

    python benchmarks/training/label_memory.py --target TARGET --draft recipes/smollm2-135m/draft \\
        --prompts prompts.jsonl --output benchmarks/training/results/label-memory.json

Each count is a process of its own, from a JSONL file to the labels of all its rows on the disk, caches of datasets
included. The rows repeat the ten shortest prompts of the file and bring a response of their own, so that there is
nothing to generate and the largest batch is the same at every count. Other options go to `specdecpp label`, such as
`--states before`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

# Neither torch nor the library: on Linux the peak of a child begins at that of the process that starts it.
LABEL = [sys.executable, "-c", "from hf_specdecpp_cli import app; app()", "label"]
UNIT = 1 if sys.platform == "darwin" else 1024  # bytes in which ru_maxrss counts


def label(count: int, args: argparse.Namespace, others: list[str], folder: Path) -> dict[str, float]:
    """Labels `count` rows in a process of its own."""
    shortest = sorted(args.prompts.read_text().splitlines(), key=len)[:10]
    response = {"response_ids": list(range(10, 10 + args.response_tokens))}
    with (folder / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps(json.loads(line) | response) + "\n" for line in islice(cycle(shortest), count))
    models = ["--target", args.target, "--draft", args.draft, "--dtype", args.dtype]
    start = time.perf_counter()
    process = subprocess.Popen(
        [*LABEL, *models, "--prompts", folder / "rows.jsonl", "--output", folder / "labels", *others],
        env=os.environ | {"HF_DATASETS_CACHE": str(folder / "cache")},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"`specdecpp label` ended with {process.returncode} on {count} prompts")
    made = json.loads((folder / "labels" / "labels.json").read_text())
    size = sum(path.stat().st_size for path in (folder / "labels").iterdir())
    return {
        "prompts": made["prompts"],
        "batch_size": made["batch_size"],
        "states": made["states"],
        "peak_mb": usage.ru_maxrss * UNIT / 1e6,
        "labels_mb": size / 1e6,
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL file")
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--response-tokens", type=int, default=20)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--output", type=Path, required=True)
    args, others = parser.parse_known_args()

    runs = []
    for count in args.counts:
        with tempfile.TemporaryDirectory() as folder:
            runs.append(label(count, args, others, Path(folder)))
        print(f"{count} prompts: peak {runs[-1]['peak_mb']:.0f} MB, {runs[-1]['seconds']:.0f} s", flush=True)

    from hf_specdecpp.evidence.conditions import write_result
    from hf_specdecpp.hub.loading import load_config

    result = {"dtype": args.dtype, "response_tokens": args.response_tokens, "runs": runs}
    result["growth"] = runs[-1]["peak_mb"] / runs[0]["peak_mb"]
    write_result(args.output, result, target=load_config(args.target), draft=load_config(args.draft))


if __name__ == "__main__":
    main()
