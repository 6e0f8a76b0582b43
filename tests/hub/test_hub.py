"""Uploads to a stand-in of the Hub over HTTP, and what loads from it."""

import json
import logging
import os
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from models import similar_draft, with_head
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers.dynamic_module_utils import check_python_requirements, get_imports
from typer.testing import CliRunner

from hf_specdecpp import push_head
from hf_specdecpp.hub.model_card import INSTALLED_FROM
from hf_specdecpp.hub.push import write_custom_generate
from hf_specdecpp_cli import app

ROOT = Path(__file__).parents[2]
NAMES = {"draft": "user/draft", "target": "user/target"}
WHOLE = {
    "README.md", "adapter_config.json", "adapter_model.safetensors", "metrics.json", "reliability.png",
    "custom_generate/generate.py", "custom_generate/requirements.txt",
}  # fmt: skip


class Bomb:
    """Unpickling it fails the test."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.fixture(scope="module")
def trained(target, tmp_path_factory):
    """What `specdecpp train` leaves: a head, its metrics, and a checkpoint with pickles."""
    folder = tmp_path_factory.mktemp("hub") / "head"
    with_head(similar_draft(target), num_layers=2, threshold=0.6, rule="svip").save_pretrained(folder)
    (folder / "metrics.json").write_text(json.dumps({"binary_kl": 0.434206, "labels": 4753}))
    (folder / "reliability.png").write_bytes(b"a plot")
    checkpoint = folder / "checkpoints" / "checkpoint-50"
    checkpoint.mkdir(parents=True)
    for path in (folder / "training_args.bin", checkpoint / "optimizer.pt", checkpoint / "adapter_model.safetensors"):
        path.write_bytes(pickle.dumps(Bomb()))
    return folder


@pytest.fixture
def head(trained, tmp_path):
    """A copy of the head alone, to be spoilt."""
    folder = tmp_path / "head"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_bytes((trained / name).read_bytes())
    return folder


LOADING = """
import json, os, re, sys
import torch
from huggingface_hub import hf_hub_download
card = open(hf_hub_download("user/head", "README.md"), encoding="utf-8").read()
for block in re.findall(r"```python\\n(.*?)```", card, re.DOTALL):
    exec(block)

from hf_specdecpp.hub.loading import load_head
from peft import PeftModel
found = {"card": output.tolist(), "plain": target.generate(**inputs, max_new_tokens=64, do_sample=False).tolist()}
loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("user/draft"), "user/head")
loaded.save_pretrained(sys.argv[1])
method = {"custom_generate": "user/head", "trust_remote_code": True, "max_new_tokens": 64, "do_sample": False}
found["custom"] = target.generate(**inputs, assistant_model=loaded, **method).tolist()
for name, token in {"no token": "", "revoked": "hf_revoked", "good": os.environ["HF_TOKEN"]}.items():
    os.environ["HF_TOKEN"] = token
    try:
        load_head(AutoModelForCausalLM.from_config(loaded.config), "user/private")
        found[name] = "loaded"
    except ValueError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def test_nobody_is_told_to_install_a_name_that_others_could_register(tmp_path, monkeypatch):
    """transformers reads the requirements and the imports, and tells users to install what it does not find."""
    write_custom_generate(tmp_path)
    folder = tmp_path / "custom_generate"
    assert (folder / "requirements.txt").read_text() == f"# pip install {INSTALLED_FROM}\n"
    check_python_requirements(folder)
    assert get_imports(folder / "generate.py") == []
    monkeypatch.setitem(sys.modules, "hf_specdecpp", None)
    with pytest.raises(ImportError, match=re.escape(f"hf_specdecpp: pip install {INSTALLED_FROM}")):
        exec(compile((folder / "generate.py").read_text(), "generate.py", "exec"), {})


def test_scripts_and_metadata_name_the_repository_with_the_tag_of_this_version():
    settings = (ROOT / "pyproject.toml").read_text()
    url, version = (re.search(f'^{name} = "(.*)"$', settings, re.MULTILINE)[1] for name in ("Repository", "version"))
    assert f"git+{url}@v{version}" == INSTALLED_FROM
    scripts = [path for folder in ("recipes", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    named = [
        line
        for path in scripts
        for line in re.findall(r"^# dependencies = \[.*hf_specdecpp.*", path.read_text(), re.M)
    ]
    assert len(named) > 10
    for line in named:
        assert re.search(r'"hf_specdecpp(\[demo\])? @ ' + re.escape(f'{INSTALLED_FROM}"'), line)


@pytest.mark.slow
def test_an_uploaded_head_loads_by_its_name_and_its_card_runs(hub, trained, target, tokenizer, tmp_path):
    target.save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    similar_draft(target).save_pretrained(tmp_path / "draft")
    hub.add("user/target", tmp_path / "target")
    hub.add("user/draft", tmp_path / "draft")
    assert push_head(trained, "user/head", **NAMES) == f"{hub.endpoint}/user/head"
    push_head(trained, "user/private", **NAMES, private=True)
    assert not hub.repositories["user/head"].private and hub.repositories["user/private"].private

    environment = os.environ | {
        "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_DEBUG": "1",
        "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", LOADING, tmp_path / "loaded"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert hub.token not in done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["card"] == found["custom"] == found["plain"]
    loaded = load_file(tmp_path / "loaded" / "adapter_model.safetensors")
    assert {n: t.tolist() for n, t in loaded.items()} == {
        n: t.tolist() for n, t in load_file(trained / "adapter_model.safetensors").items()
    }
    assert found["good"] == "loaded"
    for name in ("no token", "revoked"):
        assert found[name].startswith("no head could be loaded from 'user/private'") and "logged in" in found[name]


def test_one_commit_holds_the_head_and_nothing_else(hub, trained):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    push_head(trained, "user/head", **NAMES, data=["org/prompts"])
    repository = hub.repositories["user/head"]
    assert set(repository.files) == WHOLE and len(repository.commits) == 2
    assert repository.large == {"adapter_model.safetensors", "reliability.png"}
    config = json.loads(repository.files["adapter_config.json"])
    assert config["base_model_name_or_path"] == "user/draft" and config["target_name_or_path"] == "user/target"
    assert config["num_layers"] == 2 and config["threshold"] == 0.6 and config["rule"] == "svip"
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_another_head_replaces_the_one_before(hub, trained, head):
    push_head(trained, "user/head", **NAMES)
    push_head(head, "user/head", **NAMES)
    assert set(hub.repositories["user/head"].files) == WHOLE - {"metrics.json", "reliability.png"}
    assert len(hub.repositories["user/head"].commits) == 3


def test_names_that_the_head_knows_need_no_repetition(hub, head):
    path = head / "adapter_config.json"
    names = {"base_model_name_or_path": "org/draft", "target_name_or_path": "org/target"}
    path.write_text(json.dumps(json.loads(path.read_text()) | names))
    push_head(head, "user/head")
    assert names.items() <= json.loads(hub.repositories["user/head"].files["adapter_config.json"]).items()
    assert b"org/draft drafts for org/target" in hub.repositories["user/head"].files["README.md"]


def spoil(head: Path, how: str) -> None:
    weights = head / "adapter_model.safetensors"
    if how == "pickle":
        weights.unlink()
        (head / "adapter_model.bin").write_bytes(pickle.dumps(Bomb()))
    elif how == "no weights":
        weights.unlink()
    elif how == "cut off":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif how == "pickle in disguise":
        weights.write_bytes(pickle.dumps(Bomb()))
    elif how == "other weights":
        save_file({"weight": load_file(weights).popitem()[1]}, weights)
    elif how == "no configuration":
        (head / "adapter_config.json").unlink()
    elif how == "no JSON":
        (head / "adapter_config.json").write_text("{")
    elif how == "no mapping":
        (head / "adapter_config.json").write_text("[]")


@pytest.mark.parametrize(
    "how, message",
    [
        ("pickle", "holds only adapter_model.bin, a pickle"),
        ("no weights", "holds no weights: save the head again"),
        ("cut off", "adapter_model.safetensors' is damaged"),
        ("pickle in disguise", "adapter_model.safetensors' is damaged"),
        ("other weights", "no weights of an acceptance head"),
        ("no configuration", "holds no adapter_config.json: give the folder that a head was saved in"),
        ("no JSON", "is no adapter's configuration"),
        ("no mapping", "is no adapter's configuration"),
    ],
)
def test_a_folder_without_a_sound_head_is_refused_before_anything_is_sent(hub, head, how, message):
    spoil(head, how)
    with pytest.raises(ValueError, match=message):
        push_head(head, "user/head", **NAMES)
    assert hub.repositories == {}


def test_another_adapter_is_refused(hub, target, tmp_path):
    get_peft_model(similar_draft(target), LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "lora")
    with pytest.raises(ValueError, match="holds an adapter of type LORA: give the folder of an acceptance head"):
        push_head(tmp_path / "lora", "user/head", **NAMES)


def test_models_that_nobody_else_could_load_are_refused(hub, head, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="the head's draft is None, which nobody else could load"):
        push_head(head, "user/head", target="user/target")
    with pytest.raises(ValueError, match="the head's target is None"):
        push_head(head, "user/head", draft="user/draft")
    with pytest.raises(ValueError, match="the head's draft is '/some/where'"):
        push_head(head, "user/head", draft="/some/where", target="user/target")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "draft").mkdir(parents=True)
    path = head / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": "runs/draft"}))
    with pytest.raises(ValueError, match="the head's draft is 'runs/draft'"):
        push_head(head, "user/head", target="user/target")


def revoke(hub):
    hub.users.clear()


def make_read_only(hub):
    hub.read_only.add(hub.token)


@pytest.mark.parametrize(
    "change, repo_id, options, message",
    [
        (revoke, "user/head", {}, "does not accept the access token, perhaps no longer"),
        (make_read_only, "user/head", {}, "the access token may not write to 'user/head'"),
        (None, "other/head", {}, "the access token may not write to 'other/head'"),
        (None, "head", {}, "of the form 'user/name', got 'head'"),
        (None, "user/a/b", {}, "of the form 'user/name', got 'user/a/b'"),
        (None, "user/he ad", {}, "of the form 'user/name'"),
        (None, "user/head", {"license": "wrong"}, '"license" must be one of'),
        (None, "user/head", {"data": ["prompts/of/mine.jsonl"]}, "data must be ids of datasets on the Hub"),
        (None, "user/head", {"data": ["pyproject.toml"]}, "data must be ids of datasets on the Hub"),
        (None, "user/head", {"token": "hf_stand_in_token\n"}, "the access token contains"),
        (None, "user/head", {"token": "hf_stand_in_tokén"}, "the access token contains"),
        (None, "user/head", {"token": "hf_unknown"}, "does not accept the access token"),
    ],
)
def test_refusals_are_one_sentence(hub, head, monkeypatch, change, repo_id, options, message):
    monkeypatch.chdir(Path(__file__).parents[2])
    if change:
        change(hub)
    with pytest.raises(ValueError, match=message) as caught:
        push_head(head, repo_id, **NAMES, **options)
    assert "\n" not in str(caught.value)
    assert all(not repository.files for repository in hub.repositories.values())


def test_without_a_token_nothing_is_sent(hub, head, monkeypatch):
    monkeypatch.setattr("hf_specdecpp.hub.push.get_token", lambda: None)
    with pytest.raises(ValueError, match="an upload needs an access token: log in with `hf auth login`"):
        push_head(head, "user/head", **NAMES)


def test_what_should_be_private_never_goes_to_a_public_repository(hub, head):
    push_head(head, "user/head", **NAMES)
    with pytest.raises(ValueError, match="'user/head' exists and is public"):
        push_head(head, "user/head", **NAMES, private=True, license="mit")
    assert len(hub.repositories["user/head"].commits) == 2
    push_head(head, "user/hidden", **NAMES, private=True)
    push_head(head, "user/hidden", **NAMES, license="mit")
    assert hub.repositories["user/hidden"].private and len(hub.repositories["user/hidden"].commits) == 3


def test_a_hub_that_does_not_answer(head, monkeypatch, hub):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"the upload to http://127.0.0.1:9 broke off \(.*check the network"):
        push_head(head, "user/head", **NAMES)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"broke off \(OfflineModeIsEnabled"):
        push_head(head, "user/head", **NAMES)


def test_no_token_is_written_anywhere(hub, head, monkeypatch, caplog, capfd):
    """With every logger at its loudest: an upload, an upload with a revoked token, and one that breaks the header."""
    monkeypatch.setattr(constants, "HF_DEBUG", True)
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        caplog.set_level(logging.DEBUG, logger=name)
    push_head(head, "user/head", **NAMES)
    written = []
    revoke(hub)
    for token in (None, hub.token, hub.token + "\n", hub.token + "é"):
        with pytest.raises(ValueError) as caught:
            push_head(head, "user/head", **NAMES, token=token)
        written += [repr(caught.value), "".join(traceback.format_exception(caught.value))]
    assert any("authenticated: True" in record.getMessage() for record in caplog.records)
    written += [f"{record.getMessage()} {record.args} {record.exc_text}" for record in caplog.records]
    assert not any("stand_in_token" in text for text in [*written, *capfd.readouterr()])
    uploaded = b"".join(hub.repositories["user/head"].files.values())
    assert b"stand_in_token" not in uploaded


def test_the_command(hub, trained):
    run = CliRunner().invoke
    command = ["push", str(trained), "user/head", "--draft", "user/draft", "--target", "user/target", "--private"]
    done = run(app, [*command, "--license", "mit", "--data", "org/one", "--data", "org/two"])
    assert done.exit_code == 0, done.output
    assert f"head uploaded to {hub.endpoint}/user/head" in done.output
    card = huggingface_hub.ModelCard(hub.repositories["user/head"].files["README.md"].decode())
    assert card.data.license == "mit" and card.data.datasets == ["org/one", "org/two"]
    assert hub.repositories["user/head"].private
    revoke(hub)
    refused = run(app, command)
    assert refused.exit_code == 1 and "does not accept the access token" in refused.output
    assert "Traceback" not in refused.output and "stand_in_token" not in done.output + refused.output
