"""Records that belong together, and what can be said of them: suites, the parity certificate, statistics, tables,
drawing."""
