"""The documents say what is true: links, paths, code, commands."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kr_kfp.cli.main import cli

ROOT = Path(__file__).parents[2]
_LEFT_OUT = {".git", ".venv", ".demo", "build", "dist", "local_outputs", "node_modules", "typings"}


def _documents() -> Iterator[Path]:
    for path in ROOT.rglob("*.md"):
        parts = path.relative_to(ROOT).parts
        if not any(part in _LEFT_OUT or part.endswith(("_cache", ".egg-info")) for part in parts):
            yield path


DOCUMENTS = sorted(_documents())
FOR_READERS = [path for path in DOCUMENTS if path.parent in (ROOT, ROOT / "docs") and path.name != "CHANGELOG.md"]
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_OURS = re.compile(r"(kr_kfp|components|pipelines|tests|docs|bench|typings|\.ci)/[\w./-]*")


def _blocks(path: Path, language: str) -> list[str]:
    return [code for name, code in _FENCE.findall(path.read_text(encoding="utf-8")) if name == language]


def _prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def _anchors(path: Path) -> set[str]:
    """Give the anchors that GitHub makes of headings."""
    headings = re.findall(r"^#+ +(.*)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _command_lines(path: Path) -> Iterator[list[str]]:
    """Find ``kr-kfp ...`` in shell blocks and in inline code."""
    lines = [line for block in _blocks(path, "sh") for line in block.splitlines()]
    lines += _CODE.findall(_prose(path))
    for line in lines:
        words = shlex.split(line, comments=True) if line.strip().startswith("kr-kfp") else []
        if words[:1] == ["kr-kfp"]:
            yield words[1:]


def _resolve(words: list[str]) -> tuple[str, ...]:
    """Follow the words of a command line through the command's groups.

    Raises:
        LookupError: If a word names no command of its group.
    """
    found: list[str] = []
    command: click.Command = cli
    for word in words:
        if not isinstance(command, click.Group) or word.startswith("-") or word == "...":
            break
        if word not in command.commands:
            msg = f"kr-kfp {' '.join([*found, word])}: there is no such command"
            raise LookupError(msg)
        command = command.commands[word]
        found.append(word)
    return tuple(found)


def _commands(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _commands(inner, (*names, name))
    else:
        yield names


@each_document
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file that is there, and its anchor a heading."""
    broken = []
    for target in _LINK.findall(_prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert broken == []


@each_document
def test_paths_in_code_exist(path: Path) -> None:
    """A path of the repository in backticks is there; patterns and lists in braces are left out."""
    named = [code for code in _CODE.findall(_prose(path)) if _OURS.fullmatch(code)]
    assert [name for name in named if not (ROOT / name).exists()] == []


@each_document
def test_modules_in_code_exist(path: Path) -> None:
    """A dotted ``kr_kfp`` name in backticks is a module, or a name in one."""
    missing = []
    for code in _CODE.findall(_prose(path)):
        if not re.fullmatch(r"kr_kfp(\.\w+)+", code):
            continue
        parts = code.split(".")
        places = [ROOT.joinpath(*parts[:count]) for count in (len(parts), len(parts) - 1)]
        if not any(place.is_dir() or place.with_suffix(".py").exists() for place in places):
            missing.append(code)
    # The only door to an API server is part of a later version.
    assert [code for code in missing if code != "kr_kfp.cluster.kube"] == []


@each_document
def test_python_examples_parse(path: Path) -> None:
    """Every Python block is Python."""
    for code in _blocks(path, "python"):
        ast.parse(code)


@each_document
def test_commands_exist(path: Path) -> None:
    """Every ``kr-kfp ...`` in a document is a command."""
    for words in _command_lines(path):
        _resolve(words)


@each_document
def test_make_targets_exist(path: Path) -> None:
    """Every ``make ...`` in a document is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = _CODE.findall(_prose(path)) + [line for block in _blocks(path, "sh") for line in block.splitlines()]
    used = [found[1] for line in lines if (found := re.match(r"make ([a-z-]+)", line))]
    assert [name for name in used if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []


def test_every_command_is_documented() -> None:
    """README or docs show each command of ``kr-kfp`` at least once, or the group that it belongs to."""
    shown = {_resolve(words) for path in FOR_READERS for words in _command_lines(path)}
    silent = [names for names in _commands(cli) if not any(names[: len(s)] == s for s in shown if s)]
    assert silent == []


def test_every_command_explains_itself() -> None:
    """Each command has a help text and the switch --json, except those that only group others."""
    for names in _commands(cli):
        command: click.Command = cli
        for name in names:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        assert command.help, names
        assert "--json" in {option for parameter in command.params for option in parameter.opts}, names


def test_every_target_is_explained() -> None:
    """Each target that people may call has a line in ``make help``."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == set(re.findall(r"^([a-z-]+):[^\n]* ## ", makefile, re.MULTILINE))


def test_the_version_is_in_the_changelog() -> None:
    """CHANGELOG.md has a section for what is being worked on, and one for the version that is here."""
    import kr_kfp

    sections = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[:2] == ["Unreleased", kr_kfp.__version__]


def test_the_picture_of_the_layers_is_complete() -> None:
    """docs/architecture.md names every module and package at the top of kr_kfp."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tops = {
        path.stem for path in (ROOT / "kr_kfp").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {name for name in tops - {"__init__", "__main__"} if name not in text} == set()
