"""Skills: folders of instructions that a model loads when a task needs them.

Public as `outlast.skills`.
"""
