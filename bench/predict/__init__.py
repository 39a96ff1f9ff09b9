"""Predictions without the machine they are about: ``step`` (time of a step on more devices), ``memory`` (per device), ``advice``
(which mode to use), ``pictures`` of them, and ``emulation``, which checks the step with real messages and waits for computation."""
