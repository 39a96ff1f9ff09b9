"""Images without labels, classified by the weights of a checkpoint over all devices: ``bench predict-images``.

plan   what the ranks are told, and what they leave
files  the images of a folder, as batches
rank   what a rank does instead of training
"""
