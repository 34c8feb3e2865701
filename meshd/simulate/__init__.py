"""A world in memory around the real planner and controllers: clouds, tailnet and Slurm over a virtual clock.

`meshctl simulate` asks it what settings would rent and how long jobs would wait. The tests of meshd's promises live
through histories of faults and kills in it. The daemon knows nothing of it.
"""
