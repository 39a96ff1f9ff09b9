"""The figures of `bench predict step OUT=…`, with measured and emulated points beside the predicted ones."""
