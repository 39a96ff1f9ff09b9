"""External training scripts, timed without changes: ``bench time``.

command  runs the command, and makes the record from the parts of its processes
hook     in each of its Python processes: waits for the first optimizer
rank     in each training process: finds the models, times the steps, and writes a part
record   the record: a separate kind, never compared with runs of this bench
result   its values in tables and sentences
scaling  one script on several numbers of devices
"""
