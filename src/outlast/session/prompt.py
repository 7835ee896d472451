"""The prompt that a session's model would be given next, rendered outside of a worker."""

from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.prompt.render import PromptRenderer, RenderedPrompt
from outlast.agents.prompt.template import template_of, with_guidance
from outlast.agents.runtime.context import SessionContext
from outlast.agents.skill.tool import guidance_of
from outlast.core.lane import Lane
from outlast.core.slice import EMPTY
from outlast.errors import InvalidInput
from outlast.log.explain.evidence import read_state
from outlast.session.state import read_slices
from outlast.store import Store


async def render_prompt(
    agent: Agent[Any, Any], store: Store, session_id: str | None, lane: str, deps: Any
) -> RenderedPrompt:
    """Return the prompt of a session, or of one that has just begun."""
    template = agent.prompt or with_guidance(
        template_of(agent.instructions), agent.planning, guidance_of(agent.skills)
    )
    renderer = PromptRenderer(template, deps)
    if session_id is None:
        return await renderer.render(SessionContext(Lane("", lane, agent.name), EMPTY))
    state = await read_state(store, session_id, lane)
    if state.agent != agent.name:
        raise InvalidInput(f"{session_id} is a session of {state.agent}, not of {agent.name}")
    return await renderer.render(SessionContext(state, await read_slices(store, session_id)))
