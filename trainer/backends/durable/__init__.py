"""What outlives the process of a backend: `appending` writes whole lines, `journaled` keeps results and versions there.

`folder_lock` lets one process at a time into a folder; `retention` says which versions may go.
"""
