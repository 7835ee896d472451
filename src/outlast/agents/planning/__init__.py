"""Plans: a slice with steps, the tools by which a model keeps it, and how it is told of them.

Public as `outlast.planning`. Milestones, which a finished step is, are in `agents/milestone.py`.
"""
