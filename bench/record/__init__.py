"""The record of a run: written whole or not at all, checked against its schema, read through one typed view.

write     what a finished run leaves behind
summary   the figures that follow from the samples
privacy   what a record says of the machine and its owner
schema    the form (record.schema.json), and what does not fit it
migrate   records of older schema versions
read      records from files
view      one record, typed and read-only
observed  what is known of a run, for the detectors
describe  a record in words: machine, row of a table
"""
