"""Prompt files in every form, and a sentence for each way a file can be wrong."""

import json
from collections import Counter
from pathlib import Path

import pytest

from specviz.analysis.prompts import Prompt, default_prompts, load_prompts
from specviz.errors import SpecVizError

SPEC_BENCH = Path(__file__).parents[1].parent / "shared" / "prompts" / "spec_bench_even.jsonl"


def written(tmp_path, content) -> Path:
    path = tmp_path / "prompts"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_plain_text_is_one_prompt_a_line(tmp_path):
    path = written(tmp_path, "\ufeffFirst one. \r\n\r\nZweite, mit Ümlaut\n=cmd()\n")
    expected = [Prompt("1", "", "First one."), Prompt("3", "", "Zweite, mit Ümlaut"), Prompt("4", "", "=cmd()")]
    assert load_prompts(path) == expected


def test_json_lines(tmp_path):
    rows = [
        {"prompt": "line one\nline two\u2028still the prompt "},
        {"question_id": 82, "category": "writing", "turns": ["the first", "a follow-up"]},
        {"id": "mine", "prompt": "text", "extra": None},
    ]
    path = written(tmp_path, "\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    assert load_prompts(path) == [
        Prompt("1", "", rows[0]["prompt"]),
        Prompt("82", "writing", "the first"),
        Prompt("mine", "", "text"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        (" \n\t\n", "holds no prompts"),
        (b"caf\xe9", "line 1 is not UTF-8 text"),
        ('{"prompt": "a"}\n\n{"prompt": ', "line 3 is not JSON"),
        ('{"prompt": "a"}\nplain', "line 2 is not JSON"),
        ('{"prompt": "a"}\n["b"]', "line 2 is JSON but no object"),
        ('{"prompt": "a"}\n{"text": "b"}', "line 2 has no text"),
        ('{"prompt": "  "}', "line 1 has no text"),
        ('{"prompt": 5}', "line 1 has no text"),
        ('{"turns": []}', "line 1 has no text"),
        ('{"turns": "abc"}', "line 1 has no text"),
        ('{"prompt": "a", "category": 3}', "line 1: the id must be"),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "line 2: the id 'x' is taken"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path, content, message):
    with pytest.raises(SpecVizError, match=message):
        load_prompts(written(tmp_path, content))


def test_a_missing_file_or_a_folder_gets_a_sentence(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(SpecVizError, match="Cannot read"):
            load_prompts(path)


def test_the_default_set_has_five_prompts_of_each_kind():
    prompts = default_prompts()
    kinds = ("chat", "code", "arithmetic", "summary", "translation", "list", "story", "rewriting")
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(kinds, 5)
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        if prompt.category in ("summary", "rewriting"):
            assert "\n\n" in prompt.text, "it brings its passage"


@pytest.mark.skipif(not SPEC_BENCH.exists(), reason="the shared prompt set is not here")
def test_spec_bench_form():
    prompts = load_prompts(SPEC_BENCH)
    lines = [json.loads(line) for line in SPEC_BENCH.read_text("utf-8").splitlines() if line]
    assert [prompt.text for prompt in prompts] == [line["turns"][0] for line in lines]
    assert all(prompt.category for prompt in prompts)
