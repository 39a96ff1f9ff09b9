"""`bench infer`: classifies images without labels by the weights of a checkpoint, over all devices."""
