"""External training scripts, timed without changes: ``bench time``.

command  runs the command, and makes the record of what its processes leave
hook     in every Python process of it: waits for the first optimizer
rank     in every process that trains: finds the models, times the steps, and leaves a part
record   the record: a kind of its own, never compared with runs of this bench
result   its values in tables and sentences
scaling  one script on several numbers of devices
"""
