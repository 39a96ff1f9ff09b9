"""Figures of a breakdown: phases and exposed communication, the timeline of one step, and memory."""

from bench.analysis import memory_figure
from bench.studies.breakdown import step_figure, timeline_figure

FIGURES = {"breakdown": {"step": step_figure.draw, "timeline": timeline_figure.draw, "memory": memory_figure.draw}}
