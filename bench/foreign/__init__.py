"""Training scripts that are not this project's, timed as they are: what ``bench time`` measures.

command  starts the command, and puts together what its processes leave
hook     in every Python process of it: waits for the first optimizer
rank     in every process that trains: times its steps, and leaves a part
models   the models that a process trains, and when they are evaluated
watching  the Watch of such a process
record   the record: a kind of its own, which no table of runs, no pool and no comparison takes
result   its figures in tables and in words
scaling  one script on several numbers of devices
"""
