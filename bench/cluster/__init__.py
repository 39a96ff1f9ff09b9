"""A cluster on one machine: network namespaces as nodes, joined by links of a chosen rate; it needs no root."""
