"""Agents that start by themselves, at times that a cron line names.

A schedule is written in code; the store keeps when it is next due. A scheduler in every worker
starts a session for each instant, once, across all workers and crashes.
"""

from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.schedules import ScheduleControl
from outlast.integration.schedule.status import ScheduleStatus

__all__ = [
    "Schedule",
    "ScheduleControl",
    "ScheduleStatus",
]
