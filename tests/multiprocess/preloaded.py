"""Imported last by the fork server of ranks.py."""

import gc

from bench.predict.emulation.rank import leave_cores

leave_cores()  # tests share their cores
gc.freeze()  # no rank looks for garbage among what was imported, nor gets its own pages by that
