"""Pictures of a forecast, with what was measured and emulated of it beside: `bench forecast` with OUT.

points      records of runs and emulations that belong to a forecast; why others do not
efficiency  over devices: what is predicted, with its interval; what was measured and emulated
timeline    one step: what computes and what is sent, predicted and as emulated
winner      which mode wins over the rate of the links and the computation per byte of gradients
"""
