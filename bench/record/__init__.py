"""The record of a run: written whole or not at all, checked against its definition, read through one view.

write     what a finished run leaves behind
summary   the figures that follow from the samples
privacy   what a record says of the machine and its owner
definition what a record holds, as types: the JSON schema, the reader and the view follow from it
schema    checks a record, and the error for what does not fit
migrate   records of older schema versions
read      records from files
view      one record, typed and read-only
observed  what is known of a run, for the detectors
describe  a record in words: machine, row of a table
"""

SCHEMA_VERSION = 8
