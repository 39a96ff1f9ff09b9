"""Which data-parallel mode to use, in words: rules over what was measured here and over what a forecast predicts.

facts      what is known: the rounds of each mode, the parts of its step, a profile of one device, a link, a price
choice     from measured rounds: which mode, and whether to distribute at all
step       what holds a step back, and what to try first, in the order of the expected gain
cluster    predicted alone: devices that are not here, and from how many on the efficiency is low
answers    all of it as headings and lines; what could not be known

It imports no torch, and starts nothing. What is predicted is in lines of its own, which say so.
"""
