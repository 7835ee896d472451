"""A function's arguments as a schema for the model and a check for what it sends.

Everything is read from the signature, its type hints and the docstring.
"""

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from outlast.agents.runtime.json_value import check_finite, findings
from outlast.core.json_text import JsonRefused, read_json
from outlast.errors import InvalidDefinition, Retry

_ARGS = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$")
_ARG = re.compile(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")

OF_NO_USE = {None, "schema-for-unknown-type", "invalid-for-json-schema"}
"""Errors of pydantic whose advice is meant for authors of models."""

OURS = "arg_"
"""The prefix of fields before their arguments' names."""


class Arguments:
    """The arguments of a tool."""

    def __init__(self, function: Callable[..., Any], name: str, context: type) -> None:
        hints = type_hints(function, name)
        parameters = list(inspect.signature(function).parameters.values())
        first = parameters[0] if parameters else None
        if first and first.name in ("self", "cls") and first.name not in hints:
            raise InvalidDefinition(
                f"{name} is a method, and a model knows no {first.name}: make a tool of an object's"
                f" own, tool(obj.{name})",
                tool=name,
            )
        self.takes_context = bool(first and takes(context, hints.get(first.name)))
        if self.takes_context:
            parameters = parameters[1:]
        for late in parameters:
            if takes(context, hints.get(late.name)):
                raise InvalidDefinition(
                    f"`{late.name}: {context.__name__}` has to be the first argument of {name}",
                    tool=name,
                )
        self._model, self.schema = model_of(function, name, parameters, hints)
        self._names = tuple((field.removeprefix(OURS), field) for field in self._model.model_fields)
        self.returns = hints.get("return", Any)

    @property
    def form(self) -> str:
        """The arguments as a human reads them: names and types."""
        required = self.schema.get("required", ())
        return ", ".join(
            f"{name}: {kind.get('type', 'any')}{'' if name in required else ' = …'}"
            for name, kind in self.schema.get("properties", {}).items()
        )

    def parse(self, args: str) -> dict[str, Any]:
        """Return checked arguments, or ask the model to correct them."""
        try:
            read_json((args or "{}").encode())
            checked = self._model.model_validate_json(args or "{}")
        except JsonRefused as error:
            raise Retry(f"the arguments are invalid JSON: {error}") from None
        except ValidationError as error:
            raise Retry(f"the arguments do not fit: {findings(error)}") from None
        parsed = {name: getattr(checked, field) for name, field in self._names}
        # Pydantic takes texts such as "NaN" for numbers, and a rule such as `args["euros"] > 1000`
        # is never true of one.
        for name, value in parsed.items():
            try:
                check_finite(value)
            except ValueError as error:
                raise Retry(f"the arguments do not fit: {name}: {error}") from None
        return parsed


def type_hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise InvalidDefinition(
            f"the type hints of {name} cannot be resolved: {error}; "
            "import the types at module level",
            tool=name,
        ) from error


def takes(context: type, hint: Any) -> bool:
    return hint is context or typing.get_origin(hint) is context


def model_of(
    function: Callable[..., Any],
    name: str,
    parameters: list[inspect.Parameter],
    hints: Mapping[str, Any],
) -> tuple[type[BaseModel], Mapping[str, Any]]:
    told = described_arguments(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidDefinition(
                f"{name} takes *{parameter.name}: name every argument, a model must know them",
                tool=name,
            )
        if parameter.kind == parameter.POSITIONAL_ONLY:
            raise InvalidDefinition(
                f"{name} takes {parameter.name} by its place alone: leave out the /, as a model"
                " gives arguments by name",
                tool=name,
            )
        if parameter.name not in hints:
            raise InvalidDefinition(
                f"{name} does not say what type {parameter.name} is: add a type hint", tool=name
            )
        described_as = told.get(parameter.name)
        fields[f"{OURS}{parameter.name}"] = field_of(parameter, hints[parameter.name], described_as)
    try:
        return described(name, fields)
    except (PydanticUserError, NameError) as error:
        raise without_schema(name, fields, error) from error


def field_of(parameter: inspect.Parameter, hint: Any, told: str | None) -> tuple[Any, Any]:
    """Return an argument as pydantic has it: under an alias, since a name may be one of pydantic's.

    What its type or its default says of it stays as it is, unless the docstring says something.
    """
    said: dict[str, Any] = {"alias": parameter.name}
    if told is not None:
        said["description"] = told
    if isinstance(parameter.default, FieldInfo):
        return Annotated[hint, parameter.default], Field(**said)
    if parameter.default is not parameter.empty:
        said["default"] = parameter.default
    return hint, Field(**said)


def described(name: str, fields: dict[str, Any]) -> tuple[type[BaseModel], Mapping[str, Any]]:
    """Return the arguments as a model of pydantic's, and the model's schema."""
    model: type[BaseModel] = create_model(
        name, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields
    )
    return model, model.model_json_schema()


def without_schema(
    name: str, fields: dict[str, Any], error: PydanticUserError | NameError
) -> InvalidDefinition:
    """Name the first argument that cannot be described, and its type."""
    for argument, field in fields.items():
        try:
            described(name, {argument: field})
        except (PydanticUserError, NameError):
            break
    argument, kind = argument.removeprefix(OURS), inspect.formatannotation(field[0])
    return InvalidDefinition(
        f"{name} takes `{argument}: {kind}`, which {no_schema(error)}",
        tool=name,
        argument=argument,
    )


def no_schema(error: PydanticUserError | NameError) -> str:
    """Say that a type has no schema, and what to do: in pydantic's words where it knows."""
    advice = "use types that JSON can say, dataclasses or pydantic models"
    if isinstance(error, PydanticUserError) and error.code not in OF_NO_USE:
        advice = error.message.partition("\n")[0]
    return f"has no schema: {advice}"


def described_arguments(doc: str) -> dict[str, str]:
    """Return what a docstring's `Args:` section says of each argument."""
    found: dict[str, str] = {}
    inside = False
    for line in doc.splitlines():
        if _ARGS.match(line):
            inside = True
        elif inside and (match := _ARG.match(line)):
            found[match[1]] = match[2].strip()
        elif inside and line.strip() and not line.startswith(" "):
            inside = False
    return found


def summary(function: Callable[..., Any]) -> str:
    """Return a docstring without its `Args:` section."""
    lines: list[str] = []
    for line in (inspect.getdoc(function) or "").splitlines():
        if _ARGS.match(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()
