"""Data sets of permutations for models of codes, one per file.

Some distributions are known exactly (cycles, Mallows with all phi at once, Plackett-Luce); others
are files of the user (votes, ratings).
"""
