"""Rules for an agent: `Agent(rules=[…])`.

Only names these for users; docs/how-to/rules.md explains them.
"""

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
