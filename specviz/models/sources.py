"""From what a user names (a built-in, a hub id, a folder, a GGUF file) to files on this disk.

First come the small files (configuration, tokenizer), on which a pair can be refused; the weights come only when asked
for. Weights are read from safetensors or GGUF, nothing else, and code from a repository never runs.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.constants import DEFAULT_REVISION
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoTokenizer, PretrainedConfig

from specviz.errors import SpecVizError
from specviz.models import builtin
from specviz.models.catalogue import BUILTIN_DRAFT, BUILTIN_TARGET, BUILTIN_TARGET_NAME
from specviz.models.draft_model import DraftConfig
from specviz.models.gguf_conversion import load_gguf_tokenizer
from specviz.models.messages import first_line
from specviz.models.quiet import quiet_loading
from specviz.models.storage import Progress, is_disk_full, no_progress

HUB_PATIENCE = 4.0  # seconds in which a hub that can be reached answers
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_SMALL_FILES = ["*.json", "*.jinja", "*.txt", "tokenizer*", "*.model"]
_WEIGHT_FILES = ["model*.safetensors", "config.json"]  # the latter so that something always matches
_IN_SUBFOLDERS = ["*/*"]
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# What models that also see or hear call their language model's weights; its own class calls them "model.".
LANGUAGE_MODEL = re.compile(r"^(model\.)?language_model\.(model\.)?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model found: its name as shown, its folder (or GGUF file) and what is known of it before its weights load.

    revision: what a trace states: a hub commit, or the built-in wheel's version; "" for a folder.
    tokenizer: None for a draft that shares its target's.
    is_text_part: the model also sees or hears; `config` is its language model's, and only that is loaded.
    source: what the user named it by.
    hub_id: where missing weights come from; "" when everything is on this disk.
    """

    name: str
    path: Path
    revision: str
    config: PretrainedConfig
    tokenizer: Any | None
    hub_id: str = ""
    is_text_part: bool = False
    source: str = ""

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix == ".gguf"


def find_model(source: str, progress: Progress = no_progress) -> ModelSource:
    """Find a model and read its configuration and tokenizer, fetching those small files if it is a hub id.

    source: `builtin-target`, `builtin-draft`, a folder, a `.gguf` file, or a hub id (`organisation/model`, with
    `@revision` if need be). Raises SpecVizError for what is not there, cannot be fetched, or cannot be used here.
    """
    source = str(source).strip()
    if source == BUILTIN_TARGET:
        found = _from_folder(builtin.prepare_target(progress), BUILTIN_TARGET_NAME, builtin.TARGET.revision)
    elif source == BUILTIN_DRAFT:
        found = _from_folder(builtin.DRAFT_FOLDER, "SpecViz built-in draft", "")
    elif source.endswith(".gguf"):
        found = _from_gguf(Path(source).expanduser())
    elif source and _is_folder(source):
        folder = Path(source).expanduser().resolve()
        found = _from_folder(folder, folder.name, "")
    elif _HUB_ID.fullmatch(source.partition("@")[0]):
        found = _from_hub(source, progress)
    else:
        raise SpecVizError(
            f"There is no model folder {source[:80]!r}: name an existing folder, a .gguf file, a hub id such as "
            f"HuggingFaceTB/SmolLM2-135M-Instruct, or {BUILTIN_TARGET}."
        )
    _refuse_unusable(found)
    return replace(found, source=source)


def _is_folder(source: str) -> bool:
    """Whether there is a folder of this name; a name that no file system can hold is none."""
    try:
        return Path(source).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a null character, no home of that user
        return False


def weight_files(found: ModelSource, progress: Progress = no_progress) -> list[Path]:
    """The safetensors files of a found model, downloaded first if they are still on the hub."""
    if found.hub_id:
        _download(found.hub_id, found.revision, _WEIGHT_FILES, f"Downloading {found.name}", progress)
    files = sorted(found.path.glob("model*.safetensors"))
    if files:
        return files
    pickled = any(any(found.path.glob(pattern)) for pattern in _PICKLED) or (found.hub_id and not found.is_gguf)
    if pickled:
        raise SpecVizError(
            f"{found.name} has its weights only as pickle files (such as pytorch_model.bin), which can run code when "
            "read: choose a model with safetensors files, or convert it with transformers' save_pretrained."
        )
    raise SpecVizError(f"The folder {found.path} holds no weights: it needs model.safetensors beside config.json.")


def count_weights(found: ModelSource, files: list[Path]) -> tuple[int, int]:
    """Number of weights in (linear layers, everything else), from the headers of safetensors files alone."""
    linear = other = 0
    for path in files:
        for name, entry in _header(path).items():
            if name == "__metadata__" or (found.is_text_part and not LANGUAGE_MODEL.match(name)):
                continue
            size = 1
            for extent in entry["shape"]:
                size *= extent
            is_linear = len(entry["shape"]) == 2 and not re.search(r"embed|wte|wpe|lm_head", name)
            linear, other = (linear + size, other) if is_linear else (linear, other + size)
    return linear, other


def _header(path: Path) -> dict[str, Any]:
    """A safetensors file's header; a file that is cut short or is something else is a SpecVizError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size:
                raise ValueError("the header is longer than the file")
            header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        if 8 + length + end != size:
            raise ValueError("the file is cut short")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecVizError(f"The weights file {path} is damaged ({error}): fetch or copy it again.") from error
    return header


def _from_folder(folder: Path, name: str, revision: str) -> ModelSource:
    if not (folder / "config.json").exists():
        raise SpecVizError(f"The folder {folder} is not a model folder: it has no config.json.")
    return _read_small_files(name, folder, revision)


def _from_gguf(path: Path) -> ModelSource:
    if not path.is_file():
        raise SpecVizError(f"There is no file {path}: give the path of an existing .gguf file.")
    try:
        with quiet_loading():
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
            tokenizer = load_gguf_tokenizer(path)
    except Exception as error:  # the gguf reader fails on a damaged file in many ways
        raise SpecVizError(f"The file {path} cannot be read as a GGUF model ({first_line(error)}).") from error
    return ModelSource(path.stem, path.resolve(), "", config, tokenizer)


def _from_hub(source: str, progress: Progress) -> ModelSource:
    hub_id, _, wanted = source.partition("@")
    folder = _download(hub_id, wanted or None, _SMALL_FILES, f"Reading {hub_id}", progress)
    found = _from_folder(folder, hub_id, folder.name)
    return replace(found, hub_id=hub_id)


def _read_small_files(name: str, folder: Path, revision: str) -> ModelSource:
    try:
        with quiet_loading():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            tokenizer = None
            if not isinstance(config, DraftConfig):
                tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # damaged JSON, unknown architectures, missing tokenizers: one exception type each
        if "trust_remote_code" in str(error) or "auto_map" in str(error):
            raise SpecVizError(
                f"{name} needs code from its own repository, which SpecViz never runs: choose a model whose "
                "architecture transformers has itself."
            ) from error
        raise SpecVizError(
            f"The configuration or tokenizer of {name} cannot be read ({first_line(error)}): "
            f"check the files in {folder}."
        ) from error
    text_config = config.get_text_config()
    is_text_part = text_config is not config and type(text_config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return ModelSource(
        name, folder, revision, text_config if is_text_part else config, tokenizer, is_text_part=is_text_part
    )


def _refuse_unusable(found: ModelSource) -> None:
    """Refuse, from the configuration alone, what is no causal model."""
    config = found.config
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SpecVizError(
            f"{found.name} ({config.model_type}) is not a causal language model that transformers can load: choose one."
        )


def _snapshot(hub_id: str, *, revision: str | None, **chosen) -> str:
    """The snapshot that the hub has now or, where the hub does not answer in time, the one in its cache.

    The hub's client waits for ever for an answer to its first question, so that question is asked here, with a limit.
    """
    try:
        HfApi().repo_info(hub_id, revision=revision or DEFAULT_REVISION, timeout=HUB_PATIENCE)
    except Exception:
        try:
            return snapshot_download(hub_id, revision=revision, local_files_only=True, **chosen)
        except LocalEntryNotFoundError:
            pass
        raise
    return snapshot_download(hub_id, revision=revision, **chosen)


def _download(hub_id: str, revision: str | None, patterns: list[str], stage: str, progress: Progress) -> Path:
    """Fetch the files that match `patterns` from the hub, or find them in its cache; returns the folder."""

    furthest = 0.0

    class Bar(tqdm):
        """Reports to `progress` where the hub client would draw a bar (one for bytes arriving, one for bytes saved)."""

        def __init__(self, *args, **kwargs):
            kwargs.pop("name", None)
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **(kwargs | {"disable": True}))

        def update(self, n=1):
            nonlocal furthest
            self.n += n or 0
            if self.counts_bytes and self.total and self.n > furthest:
                furthest = float(self.n)
                progress(stage, furthest, float(self.total))

    progress(stage, None, None)
    chosen = {"revision": revision, "allow_patterns": patterns, "ignore_patterns": _IN_SUBFOLDERS, "tqdm_class": Bar}
    try:
        folder = _snapshot(hub_id, **chosen)
    except GatedRepoError as error:
        raise SpecVizError(
            f"{hub_id} is gated: accept its licence on its page on huggingface.co, then log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise SpecVizError(f"{hub_id} has no revision {revision!r}: leave it out to take the newest.") from error
    except RepositoryNotFoundError as error:
        raise SpecVizError(
            f"There is no model folder here and no public hub model called {hub_id!r}: check the name, or log in with "
            "`hf auth login` if it is private."
        ) from error
    except HFValidationError as error:
        raise SpecVizError(f"There is no model folder here called {hub_id!r}, and it cannot be a hub id.") from error
    except Exception as error:
        # Errors of the network come as OSError or, through a proxy, as the HTTP client's own; others are not ours.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("httpx"):
            raise
        if is_disk_full(error):
            raise SpecVizError(
                f"The disk is full: {hub_id} does not fit into the model hub's cache; free some space there, or set "
                "HF_HOME to a folder on a larger disk."
            ) from error
        raise SpecVizError(
            f"{hub_id!r} is no folder here and the model hub cannot be reached to fetch it: check the network "
            "connection, or name a folder that holds the model."
        ) from error
    return Path(folder)
