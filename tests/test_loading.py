"""Models at every precision, and one sentence for each way in which loading can go wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
from tiny_gguf import write_gguf
from tiny_models import FAMILIES, VOCAB_SIZE, save_model, save_pair, tiny_pair, tiny_tokenizer
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    T5Config,
    WhisperConfig,
    XLNetConfig,
)

from specviz.errors import SpecVizError
from specviz.models import loading, precision
from specviz.models.loading import LoadedPair, encode_prompt, load_model, load_pair
from specviz.models.precision import (
    PRECISIONS,
    QuantisationOptions,
    check_precision,
    precision_problem,
    read_precision,
    resolve_device,
    rows_are_independent,
    spell_precision,
    weight_bytes,
)
from specviz.models.sources import count_weights, find_model, weight_files

PROMPT = torch.tensor([tiny_tokenizer()("the cat sat on the 7 mats")["input_ids"]])


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A saved Llama-like pair with a chat template: (target folder, draft folder)."""
    return save_pair(tmp_path_factory.mktemp("llama"), "llama", chat=True)


def sentence_of(error: pytest.ExceptionInfo) -> str:
    message = str(error.value)
    assert "\n" not in message and message.endswith(".") and "Traceback" not in message
    return message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_loads_as_it_was_saved(family, tmp_path):
    target, draft = save_pair(tmp_path, family)
    pair = load_pair(str(target), str(draft), "fp32", "fp32", "cpu")
    with torch.no_grad():
        assert torch.equal(pair.target.model(PROMPT).logits, tiny_pair(family).target(PROMPT).logits)
        assert torch.equal(pair.draft.model(PROMPT).logits, tiny_pair(family).draft(PROMPT).logits)
    assert not pair.target.model.training and not any(p.requires_grad for p in pair.draft.model.parameters())
    assert (pair.target.max_context, pair.target.eos_token_ids, pair.target.is_chat) == (256, (0,), False)
    assert pair.warnings == () and pair.target.name == "target"


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bf16", None),
        ("fp16", None),
        ("int8", BitsAndBytesConfig(load_in_8bit=True)),
        ("nf4", BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16")),
        ("fp4", BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_compute_dtype="bfloat16")),
    ],
)
def test_each_precision_is_what_plain_transformers_loads(llama, name, config):
    if problem := precision_problem(name, "cpu"):
        pytest.skip(problem)
    ours = load_model(str(llama[0]), name, "cpu")
    dtype = {"fp16": torch.float16, "int8": torch.float32}.get(name, torch.bfloat16)
    theirs = AutoModelForCausalLM.from_pretrained(llama[0], dtype=dtype, quantization_config=config)
    for layer in theirs.modules():  # these layers are too narrow for the library's AVX-512 kernel, which asserts
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    with torch.no_grad():
        assert torch.equal(ours.model(PROMPT).logits, theirs(PROMPT).logits)
    assert type(ours.model.lm_head) is torch.nn.Linear and ours.model.dtype == dtype
    assert ours.precision == name and ours.device == "cpu"


def test_options_reach_the_library(llama):
    options = QuantisationOptions(double_quant=True, compute_dtype="fp32", quantise_head=True)
    four_bit = load_model(str(llama[0]), "nf4", "cpu", options)
    assert type(four_bit.model.lm_head).__name__ == "Linear4bit" and four_bit.model.dtype == torch.float32
    assert four_bit.model.lm_head.weight.quant_state.nested
    eight_bit = load_model(str(llama[0]), "int8", "cpu", QuantisationOptions(int8_threshold=0.0))
    assert eight_bit.model.model.layers[0].mlp.up_proj.state.threshold == 0
    assert eight_bit.model.lm_head.weight.dtype == torch.float32


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("double_quant", [False, True])
def test_memory_is_foretold_from_the_files_header(llama, name, double_quant):
    options = QuantisationOptions(double_quant=double_quant)
    found = find_model(str(llama[0]))
    linear, other = count_weights(found, weight_files(found))
    whole = tiny_pair("llama").target
    assert linear + other == sum(weight.numel() for weight in whole.parameters())
    measured = load_model(str(llama[0]), name, "cpu", options).memory_bytes
    assert weight_bytes(linear, other, name, options=options) == pytest.approx(measured, rel=0.04)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("bf16", {}),
        ("int8", {}),
        ("int8+t0", {"int8_threshold": 0.0}),
        ("int8+t2.5+fp32", {"int8_threshold": 2.5, "compute_dtype": "fp32"}),
        ("nf4+double+fp32+head", {"double_quant": True, "compute_dtype": "fp32", "quantise_head": True}),
    ],
)
def test_a_precision_with_options_is_one_text(text, options):
    name, read = read_precision(text)
    assert (name, read) == (text.split("+")[0], QuantisationOptions(**options))
    assert spell_precision(name, read) == text
    assert spell_precision("bf16", read) == "bf16"


@pytest.mark.parametrize(
    "text", ["", "int4", "bf16+head", "nf4+t0", "int8+double", "nf4+t", "int8+t-1", "int8+tnan", "nf4+", "+"]
)
def test_options_that_a_precision_does_not_have_are_refused(text):
    with pytest.raises(SpecVizError) as error:
        read_precision(text)
    sentence_of(error)


def test_a_text_with_options_loads_the_same_as_options(llama):
    spelt = load_model(str(llama[0]), "nf4+double+fp32", "cpu")
    given = load_model(str(llama[0]), "nf4", "cpu", QuantisationOptions(double_quant=True, compute_dtype="fp32"))
    assert spelt.precision == given.precision == "nf4+double+fp32"
    assert spelt.memory_bytes == given.memory_bytes < load_model(str(llama[0]), "nf4+fp32", "cpu").memory_bytes
    with torch.no_grad():
        assert torch.equal(spelt.model(PROMPT).logits, given.model(PROMPT).logits)
    pair = load_pair(*map(str, llama), "int8+t0", "nf4", "cpu")
    assert (pair.target.precision, pair.draft.precision) == ("int8+t0", "nf4")
    assert [rows_are_independent(text) for text in ("int8", "int8+t0", "nf4", "bf16")] == [False, True, True, True]


def test_too_little_memory_is_said_before_weights_are_read(llama, monkeypatch):
    monkeypatch.setattr(loading.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000})())
    monkeypatch.setattr(loading, "_read_folder", lambda *_: pytest.fail("read weights that cannot fit"))
    with pytest.raises(SpecVizError) as error:
        load_model(str(llama[0]), "bf16", "cpu")
    assert "GB free" in sentence_of(error)


def test_loading_and_running_say_nothing(llama, capfd):
    model = load_model(str(llama[0]), "int8", "cpu").model
    model(PROMPT)
    load_model(str(llama[0]), "nf4", "cpu").model(PROMPT)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_fresh_process_says_nothing_either(llama):
    code = "import sys, torch\nfrom specviz.models.loading import load_model\n"
    code += "model = load_model(sys.argv[1], 'nf4', 'cpu').model\nmodel(torch.tensor([[5, 6, 7]]))"
    done = subprocess.run([sys.executable, "-c", code, str(llama[0])], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_settings_of_transformers_are_as_they_were(llama):
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    load_model(str(llama[0]), "fp32", "cpu")
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before


def test_a_gguf_file_loads_at_float_and_at_quantised_precision(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    tensors = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(str(tmp_path / "tiny.gguf"), "fp32", "cpu")
    embedding = torch.from_numpy(tensors["token_embd"])
    assert torch.equal(loaded.model.get_input_embeddings().weight, embedding)
    assert (
        loaded.model.get_output_embeddings().weight.data_ptr() == loaded.model.get_input_embeddings().weight.data_ptr()
    )
    assert loaded.is_chat and loaded.eos_token_ids == (0,) and loaded.memory_bytes < 4 * 200_000
    with torch.no_grad():
        logits = loaded.model(PROMPT).logits
    assert logits.isfinite().all() and not logits.is_meta
    four_bit = load_model(str(tmp_path / "tiny.gguf"), "nf4", "cpu")
    assert type(four_bit.model.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    assert not list((tmp_path / "cache").iterdir())


def test_of_a_model_that_also_sees_only_the_language_model_is_loaded(tmp_path):
    text = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, head_dim=12)
    text |= dict(vocab_size=VOCAB_SIZE + 8, num_key_value_heads=2, max_position_embeddings=256, sliding_window=16)
    eyes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28)
    torch.manual_seed(0)
    whole = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=eyes | {"patch_size": 14}, mm_tokens_per_image=4)
    ).eval()
    folder = save_model(whole, tiny_tokenizer(), tmp_path)
    loaded = load_model(str(folder), "fp32", "cpu")
    assert loaded.family == "gemma3_text" and type(loaded.model) is Gemma3ForCausalLM
    with torch.no_grad():
        assert torch.equal(loaded.model(PROMPT).logits, whole(PROMPT).logits)
    found = find_model(str(folder))
    assert sum(count_weights(found, weight_files(found))) == sum(w.numel() for w in loaded.model.parameters())


def test_several_end_of_sequence_ids_are_all_kept(tmp_path):
    pair = tiny_pair("llama", chat=True)
    folder = save_model(pair.target, pair.tokenizer, tmp_path)
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["eos_token_id"] = [2, 7, 100_000]  # the last one is no id of this model
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert load_model(str(folder), "fp32", "cpu").eos_token_ids == (0, 2, 7)


# Prompts


def test_prompts_are_chat_by_default_and_raw_on_request(llama):
    loaded = load_model(str(llama[0]), "fp32", "cpu")
    as_chat = loaded.tokenizer.decode(encode_prompt(loaded, "hi there"))
    assert as_chat == "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\n"
    assert encode_prompt(loaded, "hi there", chat=True) == encode_prompt(loaded, "hi there")
    assert loaded.tokenizer.decode(encode_prompt(loaded, "hi there", chat=False)) == "hi there"


def test_bad_prompts_get_a_sentence(llama, tmp_path):
    pair = load_pair(str(llama[0]), str(llama[1]), "fp32", "fp32", "cpu")
    assert isinstance(pair, LoadedPair)
    for text, words in (("", "empty"), (" \n", "empty"), ("word " * 300, "tokens"), ("\ud800", "cannot encode")):
        with pytest.raises(SpecVizError) as error:
            encode_prompt(pair, text)
        assert words in sentence_of(error)
    room = pair.max_context - 1
    assert len(encode_prompt(pair, "7" * room, chat=False)) == room
    with pytest.raises(SpecVizError):
        encode_prompt(pair, "7" * (room + 1), chat=False)
    raw = tiny_pair("llama")
    plain = load_model(str(save_model(raw.target, raw.tokenizer, tmp_path)), "fp32", "cpu")
    assert plain.tokenizer.decode(encode_prompt(plain, "hi")) == "hi"
    with pytest.raises(SpecVizError) as error:
        encode_prompt(plain, "hi", chat=True)
    assert "no chat template" in sentence_of(error)


# What can be wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("int4", "cpu"), "Unknown precision 'int4'"),
        (("bf16", "tpu"), "Unknown device 'tpu'"),
        (("bf16", "cuda:x"), "Unknown device 'cuda:x'"),
        (("bf16", "cuda:99"), "device"),
    ],
)
def test_unknown_precisions_and_devices(llama, arguments, words):
    with pytest.raises(SpecVizError) as error:
        load_model(str(llama[0]), *arguments)
    assert words in sentence_of(error)


def test_a_missing_bitsandbytes_is_named_beforehand(llama, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    for name in ("int8", "nf4", "fp4"):
        with pytest.raises(SpecVizError) as error:
            load_model(str(llama[0]), name, "cpu")
        assert "pip install bitsandbytes" in sentence_of(error)
    assert precision_problem("bf16", "cpu") is None


def test_a_precision_that_fails_its_trial_is_named_beforehand(monkeypatch):
    precision._try_out.cache_clear()

    def refuse(*_):
        raise RuntimeError("not implemented for 'Half'\nat line 7")

    monkeypatch.setattr(torch.nn.functional, "linear", refuse)
    with pytest.raises(SpecVizError) as error:
        check_precision("fp16", "cpu")
    assert "not implemented for 'Half'" in sentence_of(error)
    precision._try_out.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what is said where there is no CUDA device")
def test_without_cuda_the_sentence_says_so():
    assert resolve_device("auto") == "cpu"
    with pytest.raises(SpecVizError) as error:
        check_precision("bf16", "cuda")
    assert "No CUDA device" in sentence_of(error)


def test_bad_options_are_refused():
    for options in ({"compute_dtype": "int8"}, {"int8_threshold": -1.0}, {"int8_threshold": float("nan")}):
        with pytest.raises(SpecVizError) as error:
            QuantisationOptions(**options)
        sentence_of(error)
    with pytest.raises(SpecVizError, match="0 or more"):
        QuantisationOptions(int8_threshold=float("inf"))


def test_a_compute_dtype_that_the_device_lacks_is_named_beforehand(monkeypatch):
    try_out = precision._try_out
    monkeypatch.setattr(
        precision, "_try_out", lambda name, device: "no fp16 here." if name == "fp16" else try_out(name, device)
    )
    assert precision_problem("nf4+fp16", "cpu") == "no fp16 here."
    assert precision_problem("nf4", "cpu") is None


def _no_folder(folder, target):
    return folder / "missing" / "deeper"


def _no_config(folder, target):
    folder.mkdir(exist_ok=True)
    return folder


def _no_weights(folder, target):
    shutil.copytree(target, folder / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    return folder / "m"


def _pickle_only(folder, target):
    shutil.copytree(target, folder / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(tiny_pair("llama").target.state_dict(), folder / "m" / "pytorch_model.bin")
    return folder / "m"


def _cut_weights(folder, target):
    shutil.copytree(target, folder / "m")
    whole = (target / "model.safetensors").read_bytes()
    (folder / "m" / "model.safetensors").write_bytes(whole[:-10])
    return folder / "m"


def _no_header(folder, target):
    shutil.copytree(target, folder / "m")
    (folder / "m" / "model.safetensors").write_bytes(b"<html>not found</html>")
    return folder / "m"


def _missing_layer(folder, target):
    shutil.copytree(target, folder / "m")
    config = json.loads((target / "config.json").read_text())
    (folder / "m" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    return folder / "m"


def _bad_json(folder, target):
    shutil.copytree(target, folder / "m")
    (folder / "m" / "config.json").write_text("{")
    return folder / "m"


def _own_code(folder, target):
    shutil.copytree(target, folder / "m")
    config = json.loads((target / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "m" / "config.json").write_text(json.dumps(config))
    (folder / "m" / "code.py").write_text("raise SystemExit('code from a model folder was run')")
    return folder / "m"


def _no_gguf(folder, target):
    return folder / "missing.gguf"


def _bad_gguf(folder, target):
    (folder / "bad.gguf").write_bytes(b"GGUF but not really")
    return folder / "bad.gguf"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_no_folder, "no model folder"),
        (_no_config, "no config.json"),
        (_no_weights, "holds no weights"),
        (_pickle_only, "pickle"),
        (_cut_weights, "damaged"),
        (_no_header, "damaged"),
        (_missing_layer, "incomplete"),
        (_bad_json, "cannot be read"),
        (_own_code, "never runs"),
        (_no_gguf, "no file"),
        (_bad_gguf, "cannot be read"),
    ],
)
def test_damaged_and_missing_models(tmp_path, llama, make, words):
    with pytest.raises(SpecVizError) as error:
        load_model(str(make(tmp_path, llama[0])), "fp32", "cpu")
    assert words in sentence_of(error)


@pytest.mark.parametrize("source", ["", "  ", "../nowhere/at/all", "a b/c"])
def test_names_that_cannot_be_a_model(source):
    with pytest.raises(SpecVizError) as error:
        find_model(source)
    sentence_of(error)


def test_what_is_no_causal_model_is_refused_by_name(tmp_path):
    T5Config().save_pretrained(tmp_path)  # no weights: the configuration alone decides
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(SpecVizError) as error:
        find_model(str(tmp_path))
    assert "t5" in sentence_of(error)


@pytest.mark.parametrize(
    ("config", "room"),
    [
        (XLNetConfig(), 1 << 20),  # whose largest position is -1, for none
        (WhisperConfig(max_target_positions=448), 448),
        (GPT2Config(n_positions=96), 96),
    ],
)
def test_the_context_is_what_the_family_calls_it(config, room):
    assert loading._max_context(config) == room
