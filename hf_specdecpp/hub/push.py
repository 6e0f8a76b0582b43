"""Heads on the Hub, and what a repository can carry so that its users need no keyword of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError, safe_open

from ..acceptance import AcceptanceHeadConfig, AcceptancePeftType
from .model_card import INSTALLED_FROM, METRICS, PLOT, head_card

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Whatever else is in a head's folder stays there: checkpoints hold pickles, and the state of an optimizer.
COPIED = (WEIGHTS, METRICS, PLOT, "LICENSE")

# What users are told to install is code that they run, so it is never a bare name, which others could register.
# transformers takes a bare name only, as requirement and as import outside of `try`, and would advise to install that.
CUSTOM_GENERATE = {
    "custom_generate/generate.py": f"""\
# model.generate(..., assistant_model=draft, custom_generate="this/repository", trust_remote_code=True)
try:
    from hf_specdecpp import SpecDecPP
except ImportError as error:
    raise ImportError("this repository generates with hf_specdecpp: pip install {INSTALLED_FROM}") from error


def generate(model, **kwargs):
    return model.generate(candidate_generator=SpecDecPP, **kwargs)
""",
    "custom_generate/requirements.txt": f"# pip install {INSTALLED_FROM}\n",
}


def write_custom_generate(folder: str | Path) -> None:
    """Adds `custom_generate/generate.py` and its requirements to `folder`, say a model before it is uploaded."""
    for name, content in CUSTOM_GENERATE.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def push_head(
    folder: str | Path,
    repo_id: str,
    *,
    draft: str | None = None,
    target: str | None = None,
    private: bool = False,
    token: str | None = None,
    license: str = "apache-2.0",
    data: Sequence[str] = (),
) -> str:
    """Uploads a saved head to the Hub in one commit, with a model card and a `custom_generate/` folder.

    The card is made from the head's configuration and `metrics.json`, unless somebody wrote the folder's `README.md`:
    then that is the card, and only what its front matter lacks is added. Checkpoints and pickles are not uploaded.

    Args:
        folder: where the head was saved, by `train_head` or `save_pretrained`; left as it is.
        repo_id: `user/name`; created if there is none.
        draft: its id on the Hub, for a head that was trained with folders. It goes into the uploaded configuration,
            by which others find the models.
        target: likewise.
        private: whether to hide the repository from others.
        token: an access token that may write. Without one, that of `hf auth login` or `HF_TOKEN`.
        license: of the head, an identifier that the Hub knows.
        data: ids of the Hub datasets that the labels were made from.

    Returns:
        The URL of the repository.

    Raises:
        ValueError: if the folder holds no head that others could load, or the Hub does not take it.
    """
    folder = Path(folder)
    if not ("/" in repo_id and _is_hub_id(repo_id)):
        raise ValueError(f"the repository must be of the form 'user/name', got {repo_id!r}")
    for name in data:
        if not _is_hub_id(name) or Path(name).is_file():
            raise ValueError(f"data must be ids of datasets on the Hub, got {name!r}")
    stored = _read_config(folder)
    stored["base_model_name_or_path"] = _public_name("draft", draft, stored.get("base_model_name_or_path"))
    stored["target_name_or_path"] = _public_name("target", target, stored.get("target_name_or_path"))
    _check_weights(folder)
    config = AcceptanceHeadConfig.from_pretrained(folder)
    config.base_model_name_or_path = stored["base_model_name_or_path"]
    config.target_name_or_path = stored["target_name_or_path"]
    made = CUSTOM_GENERATE | {
        CONFIG: json.dumps(stored, indent=2, sort_keys=True),
        "README.md": str(head_card(folder, repo_id, config, license, data)),
    }
    copied = [name for name in COPIED if (folder / name).exists()]
    operations = [CommitOperationAdd(name, content.encode()) for name, content in made.items()]
    operations += [CommitOperationAdd(name, folder / name) for name in copied]

    api = HfApi(token=_usable(token or get_token()))
    try:
        # None leaves the choice to the namespace: an organisation may keep what is new private.
        api.create_repo(repo_id, private=private or None, exist_ok=True)
        there = api.model_info(repo_id)
        if there.private or not private:
            # What an earlier head left there and this one lacks.
            stale = {file.rfilename for file in there.siblings} & set(COPIED) - set(copied)
            operations += [CommitOperationDelete(name) for name in stale]
            api.create_commit(repo_id, operations, commit_message="Upload acceptance head")
            return f"{api.endpoint}/{repo_id}"
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(_reason(error, repo_id, api.endpoint)) from error
    raise ValueError(f"{repo_id!r} exists and is public: make it private in its settings on the Hub first")


def _is_hub_id(name: str) -> bool:
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.exists():
        raise ValueError(f"the folder {str(folder)!r} holds no {CONFIG}: give the folder that a head was saved in")
    try:
        config = json.loads(path.read_text())
        peft_type = config["peft_type"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{str(path)!r} is no adapter's configuration: save the head again") from error
    if peft_type != AcceptancePeftType.ACCEPTANCE_HEAD:
        raise ValueError(
            f"{str(folder)!r} holds an adapter of type {peft_type}: give the folder of an acceptance head"
        )
    return config


def _public_name(role: str, given: str | None, stored: str | None) -> str:
    name = given or stored
    # A stored name may be that of a folder that only looks like an id, say runs/draft.
    if name is None or not _is_hub_id(name) or (given is None and Path(name).exists()):
        raise ValueError(
            f"the head's {role} is {name!r}, which nobody else could load: upload the {role} and name its repository, "
            f"--{role} on the command line or {role}= in Python"
        )
    return name


def _check_weights(folder: Path) -> None:
    path = folder / WEIGHTS
    if not path.exists():
        pickle = (folder / "adapter_model.bin").exists()
        found = "only adapter_model.bin, a pickle, which could run anything when loaded" if pickle else "no weights"
        raise ValueError(f"the folder {str(folder)!r} holds {found}: save the head again, as {WEIGHTS}")
    try:
        with safe_open(path, "pt") as weights:
            names = list(weights.keys())
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is damaged: save the head again") from error
    if not any(".acceptance_head." in name for name in names):
        raise ValueError(f"{str(path)!r} holds no weights of an acceptance head: save the head again")


def _usable(token: str | None) -> str:
    if token is None:
        raise ValueError("an upload needs an access token: log in with `hf auth login`, or set HF_TOKEN")
    if not re.fullmatch("[!-~]+", token):
        # The HTTP library would refuse the header with an error that quotes it.
        raise ValueError("the access token contains a space, a line break or the like: copy it again from the Hub")
    return token


def _reason(error: Exception, repo_id: str, endpoint: str) -> str:
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status == 401:
        return f"{endpoint} does not accept the access token, perhaps no longer: log in again with `hf auth login`"
    if status == 403:
        return f"the access token may not write to {repo_id!r}: use one that may, or a namespace of your own"
    if status == 404:
        return f"{endpoint} shows no {repo_id!r} to this access token: use one that may see it"
    if isinstance(error, (HfHubHTTPError, ValueError)):
        return f"{endpoint} refused the upload to {repo_id!r}: {' '.join(str(error).split())}"
    return f"the upload to {endpoint} broke off ({type(error).__name__}): check the network and HF_ENDPOINT"
