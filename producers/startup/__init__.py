"""How recording begins in a program that is not changed: `rollbus capture` puts this folder on Python's path.

Python imports a module `sitecustomize` when it starts; ours reads a plan and calls `init` and `instrument`. In reading
order: plan (what the command hands to the program's processes), begin, sitecustomize.
"""
