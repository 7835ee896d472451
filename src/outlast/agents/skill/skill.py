"""A skill in the open Agent Skills format: a folder with a SKILL.md, read and checked.

Owns what a folder has to hold. The rules about the fields are those of the format's reference
library, `skills-ref`; reading and YAML are ours, because that reads files of any size and follows
links to anywhere. What a model is told of skills is in `tool.py`.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from outlast.agents.skill.folder import MOST_FILES, SkillFile, files_of, invalid, read_text
from outlast.errors import InvalidDefinition, InvalidSkill

SKILL_FILE = "SKILL.md"
FENCE = "---"
MOST_HEAD, MOST_HEAD_LINES = 8 * 1024, 200
MOST_SKILLS = 500
WORDS = re.compile("[A-Z][a-z]+")

SkillPath = str | os.PathLike[str]
SkillSource = SkillPath | Sequence[SkillPath]
"""A folder of skills, a skill's own folder, or several of these."""


class Skill(Struct, frozen=True):
    """A skill: what it is for, its instructions, and the files beside them.

    `digest` is the SHA-256 of its SKILL.md. `tools` are those that its author names in
    `allowed-tools`; that allows nothing here.
    """

    name: str
    description: str
    body: str
    digest: str
    folder: Path
    files: tuple[SkillFile, ...] = ()
    license: str = ""
    compatibility: str = ""
    tools: str = ""
    metadata: Mapping[str, str] = {}


def read_skills(agent: str, given: Any) -> dict[str, Skill]:
    """Return the skills in some folders by name. Raises InvalidSkill for the first that is none."""
    if given is None:
        return {}
    folders = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(folders, list | tuple) or not all(
        isinstance(each, str | os.PathLike) for each in folders
    ):
        raise InvalidDefinition(
            f'skills of agent {agent} are a folder such as "skills/", or a list of folders',
            agent=agent,
        )
    found: dict[str, Skill] = {}
    for skill in (each for folder in folders for each in skills_in(Path(folder))):
        if other := found.get(skill.name):
            raise invalid(skill.folder, f"there is another of that name: {other.folder}")
        found[skill.name] = skill
        if len(found) > MOST_SKILLS:
            raise InvalidDefinition(f"agent {agent} has more than {MOST_SKILLS} skills: too many")
    return found


def skills_in(library: Path) -> Iterator[Skill]:
    """Yield the skill that a folder is, or those in it, in the order of their names."""
    if not library.is_dir():
        what = "is no folder" if library.exists() else "does not exist"
        raise InvalidSkill(f"the folder of skills {library} {what}", folder=str(library))
    if (library / SKILL_FILE).is_file():
        yield read_skill(library)
        return
    is_empty = True
    for each in sorted(library.iterdir(), key=lambda path: path.name):
        if each.name.startswith((".", "_")) or each.is_file():
            continue
        is_empty = False
        root = os.path.realpath(library)
        if os.path.commonpath([root, os.path.realpath(each)]) != root:
            raise invalid(
                each, f"leads out of {library}: copy it there, or give its own folder as well"
            )
        yield read_skill(each)
    if is_empty:
        raise InvalidSkill(
            f"the folder of skills {library} holds none: each is a folder with a {SKILL_FILE}",
            folder=str(library),
        )


def read_skill(folder: Path) -> Skill:
    """Return the skill of a folder. Raises InvalidSkill, which says what is wrong with it."""
    if not (folder / SKILL_FILE).exists():
        raise invalid(folder, f"has no {SKILL_FILE} (in capital letters)")
    text, data = read_text(folder, SKILL_FILE)
    head, body = parted(folder, text)
    fields = fields_of(folder, head)
    check_fields(folder, fields)
    files = [*islice(files_of(folder), MOST_FILES + 1)]
    if len(files) > MOST_FILES:
        raise invalid(folder, f"has more than {MOST_FILES:,} files")
    return Skill(
        name=fields["name"].strip(),
        description=" ".join(fields["description"].split()),
        body=body.strip(),
        digest=sha256(data).hexdigest(),
        folder=folder.absolute(),
        files=tuple(each for each in files if each.path != SKILL_FILE),
        license=fields.get("license", ""),
        compatibility=fields.get("compatibility", ""),
        tools=fields.get("allowed-tools", ""),
        metadata=fields.get("metadata", {}),
    )


def parted(folder: Path, text: str) -> tuple[str, str]:
    """Return the YAML between the two lines of dashes, and the instructions behind it."""
    lines = text.split("\n")
    if lines[0].rstrip() != FENCE:
        raise invalid(folder, f"{SKILL_FILE} has to begin with a line {FENCE} and then YAML")
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == FENCE), 0)
    if not end:
        raise invalid(folder, f"the YAML of {SKILL_FILE} has no end: a line {FENCE} behind it")
    head = "\n".join(lines[1:end])
    # The time that its parser takes grows with the square of the lines.
    if len(head) > MOST_HEAD or end > MOST_HEAD_LINES:
        raise invalid(
            folder,
            f"the YAML of {SKILL_FILE} has more than {MOST_HEAD // 1024} KiB or"
            f" {MOST_HEAD_LINES} lines: keep the instructions behind it",
        )
    return head, "\n".join(lines[end + 1 :])


def fields_of(folder: Path, head: str) -> dict[str, Any]:
    strictyaml = library().strictyaml
    try:
        fields = strictyaml.load(head).data
    except Exception as error:  # noqa: BLE001 - a parser of another, and it raises whatever it meets
        raise invalid(
            folder, f"the YAML of {SKILL_FILE} cannot be read: {sentence(error)}"
        ) from None
    if not isinstance(fields, dict):
        raise invalid(folder, f"the YAML of {SKILL_FILE} is no list of fields such as name: …")
    return fields


def sentence(error: Any) -> str:
    """Return the place and the reason of an error in YAML, in one line."""
    kind = type(error).__name__
    if not (mark := getattr(error, "problem_mark", None)):
        return kind
    # Its own words for what it does not allow are unkind: the class says which it is.
    what = " ".join(WORDS.findall(kind)) if kind.endswith("Disallowed") else error.problem
    return f"{what.lower()} (line {mark.line + 2})"


def check_fields(folder: Path, fields: dict[str, Any]) -> None:
    if errors := library().validate_metadata(fields, Path(os.path.abspath(folder))):
        raise invalid(folder, "; ".join(errors))
    for name in ("license", "allowed-tools"):
        if not isinstance(fields.get(name, ""), str):
            raise invalid(folder, f"{name} is one text")
    metadata = fields.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise invalid(folder, "metadata is texts by name")


class SkillsRef:
    """The parts of `skills-ref`, the extra `skills`, that are used."""

    def __init__(self) -> None:
        try:
            import strictyaml
            from skills_ref.validator import validate_metadata
        except ImportError:
            raise InvalidDefinition(
                "skills need a package that is not installed: install Outlast with its extra"
                " 'skills'"
            ) from None
        self.strictyaml = strictyaml
        self.validate_metadata = validate_metadata


library = cache(SkillsRef)
