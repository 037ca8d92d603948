"""The recordings that pages can show: the gallery's, those kept in the project folder, and this session's own.

The project folder belongs to whoever runs the server: what one session records or uploads, all sessions see. A session
has recordings of its own only where the folder could not take them.
"""

import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import streamlit as st

from specviz.analysis import CostModel
from specviz.errors import SpecVizError
from specviz.models.catalogue import BUILTIN_DRAFT, BUILTIN_TARGET, BUILTIN_TARGET_NAME, PAIRS
from specviz.replay.rules import recorded_drawing
from specviz.trace import (
    PairInfo,
    RecordingSet,
    kept,
    read_recordings,
    read_trace_csv,
    used_tokens,
    write_recordings,
    write_trace_csv,
)
from specviz.trace.limits import MB
from specviz.trace.trace import Trace
from specviz.trace.zip_files import unpack
from specviz.ui import query
from specviz.ui.costs import repriced
from specviz.ui.gallery import gallery_folder, list_items, load_item
from specviz.ui.link_jobs import current_run, current_sweep
from specviz.ui.requests import PairChoice
from specviz.ui.shown import UNMEASURED, Shown, kept_recording

# What recordings of the built-in pair call its models, and how they are loaded.
BUILTIN_SOURCES = {(BUILTIN_TARGET_NAME, "SpecViz built-in draft"): (BUILTIN_TARGET, BUILTIN_DRAFT)}
MOST_UPLOAD_MB = 64  # of one file
MOST_UNPACKED = 128 * MB  # that an upload may unpack to
MOST_UPLOADS = 12  # that one session holds because they cannot be kept
WHOLE_GALLERY = "gallery"  # its name on offer
KEPT = query.PREFIXES["set"]  # before the names of kept sets on offer
ORIGINS = {kept.RUN: "Your run", kept.SET: "Your set", kept.UPLOAD: "Uploaded", kept.FILE: "File"}
SETTINGS_ON_PAGES = ("policy", "max_draft", "max_new_tokens", "eos_ids")  # what pages say of every trace
TRACE_FILES = ("run.json", "rounds.csv", "steps.csv")


class _OfRecordings:
    """What every set on offer can do, whenever its members are read."""

    members: tuple[Shown, ...]

    @property
    def recordings(self) -> list:
        return [shown.recording for shown in self.members]

    @property
    def cost(self) -> CostModel | None:
        return self.members[0].cost

    def as_recording_set(self) -> RecordingSet:
        tokens = {token: text for shown in self.members for token, text in shown.tokens.items()}
        return RecordingSet(self.recordings, self.cost.to_json() if self.cost else None, tokens)


@dataclass(frozen=True)
class ShownSet(_OfRecordings):
    """A recording set on offer: what it is called and its recordings, each ready to show."""

    title: str
    members: tuple[Shown, ...]

    @property
    def prompts(self) -> int:
        return len(self.members)

    @property
    def priced(self) -> bool:
        return self.cost is not None

    @property
    def models(self) -> tuple[str, str]:
        """The names of target and draft, as the recordings have them."""
        pair = self.members[0].recording.pair
        return pair.target, pair.draft


@dataclass(frozen=True)
class KeptShownSet(_OfRecordings):
    """The same of a set in the project folder, whose recordings are read when they are first asked for.

    `members`, and all that needs them, raises SpecVizError if the file is damaged or was deleted meanwhile.
    """

    title: str
    entry: kept.KeptSet

    @property
    def members(self) -> tuple[Shown, ...]:
        sources = self.entry.sources
        read = _read_kept(
            self.entry.name,
            str(self.entry.path),
            self.entry.version,
            tuple(sources.items()) if sources else (),
            _entry=self.entry,
        )
        return tuple(map(repriced, read))

    @property
    def prompts(self) -> int:
        return self.entry.contents.prompts

    @property
    def priced(self) -> bool:
        return self.entry.contents.priced

    @property
    def models(self) -> tuple[str, str]:
        return self.entry.contents.target, self.entry.contents.draft


def gallery_recording(name: str) -> Shown:
    """A gallery item, read once per server and again when its file changes.

    Raises:
        SpecVizError: see `load_item`.
    """
    path = gallery_folder() / f"{name}.parquet"
    return repriced(_read_item(name, str(path), path.stat().st_mtime_ns if path.exists() else 0))


@st.cache_resource(max_entries=64, show_spinner=False)
def _read_item(name: str, path: str, changed: int) -> Shown:
    item = load_item(name)
    cost, unpriced = _prices(item.recordings)
    return Shown(
        name=f"gallery:{name}:{changed}",
        title=item.info.title,
        recording=item.recordings.recordings[0],
        cost=cost,
        tokens=item.tokens,
        pair=catalogue_choice(item.recordings.pair),
        unpriced=unpriced,
    )


def catalogue_choice(pair: PairInfo) -> PairChoice | None:
    """How to load the models of a recording again, if the catalogue has them.

    A file may name any model or folder; only what the catalogue lists is ever loaded because a file names it.
    """
    sources = BUILTIN_SOURCES.get((pair.target, pair.draft), (pair.target, pair.draft))
    if sources not in [(one.target.source, one.draft.source) for one in PAIRS]:
        return None
    return PairChoice(*sources, pair.target_precision, pair.draft_precision)


@st.cache_resource(max_entries=64, show_spinner=False)
def _read_kept(
    name: str, path: str, version: int, sources: tuple[tuple[str, str], ...], _entry: kept.KeptSet
) -> tuple[Shown, ...]:
    recording_set = kept.read_kept(name)
    return _shown_members(recording_set, dict(recording_set.tokens), _choice_of(_entry, recording_set.pair), _entry)


def _choice_of(entry: kept.KeptSet, pair: PairInfo) -> PairChoice | None:
    """How to load the models of a kept set again: as the user named them in this app, else as the catalogue has them.

    The app notes the sources of its own recordings beside the file; what a file itself says is never loaded.
    """
    if entry.sources is not None:
        try:
            return PairChoice(**{name: str(text) for name, text in entry.sources.items()})
        except TypeError:
            pass  # written by another version
    return catalogue_choice(pair)


def unkept_sets() -> dict[str, ShownSet]:
    """The sets that this session alone has, since the project folder could not take them."""
    found = {}
    run, sweep = current_run(), current_sweep()
    if run is not None and run.shown is not None and not run.kept:
        found["run"] = ShownSet(f"Your run: {run.shown.title[:48]}", (run.shown,))
    if sweep is not None and sweep.members and not sweep.kept:
        found["sweep"] = ShownSet(f"Your set of {len(sweep.members)} prompts", sweep.members)
    found |= st.session_state.get("uploads", {})
    return {name: ShownSet(one.title, tuple(map(repriced, one.members))) for name, one in found.items()}


def own_sets() -> dict[str, ShownSet | KeptShownSet]:
    """The sets that were recorded or uploaded here, the newest first, by a name that stays the same."""
    usable = {KEPT + name: entry for name, entry in kept.kept_sets().items() if entry.contents is not None}
    titles = {name: f"{ORIGINS[entry.origin]}: {entry.title[:64]}" for name, entry in usable.items()}
    often = {title for title, times in Counter(titles.values()).items() if times > 1}
    for place, (name, title) in enumerate(titles.items()):
        if title in often:
            titles[name] = f"{title} · {usable[name].made:%Y-%m-%d %H:%M:%S} ({len(titles) - place})"
    return unkept_sets() | {name: KeptShownSet(titles[name], entry) for name, entry in usable.items()}


def sets_on_offer() -> dict[str, ShownSet | KeptShownSet]:
    """Every recording set this session can see, by a name that stays the same."""
    items = {name: gallery_recording(name) for name in list_items()}
    whole = _together("The whole gallery", tuple(items.values()))
    gallery = {WHOLE_GALLERY: whole} if whole else {}
    return own_sets() | gallery | {f"gallery:{name}": ShownSet(shown.title, (shown,)) for name, shown in items.items()}


def _together(title: str, members: tuple[Shown, ...]) -> ShownSet | None:
    """Several recordings as one set, if they are priced and belong together."""
    if len(members) < 2 or not all(shown.cost for shown in members):
        return None
    try:
        RecordingSet([shown.recording for shown in members])
    except SpecVizError:
        return None
    return ShownSet(title, members)


def add_upload(file_name: str, content: bytes) -> tuple[str, str]:
    """Check an uploaded recording set and keep it in the project folder, or in this session if that fails.

    Returns:
        Its name on offer, and why it could not be kept; empty if it was.

    Raises:
        SpecVizError: the file is no recording set, damaged or too large, or the session holds as many as it may.
    """
    _check_upload_size(file_name, content)
    recording_set = read_recordings(content, file_name, most=MOST_UNPACKED)
    recording_set = recording_set.with_tokens(_all_tokens(recording_set))
    choice = catalogue_choice(recording_set.pair)
    name = kept.name_of_content(content)
    members = _shown_members(recording_set, recording_set.tokens, choice, name)
    if members[0].cost is None:
        recording_set = replace(recording_set, cost_model=None)
    try:
        kept.keep(recording_set, name, title=file_name, origin=kept.UPLOAD)
        return KEPT + name, ""
    except SpecVizError as error:
        uploads = st.session_state.setdefault("uploads", {})
        if name not in uploads and len(uploads) >= MOST_UPLOADS:
            raise SpecVizError(
                f"{MOST_UPLOADS} sets are held by this session, which is the most, and none of them is kept; "
                "free some space for the project folder, then reload the page."
            ) from error
        uploads[name] = ShownSet(f"Uploaded: {file_name[:60]}", members)
        return name, str(error)


def _shown_members(
    recording_set: RecordingSet, tokens: Mapping[int, bytes], pair: PairChoice | None, source: kept.KeptSet | str
) -> tuple[Shown, ...]:
    """Every recording of a set, ready to show.

    Args:
        source: the kept set, or what to name the recordings after.

    Raises:
        SpecVizError: the set cannot be replayed.
    """
    _, rule, *_ = recorded_drawing(recording_set.recordings[0])
    if not rule.fixed_output:
        raise SpecVizError(
            f"This set was recorded under {rule.name}, where chance decides what stands, so no page can replay it; "
            "record it under coupled."
        )
    cost, unpriced = _prices(recording_set)
    return tuple(
        Shown(
            kept_recording(source, place) if isinstance(source, kept.KeptSet) else f"{source}:{place}",
            recording.prompt or recording.prompt_id or f"recording {place + 1}",
            recording,
            cost,
            dict(tokens),
            pair,
            unpriced,
        )
        for place, recording in enumerate(recording_set.recordings)
    )


def _prices(recording_set: RecordingSet) -> tuple[CostModel | None, str]:
    """The cost model of a set, and why there is none: a set whose prices are damaged is shown without them."""
    if recording_set.cost_model is None:
        return None, UNMEASURED
    try:
        cost = CostModel.from_json(recording_set.cost_model)
        cost.mode(recording_set.settings.get("pass_mode"))
        return cost, ""
    except SpecVizError as error:
        return None, f"There is no speedup, since the costs in the file cannot be used: {error}"


def _all_tokens(recording_set: RecordingSet) -> dict[int, bytes]:
    """The bytes of a set's tokens; what its file lacks comes from other sets of the same target."""
    tokens = dict(recording_set.tokens)
    if set(used_tokens(recording_set.recordings)) <= set(tokens):
        return tokens
    known: dict[int, bytes] = {}
    for offered in sets_on_offer().values():
        if offered.models[0] == recording_set.pair.target:
            try:
                known |= {token: text for shown in offered.members for token, text in shown.tokens.items()}
            except SpecVizError:
                continue  # damaged or deleted meanwhile; this set does not depend on it
    return known | tokens


def read_trace_upload(files: Mapping[str, bytes]) -> tuple[Trace, dict[int, bytes]]:
    """Check the files of a trace: the three of them, or one zip file that holds them.

    Args:
        files: their names, as the reader knows them, and their contents.

    Raises:
        SpecVizError: something is missing, damaged, too large or contradicts itself.
    """
    zipped = next((name for name in files if name.endswith(".zip")), None)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            _check_upload_size(name, content)
            if name in TRACE_FILES:
                (Path(folder) / name).write_bytes(content)
        if zipped is not None:
            unpack(files[zipped], TRACE_FILES, Path(folder), name=zipped, most=MOST_UNPACKED)
        name = zipped or "the uploaded files"
        trace, tokens = read_trace_csv(folder, name)
    if missing := [setting for setting in SETTINGS_ON_PAGES if setting not in trace.run.settings]:
        raise SpecVizError(f"{name} cannot be shown: its settings do not hold {missing[0]}; export the trace again.")
    return trace, tokens


def _check_upload_size(name: str, content: bytes) -> None:
    if len(content) > MOST_UPLOAD_MB * MB:
        raise SpecVizError(f"{name} takes {len(content) // MB} MB, at most {MOST_UPLOAD_MB} MB can be uploaded.")


def trace_as_zip(shown: Shown, tau: float, max_draft: int, on_fail: str = "drop") -> bytes:
    """`run.json`, `rounds.csv` and `steps.csv` of the replayed trace in one zip file."""
    with tempfile.TemporaryDirectory() as folder:
        write_trace_csv(shown.trace(tau, max_draft, on_fail), folder, lambda token: shown.tokens.get(token, b""))
        packed = Path(folder) / "trace.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in TRACE_FILES:
                archive.write(Path(folder) / name, name)
        return packed.read_bytes()


def set_as_parquet(offered: ShownSet) -> bytes:
    """The recording set as one Parquet file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recordings.parquet"
        write_recordings(offered.as_recording_set(), path)
        return path.read_bytes()
