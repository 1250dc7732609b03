"""Many runs from one experiment file, on this machine or on a Ray cluster.

plan: the runs of an experiment. remaining: which of them are left to do. local, cluster: make them on this machine
or with Ray. progress: the table in the terminal.
"""
