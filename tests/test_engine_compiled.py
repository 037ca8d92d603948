"""Compiled passes: the same output as eager ones, in the same rounds."""

import shutil

import pytest
import tiny_models
import torch
from engine_helpers import loaded_pair

from specviz.engine.engine import PASS_MODES, Engine, Settings, observe_all
from specviz.engine.packed_linear import can_pack
from specviz.engine.recording import record
from specviz.errors import SpecVizError
from specviz.replay import ConfidenceThreshold

PROMPT = [11, 7, 42, 99, 5]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("c++"), reason="compiling passes on a CPU needs a C++ compiler (c++ on the path)")
@pytest.mark.parametrize("pass_mode", PASS_MODES)
def test_compiled_passes_give_the_eager_output_and_one_graph_serves_every_width(pass_mode):
    pair = tiny_models.tiny_pair("llama")
    eager = Engine(loaded_pair(pair), pass_mode=pass_mode, widest_draft=4)
    compiled = Engine(loaded_pair(pair), pass_mode=pass_mode, widest_draft=4, compiled=True)
    settings = Settings(ConfidenceThreshold(0.3), 4, 24)
    torch._dynamo.utils.counters.clear()
    # the second text meets a graph that was made while the first one's cache was in use; the third needs a longer cache
    texts = [(2, PROMPT), (2, PROMPT[::-1]), (4, list(range(10, 242)))]
    for graphs, prompt in texts if pass_mode == "fast" else texts[:2]:  # the modes share what makes a cache
        expected = eager.trace(prompt, settings)
        found = compiled.trace(prompt, settings)
        assert found.run.output_ids == expected.run.output_ids
        assert (found.rounds["proposed"] == expected.rounds["proposed"]).all()
        assert observe_all(compiled.plain(prompt, 24), ()).output_ids == expected.run.output_ids
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # one a model and size of cache
    recordings = [record(engine, PROMPT, max_new_tokens=24, max_draft=4) for engine in (eager, compiled)]
    assert recordings[0].branch_token.tolist() == recordings[1].branch_token.tolist()


@pytest.mark.skipif(not can_pack(torch.zeros(8, 8)), reason="this CPU has no oneDNN kernels to pack for")
def test_a_pair_packed_for_eager_passes_is_not_compiled():
    pair = loaded_pair(tiny_models.tiny_pair("llama"))
    Engine(pair, pass_mode="fast")
    with pytest.raises(SpecVizError, match="load them again"):
        Engine(pair, pass_mode="invariant", compiled=True)
