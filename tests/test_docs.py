"""The documentation held against the product: links, commands, options, exit codes, refusals, repairs."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import xml.etree.ElementTree
from pathlib import Path
from types import ModuleType

import click
import pytest

from escha_oscar import cli
from escha_oscar.errors import ExitCode
from escha_oscar.source.bundled import Bundled
from tests.support import forks
from tests.support.wheels import make_site_packages

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FENCE = re.compile(r"^( *)```.*?^\1```", re.M | re.S)


def anchor(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return plain.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, place = link.partition("#")
        target = page.parent / path if path else page
        if not target.is_file() or (place and place not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    absent = [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "index.md" and f"({p.name})" not in index]
    assert absent == []


def command_lines(page: Path) -> list[list[str]]:
    """Return every ``escha-oscar ...`` of a page's blocks, as words, continued lines joined."""
    lines = "\n".join(m.group(0) for m in FENCE.finditer(page.read_text(encoding="utf-8")))
    found = re.findall(r"(?:^|[ =(/])escha-oscar ((?:[a-z-]).*)$", re.sub(r"\\\n\s*", " ", lines), re.M)
    cut = (re.split(r"\s#|[>|;&`)]", line)[0].strip('" ') for line in found)
    return [shlex.split(line) for line in cut if line.split()[0] in cli.COMMANDS]


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_options_exist(name: str) -> None:
    context = click.Context(cli.app)
    for words in command_lines(ROOT / name):
        command = cli.app.get_command(context, words[0])
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        given = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
        assert given <= known, f"{words[0]}: {sorted(given - known)}"


def test_the_examples_are_found_at_all() -> None:
    assert len(command_lines(ROOT / "docs/moe.md")) > 10


def test_every_exit_code_is_explained() -> None:
    text = (ROOT / "docs/exit-codes.md").read_text(encoding="utf-8")
    rows = {int(n) for cells in re.findall(r"^\| ([\d, ]+) \|", text, re.M) for n in cells.split(",")}
    assert rows == {int(code) for code in ExitCode}


def test_every_refused_option_is_listed() -> None:
    source = Bundled.open().read("sglang/srt/server_args.py")
    assert source is not None
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    refused = {s for s in strings if isinstance(s, str) and re.fullmatch(r"--[a-z-]+", s)}
    text = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
    assert len(refused) > 10
    assert sorted(option for option in refused if f"`{option}`" not in text) == []


def test_every_repair_is_explained() -> None:
    made = "".join(
        (ROOT / "src/escha_oscar/merge" / name).read_text() for name in ("repairs.py", "graft.py", "plan.py")
    )
    names = set(re.findall(r'(?:Defect|Repair)\(\s*"([a-z0-9-]+)"', made))
    text = (ROOT / "docs/how-the-merge-works.md").read_text(encoding="utf-8")
    section = text.partition("## Repairs")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z0-9-]+)`", section, re.M)) == names


def test_every_setting_is_explained() -> None:
    source = Bundled.open().read("sglang/srt/environ.py")
    assert source is not None
    assigned = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign))
    names = [t.id for node in assigned for t in node.targets if isinstance(t, ast.Name)]
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert len(names) > 5
    assert [name for name in names if f"`{name}`" not in text] == []


PICTURES = sorted((ROOT / "docs/images").glob("*.svg"))


def drawing() -> ModuleType:
    """Return the script that draws the pictures."""
    spec = importlib.util.spec_from_file_location("render", ROOT / "docs/images/render.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def holds_by_itself(svg: str) -> None:
    """A picture loads nothing from elsewhere, and names no place of the machine that it was drawn on."""
    assert set(re.findall(r"https?://[^\"' ]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"url\((.)", svg)) <= {"#"} and "@font-face" not in svg and "@import" not in svg
    text = "".join(xml.etree.ElementTree.fromstring(svg).itertext())
    assert re.search(r"(^|\s)/\w", text) is None


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_holds_by_itself_and_is_shown(picture: Path) -> None:
    holds_by_itself(picture.read_text(encoding="utf-8"))
    shown = f"images/{picture.name})"
    assert any(shown in page.read_text(encoding="utf-8") for page in PAGES)


def test_the_pictures_can_be_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site_packages(tmp_path, forks.OLD)
    monkeypatch.chdir(tmp_path)
    drawing().draw_all(site, tmp_path)
    drawn = sorted(tmp_path.glob("*.svg"))
    assert [path.name for path in drawn] == [path.name for path in PICTURES]
    for path in drawn:
        holds_by_itself(path.read_text(encoding="utf-8"))
