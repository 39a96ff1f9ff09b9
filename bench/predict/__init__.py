"""Predictions without the devices they are about: time of a step, memory per device, and which mode to use."""
