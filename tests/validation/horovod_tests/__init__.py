"""Horovod's own tests of its torch side, against the Horovod that is installed here.

__main__   which tests, the table and the limit
launch     horovodrun, with one fault of its rendezvous fixed
rank       a plugin of pytest on every rank: what came of each test
"""
