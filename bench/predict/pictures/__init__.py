"""The figures of `bench forecast OUT=…`, with measured and emulated points beside the predicted ones."""
