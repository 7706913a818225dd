"""Nothing that others wrote commands the terminal, and nothing of it vanishes as markup."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape
from rich.panel import Panel
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text
from typer.main import get_group
from typer.testing import CliRunner

from lightning_trainer.agents.census import AgentCensus
from lightning_trainer.agents.console import show
from lightning_trainer.agents.report import agents_report
from lightning_trainer.agents.uncaptured import ProgramLosses
from lightning_trainer.cli.app import app
from lightning_trainer.cli.daemon.serve import log_handler
from lightning_trainer.cli.terminal.console import TerminalConsole, one_sentence, visible, visible_json
from lightning_trainer.errors import ConfigError

ROOT = Path(__file__).parents[3]
CLI = ROOT / "lightning_trainer" / "cli"
COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""What rich writes itself for a style."""
COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
HOSTILE = (CLIPBOARD, "\x1b[2J\x1b[H", "\x9b31m", "\x1b]0;title\x07", "a\rb", "a\x08b", "\u202edwons", "\x00", "\x7f")
# Half of it from what a terminal obeys and rich reads.
texts = st.lists(
    st.one_of(st.sampled_from((*HOSTILE, "[daemon]", "[/]", "[bold]", "\\[", "中")), st.text(max_size=8))
).map("".join)


def printed(what, **options) -> str:
    out = io.StringIO()
    TerminalConsole(file=out, force_terminal=True, width=200).print(what, **options)
    return out.getvalue()


def obeyed(text: str) -> list[str]:
    return COMMANDS.findall(COLORS.sub("", text))


@given(texts)
def test_no_text_commands_the_terminal_whatever_it_is_printed_in(text):
    table = Table("name")
    table.add_row(escape(text))
    table.add_row(Text(text))
    for what in (Text(text, "bold"), escape(text), Panel(Text(text)), table):
        assert obeyed(printed(what)) == []
    assert obeyed(printed(text, markup=False, soft_wrap=True)) == []


def test_no_part_of_a_text_becomes_a_picture():
    table = Table("name")
    table.add_row(escape("task:b:1"))
    for what, options in ((escape("[x] task:b:1"), {}), ("task:b:1", {"markup": False}), (table, {})):
        assert "task:b:1" in COLORS.sub("", printed(what, **options))


@given(texts)
def test_json_on_the_terminal_is_escaped_and_says_the_same(text):
    document = {"agents": [{text: text}]}
    assert obeyed(visible_json(document)) == []
    assert json.loads(visible_json(document)) == document


@given(st.text(alphabet=st.characters(blacklist_categories=("Cc", "Cs", "Cf", "Zl", "Zp")), max_size=50))
def test_what_commands_nothing_is_shown_as_it_is(text):
    assert visible(f"{text}\n\t") == f"{text}\n\t"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_log_line_commands_nothing_and_keeps_its_brackets(terminal):
    out = io.StringIO()
    handler = log_handler(TerminalConsole(file=out, force_terminal=terminal, width=200))
    handler.handle(logging.LogRecord("d", logging.WARNING, "", 0, "%s of [daemon]", ("".join(HOSTILE),), None))
    assert obeyed(out.getvalue()) == []
    assert "of [daemon]" in COLORS.sub("", out.getvalue())


def test_a_journal_gets_a_record_a_line_and_what_has_several_is_indented():
    out = io.StringIO()
    handler = log_handler(TerminalConsole(file=out, force_terminal=False))
    said = "the trainer ended: " + "word " * 60
    for text, error in ((said, None), ("failed\n2026-11-27 INFO forged", (ValueError, ValueError("a\nb"), None))):
        handler.handle(logging.LogRecord("d", logging.WARNING, "", 0, text, (), error))
    whole, first, *others = out.getvalue().splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(f"{time} WARNING {said}", whole)
    assert re.fullmatch(f"{time} WARNING failed", first)
    assert others == ["  2026-11-27 INFO forged", "  ValueError: a", "  b"]


def test_a_live_display_still_moves_its_cursor():
    out = io.StringIO()
    console = TerminalConsole(file=out, force_terminal=True, width=80)
    with Progress(TextColumn("{task.description}"), console=console) as progress:
        progress.add_task(escape(CLIPBOARD))
        progress.refresh()
    assert "\x1b[?25l" in out.getvalue()
    assert "\x1b]52" not in out.getvalue()


def test_an_error_is_shown_whole_and_commands_nothing(capsys):
    with pytest.raises(SystemExit), one_sentence():
        raise ConfigError(f"[daemon] token of {CLIPBOARD}[/] is wrong")
    said = capsys.readouterr().err
    # Before: " token of", since rich reads [daemon] as the name of a style.
    assert "[daemon] token of ␛]52;c;cm0gLXJmIH4=[/] is wrong" in said


@pytest.mark.parametrize("out", ["a file", "a file/below"])
def test_a_file_where_a_folder_should_be_is_one_sentence(out, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())  # others have modules of the example's names
    (tmp_path / "a file").touch()
    done = CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path / out)])
    assert done.exit_code == 2, done.exception
    assert f"{tmp_path / out} cannot be written: " in done.stderr


def test_without_its_example_the_quickstart_says_that_it_runs_from_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_trainer.cli.app._EXAMPLE", tmp_path / "absent")
    done = CliRunner().invoke(app, ["quickstart"])
    sentence = f"the quickstart runs from a checkout of the repository; {tmp_path / 'absent'} is not there"
    assert (done.exit_code, done.stderr) == (2, f"error: {sentence}\n")


def test_agents_tools_and_programs_with_hostile_names_are_shown_and_not_obeyed():
    name = f"{CLIPBOARD}[daemon]"
    seen = AgentCensus(agent=name, calls=3, tools={name})
    losses = ProgramLosses(program=name, processes=1, reasons={f"not-routed:{name}": 2})
    out = io.StringIO()
    show(agents_report([seen], [losses], None), TerminalConsole(file=out, force_terminal=True, width=200))
    assert obeyed(out.getvalue()) == []
    assert COLORS.sub("", out.getvalue()).count("[daemon]") >= 3


def _commands(group, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield from _commands(command, *path, name) if hasattr(command, "commands") else [((*path, name), command)]


def test_no_word_of_a_help_vanishes_as_markup():
    # Before: "Name of a [] of the configuration."
    shown = CliRunner()
    for path, command in _commands(get_group(app)):
        bracketed = [one.help for one in command.params if "[" in (getattr(one, "help", None) or "")]
        if "[" in (command.help or ""):
            bracketed.append(command.help)
        if bracketed and path != ("run",):  # which the entry point takes
            said = "".join(shown.invoke(app, [*path, "--help"], env={"COLUMNS": "300"}).output.split())
            for text in bracketed:
                assert "".join(text.replace("\\[", "[").split()) in said, path


def test_every_command_prints_through_this_console():
    """rich's own would pass on what it is given."""
    quickstart = sorted((ROOT / "examples" / "calculator" / "quickstart").glob("*.py"))
    assert quickstart
    for path in (*CLI.rglob("*.py"), *quickstart):
        if path.parent.name != "terminal":
            assert not re.search(r"(?<!\w)Console\(", path.read_text(encoding="utf-8")), path


def test_what_goes_into_a_file_is_not_folded_at_80_columns(monkeypatch):
    row = "the words of a row that somebody searches for, and that are longer than a narrow terminal is wide"
    monkeypatch.delenv("COLUMNS", raising=False)
    for columns, folded in ((None, False), ("60", True)):
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        out = io.StringIO()
        table = Table("check", "result")
        table.add_row("memory", row)
        TerminalConsole(file=out).print(table)
        assert (row not in out.getvalue()) is folded
