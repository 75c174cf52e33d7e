"""Trajectories, SFT sets and preference pairs as files that other trainers read.

In reading order: `conversations` (turns to whole prompts), `preferences` (scored answers to pairs), `formats` (rows as
trainers read them).
"""
