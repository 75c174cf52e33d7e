"""Trajectories, SFT sets and preference pairs as files that other trainers read.

In reading order: `reading` (what was asked for, without what was excluded), `conversations` (turns to whole prompts),
`preferences` (scored answers to pairs), `formats` (rows as trainers read them), `writing` (files), `run` (the wiring).
"""
