"""Records that belong together: suites, the parity certificate, statistics, tables, pictures."""
