"""Models whose logits are looked up by the whole text, as the engine's loop sees them."""

import torch


class ScriptedRunner:
    """Stands in for a ModelRunner: its logits are looked up by the whole text, so a wrong rollback shows."""

    device = torch.device("cpu")

    class head:
        token_ids = None
        token_of = staticmethod(int)
        row_of = staticmethod(int)

    def __init__(self, logits_of, width=None):
        self._logits_of, self.width = logits_of, width
        self._text = []

    @property
    def length(self):
        return len(self._text)

    def begin(self, max_length):
        self._text = []

    def prefill(self, tokens):
        self._text += tokens

    def forward(self, tokens):
        assert self.width is None or len(tokens) <= self.width
        rows = []
        for token in tokens:
            self._text.append(token)
            rows.append(self._logits_of(tuple(self._text)))
        return torch.stack(rows)

    def logits(self, hidden):
        return hidden

    def rollback(self, tokens):
        assert 0 <= tokens <= len(self._text)
        if tokens:
            del self._text[-tokens:]
