"""The draft: a few Llama layers under the target's own embedding, with a head over part of the vocabulary.

Two things keep it small. The embedding is the target's, frozen: it is not stored with the draft but attached after
loading (`attach_embedding`), and shares the target's memory. The head has rows for the most useful tokens only (a
reduced draft vocabulary, as in FR-Spec, Zhao et al. 2025); they are rows of the target's own output embedding, also
frozen, behind a trained linear map, so only that map is stored.

`forward` returns logits over the full vocabulary, -inf where the head has no row, so the draft works wherever
transformers expects a causal model (`assistant_model` in `generate`). The decoding loop of SpecViz uses the cheaper
path: `draft.model` for the hidden state, `draft.reduced_logits` and `draft.head_token_ids` for the distribution.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from specviz.errors import SpecVizError


class DraftConfig(LlamaConfig):
    """`LlamaConfig` plus the number of tokens the head has rows for."""

    model_type = "specviz_draft"

    def __init__(self, draft_vocab_size: int = 8192, **kwargs):
        self.draft_vocab_size = draft_vocab_size
        # The embedding and the head belong to the target; transformers must not tie them to each other.
        super().__init__(**{**kwargs, "tie_word_embeddings": False})


class ReducedHead(nn.Module):
    """Hidden state -> logits of the tokens in `token_ids`; calling it spreads them over the full vocabulary."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        self.vocab_size = config.vocab_size
        self.connector = nn.Linear(config.hidden_size, config.hidden_size)
        self.rows = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("token_ids", torch.arange(config.draft_vocab_size))

    def reduced(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., hidden_size) -> (..., draft_vocab_size)."""
        return self.rows(self.connector(hidden))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., hidden_size) -> (..., vocab_size), -inf where there is no row."""
        logits = self.reduced(hidden)
        full = logits.new_full((*logits.shape[:-1], self.vocab_size), float("-inf"))
        full[..., self.token_ids] = logits
        return full


class DraftModel(LlamaForCausalLM):
    """A draft distilled from one target; call `attach_embedding(target)` after loading.

    Attributes:
        model: the decoder, a `LlamaModel`: ids in, `last_hidden_state` (batch, length, hidden_size) out.
        head_token_ids: (draft_vocab_size,) full-vocabulary id of each reduced logit.
    """

    config_class = DraftConfig
    config: DraftConfig
    _tied_weights_keys = None
    not_stored = ("model.embed_tokens.weight", "lm_head.rows.weight")
    _keys_to_ignore_on_save = list(not_stored)
    _keys_to_ignore_on_load_missing = [name.replace(".", r"\.") for name in not_stored]

    def __init__(self, config: DraftConfig):
        super().__init__(config)
        self.lm_head = ReducedHead(config)
        self.post_init()

    @property
    def head_token_ids(self) -> torch.Tensor:
        return self.lm_head.token_ids

    def reduced_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of the tokens in `head_token_ids`: (..., hidden_size) -> (..., draft_vocab_size)."""
        return self.lm_head.reduced(hidden)

    @torch.no_grad()
    def attach_embedding(self, target: PreTrainedModel) -> DraftModel:
        """Take the embedding and the head's rows from `target`, and return self.

        The embedding shares the target's memory when both have the same dtype and device, and is copied otherwise.

        Raises:
            SpecVizError: the target's embedding does not have this draft's shape.
        """
        embedding = target.get_input_embeddings().weight
        output = target.get_output_embeddings().weight
        expected = (self.config.vocab_size, self.config.hidden_size)
        if tuple(embedding.shape) != expected or output.shape[1] != expected[1]:
            raise SpecVizError(
                f"This draft was made for a target whose embedding is {expected[0]} x {expected[1]}, but this one's is "
                f"{embedding.shape[0]} x {embedding.shape[1]}: choose the target named in the draft's card."
            )
        rows = self.lm_head.rows.weight
        shared = embedding.detach().to(device=rows.device, dtype=rows.dtype)
        self.model.embed_tokens.weight = nn.Parameter(shared, requires_grad=False)
        head = output.detach()[self.head_token_ids.to(output.device)].to(device=rows.device, dtype=rows.dtype)
        self.lm_head.rows.weight = nn.Parameter(head, requires_grad=False)
        return self


AutoConfig.register(DraftConfig.model_type, DraftConfig)
AutoModelForCausalLM.register(DraftConfig, DraftModel)
