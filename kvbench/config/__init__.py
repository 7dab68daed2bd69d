"""Settings of the command line and of `conf/` to frozen objects; only this package imports Hydra.

In reading order:

overrides: the words of a command line as settings and their values, by Hydra's grammar.
entries: what a name of a group stands for, as settings: a file of `conf`, or what users give (`given`).
compose: a tree of settings for each combination of values; `protocol`: what `protocol=NAME` puts over a policy.
settings: a part of a tree as an object, checked by `validation`, and its label; `policy_parts`: how a policy is built.
cells: a tree as a cell.
synonyms: what to write instead of a name or a setting that there is not.
"""
