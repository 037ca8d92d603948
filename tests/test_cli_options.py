"""Every option of every command: what cannot be used is one sentence and exit status 2 before anything loads."""

import argparse
import os
import stat

import pytest

from specviz import cli, cli_paths, limits
from specviz.errors import SpecVizError

LONG = "n" * 300
NUMBERS = (
    "9" * 20,
    "-" + "9" * 20,
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e3",
    "1e400",
    "text",
    "",
    " ",
    "0x10",
    "9" * 5000,
)
FILES = ("", " ", ".", "/", LONG, f"a/{LONG}/b", "a\0b", "a-file/below", "a-folder")
MODELS = (
    "",
    " ",
    LONG,
    f"org/{LONG}",
    f"/no/such/{LONG}",
    "/no/such/folder",
    "a\0b",
    "a-file",
    "none.gguf",
    "a-folder.gguf",
)
CHECKED_TEXT = {  # options that name something: values that none of them takes
    "prompt": ("", " \n"),
    "device": ("", "tpu", "cuda:x", "cuda:99999999999999999999", LONG),
    "precision": ("", "fp8", "nf4+t0", LONG),
    "precisions": ("", ",", "bf16,fp8", LONG),
    "layers": ("", "a", "1,", "-1", "9" * 20, LONG),
    "rule": ("", "luck", "lenient=x", "lenient=9", "greedy=1", "top_k=nan", LONG),
    "combinations": ("", ",", "bf16", "fp8:bf16", "bf16:bf16,", LONG),
    "catalogue_pair": ("", "none", LONG),
    "stop_string": ("", LONG),
    "families": ("", ",", "gpt2,", "a b", LONG),
}


PARSER = cli.build_parser()


def commands(parser=PARSER, words=()):
    """(words, parser) of every command that can be run."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        return [(words, parser)]
    return [each for name, below in groups[0].choices.items() for each in commands(below, (*words, name))]


def checked(action):
    """The range, choice or function that reads an argument."""
    return getattr(action.type, "__self__", action.type)


def valued(parser):
    return [action for action in parser._actions if action.nargs != 0 and not action.choices]


ARGUMENTS = [(words, action) for words, parser in commands() for action in valued(parser)]
NAMES = [f"{' '.join(words)} {action.dest}" for words, action in ARGUMENTS]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current folder, with a file and folders in it."""
    (tmp_path / "a-file").write_text("text\n")
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-folder.gguf").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def line(words, action, value):
    """A command whose argument `action` is `value` and whose other required arguments can be used."""
    parser = dict(commands())[words]
    usable = {"file": "a-file", "prompt": "text", "recordings": "a-file"}
    arguments = [*words]
    for other in parser._actions:
        given = value if other.dest == action.dest else None
        if other.option_strings:
            if given is not None:
                arguments.append(f"{other.option_strings[-1]}={given}")
            elif other.required:
                arguments.append(f"{other.option_strings[-1]}=new-output")
        elif given is not None:
            arguments.append(given)
        elif other.nargs in (None, "+"):
            arguments.append(usable[other.dest])
    return arguments


def refusal(arguments):
    """The one sentence with which `arguments` are refused, or None if they are read."""
    try:
        PARSER.parse_args(arguments)
    except SpecVizError as error:
        sentence = str(error)
        assert "\n" not in sentence and sentence.endswith(".") and len(sentence) < 400
        return sentence
    return None


@pytest.mark.parametrize(("words", "action"), ARGUMENTS, ids=NAMES)
def test_every_argument_is_read_by_a_check(words, action):
    reads = checked(action)
    known = isinstance(reads, limits.Range | limits.Choice) or reads.__module__ in (
        cli_paths.__name__,
        "specviz.cli_names",
    )
    assert known, f"{words} {action.dest} is read unchecked"


@pytest.mark.parametrize(("words", "action"), ARGUMENTS, ids=NAMES)
def test_a_value_is_refused_in_a_sentence_or_accepted_before_anything_loads(words, action, place):
    reads = checked(action)
    before = sorted(place.rglob("*"))
    if isinstance(reads, limits.Range):
        accepted = []
        for value in NUMBERS:
            if refusal(line(words, action, value)) is None:
                accepted.append(float(value))
        assert all(reads.low <= value <= reads.high for value in accepted)
        assert refusal(line(words, action, str(reads.low))) is None
        assert refusal(line(words, action, str(reads.high))) is None
    elif isinstance(reads, limits.Choice):
        for value in ("", "other", LONG):
            assert refusal(line(words, action, value))
    elif reads is cli_paths.model_name:
        for value in MODELS:
            assert refusal(line(words, action, value)), value
    elif reads in (*cli_paths.INPUTS, *cli_paths.OUTPUTS):
        folder = reads in (cli_paths.output_folder, cli_paths.comparison_folder)
        for value in FILES:
            if not (folder and value in (".", "a-folder")):
                assert refusal(line(words, action, value)), value
        if folder:
            assert refusal(line(words, action, "a-file"))
    else:
        for value in CHECKED_TEXT[reads.__name__]:
            assert refusal(line(words, action, value)), value
    assert sorted(place.rglob("*")) == before, "reading the arguments wrote something"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["record", "--out", "x.parquet"], "x.parquet.parts' is a file"),
        (["compare", "--out", "x.parquet"], "x.parquet.parts' is a file"),
        (["record", "--out", "new/"], "is a folder"),
        (["distill", "--out", "a-file"], "is a file"),
        (["sweep", "a-file", "--csv", "./a-file"], "are both"),
        (["tune", "a-file", "--csv", "t", "--html", "t"], "are both"),
        (["arena", "a-file", "--csv", "t", "--curves", "a-folder/../t"], "are both"),
        (["sweep"], "required"),
        (["sweep", "a-file", "--what"], "--what"),
        (["nonsense"], "nonsense"),
        (["record"], "--out"),
        ([], "COMMAND"),
    ],
)
def test_paths_are_checked_against_each_other_and_commands_are_sentences(arguments, words, place):
    (place / "x.parquet.parts").write_text("")
    assert words in refusal(arguments)


def test_a_refusal_is_printed_as_it_is_with_status_2(capsys):
    assert cli.main(["run", "text", "-g", "9" * 20]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"The draft length is {'9' * 20}; give a whole number between 1 and 1,024.\n"


def test_what_may_not_be_written_or_read_is_refused(place, monkeypatch):
    """Whatever the file system says no to: root may do everything, so its answer is made up."""
    allowed = os.access

    def access(path, mode):
        return allowed(path, mode) and not (str(path).endswith(("locked", "secret")) and mode & (os.W_OK | os.R_OK))

    monkeypatch.setattr(os, "access", access)
    (place / "locked").mkdir()
    (place / "secret").write_text("")
    for arguments in (["record", "--out", "locked/x"], ["distill", "--out", "locked/deep/er"], ["sweep", "secret"]):
        assert "cannot be" in refusal(arguments)
    assert "cannot be written" in refusal(["sweep", "a-file", "--csv", "secret"])


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc here")
@pytest.mark.parametrize("command", ["distill", "compare", "fidelity", "record"])
def test_a_folder_that_seems_writable_but_holds_no_files_is_refused(command):
    """To root every folder seems writable, /proc as well; only an attempt shows what it is."""
    assert "cannot be written into" in refusal([command, "--out", "/proc/out"])


def test_what_can_be_used_is_accepted(place):
    os.mkfifo(place / "pipe")
    assert stat.S_ISFIFO((place / "pipe").stat().st_mode)
    assert cli_paths.input_file("pipe") == cli_paths.Path("pipe")
    for name in ("a-file", "new", "new/deeper/file", "a-folder/file", "ünïcödé ✓.csv", "n" * cli_paths.LONGEST_NAME):
        assert cli_paths.output_file(name).name == cli_paths.Path(name).name
    for name in (".", "a-folder", "new", "new/deeper"):
        assert cli_paths.output_folder(name) == cli_paths.Path(name)
    for name in ("builtin-target", "gpt2", "org/model", "org/model@v1.0", "a-folder", "./a-folder"):
        assert cli_paths.model_name(name) == name


def test_settings_and_sampling_have_the_ranges_of_the_command_line():
    """One range each: the ends are accepted in both, and what is beyond them is refused in the same words."""
    from specviz.engine.engine import Settings
    from specviz.replay import ConfidenceThreshold, Sampling

    makers = {
        limits.MAX_DRAFT: lambda value: Settings(max_draft=value),
        limits.MAX_NEW_TOKENS: lambda value: Settings(max_new_tokens=value),
        limits.SEED: lambda value: Settings(seed=value),
        limits.THRESHOLD: ConfidenceThreshold,
        limits.TEMPERATURE: lambda value: Sampling(temperature=value),
        limits.TOP_K: lambda value: Sampling(top_k=value),
        limits.TOP_P: lambda value: Sampling(top_p=value),
        limits.MIN_P: lambda value: Sampling(min_p=value),
        limits.REPETITION_PENALTY: lambda value: Sampling(repetition_penalty=value),
    }
    for allowed, make in makers.items():
        make(allowed.low), make(allowed.high)
        for value in (allowed.low - 1, allowed.high + 1, float("nan"), float("inf"), "x", None, 10**30):
            if value is None and allowed is limits.REPETITION_PENALTY:
                continue  # it means the generation config's
            with pytest.raises(SpecVizError) as refused:
                make(value)
            assert allowed.name in str(refused.value)
