"""Reading records and showing them. Nothing here imports torch, so it is fast and runs without torch."""
