"""The time of a step on more devices: arithmetic on a profile of one device and an alpha-beta model of the link.

engines.py, written to be read, simulates DDP, Horovod, ZeRO-1 and FSDP event by event. No torch is imported.
"""
