"""A cluster on one machine: network namespaces as nodes, joined by links of a chosen rate; it needs no root.

plan.py says what there is to be, make.py starts it and sees that all of it goes away again, inside.py builds it and
runs the command on the first node, enter.py runs a command on any node, as ssh does on a machine.
"""
