"""Trajectories, SFT sets and preference pairs as files for other trainers.

In reading order: `run` (the wiring), `readers` (which programs read an export, and what each takes), `reading` (the
selected trajectories), `conversations` (turns to whole prompts), `preferences` (scored answers to pairs), `forms`
(messages as a reader takes them), `formats` (rows), `numbers` (JSON whose numbers arrive), `writing` (files).
"""
