"""Families that mask, cache, place or scale in a way of their own: exact, or refused in one sentence."""

import copy
from dataclasses import replace

import pytest
import torch
from engine_helpers import loaded_model, loaded_pair
from tiny_models import MAX_CONTEXT, TinyPair, tiny_pair
from transformers import (
    BartConfig,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    GPTNeoConfig,
    HunYuanMoEV1Config,
    Llama4TextConfig,
    LlamaForCausalLM,
    MambaConfig,
    OpenAIGPTConfig,
    XLNetConfig,
)
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from specviz.bench import families
from specviz.bench.tiny_families import VOCABULARY, tiny_config, tiny_draft, tiny_target
from specviz.engine import family_check
from specviz.engine.engine import Engine, Settings, observe_all
from specviz.engine.family_check import make_runner
from specviz.engine.heads import OutputHead, OwnLogits
from specviz.engine.packed_linear import PackedLinear, can_pack
from specviz.engine.passes import CachedPass, RecurrentPass, WholeTextPass
from specviz.errors import SpecVizError
from specviz.models.loading import LoadedPair
from specviz.replay import ConfidenceThreshold

PASS_MODES = ("invariant", "fast")
NEW_TOKENS = 24


def family_pair(config, noise=0.03):
    target = tiny_target(config)
    return TinyPair(target, tiny_draft(target, noise), None)


def generate(target, prompt, new_tokens=NEW_TOKENS, **options):
    ids = torch.tensor([prompt])
    output = copy.deepcopy(target).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=0,
        **options,
    )
    return output[0, len(prompt) :].tolist()


def prompt_of(tokens):
    return torch.randint(5, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(4)).tolist()


def without_end(pair, max_context=MAX_CONTEXT):
    """The pair as loaded, without end of sequence, so that texts run to their limit."""
    made = loaded_pair(pair)
    changes = {"eos_token_ids": (), "max_context": max_context}
    return LoadedPair(replace(made.target, **changes), replace(made.draft, **changes))


def speculative_and_plain(engine, prompt, new_tokens=NEW_TOKENS):
    settings = Settings(ConfidenceThreshold(0.0), 8, new_tokens)
    trace = engine.trace(prompt, settings)
    return list(trace.run.output_ids), list(observe_all(engine.plain(prompt, new_tokens), ()).output_ids), trace


def one_sentence(error):
    message = str(error.value)
    assert "\n" not in message and message.endswith(".") and "Traceback" not in message
    return message


# the configurations of these families' published models that once gave another text, an exception or a refusal
CASES = {
    "GPT-1, without a cache": (OpenAIGPTConfig, {}, {}),
    "Falcon with alibi": (FalconConfig, {"alibi": True, "new_decoder_architecture": False}, {}),
    "Llama 4 text": (Llama4TextConfig, {}, {}),
    "Cohere, which scales its logits": (CohereConfig, {"logit_scale": 0.0625}, {}),
    "Gemma 2, which caps its logits softly": (Gemma2Config, {"final_logit_softcapping": 3.0}, {}),
    "HunYuan, mixture of experts": (HunYuanMoEV1Config, {}, {}),
    "BART with fewer encoder layers": (BartConfig, {}, {"use_cache": False}),
    "Mamba": (MambaConfig, {}, {}),
}


@pytest.mark.parametrize("pass_mode", PASS_MODES)
@pytest.mark.parametrize("case", CASES)
def test_the_text_is_that_of_generate(case, pass_mode):
    config_class, changes, options = CASES[case]
    pair = family_pair(tiny_config(config_class, **changes))
    prompt = prompt_of(20)
    engine = Engine(without_end(pair), pass_mode=pass_mode)
    speculative, plain, trace = speculative_and_plain(engine, prompt)
    assert speculative == plain == generate(pair.target, prompt, **options)
    assert trace.rounds["accepted"].sum() > 0, "a draft that is never right exercises nothing"


@pytest.mark.parametrize("pass_mode", PASS_MODES)
def test_gpt_neo_keeps_its_window_over_a_prompt_longer_than_it(pass_mode):
    config = tiny_config(
        GPTNeoConfig, attention_types=[[["global", "local"], 2]], window_size=256, max_position_embeddings=512
    )
    pair = family_pair(config)
    prompt = prompt_of(300)
    engine = Engine(without_end(pair, max_context=512), pass_mode=pass_mode)
    speculative, plain, _ = speculative_and_plain(engine, prompt)
    assert speculative == plain == generate(pair.target, prompt)
    everything = copy.deepcopy(pair.target)
    for layer in everything.modules():
        if isinstance(layer, GPTNeoSelfAttention):
            layer.bias = torch.ones_like(layer.bias).tril()
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        assert not torch.allclose(everything(ids).logits[0, -1], pair.target(ids).logits[0, -1], atol=1e-2)


def test_a_window_that_no_mask_reads_bounds_the_context():
    """Nothing is known of such a layer beyond its window, and below it there is none."""
    pair = tiny_pair("llama")
    target = copy.deepcopy(pair.target)
    target.config.sliding_window = 64
    for pass_mode in PASS_MODES:
        engine = Engine(loaded_pair(TinyPair(target, pair.draft, None)), pass_mode=pass_mode)
        assert engine.max_context == 64
    assert Engine(loaded_pair(tiny_pair("mistral"))).max_context == MAX_CONTEXT


def test_xlnet_is_refused_in_one_sentence_that_names_it():
    pair = family_pair(tiny_config(XLNetConfig))
    for pass_mode in PASS_MODES:
        with pytest.raises(SpecVizError) as error:
            Engine(loaded_pair(pair), pass_mode=pass_mode)
        assert "xlnet" in one_sentence(error)


def test_a_family_that_fails_only_over_a_fixed_length_is_sent_to_the_other_mode(monkeypatch):
    monkeypatch.setattr(family_check, "use_masks_of_passes", lambda body: None)
    monkeypatch.setattr(WholeTextPass, "memory", lambda self, capacity: 1 / 0)
    pair = family_pair(tiny_config(GPTNeoConfig, attention_types=[[["global", "local"], 2]]))
    with pytest.raises(SpecVizError) as error:
        Engine(loaded_pair(pair), pass_mode="invariant")
    message = one_sentence(error)
    assert "gpt_neo" in message and "--pass-mode fast" in message and "logits differ" in message
    assert Engine(loaded_pair(pair), pass_mode="fast").target_runner.takes_trees is False


def test_a_static_mask_without_the_layers_window_is_noticed(monkeypatch):
    """Mistral's window is longer than the check's text: the check shortens it."""
    pair = tiny_pair("mistral")
    for model in (pair.target, pair.draft):
        assert model.config.sliding_window > family_check.SHORT_WINDOW

    def call_without_window(self, ids, positions, **arguments):
        self._module.config.sliding_window, before = None, self._module.config.sliding_window
        try:
            return whole(self, ids, positions, **arguments)
        finally:
            self._module.config.sliding_window = before

    whole = CachedPass.call
    for kind in (CachedPass, RecurrentPass, WholeTextPass):
        monkeypatch.setattr(kind, "call", call_without_window)
    with pytest.raises(SpecVizError) as error:
        Engine(loaded_pair(pair), pass_mode="fast")
    assert "mistral" in one_sentence(error)


@pytest.mark.parametrize("pass_mode", PASS_MODES)
@pytest.mark.parametrize("problem", [ValueError("first\nsecond"), IndexError("list index out of range"), KeyError("x")])
def test_whatever_a_familys_code_raises_becomes_one_sentence(problem, pass_mode, monkeypatch):
    def fail(*_, **__):
        raise problem

    loaded = loaded_pair(tiny_pair("llama"))
    monkeypatch.setattr(LlamaForCausalLM, "forward", fail)
    with pytest.raises(SpecVizError) as error:
        Engine(loaded, pass_mode=pass_mode)
    assert "llama" in one_sentence(error) and type(problem).__name__ in str(error.value)


def test_logits_that_are_no_projection_come_from_the_model_itself():
    class Bent(LlamaForCausalLM):
        def forward(self, *arguments, **named):
            output = super().forward(*arguments, **named)
            output.logits = torch.sin(output.logits)
            return output

    pair = tiny_pair("llama")
    target = copy.deepcopy(pair.target)
    target.__class__ = Bent
    bent = TinyPair(target, pair.draft, pair.tokenizer)
    for pass_mode in PASS_MODES:
        engine = Engine(without_end(bent), pass_mode=pass_mode)
        assert isinstance(engine.target_runner.head, OwnLogits) and type(engine.draft_runner.head) is OutputHead
        speculative, plain, _ = speculative_and_plain(engine, prompt_of(9))
        assert speculative == plain == generate(target, prompt_of(9))


@pytest.mark.parametrize(
    ("attributes", "change"),
    [
        ({"logit_scale": 0.25}, lambda x: x * 0.25),
        ({"logits_scaling": 8.0}, lambda x: x / 8),
        ({"lm_head_multiplier": 3.0}, lambda x: x * 3),
        ({"final_logit_softcapping": 2.0}, lambda x: 2 * torch.tanh(x / 2)),
        ({"logit_scale": 0.5, "output_logit_soft_cap": 2.0}, lambda x: 2 * torch.tanh(x / 4)),
    ],
)
def test_the_head_honours_what_the_configuration_says_of_logits(attributes, change):
    model = copy.deepcopy(tiny_pair("llama").target)
    for name, value in attributes.items():
        setattr(model.config, name, value)
    hidden = torch.randn(6, model.config.hidden_size)
    own = change(model.lm_head(hidden))
    head = OutputHead(model)
    assert head.fit(model, hidden, lambda logits: torch.allclose(logits, own, atol=1e-4))
    torch.testing.assert_close(head(hidden), own, atol=1e-4, rtol=1e-4)
    assert not OutputHead(model).fit(
        model, hidden, lambda logits: torch.allclose(logits, own + hidden[:, :1], atol=1e-4)
    )


def test_what_the_families_without_a_cache_cost_is_said():
    engine = Engine(loaded_pair(family_pair(tiny_config(OpenAIGPTConfig))), pass_mode="fast")
    assert len(engine.notes) == 2 and all("openai-gpt" in n and "whole text" in n for n in engine.notes)
    assert Engine(loaded_pair(tiny_pair("llama"))).notes == ()


def test_a_recurrent_state_is_taken_back_exactly():
    runner = make_runner(loaded_model(tiny_target(tiny_config(MambaConfig)), None, "mamba"), width=None)
    text = prompt_of(40)

    def rows(cuts):
        runner.begin(len(text) + 8)
        runner.prefill(text[:10])
        for first, wrong in cuts:
            runner.forward(text[runner.length : first] + [7] * wrong)
            runner.rollback(wrong)
        return runner.logits(runner.forward(text[runner.length :]))[-3:]

    straight = rows([])
    for cuts in ([(20, 3)], [(12, 1), (13, 5), (30, 2)]):
        torch.testing.assert_close(rows(cuts), straight, atol=1e-4, rtol=1e-4)
    runner.rollback(25)  # further back than any pass that is remembered began
    torch.testing.assert_close(
        runner.logits(runner.forward(text[runner.length :]))[-3:], straight, atol=1e-4, rtol=1e-4
    )


def test_a_packed_layer_still_has_its_weight():
    weight = torch.randn(24, 16)
    if not can_pack(weight):
        pytest.skip("this CPU packs nothing")
    assert torch.equal(PackedLinear(weight, None).weight, weight)


def test_loading_costs_a_few_short_passes(monkeypatch):
    calls, whole = [], LlamaForCausalLM.base_model_prefix
    loaded = loaded_pair(tiny_pair("llama")).target
    body = getattr(loaded.model, whole)
    body.register_forward_hook(
        lambda module, arguments, named, output: calls.append(output.last_hidden_state.shape[1]), with_kwargs=True
    )
    make_runner(loaded, width=9)
    assert len(calls) <= 20 and sum(calls) <= 300, calls
    assert loaded.max_context == MAX_CONTEXT


def test_a_family_that_ends_its_process_costs_its_own_row_only(monkeypatch):
    monkeypatch.setattr(families, "measure", lambda config: __import__("os")._exit(3))
    row = families.in_own_process(GPTNeoConfig)
    assert all(result.verdict == families.UNTESTED and "status 3" in result.detail for result in row.results.values())


def test_the_table_says_how_each_family_does(tmp_path):
    out = tmp_path / "docs" / "families.md"
    assert families.run(out, only=["gpt_neo", "xlnet"]) is False  # one of two is not about 90 %
    text = out.read_text()
    assert (
        "| gpt_neo | cache | exact | exact |  |" in text
        and "| xlnet |  | refused | refused | The target (xlnet)" in text
    )
    assert [path.name for path in out.parent.iterdir()] == ["families.md"]
    with pytest.raises(SpecVizError):
        families.run(None, only=["no such family"])


def test_a_run_continues_where_an_interrupted_one_ended(tmp_path, monkeypatch):
    made, out = [], tmp_path / "families.md"

    def row_of(config):
        made.append(config.model_type)
        if len(made) == 3:
            raise KeyboardInterrupt
        return families.Row(config.model_type, "", "cache", dict.fromkeys(PASS_MODES, families.Result(families.EXACT)))

    monkeypatch.setattr(families, "in_own_process", row_of)
    names = ["gpt2", "gpt_neo", "llama", "mamba"]
    with pytest.raises(KeyboardInterrupt):
        families.run(out, only=names)
    with families._finished_file(out).open("a") as file:
        file.write('{"family": "mamba", "res')
    assert families.run(out, only=names)
    assert made == ["gpt2", "gpt_neo", "llama", "llama", "mamba"]
    assert all(f"| {name} | cache | exact | exact |" in out.read_text() for name in names)
    assert list(tmp_path.iterdir()) == [out]


def test_a_first_difference_is_a_near_tie_only_where_the_logits_nearly_tie():
    assert families._compared([1, 2], [1, 2], [1.0, 1.0]).verdict == families.EXACT
    assert families._compared([1, 3], [1, 2], [1.0, 1e-5]).verdict == families.NEAR
    assert families._compared([1, 3], [1, 2], [1e-5, 1.0]).verdict == families.WRONG
