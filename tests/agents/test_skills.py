"""Skills: what is listed, loaded and recorded, and what is said of folders that are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from scene import Watched, agent, results_of, running

from outlast import Agent, Outlast
from outlast.errors import InvalidDefinition, InvalidSkill
from outlast.prompts import PromptTemplate, Section
from outlast.skills import LoadedSkill, SkillFile, read_skill
from outlast.testing import crash_everywhere
from outlast.testing.scripted import call, calls, say

HEAD = "name: {name}\ndescription: {description}\n"


def write(library: Path, name: str = "tea", head: str = "", body: str = "Boil the water.") -> Path:
    """A skill's folder."""
    folder = library / name
    folder.mkdir(parents=True, exist_ok=True)
    head = head or HEAD.format(name=name, description=f"Makes {name}.")
    (folder / "SKILL.md").write_text(f"---\n{head}---\n\n{body}\n", encoding="utf-8")
    return folder


def digest_of(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


# Loading


async def test_skills_are_listed_with_their_descriptions_and_loaded_on_demand(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path, "tea")
    write(tmp_path, "toast", body="Butter it.")
    model = Watched([call("load_skill", skill="tea"), say("done")])
    a = Agent("a", model, instructions="Be kind.", skills=tmp_path)

    async with running(a) as app:
        session = await app.start(a, "tea, please")
        assert (await session.wait()).output == "done"
        assert await session.query(LoadedSkill).all() == [
            LoadedSkill("tea", digest_of(folder / "SKILL.md"), "t1.s1.c1")
        ]
    instructions = model.requests[0].instructions
    assert instructions.startswith("Be kind.\n\n## Skills")
    assert instructions.endswith("- tea: Makes tea.\n- toast: Makes toast.")
    assert "Boil the water." not in instructions
    assert model.told == ["# Skill: tea\n\nBoil the water."]


async def test_a_file_of_a_skill_is_read_and_recorded_by_its_hash(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "references").mkdir()
    (folder / "references/milk.md").write_text("A drop.", "utf-8")
    script = [
        call("load_skill", skill="tea"),
        call("read_skill_file", skill="tea", path="references/milk.md"),
        say("done"),
    ]
    async with running(a := agent(script, skills=tmp_path)) as app:
        session = await app.start(a, "go")
        await session.wait()
        assert await results_of(session) == [
            "# Skill: tea\n\nBoil the water.\n\n"
            "Its files, to be read with read_skill_file:\n- references/milk.md (7 bytes)",
            "A drop.",
        ]
        loaded = await session.query(LoadedSkill).latest()
    milk = folder / "references/milk.md"
    assert loaded == LoadedSkill("tea", digest_of(milk), "t1.s2.c1", "references/milk.md")


async def test_a_skill_that_is_loaded_again_is_kept_once(tmp_path: Path) -> None:
    write(tmp_path)
    script = [calls(*[("load_skill", {"skill": "tea"})] * 2), call("load_skill", skill="tea")]
    async with running(a := agent([*script, say("done")], skills=tmp_path)) as app:
        session = await app.start(a, "go")
        await session.wait()
        assert [each.call_id for each in await session.query(LoadedSkill).all()] == ["t1.s2.c1"]


async def test_a_session_keeps_the_text_that_it_loaded_when_the_file_changes(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/app.db"
    write(tmp_path / "skills", body="Boil it.")
    script = [call("load_skill", skill="tea"), say("first"), call("load_skill", skill="tea")]
    a = agent([*script, say("second")], skills=tmp_path / "skills")
    async with running(a, store=store) as app:
        session = await app.start(a, "go")
        await session.wait()
        (before,) = await session.query(LoadedSkill).all()

    write(tmp_path / "skills", body="Boil it twice.")
    newer = agent([*script, say("second")], skills=tmp_path / "skills")
    async with running(newer, store=store) as app:
        session = await app.session(session.id)
        assert await results_of(session) == ["# Skill: tea\n\nBoil it."]
        await (await session.send("again")).result()
        assert await results_of(session) == [
            "# Skill: tea\n\nBoil it.",
            "# Skill: tea\n\nBoil it twice.",
        ]
        (after,) = await session.query(LoadedSkill).all()
    assert after.digest != before.digest


async def test_a_child_loads_its_own(tmp_path: Path) -> None:
    write(tmp_path / "cook", "tea")
    write(tmp_path / "waiter", "serving")
    cook = Agent(
        "cook", Watched([call("load_skill", skill="tea"), say("tea")]), skills=tmp_path / "cook"
    )
    waiter = agent([call("cook", message="tea"), say("done")], skills=tmp_path / "waiter")
    waiter = Agent("waiter", waiter.model, subagents=[cook], skills=tmp_path / "waiter")
    async with running(waiter) as app:
        session = await app.start(waiter, "go")
        await session.wait()
        assert await session.query(LoadedSkill).all() == []
        (child,) = await app.sessions(agent="cook")
        loaded = await (await app.session(child.session_id)).query(LoadedSkill).all()
        assert [each.skill for each in loaded] == ["tea"]


async def test_skills_are_a_section_of_a_prompt(tmp_path: Path) -> None:
    write(tmp_path, head="name: tea\ndescription: Costs $5.\n")
    model = Watched([say("done")])
    prompt = PromptTemplate([Section("kind", "Be kind.")])
    async with running(a := Agent("a", model, instructions=prompt, skills=tmp_path)) as app:
        await (await app.start(a, "go")).wait()
    assert model.requests[0].instructions.startswith("Be kind.\n\n## Skills")
    assert model.requests[0].instructions.endswith("- tea: Costs $5.")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (("load_skill", {"skill": "tee"}), "there is no skill 'tee'; there is: tea"),
        (
            ("read_skill_file", {"skill": "tea", "path": "../../secret"}),
            "the skill tea: '../../secret' is no path of a file in it",
        ),
        (
            ("read_skill_file", {"skill": "tea", "path": "/etc/passwd"}),
            "the skill tea: '/etc/passwd' is no path of a file in it",
        ),
        (
            ("read_skill_file", {"skill": "tea", "path": "a\\..\\..\\b"}),
            "is no path of a file in it: write it as references/x.md",
        ),
        (
            ("read_skill_file", {"skill": "tea", "path": "a.md\0.txt"}),
            "is no path of a file in it",
        ),
        (
            ("read_skill_file", {"skill": "tea", "path": "b.md"}),
            "the skill tea: b.md cannot be read: No such file or directory",
        ),
        (("read_skill_file", {"skill": "tea", "path": "sub"}), "sub is no plain file"),
        (
            ("read_skill_file", {"skill": "tea", "path": "late"}),
            "the skill tea: late leads out of it",
        ),
        (("read_skill_file", {"skill": "tea", "path": "pipe"}), "pipe is no plain file"),
        (
            ("read_skill_file", {"skill": "tea", "path": "picture.png"}),
            "picture.png is not UTF-8 (byte 0)",
        ),
        (
            ("read_skill_file", {"skill": "tea", "path": "large.txt"}),
            "large.txt has more than 256 KiB",
        ),
    ],
)
async def test_what_a_model_cannot_read_is_told_to_it(
    tmp_path: Path, script: tuple[str, dict[str, Any]], told: str
) -> None:
    (tmp_path / "secret").write_text("do not read")
    folder = write(tmp_path / "skills")
    (folder / "a.md").write_text("fine")
    (folder / "sub").mkdir()
    (folder / "picture.png").write_bytes(b"\x89PNG\xff")
    (folder / "large.txt").write_bytes(b"x" * (256 * 1024 + 1))
    a = agent([calls(script), say("done")], skills=tmp_path / "skills")
    (folder / "late").symlink_to(tmp_path / "secret")  # after the folder was checked
    os.mkfifo(folder / "pipe")
    async with running(a) as app:
        session = await app.start(a, "go")
        await session.wait()
        (result,) = await results_of(session)
        assert told in result
        assert "do not read" not in result
        assert str(tmp_path) not in result
        assert await session.query(LoadedSkill).all() == []


# Folders


def test_a_skill_is_read_with_all_that_its_author_says(tmp_path: Path) -> None:
    head = (
        "name: pdf-forms\ndescription: >-\n  Fills in\n  forms.\nlicense: MIT\n"
        "compatibility: needs poppler\nallowed-tools: Read Bash(git:*)\n"
        "metadata:\n  author: ann\n  version: '1.0'\n"
    )
    folder = write(tmp_path, "pdf-forms", head, body="Line.\r\n\r\n---\r\nAfter a line.")
    (folder / "scripts").mkdir()
    (folder / "scripts/fill.py").write_text("pass\n")
    (folder / ".hidden").write_text("x")

    skill = read_skill(folder)

    assert (skill.name, skill.description) == ("pdf-forms", "Fills in forms.")
    assert skill.body == "Line.\n\n---\nAfter a line."
    assert (skill.license, skill.compatibility) == ("MIT", "needs poppler")
    assert skill.tools == "Read Bash(git:*)"
    assert skill.metadata == {"author": "ann", "version": "1.0"}
    assert skill.files == (SkillFile("scripts/fill.py", 5),)
    assert skill.digest == digest_of(folder / "SKILL.md")


def test_a_skill_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    folder = write(tmp_path)
    text = (folder / "SKILL.md").read_bytes()
    (folder / "SKILL.md").write_bytes(b"\xef\xbb\xbf" + text)
    assert read_skill(folder).name == "tea"


def test_skills_are_given_as_a_folder_of_them_their_own_or_several(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", "one"), write(tmp_path / "b", "two")
    write(tmp_path / "b", "three")
    (tmp_path / "b" / "README.md").write_text("Ours.")
    (tmp_path / "b" / ".git").mkdir()

    assert [*agent([], skills=str(one)).skills] == ["one"]
    assert [*agent([], skills=tmp_path / "b").skills] == ["three", "two"]
    assert [*agent([], skills=[two, tmp_path / "a"]).skills] == ["two", "one"]
    assert agent([]).skills == {}


def several(*makes: Callable[[Path], object]) -> Callable[[Path], object]:
    def make(library: Path) -> None:
        for each in makes:
            each(library)

    return make


def raw(data: bytes) -> Callable[[Path], object]:
    return several(
        lambda library: (library / "tea").mkdir(),
        lambda library: (library / "tea/SKILL.md").write_bytes(data),
    )


def head_of(head: str, name: str = "tea") -> Callable[[Path], object]:
    return lambda library: write(library, name, head)


def beside(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda library: make(write(library))


DEEP = "name: tea\nmetadata:\n" + "".join(" " * n + "b:\n" for n in range(1, 120))

HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (Path.rmdir, "does not exist"),
    "a file": (several(Path.rmdir, lambda p: p.write_text("x")), "is no folder"),
    "empty": (lambda p: None, "holds none: each is a folder with a SKILL.md"),
    "no SKILL.md": (lambda p: (p / "tea").mkdir(), "has no SKILL.md"),
    "no dashes": (raw(b"name: tea\n"), "has to begin with a line ---"),
    "no end": (raw(b"---\nname: tea\n"), "has no end: a line ---"),
    "empty head": (raw(b"---\n---\nx"), "is no list of fields"),
    "a list": (head_of("- name\n"), "is no list of fields"),
    "bad YAML": (head_of("name: tea\ndescription: a: b\n"), r"mapping values .* \(line 3\)"),
    "flow": (
        head_of("name: tea\ndescription: x\nmetadata: {a: b}\n"),
        r"flow mapping disallowed \(line 4\)",
    ),
    "twice": (
        head_of("name: tea\nname: tea\ndescription: x\n"),
        r"duplicate keys disallowed \(line 3\)",
    ),
    "an anchor": (head_of("name: &a tea\ndescription: *a\n"), "anchor"),
    "a tag": (head_of("name: !!python/name:os.system tea\n"), "cannot be read"),
    "deep": (head_of(DEEP), "tea: "),
    "many lines": (head_of("metadata:\n" + "  a: b\n" * 300), "more than 8 KiB or 200 lines"),
    "long head": (
        head_of("name: tea\ndescription: " + "x" * 9000 + "\n"),
        "more than 8 KiB or 200",
    ),
    "no name": (head_of("description: x\n"), "Missing required field in frontmatter: name"),
    "no description": (head_of("name: tea\n"), "Missing required field .* description"),
    "long description": (head_of("name: tea\ndescription: " + "x" * 1025 + "\n"), "1024"),
    "another name": (head_of("name: toast\ndescription: x\n"), "must match skill name 'toast'"),
    "capitals": (head_of("name: Tea\ndescription: x\n", "Tea"), "must be lowercase"),
    "a space": (head_of("name: my tea\ndescription: x\n", "my tea"), "invalid characters"),
    "unknown field": (head_of("name: tea\ndescription: x\ntools: a\n"), "Unexpected fields"),
    "metadata": (head_of("name: tea\ndescription: x\nmetadata: a\n"), "metadata is texts by name"),
    "tools": (
        head_of("name: tea\ndescription: x\nallowed-tools:\n  - a\n"),
        "allowed-tools is one text",
    ),
    "UTF-16": (raw("---\nname: tea\n".encode("utf-16")), "is not UTF-8"),
    "latin": (raw(b"---\nname: t\xe9\n---\n"), r"is not UTF-8 \(byte 11\): save it"),
    "NUL": (raw(b"---\nname: t\0ea\n---\n"), r"control character '\\x00' in line 2"),
    "words that nobody sees": (
        raw("---\nname: tea\ndescription: x\n---\nBoil.\U000e0041\n".encode()),
        r"'\\U000e0041' in line 5, which a model reads and people do not see",
    ),
    "bytes that nobody sees": (
        raw("---\nname: tea\ndescription: x\n---\nBoil \u2764\ufe0f\U000e0158\ufe05.\n".encode()),
        r"'\\ufe0f' in line 5, which a model reads and people do not see",
    ),
    "words turned about": (
        raw("---\nname: tea\ndescription: \u202ex\n---\n".encode()),
        r"'\\u202e' in line 3",
    ),
    "huge": (raw(b"---\nname: tea\ndescription: x\n---\n" + b"x" * 300_000), "more than 256 KiB"),
    "a pipe": (
        several(
            lambda p: (write(p) / "SKILL.md").unlink(), lambda p: os.mkfifo(p / "tea/SKILL.md")
        ),
        "SKILL.md is no plain file",
    ),
    "a folder of its name": (lambda p: (p / "tea/SKILL.md").mkdir(parents=True), "no plain file"),
    "linked out": (
        lambda p: (p / "tea").symlink_to(write(p.parent / "out")),
        "leads out of .*: copy it there",
    ),
    "SKILL.md linked out": (
        several(
            lambda p: (p / "tea").mkdir(),
            lambda p: (p / "tea/SKILL.md").symlink_to(write(p.parent / "out") / "SKILL.md"),
        ),
        "SKILL.md leads out of it",
    ),
    "a file linked out": (
        beside(lambda tea: (tea / "passwd").symlink_to("/etc/hostname")),
        "passwd leads out of it: copy the file",
    ),
    "a broken link": (beside(lambda tea: (tea / "x").symlink_to("/nowhere/x")), "x leads out"),
    "a name that is no text": (
        beside(lambda tea: os.close(os.open(bytes(tea) + b"/\xff", os.O_CREAT))),
        "no plain text",
    ),
    "many files": (
        beside(lambda tea: [(tea / f"{n}").write_text("") for n in range(1_002)]),
        "more than 1,000 files",
    ),
    "deep folders": (
        beside(lambda tea: (tea / "/".join("d" * 20)).mkdir(parents=True)),
        "more than 16 deep",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_folder_that_is_no_skill_is_refused_with_what_to_do(tmp_path: Path, case: str) -> None:
    make, why = HOSTILE[case]
    library = tmp_path / "skills"
    library.mkdir()
    make(library)
    with pytest.raises(InvalidSkill, match=why) as refused:
        agent([], skills=library)
    assert refused.value.code == "INVALID_SKILL"
    assert "\n" not in refused.value.message
    assert refused.value.details["folder"].startswith(str(library))


def test_two_skills_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    with pytest.raises(InvalidSkill, match="there is another of that name"):
        agent([], skills=[tmp_path / "a", tmp_path / "b"])


def test_more_skills_than_a_model_is_to_be_told_of_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.agents.skill.skill.MOST_SKILLS", 2)
    for name in ("tea", "soup"):
        write(tmp_path, name)
    agent([], skills=tmp_path)
    write(tmp_path, "bread")

    with pytest.raises(InvalidDefinition, match="more than 2 skills"):
        agent([], skills=tmp_path)


@pytest.mark.parametrize("given", [17, {"a": "b"}, [17]])
def test_skills_are_a_folder_or_a_list_of_folders(given: Any) -> None:
    with pytest.raises(InvalidDefinition, match='skills of agent a are a folder such as "skills/"'):
        agent([], skills=given)


def test_a_tool_of_the_same_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path)

    async def load_skill() -> None: ...

    with pytest.raises(InvalidDefinition, match="two tools named load_skill"):
        agent([], skills=tmp_path, tools=[load_skill])


def test_without_the_extra_its_installation_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlast.agents.skill import skill

    write(tmp_path)
    skill.library.cache_clear()
    monkeypatch.setitem(sys.modules, "strictyaml", None)
    with pytest.raises(InvalidDefinition, match="install Outlast with its extra 'skills'"):
        agent([], skills=tmp_path)


async def test_skills_need_no_app_to_be_checked(tmp_path: Path) -> None:
    write(tmp_path)
    assert Outlast([agent([say("done")], skills=tmp_path)]).agents["a"].skills["tea"].files == ()


# Crashes, and the command line


async def test_what_was_loaded_is_the_same_after_a_crash_at_any_commit(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "milk.md").write_text("A drop.", "utf-8")
    script = [
        calls(
            ("load_skill", {"skill": "tea"}),
            ("read_skill_file", {"skill": "tea", "path": "milk.md"}),
        ),
        say("done"),
    ]

    async def scenario(app: Outlast) -> list[LoadedSkill]:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        return await session.query(LoadedSkill).all()

    report = await crash_everywhere(scenario, agents=[agent(script, skills=tmp_path)])
    report.assert_same_output()
    report.assert_nothing_lost()
    assert len(report.runs) > 6


def test_the_command_lists_skills_and_what_a_session_has_loaded(tmp_path: Path) -> None:
    folder = write(tmp_path / "skills")
    (tmp_path / "shop.py").write_text(
        "import asyncio\n"
        "from outlast import Agent, Outlast\n"
        "from outlast.testing import ScriptedModel, call, say\n"
        "model = ScriptedModel([call('load_skill', skill='tea'), say('done')])\n"
        "app = Outlast([Agent('host', model, skills='skills/')], store='sqlite:///shop.db')\n"
        "async def main():\n"
        "    async with app:\n"
        "        session = await app.start('host', 'go')\n"
        "        await session.wait()\n"
        "        print(session.id)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )

    def run(*argv: str) -> str:
        command = [sys.executable, *argv]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    session = run("shop.py").strip()
    command = ["-m", "outlast.cli", "skills", "shop:app", "host"]
    digest = digest_of(folder / "SKILL.md")
    assert [line.split() for line in run(*command).splitlines()] == [
        ["skill", "sha256", "files", "loaded", "description"],
        ["tea", digest[:12], "0", "Makes", "tea."],
    ]
    [told] = json.loads(run(*command, "--session", session, "--json"))["skills"]
    assert told["loaded"] == [{"path": "SKILL.md", "digest": digest, "call_id": "t1.s1.c1"}]
    assert digest[:12] in run(*command, "--session", session).splitlines()[1].split()[3]
