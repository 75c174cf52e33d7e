"""A run as an object: its folder, settings, services, recorder, files and plot.

A configuration goes in; a folder that can be listed, resumed, evaluated, served and deleted comes out. Read first:
`folder`, then `run`.
"""
