"""A pair made ready to run: the facade over runners, drafter and decoding loop."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version

import torch

from specviz import limits
from specviz.engine.acceptance import GreedyRule, rule_at_work
from specviz.engine.decoding import decode, never
from specviz.engine.drafting import Drafter
from specviz.engine.endings import Endings, Limits
from specviz.engine.events import Event
from specviz.engine.family_check import make_runner
from specviz.engine.processing import Processing, TextRequests
from specviz.engine.runner import ModelRunner
from specviz.engine.trace_recorder import TraceRecorder
from specviz.errors import SpecVizError
from specviz.models.loading import LoadedPair
from specviz.models.pair_check import check_draft_fits
from specviz.models.token_text import TokenText
from specviz.replay.generation import LogitRequests, TargetRequests
from specviz.replay.policies import ConfidenceThreshold, Policy
from specviz.replay.rules import LOSSLESS, AcceptanceRule, Coupled, Greedy, recorded_drawing, stays_lossless
from specviz.replay.sampling import Sampling
from specviz.replay.stop_strings import StopStrings, check_stop_strings
from specviz.trace import PairInfo, Recording, RunInfo, Trace

PASS_MODES = limits.PASS_MODE.names
DEFAULT_MAX_DRAFT = 8
DRAFT_WIDTH = 2  # a draft step takes in one token, or two after a fully accepted round


@dataclass(frozen=True)
class Settings:
    """How to generate. Policy and draft length may change speed and, in pass mode `invariant` under a rule of fixed
    output, nothing of the output.

    Attributes:
        policy: when the draft stops.
        max_draft: most tokens proposed in one round (gamma).
        max_new_tokens: most tokens to generate.
        sampling: temperature and what else shapes the distributions, of both models.
        rule: how proposals are judged; None takes `coupled`. At temperature 0 every rule comes to `greedy`, so it is
            that.
        seed: of everything drawn; the same seed gives the same run on the same device.
        requests: what else changes the logits; None takes what the target's generation config asks for.
        stop: strings that end the text; None takes those of the target's generation config.
    """

    policy: Policy = field(default_factory=lambda: ConfidenceThreshold(0.5))
    max_draft: int = DEFAULT_MAX_DRAFT
    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    rule: AcceptanceRule | None = None
    seed: int = 0
    requests: LogitRequests | None = None
    stop: tuple[str, ...] | None = None

    @classmethod
    def as_recorded(cls, recording: Recording, policy: Policy, max_draft: int, max_new_tokens: int) -> Settings:
        """To run a recorded prompt again: drawn and judged as it was.

        Raises:
            SpecVizError: the recording's sampling settings are not those of a recording.
        """
        return cls(policy, max_draft, max_new_tokens, *recorded_drawing(recording))

    def __post_init__(self) -> None:
        if self.rule is None or self.sampling.greedy:
            object.__setattr__(self, "rule", Greedy() if self.sampling.greedy else Coupled())
        if self.stop is not None:
            object.__setattr__(self, "stop", check_stop_strings(self.stop))
        looks = self.policy.looks_at_drawn_token
        if self.rule.claim == LOSSLESS and not stays_lossless(self.rule, looks, self.policy.on_fail):
            raise SpecVizError(
                f"The policy {self.policy.name} withholds tokens for what was drawn, which under the rule "
                f"{self.rule.name} makes unlikely tokens rarer than the target does; choose another policy, or the "
                "rule coupled."
            )
        if isinstance(self.rule, Greedy) and not self.sampling.greedy:
            raise SpecVizError(
                f"The rule greedy draws nothing, so a temperature of {self.sampling.temperature:g} does not fit it; "
                "set the temperature to 0 or choose another rule, such as coupled."
            )
        limits.SEED.check(self.seed)
        limits.MAX_DRAFT.check(self.max_draft)
        limits.MAX_NEW_TOKENS.check(self.max_new_tokens)

    def of_text(self) -> dict:
        """What decides the text, besides the number of its tokens, as `Engine.plain` takes it."""
        return {name: getattr(self, name) for name in ("sampling", "seed", "requests", "stop")}


class Engine:
    """Runs one loaded pair, speculatively or plainly, one generation at a time.

    Args:
        pair: target and draft; on a CPU their linear layers are repacked in place (`packed_linear`).
        pass_mode: `invariant` (every target pass is `widest_draft` + 1 rows, every draft pass 2: the output is bit for
            bit independent of threshold, draft length and policy) or `fast` (a pass is as wide as its proposal).
        widest_draft: largest draft length that will be asked for in pass mode `invariant`. A larger one costs
            more per pass; outputs are comparable bit for bit only between runs with the same one.
        compiled: compile the passes (minutes, at the first pass over a text of each size).
    """

    def __init__(
        self,
        pair: LoadedPair,
        *,
        pass_mode: str = "invariant",
        widest_draft: int = DEFAULT_MAX_DRAFT,
        compiled: bool = False,
    ):
        limits.PASS_MODE.read(pass_mode)
        limits.MAX_DRAFT.check(widest_draft)
        if pass_mode == "invariant":
            check_draft_fits(widest_draft, pair.max_context, pair.name)
        self.pair, self.pass_mode, self.widest_draft, self.compiled = (
            pair,
            pass_mode,
            widest_draft,
            compiled,
        )
        asked = getattr(pair.target.model, "generation_config", None)
        self._asked = TargetRequests.of(asked.to_dict() if asked else {})
        invariant = pass_mode == "invariant"
        self._target = make_runner(pair.target, width=widest_draft + 1 if invariant else None, compiled=compiled)
        self._draft = make_runner(pair.draft, width=DRAFT_WIDTH if invariant else None, compiled=compiled)
        self._asked.logits.check_vocabulary(self._target.head.vocabulary)

    def fork(self) -> Engine:
        """The same models and passes for another text, so that several generations can take turns."""
        other = Engine.__new__(Engine)
        for name in ("pair", "pass_mode", "widest_draft", "compiled", "_asked"):
            setattr(other, name, getattr(self, name))
        other._target = self._target.fork(self._target.width)
        other._draft = self._draft.fork(self._draft.width)
        return other

    @cached_property
    def plain_runner(self) -> ModelRunner:
        """Plain decoding runs in passes as narrow as they come: the fastest baseline this target has."""
        return self._target.fork(None)

    @cached_property
    def scoring_draft(self) -> ModelRunner:
        """A runner of the draft with passes as wide as they come, for scoring a finished text."""
        return self._draft.fork(None, eager=True)

    @property
    def target_runner(self) -> ModelRunner:
        """The target as the rounds run it."""
        return self._target

    @property
    def draft_runner(self) -> ModelRunner:
        """The draft as the rounds run it."""
        return self._draft

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about models of this pair whose passes cost more than passes over a key-value cache."""
        runners = ((self.pair.target, self._target), (self.pair.draft, self._draft))
        return tuple(
            f"In {loaded.name} ({loaded.family}) {runner.uncompiled_pass.cost}."
            for loaded, runner in runners
            if runner.uncompiled_pass.cost
        )

    @property
    def max_context(self) -> int:
        return min(self._target.max_context, self._draft.max_context)

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset(self.pair.target.eos_token_ids)

    @cached_property
    def _bytes_of(self) -> Callable[[int], bytes]:
        return TokenText(self.pair.tokenizer).bytes_of

    def settled(self, settings: Settings) -> Settings:
        """`settings` with what they leave to the target's generation config."""
        asked, sampling = self._asked, settings.sampling
        if sampling.repetition_penalty is None:
            sampling = replace(sampling, repetition_penalty=asked.repetition_penalty)
        return replace(
            settings,
            sampling=sampling,
            requests=asked.logits if settings.requests is None else settings.requests,
            stop=asked.stop if settings.stop is None else settings.stop,
        )

    def limits(self, prompt_ids: list[int], settings: Settings) -> Limits:
        """The limits of a generation after `prompt_ids`, cut to the context of the pair.

        Raises:
            SpecVizError: the prompt is empty or fills the context.
        """
        if not prompt_ids:
            raise SpecVizError("The prompt is empty; write at least one character.")
        room = self.max_context - len(prompt_ids)
        if room < 1:
            raise SpecVizError(
                f"The prompt has {len(prompt_ids)} tokens, but this pair's context holds {self.max_context}, "
                "output included; shorten the prompt."
            )
        stop, wanted = self.settled(settings).stop, settings.max_new_tokens
        endings = Endings(self.eos_ids, StopStrings(stop, self._bytes_of) if stop else None)
        return Limits(min(wanted, room), endings, "length" if wanted <= room else "context")

    def speculative(
        self,
        prompt_ids: list[int],
        settings: Settings,
        stopped: Callable[[], bool] = never,
    ) -> Iterator[Event]:
        """Events of a speculative generation."""
        if self.pass_mode == "invariant" and settings.max_draft > self.widest_draft:
            raise SpecVizError(
                f"A draft length of {settings.max_draft} does not fit passes made for {self.widest_draft}; "
                "raise the widest draft length."
            )
        limits = self.limits(prompt_ids, settings)
        rule = self.rule_at_work(settings, prompt_ids)
        drafter = Drafter(self._draft, settings.policy, settings.max_draft, limits.endings, rule)
        return decode(self._target, prompt_ids, limits, drafter=drafter, rule=rule, stopped=stopped)

    def rule_at_work(self, settings: Settings, prompt_ids: list[int]) -> GreedyRule:
        """What takes and judges the tokens of one generation after `prompt_ids`."""
        settings = self.settled(settings)
        target, draft = self._target.head, self._draft.head
        asked = TextRequests(
            settings.requests,
            tuple(prompt_ids),
            settings.max_new_tokens,
            tuple(sorted(self.eos_ids)),
            target.vocabulary,
            self._target.device,
        )
        processing = (Processing(settings.sampling, head, asked) for head in (target, draft))
        return rule_at_work(settings.rule, settings.seed, *processing, target, draft)

    def plain(
        self,
        prompt_ids: list[int],
        max_new_tokens: int,
        stopped: Callable[[], bool] = never,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
        requests: LogitRequests | None = None,
        stop: tuple[str, ...] | None = None,
    ) -> Iterator[Event]:
        """Events of plain autoregressive decoding with the target alone, one token a pass.

        When sampling, tokens are drawn as under `coupled`, so that both give the same text up to near-ties.
        """
        settings = Settings(
            max_new_tokens=max_new_tokens, sampling=sampling or Sampling(), seed=seed, requests=requests, stop=stop
        )
        return decode(
            self.plain_runner,
            prompt_ids,
            self.limits(prompt_ids, settings),
            rule=self.rule_at_work(settings, prompt_ids),
            stopped=stopped,
        )

    def warm_up(self, prompt_ids: list[int]) -> None:
        """Run a few tokens of everything once, so that compiling and first-time costs fall into no measurement."""
        tokens = min(4, self.max_context - len(prompt_ids))
        observe_all(
            self.speculative(prompt_ids, Settings(ConfidenceThreshold(0.0), 2, tokens)),
            (),
        )
        observe_all(self.plain(prompt_ids, tokens), ())

    def pair_info(self) -> PairInfo:
        """What ran, for a trace or a recording."""
        target, draft = self.pair.target, self.pair.draft
        return PairInfo(
            target=target.name,
            draft=draft.name,
            target_revision=target.revision,
            draft_revision=draft.revision,
            target_precision=target.precision,
            draft_precision=draft.precision,
            device=device_name(self._target.device),
            versions=library_versions(),
            target_source=target.source,
            draft_source=draft.source,
        )

    def fixed_settings(self, settings: Settings) -> dict:
        """Those settings that do not depend on the stopping policy, nor on the seed.

        `generation_config` has what is honoured of the target's generation config, `not_honoured` the names of what is
        not, `stop` the strings that end the text; each is left out where it is empty.
        """
        settings = self.settled(settings)
        of_text = {
            "generation_config": settings.requests.settings(),
            "not_honoured": self._asked.not_honoured(settings.sampling),
            "stop": list(settings.stop),
        }
        return {
            "pass_mode": self.pass_mode,
            "widest_draft": self.widest_draft,
            "compiled": self.compiled,
            **settings.rule.settings(),
            "sampling": settings.sampling.settings(),
            **{name: values for name, values in of_text.items() if values},
        }

    def run_info(self, prompt: str, prompt_ids: list[int], settings: Settings) -> RunInfo:
        """What is known of a speculative run before it starts."""
        return RunInfo(
            origin="measured",
            pair=self.pair_info(),
            settings={
                "policy": settings.policy.settings(),
                "max_draft": settings.max_draft,
                "max_new_tokens": settings.max_new_tokens,
                "eos_ids": sorted(self.eos_ids),
            }
            | self.fixed_settings(settings),
            prompt=prompt,
            prompt_ids=tuple(prompt_ids),
            output_ids=(),
            finish_reason="stopped",
            seed=settings.seed,
        )

    def trace(
        self,
        prompt_ids: list[int],
        settings: Settings,
        *,
        prompt: str = "",
        observers: Iterable[Callable[[Event], None]] = (),
        stopped: Callable[[], bool] = never,
    ) -> Trace:
        """Generate speculatively and return the trace; `observers` see every event as it happens."""
        recorder = TraceRecorder(self.run_info(prompt, prompt_ids, settings), settings.policy)
        observe_all(
            self.speculative(prompt_ids, settings, stopped),
            (recorder.observe, *observers),
        )
        return recorder.trace


def observe_all(events: Iterable[Event], observers: Iterable[Callable[[Event], None]]) -> Event:
    """Show each event to each observer in turn; return the last event."""
    observers = tuple(observers)
    event = None
    for event in events:
        for observe in observers:
            observe(event)
    return event


def device_name(device: torch.device) -> str:
    """The device as a reader of a chart should see it, such as "CPU, AMD EPYC, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {_processor_name()}, {threads} thread{'s' * (threads != 1)}"


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def library_versions() -> dict[str, str]:
    """Versions of what decides numbers and speed."""
    return {name: version(name) for name in ("torch", "transformers", "numpy")} | {"python": platform.python_version()}
