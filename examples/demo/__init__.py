"""`python -m examples.demo`: order events through a whole cluster, and the proof that none is lost.

`__main__` starts the cluster and runs the parts one after the other; each part shows what it did and
says whether it holds. `messages` is the first part, `tally` what it counts, `screen` what it shows.
"""
