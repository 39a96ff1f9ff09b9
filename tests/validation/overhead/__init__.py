"""What the harness itself costs, against bare scripts that do the same work.

__main__        the parts, the rounds, the table and the file
processes       the programs, and how each is run
bare            scripts as a person writes them, up to the first step
paired          the harness and a bare loop in turns, in the same processes
input_pipeline  batches of photographs, the harness's and torchvision's, in turns in one loader worker
"""
