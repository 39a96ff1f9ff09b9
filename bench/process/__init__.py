"""Parts of every process of a run: guard, heartbeat, ending; tree starts, limits and ends commands."""
