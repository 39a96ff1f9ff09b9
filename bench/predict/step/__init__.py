"""What a step will take on more devices than there are: arithmetic on a profile of one device and a model of the link.

profile   one device: forward, backward, when each gradient is ready, the optimizer; read from a record
link      what carries messages: alpha and beta, said by a person or measured by `bench network`
engines   what DDP, Horovod, ZeRO-1 and FSDP do in a step, simulated event by event: the lesson
alike     whether a run did a profile's work, by a forecast's engine
result    the step on N devices: the slowest of N ranks, the interval, where the time goes; tables and words

It imports no torch, and starts nothing. What comes out is predicted, and says so.
"""
