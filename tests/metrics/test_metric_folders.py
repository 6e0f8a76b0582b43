"""The folders of the metrics: what `evaluate.load` makes of them, their cards, and that a wheel carries them."""

import doctest
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import evaluate
import pytest
from huggingface_hub import RepoCard

from hf_specdecpp import metrics
from hf_specdecpp.metrics import METRICS, load_metric

ROOT = Path(__file__).parents[2]
FOLDER = Path(metrics.__file__).parent
FILES = {f"{name}/{file}" for name in METRICS for file in (f"{name}.py", "README.md")}

ALONE = """
import json, sys, warnings

warnings.simplefilter("error")
connections = []
NETWORK = {"socket.connect", "socket.getaddrinfo"}
sys.addaudithook(lambda event, args: connections.append(args) if event in NETWORK else None)
import evaluate

inputs = {"predictions": [0.25, 0.75], "references": [0.0, 1.0]}
results = {}
for folder in sys.argv[1:]:
    metric = evaluate.load(folder)
    nested = {k: [v] for k, v in inputs.items()} if metric.name == "survival_calibration" else inputs
    for _ in range(5):
        results[metric.name] = metric.compute(**nested)
assert not any(name.startswith("hf_specdecpp") for name in sys.modules) and not connections, connections
print(json.dumps(results))
"""


@pytest.mark.slow
def test_processes_side_by_side_load_the_folders_alone_without_a_network_and_leave_nothing_behind(tmp_path):
    """One is told to stay offline; the other is not, but there is no Hub where it looks for it."""
    for name in METRICS:
        shutil.copytree(FOLDER / name, tmp_path / "folders" / name)
    (tmp_path / "empty").mkdir()
    environment = os.environ | {"HF_HOME": str(tmp_path / "home")}
    environment.pop("HF_HUB_OFFLINE", None)
    folders = [str(tmp_path / "folders" / name) for name in METRICS]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ALONE, *folders],
            cwd=tmp_path / "empty",
            env=environment | setting,
            stdout=subprocess.PIPE,
            text=True,
        )
        for setting in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"})
    ]
    expected = {}
    for name in METRICS:
        inputs = {"predictions": [0.25, 0.75], "references": [0.0, 1.0]}
        nested = {k: [v] for k, v in inputs.items()} if name == "survival_calibration" else inputs
        expected[name] = load_metric(name).compute(**nested)
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0 and json.loads(output) == expected
    assert not list((tmp_path / "empty").iterdir())
    assert {str(path.relative_to(tmp_path / "folders")) for path in (tmp_path / "folders").rglob("*.*")} == FILES


@pytest.mark.parametrize("name", METRICS)
def test_the_example_of_a_card_runs(name):
    card = (FOLDER / name / "README.md").read_text()
    example = "".join(re.findall(r"```python\n(.*?)```", card, re.DOTALL))
    test = doctest.DocTestParser().get_doctest(example, {}, name, None, None)
    assert len(test.examples) >= 3 and doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("name", METRICS)
def test_a_card_says_what_its_module_says(name):
    metric, card = load_metric(name), RepoCard.load(FOLDER / name / "README.md")
    assert metric.name == name
    assert card.data.description == metric.description and card.data.tags == ["evaluate", "metric"]
    assert metric.citation in card.text
    named = re.findall(r"`(\w+)`|^ +(\w+) \(", metric.inputs_description, re.MULTILINE)
    for word in ("predictions", "references", *filter(None, (a or b for a, b in named))):
        assert f"`{word}`" in card.text


def test_every_folder_checks_its_input_in_the_same_way():
    """A folder stands alone, so each has the function; they are kept equal here."""
    modules = [sys.modules[type(load_metric(name)).__module__] for name in METRICS]
    assert len({inspect.getsource(module.probabilities) for module in modules}) == 1
    assert {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.*")} == FILES


def test_evaluate_combines_them():
    combined = evaluate.combine([load_metric("binary_kl"), load_metric("roc_auc")])
    found = combined.compute(predictions=[0.5, 1.0], references=[0.5, 1.0])
    assert found == {"binary_kl": 0.0, "roc_auc": pytest.approx((0.5 * 0.25 + 0.5) / (1.5 * 0.5))}


def test_a_wheel_carries_modules_and_cards(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "hf_specdecpp", tmp_path / "hf_specdecpp", ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-W", "error", "-c", build], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert {f"hf_specdecpp/metrics/{file}" for file in FILES} <= set(zipfile.ZipFile(wheel).namelist())
