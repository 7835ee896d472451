"""Rules for an agent: `Agent(rules=[…])`. What they are is told in docs/how-to/rules.md."""

from outlast.agents.rule import (
    CallPolicy,
    CompletionChecker,
    Every,
    FeedbackProvider,
    FunctionChecker,
    FunctionFeedback,
    FunctionPolicy,
    NamedRule,
    PolicyCall,
    ReadBeforeWrite,
    Rule,
    SequentialDependency,
    TurnContext,
    completion,
    feedback,
    policy,
)

__all__ = [
    "CallPolicy",
    "CompletionChecker",
    "Every",
    "FeedbackProvider",
    "FunctionChecker",
    "FunctionFeedback",
    "FunctionPolicy",
    "NamedRule",
    "PolicyCall",
    "ReadBeforeWrite",
    "Rule",
    "SequentialDependency",
    "TurnContext",
    "completion",
    "feedback",
    "policy",
]
