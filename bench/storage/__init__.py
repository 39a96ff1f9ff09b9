"""Data sets and results behind a URL: staged to local disk, copied back. ImageNet's labels, and its archives."""
