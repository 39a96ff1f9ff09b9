"""PROFILE=1 and MEMORY=1, after the timed steps: the timeline of one step, and memory by kind."""
