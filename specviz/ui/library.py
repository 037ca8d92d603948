"""The recordings that pages can show: the gallery's, shared by all sessions, and this session's own."""

import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from specviz.analysis import CostModel
from specviz.errors import SpecVizError
from specviz.models.catalogue import BUILTIN_DRAFT, BUILTIN_TARGET, PAIRS
from specviz.replay.rules import recorded_rule
from specviz.trace import PairInfo, RecordingSet, read_recordings, read_trace_csv, write_recordings, write_trace_csv
from specviz.trace.trace import Trace
from specviz.ui.costs import repriced
from specviz.ui.gallery import gallery_folder, list_items, load_item
from specviz.ui.own_prompt import finished_run
from specviz.ui.requests import PairChoice
from specviz.ui.shown import Shown
from specviz.ui.workshop import workshop

# What recordings of the built-in pair call its models, and how they are loaded.
BUILTIN_SOURCES = {("SmolLM2-135M-Instruct", "SpecViz built-in draft"): (BUILTIN_TARGET, BUILTIN_DRAFT)}
MOST_UPLOAD_MB = 64  # of one file
MOST_UPLOADS = 12  # of one session
TRACE_FILES = ("run.json", "rounds.csv", "steps.csv")


@dataclass(frozen=True)
class ShownSet:
    """A recording set on offer: what it is called and its recordings, each ready to show."""

    title: str
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
    cost = item.recordings.cost_model
    return Shown(
        name=f"gallery:{name}:{changed}",
        title=item.info.title,
        recording=item.recordings.recordings[0],
        cost=CostModel.from_json(cost) if cost else None,
        tokens=item.tokens,
        pair=catalogue_choice(item.recordings.pair),
    )


def catalogue_choice(pair: PairInfo) -> PairChoice | None:
    """How to load the models of a recording again, if the catalogue has them.

    A file may name any model or folder; only what the catalogue lists is ever loaded because a file names it.
    """
    sources = BUILTIN_SOURCES.get((pair.target, pair.draft), (pair.target, pair.draft))
    if sources not in [(one.target.source, one.draft.source) for one in PAIRS]:
        return None
    return PairChoice(*sources, pair.target_precision, pair.draft_precision)


def own_sets() -> dict[str, ShownSet]:
    """The sets that this session recorded or uploaded, by a name that stays the same."""
    found = {}
    sweep = workshop().job(st.session_state.get("sweep-job"))
    if sweep is not None and sweep.members:
        found["sweep"] = ShownSet(f"Your sweep of {len(sweep.members)} prompts", sweep.members)
    found |= st.session_state.get("uploads", {})
    return {name: ShownSet(one.title, tuple(map(repriced, one.members))) for name, one in found.items()}


def sets_on_offer() -> dict[str, ShownSet]:
    """Every recording set this session can see, by a name that stays the same."""
    found = {}
    run = finished_run()
    if run is not None:
        found["run"] = ShownSet(f"Your run: {run.title[:48]}", (run,))
    found |= own_sets()
    items = {name: gallery_recording(name) for name in list_items()}
    whole = _together("The whole gallery", tuple(items.values()))
    if whole:
        found["gallery"] = whole
    return found | {f"gallery:{name}": ShownSet(shown.title, (shown,)) for name, shown in items.items()}


def _together(title: str, members: tuple[Shown, ...]) -> ShownSet | None:
    """Several recordings as one set, if they are priced and belong together."""
    if len(members) < 2 or not all(shown.cost for shown in members):
        return None
    try:
        RecordingSet([shown.recording for shown in members])
    except SpecVizError:
        return None
    return ShownSet(title, members)


def add_upload(file_name: str, content: bytes) -> str:
    """Check an uploaded recording set and put it on offer in this session; returns its name.

    Raises:
        SpecVizError: the file is no recording set, or damaged, or there are too many.
    """
    if len(st.session_state.setdefault("uploads", {})) >= MOST_UPLOADS:
        raise SpecVizError(f"{MOST_UPLOADS} sets are loaded, which is the most; reload the page to begin anew.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upload.parquet"
        path.write_bytes(content)
        try:
            recording_set = read_recordings(path)
        except SpecVizError as error:
            raise SpecVizError(str(error).replace(str(path), "This file")) from error
    rule = recorded_rule(recording_set.settings)
    if not rule.fixed_output:
        raise SpecVizError(
            f"This set was recorded under {rule.name}, where chance decides what stands, so no page can replay it; "
            "record it under coupled."
        )
    cost = CostModel.from_json(recording_set.cost_model) if recording_set.cost_model else None
    tokens = known_tokens(recording_set.pair) | dict(recording_set.tokens)
    name = f"upload:{len(st.session_state['uploads'])}"
    members = tuple(
        Shown(
            f"{name}:{place}:{id(recording)}",
            recording.prompt or recording.prompt_id or f"recording {place + 1}",
            recording,
            cost,
            tokens,
            catalogue_choice(recording_set.pair),
        )
        for place, recording in enumerate(recording_set.recordings)
    )
    st.session_state["uploads"][name] = ShownSet(f"Uploaded: {file_name[:60]}", members)
    return name


def known_tokens(pair: PairInfo) -> dict[int, bytes]:
    """The bytes of tokens that this session has seen of the same target; a recording holds ids only."""
    known: dict[int, bytes] = {}
    for offered in sets_on_offer().values():
        for shown in offered.members:
            if shown.recording.pair.target == pair.target:
                known |= shown.tokens
    return known


def read_trace_upload(files: dict[str, bytes]) -> tuple[Trace, dict[int, bytes]]:
    """Check the files of a trace: the three of them, or one zip file that holds them.

    Raises:
        SpecVizError: something is missing, damaged or contradicts itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / "upload"
            path.write_bytes(content)
            if name.endswith(".zip"):
                _unpack(path, Path(folder))
            elif name in TRACE_FILES:
                shutil.copy(path, Path(folder) / name)
        try:
            return read_trace_csv(folder)
        except SpecVizError as error:
            raise SpecVizError(str(error).replace(str(folder), "the upload")) from error


def _unpack(path: Path, folder: Path) -> None:
    """Take the three files out of a zip file, by their names alone and of a size that fits an upload."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = Path(member.filename).name
                if name in TRACE_FILES and member.file_size <= 1 << 28:
                    (folder / name).write_bytes(archive.read(member))
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        raise SpecVizError("The zip file is damaged; download or pack it again.") from error


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
