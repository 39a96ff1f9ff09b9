"""Reading records and showing them. Nothing here imports torch, so it is instant and runs where there is no torch."""
