"""What every process of a run has: guard, heartbeat, ending; tree starts, limits and ends commands."""
