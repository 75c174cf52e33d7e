"""Trajectories, SFT sets and preference pairs as files for other trainers.

In reading order: `run` (the wiring), `reading` (the selected trajectories), `conversations` (turns to whole prompts),
`preferences` (scored answers to pairs), `formats` (rows as trainers read them), `writing` (files).
"""
