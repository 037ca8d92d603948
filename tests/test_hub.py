"""Models from the hub, against a small hub of our own: the real client, the real protocol, no network."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from sample_recordings import sample_recording
from tiny_models import save_pair, tiny_pair

from specviz import cli
from specviz.models import sources
from specviz.trace import RecordingSet, write_recordings

COMMIT = "0123456789abcdef0123456789abcdef01234567"

# The client reads its settings when it is imported, so each question is asked in a process of its own.
CLIENT = """
import json, sys
from specviz.errors import SpecVizError
from specviz.models.loading import load_model
answers = []
for source in sys.argv[1:]:
    stages = []
    try:
        loaded = load_model(source, "fp32", "cpu", progress=lambda *report: stages.append(report))
        answers.append([loaded.name, loaded.revision, loaded.model.lm_head.weight.double().sum().item(), stages])
    except SpecVizError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def hub_of(models: dict[str, Path]) -> type[BaseHTTPRequestHandler]:
    """A handler that serves each folder as the main branch of a repository, and one gated repository."""

    class Hub(BaseHTTPRequestHandler):
        asked: list[str] = []

        def answer(self, status: int, body: bytes = b"", with_body: bool = True, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET(with_body=False)

        def do_GET(self, with_body: bool = True) -> None:
            path = unquote(urlsplit(self.path).path).lstrip("/")
            self.asked.append(path)
            if path.startswith("api/models/"):
                path = path.removeprefix("api/models/")
            name = "/".join(path.split("/")[:2])
            rest = path.split("/")[2:]
            if name == "org/gated":
                return self.answer(403, X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
            if name not in models:
                return self.answer(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
            if rest[1] not in ("main", COMMIT):
                return self.answer(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
            files = {file.name: file.read_bytes() for file in models[name].iterdir()}
            if rest[0] == "revision":
                siblings = [{"rfilename": file} for file in files]
                return self.json({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})
            if rest[0] == "tree":
                oid = {file: hashlib.sha1(content).hexdigest() for file, content in files.items()}
                entry = [{"type": "file", "path": f, "size": len(c), "oid": oid[f]} for f, c in files.items()]
                return self.json(entry)
            content = files[rest[-1]]
            etag = hashlib.sha1(content).hexdigest()
            return self.answer(200, content, with_body, ETag=f'"{etag}"', X_Repo_Commit=COMMIT)

        def json(self, content: object) -> None:
            self.answer(200, json.dumps(content).encode(), Content_Type="application/json")

        def log_message(self, *_: object) -> None:
            pass

    return Hub


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """(handler class, address) of a hub with a whole model and one that has only pickled weights."""
    folder = tmp_path_factory.mktemp("hub")
    target, draft = save_pair(folder, "llama")
    (draft / "model.safetensors").unlink()
    torch.save(tiny_pair("llama").draft.state_dict(), draft / "pytorch_model.bin")
    torch.save({}, target / "pytorch_model.bin")  # beside the safetensors: never to be fetched
    handler = hub_of({"org/whole": target, "org/pickled": draft})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def ask(home: Path, address: str, *sources: str) -> list:
    environment = os.environ | {
        "HF_HOME": str(home),
        "HF_ENDPOINT": address,
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "NO_PROXY": "127.0.0.1",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    run = subprocess.run([sys.executable, "-c", CLIENT, *sources], env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
def test_a_model_is_fetched_once_and_loads_without_network_afterwards(hub, tmp_path):
    handler, address = hub
    handler.asked.clear()
    (whole, pickled, gated, missing, no_revision) = ask(
        tmp_path, address, "org/whole", "org/pickled", "org/gated", "org/missing", "org/whole@nowhere"
    )
    name, revision, head, stages = whole
    assert (name, revision) == ("org/whole", COMMIT)
    assert head == tiny_pair("llama").target.lm_head.weight.double().sum().item()
    done, total = [report[1:] for report in stages if report[0] == "Downloading org/whole" and report[2]][-1]
    assert done == total > 100_000
    assert "safetensors" in pickled and "pickle" in pickled
    assert "gated" in gated and "licence" in gated
    assert "org/missing" in missing and "check the name" in missing
    assert "no revision 'nowhere'" in no_revision
    for sentence in (pickled, gated, missing, no_revision):
        assert "\n" not in sentence and sentence.endswith(".")
    assert not [path for path in handler.asked if path.endswith(".bin")], "pickles are not even fetched"

    nobody = "http://127.0.0.1:9"  # the discard port: nobody listens
    again, never_seen = ask(tmp_path, nobody, "org/whole", "org/unknown")
    assert again[:3] == whole[:3]
    assert "network" in never_seen and never_seen.endswith(".") and "\n" not in never_seen


@pytest.fixture
def unanswering(monkeypatch, tmp_path):
    """Addresses of hubs that cannot be reached: nobody listens, no such name, and one that takes calls in silence."""
    silent = socket.create_server(("127.0.0.1", 0))  # connections wait in its queue for ever
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    huggingface_hub.close_session()  # it has read the proxies of the environment
    yield ("http://127.0.0.1:9", "http://no-such-hub.invalid", f"http://127.0.0.1:{silent.getsockname()[1]}")
    huggingface_hub.close_session()
    silent.close()


def test_a_hub_that_does_not_answer_is_one_sentence_within_seconds(unanswering, tmp_path, monkeypatch, capsys):
    assert sources.HUB_PATIENCE <= 5
    monkeypatch.setattr(sources, "HUB_PATIENCE", 1.0)
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("text")
    write_recordings(RecordingSet([sample_recording()]), Path("set.parquet"))
    commands = (
        ["distill", "--target", "nofile", "--out", "draft"],
        ["record", "--target", "org/nofile", "--out", "new.parquet", "--prompts", "p.txt"],
        ["run", "text", "--target", f"org/nofile@{COMMIT}"],
        ["calibration", "set.parquet", "--tokenizer", "nofile@v2"],
    )
    for address in unanswering:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        for words in commands:
            start = time.monotonic()
            assert cli.main(words) == 2
            printed = capsys.readouterr()
            assert time.monotonic() - start < 5, (words, address)
            assert printed.out == ""
            lines = [line for line in printed.err.splitlines() if line and not line.startswith("Reading ")]
            assert len(lines) == 1 and "model hub cannot be reached" in lines[0], (words, address, printed.err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.txt", "set.parquet"]
